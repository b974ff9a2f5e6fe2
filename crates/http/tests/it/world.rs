//! A whole Belljar behind a port, but for its sandboxes and its model.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use control::{Base, Config, Control, ControlError, Outside};
use lifecycle::Tasks;
use providers::{Model, ModelSettings, ProviderKind, Providers, RetryLimits, SettingsPrice, Timeouts};
use reqwest::{Method, RequestBuilder, Response};
use sandbox::{ImageDigest, SandboxProvider, Simulator};
use serde_json::{Value, json};
use store::{Asker, Store};
use tempfile::TempDir;
use testkit::model_server::{Answer, ModelServer};
use tokio::net::TcpListener;

// The runtime that plays in control's tests.
#[path = "../../../control/tests/it/world/crm.rs"]
#[allow(dead_code, reason = "each test program needs another part of it")]
pub mod crm;
#[path = "../../../control/tests/it/world/inside.rs"]
#[allow(dead_code, reason = "each test program needs another part of it")]
mod inside;

use inside::Inside;

pub struct World {
    pub url: String,
    /// Tokens: an admin's, and those of two users.
    pub admin: String,
    pub ada: String,
    pub eve: String,
    pub models: ModelServer,
    pub(crate) inside: Arc<Inside>,
    pub tasks: Tasks,
    http: reqwest::Client,
    /// Lives as long as the world does.
    _folder: TempDir,
}

impl World {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(differs: impl FnOnce(&mut Config)) -> Self {
        Self::with_outside(differs, |_, _| Outside::default()).await
    }

    pub async fn with_outside(
        differs: impl FnOnce(&mut Config),
        outside: impl FnOnce(&Path, &Tasks) -> Outside,
    ) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = TempDir::with_prefix("belljar-http-").unwrap();
        let models = ModelServer::start().await;
        let image: ImageDigest = "ab".repeat(32).parse().unwrap();
        let inside = Arc::new(Inside::default());
        let program = Arc::clone(&inside).program();
        let sandboxes: Arc<dyn SandboxProvider> = Arc::new(Simulator::new([image.clone()], program).unwrap());
        let mut config = Config::new("m", Base::new(image));
        config.tools = agent::definitions().to_vec();
        differs(&mut config);
        let store = Store::open(store::Config::new(folder.path().join("store.db")))
            .await
            .unwrap();
        let tasks = Tasks::new();
        let control = Control::start(
            config,
            store.clone(),
            providers(&models),
            sandboxes,
            outside(folder.path(), &tasks),
            tasks.child(),
        )
        .await
        .unwrap();

        let admin = control
            .first_admin("admin", |_| Ok::<_, ControlError>(()))
            .await
            .unwrap()
            .expect("the first start")
            .expose()
            .to_owned();
        let mut tokens = Vec::new();
        for name in ["ada", "eve"] {
            let user = store.create_user(Asker::System, name, false).await.unwrap();
            let token = store.create_token(Asker::System, user.id, "test", None).await.unwrap();
            tokens.push(token.secret.expose().to_owned());
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = http_api::router(http_api::Parts {
            control,
            store,
            models: vec![http_api::Model {
                name: "m".into(),
                provider: "anthropic".into(),
                window: 100_000,
                default: true,
            }],
            scratch: folder.path().to_owned(),
            stop: tasks.stop(),
        });
        tasks.spawn(http_api::serve(
            listener,
            router,
            http_api::Config::default(),
            tasks.clone(),
        ));
        let eve = tokens.pop().unwrap();
        let ada = tokens.pop().unwrap();
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(60))
            .build()
            .unwrap();
        Self {
            url,
            admin,
            ada,
            eve,
            models,
            inside,
            tasks,
            http,
            _folder: folder,
        }
    }

    pub fn request(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        if token.is_empty() {
            request
        } else {
            request.bearer_auth(token)
        }
    }

    pub async fn get(&self, path: &str, token: &str) -> Response {
        self.request(Method::GET, path, token).send().await.unwrap()
    }

    /// What a path answers, as JSON.
    pub async fn json(&self, path: &str, token: &str) -> Value {
        self.get(path, token).await.json().await.unwrap()
    }

    /// The answer to a POST, which must have gone well.
    pub async fn post(&self, path: &str, token: &str, body: Value) -> Value {
        let response = self
            .request(Method::POST, path, token)
            .json(&body)
            .send()
            .await
            .unwrap();
        let status = response.status();
        let body: Value = response.json().await.unwrap();
        assert!(status.is_success(), "{path}: {status} {body}");
        body
    }

    /// A session of Ada's that has done its work.
    pub async fn worked(&self, says: &str) -> String {
        let session = self.post("/api/v1/sessions", &self.ada, json!({})).await;
        let session = session["id"].as_str().unwrap().to_owned();
        self.work(&session, says).await;
        session
    }

    /// One more run of a session, to its end.
    pub async fn work(&self, session: &str, says: &str) {
        self.models.next(Answer::text(says));
        let accepted = self
            .post(
                &format!("/api/v1/sessions/{session}/prompts"),
                &self.ada,
                json!({"text": "work"}),
            )
            .await;
        let mut frames = self
            .frames(session, &self.ada, &accepted["after"].to_string(), true)
            .await;
        while let Some(frame) = frames.next().await {
            if frame.data["type"] == "run" && frame.data["run"] == accepted["run"] && frame.data["state"] == "done" {
                return;
            }
        }
        panic!("the stream ended before the run did");
    }

    /// A session's event stream.
    pub async fn frames(&self, session: &str, token: &str, after: &str, follow: bool) -> Frames {
        let path = format!("/api/v1/sessions/{session}/events?follow={follow}");
        let response = self
            .request(Method::GET, &path, token)
            .header("last-event-id", after)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        Frames {
            response,
            text: String::new(),
        }
    }
}

fn providers(models: &ModelServer) -> Providers {
    let mut settings = ModelSettings::new(ProviderKind::Anthropic);
    settings.model = Some("fake".to_owned());
    settings.base_url = Some(models.base_url());
    settings.api_key = Some(secret::Secret::new(models.key()).into());
    settings.window = Some(200_000);
    settings.max_output = Some(8_000);
    settings.price = Some(SettingsPrice {
        input: 3.0,
        output: 15.0,
        cache_read: None,
        cache_write: None,
        cache_write_hour: None,
    });
    let model = Model::new("m", settings).unwrap();
    Providers::new(vec![model], Timeouts::default(), RetryLimits::default()).unwrap()
}

#[derive(Clone, PartialEq, Debug)]
pub struct Frame {
    pub id: String,
    pub data: Value,
}

/// Server-sent events, one by one.
pub struct Frames {
    response: Response,
    text: String,
}

impl Frames {
    /// The next frame with data; nothing at the end.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            while let Some((frame, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    frame
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .map(|value| value.trim().to_owned())
                };
                let found = field("data:").map(|data| Frame {
                    id: field("id:").unwrap(),
                    data: serde_json::from_str(&data).unwrap(),
                });
                self.text = rest.to_owned();
                if found.is_some() {
                    return found;
                }
            }
            let chunk = tokio::time::timeout(Duration::from_secs(60), self.response.chunk())
                .await
                .expect("something to happen");
            self.text.push_str(std::str::from_utf8(&chunk.unwrap()?).unwrap());
        }
    }

    /// What there is, until the stream ends.
    pub async fn all(mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }
}
