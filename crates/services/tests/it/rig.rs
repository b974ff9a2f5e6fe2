//! Upstreams, and services that call them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use dial::{Dialer, Resolve, ResolveError};
use domain::{SessionId, UserId};
use http::HeaderMap;
use lifecycle::Tasks;
use secret::{Custody, Reference, Secret, Source, Successors, Unresolved};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use services::{Answer, Bound, Call, Catalogue, Code, Failure, Problem, ServiceSettings, Services, Trust};
use tokio::net::TcpListener;
use worker::Worker;

/// The name that upstreams of tests have.
pub(crate) const HOST: &str = "upstream.example.com";
/// The credential of tests.
pub(crate) const KEY: &str = "canary-7f3a/secret+key==";

/// A request as an upstream got it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) verb: String,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// An upstream on this machine.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    tasks: Tasks,
}

impl Upstream {
    /// Answers each request by a function, which is also told how many came before it.
    pub(crate) async fn start(answer: impl Fn(&Seen, usize) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = Tasks::new();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let app = app(Arc::clone(&seen), Arc::new(answer));
        tasks.spawn_until_stopped(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, seen, tasks }
    }

    /// Everything that came.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The one request that came.
    #[track_caller]
    pub(crate) fn one(&self) -> Seen {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }

    /// The base of an API below `/v1`.
    pub(crate) fn base(&self) -> String {
        format!("http://{HOST}:{}/v1", self.address.port())
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

type Answering = Arc<dyn Fn(&Seen, usize) -> Response + Send + Sync>;

/// The routes of an upstream: one for everything.
pub(crate) fn app(seen: Arc<Mutex<Vec<Seen>>>, answer: Answering) -> axum::Router {
    axum::Router::new().fallback(move |request: Request| {
        let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
        async move {
            let (head, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 8 << 20).await.unwrap();
            let request = Seen {
                verb: head.method.to_string(),
                target: head.uri.path_and_query().map_or(String::new(), ToString::to_string),
                headers: head.headers,
                body: String::from_utf8(body.to_vec()).unwrap(),
            };
            let number = {
                let mut seen = seen.lock().unwrap();
                seen.push(request.clone());
                seen.len() - 1
            };
            answer(&request, number)
        }
    })
}

pub(crate) fn ok(value: Value) -> Response {
    status(200, value)
}

pub(crate) fn status(status: u16, value: Value) -> Response {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Body::from(value.to_string()))
        .unwrap()
}

pub(crate) fn with(mut response: Response, name: &'static str, value: &str) -> Response {
    response.headers_mut().insert(name, value.parse().unwrap());
    response
}

/// Names lead to this machine, but for those that lead where a test says.
#[derive(Default)]
pub(crate) struct Names(pub(crate) BTreeMap<String, Vec<IpAddr>>);

#[async_trait::async_trait]
impl Resolve for Names {
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if let Some(addresses) = self.0.get(name) {
            return Ok(addresses.clone());
        }
        Ok(vec!["127.0.0.1".parse().unwrap()])
    }
}

/// Secrets that a test changes while services use them.
#[derive(Clone, Default)]
pub(crate) struct Secrets(pub(crate) Arc<Mutex<BTreeMap<Reference, Secret>>>);

impl Secrets {
    pub(crate) fn set(&self, name: &str, text: &str) {
        let reference = format!("store:{name}").parse().unwrap();
        self.0.lock().unwrap().insert(reference, Secret::new(text));
    }

    pub(crate) fn revoke(&self, name: &str) {
        self.0.lock().unwrap().remove(&format!("store:{name}").parse().unwrap());
    }
}

impl Source for Secrets {
    fn secret(&self, reference: &Reference) -> Result<Secret, Unresolved> {
        self.0.lock().unwrap().secret(reference)
    }
}

/// One service called `crm`.
pub(crate) struct Rig {
    pub(crate) services: Services,
    pub(crate) secrets: Secrets,
    pub(crate) session: SessionId,
    pub(crate) user: UserId,
}

/// How a rig is made.
pub(crate) struct Setting {
    pub(crate) definition: String,
    pub(crate) settings: ServiceSettings,
    pub(crate) names: Names,
    pub(crate) trust: Trust,
    pub(crate) secrets: Secrets,
    pub(crate) successors: Option<Arc<dyn Successors>>,
}

impl Setting {
    /// A service with these methods at this base, on this machine, with a bearer token.
    pub(crate) fn new(base: &str, methods: &str) -> Self {
        Self::with_auth(base, "[auth]\nkind = \"bearer\"\n", &[("token", "store:key")], methods)
    }

