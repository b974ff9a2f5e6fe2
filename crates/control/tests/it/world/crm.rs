//! A service with a real upstream, for sandboxes to call.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use async_trait::async_trait;
use control::{Callable, Outside};
use dial::{Dialer, Resolve, ResolveError};
use lifecycle::Tasks;
use secret::{Reference, Secret};
use serde_json::json;
use services::{Bound, Catalogue, ServiceSettings, Services, Trust};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

/// The credential, which nobody but the upstream may see.
pub(crate) const CANARY: &str = "canary-5d81f2";
/// What the upstream answers.
pub(crate) const ANSWERED: &str = "Ada Lovelace";

const DEFINITION: &str = r#"
name = "crm"
summary = "Contacts of the company"
kind = "http"
base_url = "http://crm.example.com/v1"

[auth]
kind = "bearer"

[methods.get]
summary = "One contact"
access = "read"
request = "GET /contacts/{id}"
query = ["pin"]
arguments.properties.id.type = "string"
arguments.properties.pin = { type = "string", x-redact = true }
arguments.required = ["id"]

[methods.count]
summary = "How many contacts there are, which takes long to find out"
access = "read"
request = "GET /contacts"
limits = { per_minute = 1 }

[methods.remove]
summary = "Remove a contact"
access = "write"
request = "DELETE /contacts/{id}"
arguments.properties.id.type = "string"
arguments.required = ["id"]

[methods.add]
summary = "Add a contact"
access = "write"
request = "POST /contacts"
json = "{*}"
arguments.properties.name.type = "string"
arguments.required = ["name"]
limits = { timeout = "10s" }

[methods.put]
summary = "Write a contact, with a key"
access = "write"
request = "POST /contacts"
json = "{*}"
idempotency_header = "Idempotency-Key"
arguments.properties.name.type = "string"
arguments.required = ["name"]
limits = { timeout = "10s" }
"#;

struct Here;

#[async_trait]
impl Resolve for Here {
    async fn resolve(&self, _: &str) -> Result<Vec<IpAddr>, ResolveError> {
        Ok(vec!["127.0.0.1".parse().unwrap()])
    }
}

/// What an upstream that adds contacts has seen of that.
#[derive(Clone)]
pub(crate) struct Added {
    /// The key of each, or nothing.
    pub(crate) keys: Arc<Mutex<Vec<String>>>,
    /// Told of each.
    pub(crate) one: Arc<Notify>,
    /// What is added is answered as long as there are places here.
    pub(crate) answers: Arc<Semaphore>,
}

impl Added {
    /// Of one that answers at once; or not before it may.
    pub(crate) fn new(answers: bool) -> Self {
        Self {
            keys: Arc::default(),
            one: Arc::default(),
            answers: Arc::new(Semaphore::new(usize::from(answers))),
        }
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.keys.lock().unwrap().len()
    }
}

/// An upstream that answers every request with a contact, once it has seen the credential.
pub(crate) async fn upstream(tasks: &Tasks) -> u16 {
    adding(tasks, Added::new(true)).await
}

/// The same, which adds contacts and tells of it.
pub(crate) async fn adding(tasks: &Tasks, added: Added) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let each = tasks.clone();
    tasks.spawn_until_stopped(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            each.spawn_until_stopped(answer(stream, added.clone()));
        }
    });
    port
}

async fn answer(mut stream: TcpStream, added: Added) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await.unwrap_or(0) == 0 {
            break;
        }
        request.push(byte[0]);
    }
    let request = String::from_utf8(request).unwrap().to_lowercase();
    if request.starts_with("post") {
        let key = request.lines().find_map(|line| line.strip_prefix("idempotency-key: "));
        added.keys.lock().unwrap().push(key.unwrap_or_default().to_owned());
        added.one.notify_one();
        drop(added.answers.acquire().await.unwrap());
    }
    let (status, body) = if request.contains(&format!("authorization: bearer {CANARY}")) {
        ("200 OK", json!({"name": ANSWERED}).to_string())
    } else {
        ("401 Unauthorized", "{}".to_owned())
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(answer.as_bytes()).await;
}

/// What lies outside: the service `crm`, at that port of this machine. Its definition goes into the folder.
pub(crate) fn outside(port: u16, folder: &Path, tasks: &Tasks) -> Outside {
    let crm = folder.join("services/crm");
    std::fs::create_dir_all(&crm).unwrap();
    std::fs::write(crm.join("service.toml"), DEFINITION).unwrap();
    let (catalogue, mistakes) = Catalogue::load(&[folder.join("services")]);
    assert!(mistakes.is_empty(), "{mistakes:?}");
    let settings = ServiceSettings {
        base_url: Some(format!("http://crm.example.com:{port}/v1")),
        auth: [("token".to_owned(), Bound::from("store:crm"))].into(),
        addresses: vec!["127.0.0.0/8".parse().unwrap()],
        ..ServiceSettings::default()
    };
    let secrets: BTreeMap<Reference, Secret> = [("store:crm".parse().unwrap(), Secret::new(CANARY))].into();
    let (services, problems) = Services::new(
        &catalogue,
        &[("crm".to_owned(), settings)].into(),
        Arc::new(secrets),
        Dialer::new(Arc::new(Here), dial::Settings::default()),
        Trust::only(b"").unwrap(),
        tasks.clone(),
        worker::Worker::new(worker::Config::default()),
    )
    .unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    Outside {
        services: Some(Callable::new(Arc::new(catalogue), services)),
        ..Outside::default()
    }
}