    pub(crate) fn with_auth(base: &str, auth: &str, slots: &[(&str, &str)], methods: &str) -> Self {
        let secrets = Secrets::default();
        secrets.set("key", KEY);
        Self {
            definition: format!(
                "name = \"crm\"\nkind = \"http\"\nsummary = \"Contacts\"\nbase_url = \"{base}\"\n{auth}\n{methods}"
            ),
            settings: ServiceSettings {
                auth: slots
                    .iter()
                    .map(|(slot, bound)| ((*slot).to_owned(), Bound::from(*bound)))
                    .collect(),
                addresses: vec!["127.0.0.0/8".parse().unwrap()],
                ..ServiceSettings::default()
            },
            names: Names::default(),
            trust: Trust::only(b"").unwrap(),
            secrets,
            successors: None,
        }
    }

    pub(crate) fn try_build(self) -> (Rig, Vec<Problem>) {
        let folder = tempfile::tempdir().unwrap();
        let crm = folder.path().join("crm");
        std::fs::create_dir(&crm).unwrap();
        std::fs::write(crm.join("service.toml"), &self.definition).unwrap();
        let (catalogue, mistakes) = Catalogue::load(&[folder.path()]);
        assert!(mistakes.is_empty(), "{mistakes:?}");
        let settings = BTreeMap::from([("crm".to_owned(), self.settings)]);
        let dialer = Dialer::new(Arc::new(self.names), dial::Settings::default());
        let secrets = Custody {
            source: Arc::new(self.secrets.clone()),
            successors: self.successors,
        };
        let (services, problems) = Services::new(
            &catalogue,
            &settings,
            secrets,
            dialer,
            self.trust,
            Tasks::new(),
            guard(),
        )
        .unwrap();
        let rig = Rig {
            services,
            secrets: self.secrets,
            session: SessionId::new(),
            user: UserId::new(),
        };
        (rig, problems)
    }

    pub(crate) fn build(self) -> Rig {
        let (rig, problems) = self.try_build();
        assert!(problems.is_empty(), "{problems:?}");
        rig
    }
}

impl Rig {
    pub(crate) async fn ask(&self, method: &str, arguments: Value) -> Result<Answer, Failure> {
        self.ask_with_key(method, arguments, None).await
    }

    pub(crate) async fn ask_with_key(
        &self,
        method: &str,
        arguments: Value,
        key: Option<&str>,
    ) -> Result<Answer, Failure> {
        let arguments = RawValue::from_string(arguments.to_string()).unwrap();
        let call = Call {
            session: self.session,
            user: self.user,
            service: "crm",
            method,
            arguments: &arguments,
            idempotency_key: key,
        };
        let result = self.services.call(call).await;
        if let Err(failure) = &result {
            assert_clean(&format!("{failure:?} {}", json!(failure)));
        }
        result
    }

    /// The result of a call that succeeds.
    pub(crate) async fn get(&self, method: &str, arguments: Value) -> Value {
        let answer = self.ask(method, arguments).await.unwrap().whole().await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    /// The failure of a call, whenever it comes.
    pub(crate) async fn fail(&self, method: &str, arguments: Value) -> Failure {
        match self.ask(method, arguments).await {
            Err(failure) => failure,
            Ok(answer) => {
                let failure = answer.whole().await.unwrap_err();
                assert_clean(&format!("{failure:?}"));
                failure
            }
        }
    }

    pub(crate) async fn fails(&self, method: &str, arguments: Value, code: Code) -> Failure {
        let failure = self.fail(method, arguments.clone()).await;
        assert_eq!(failure.code, code, "{method} of {arguments}: {failure:?}");
        failure
    }
}

/// Reads statements as `belljar worker` does.
pub(crate) fn guard() -> Worker {
    guard_with(|_| {})
}

/// The same, with other settings.
pub(crate) fn guard_with(differs: fn(&mut worker::Config)) -> Worker {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().parent().unwrap().join("examples/guard");
    let mut config = worker::Config {
        program,
        arguments: Vec::new(),
        ..worker::Config::default()
    };
    differs(&mut config);
    Worker::new(config)
}

/// The credential stands in it in no spelling.
#[track_caller]
pub(crate) fn assert_clean(text: &str) {
    use base64::Engine as _;
    let base64 = base64::engine::general_purpose::STANDARD.encode(KEY);
    let hex = hex::encode(KEY);
    let percent = "canary-7f3a%2Fsecret%2Bkey%3D%3D";
    for spelling in [KEY, &base64, &hex, &hex.to_uppercase(), percent, "canary-7f3a"] {
        assert!(!text.contains(spelling), "{spelling} in {text}");
    }
}
