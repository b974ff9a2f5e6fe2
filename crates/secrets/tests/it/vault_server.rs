//! A server that speaks the part of Vault's HTTP API that is asked for, as its API documentation says, and refuses what the
//! real one refuses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use lifecycle::Tasks;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What the server knows.
#[derive(Default)]
pub(crate) struct Inside {
    /// Tokens that are good, and seconds that each lasts.
    pub(crate) tokens: BTreeMap<String, u64>,
    /// Role id to secret id.
    pub(crate) roles: BTreeMap<String, String>,
    /// KV version 2 at `secret/`: nothing where the newest version was deleted.
    pub(crate) versioned: BTreeMap<String, Option<Value>>,
    /// KV version 1 at `old/`.
    pub(crate) plain: BTreeMap<String, Value>,
    /// Paths that the policy denies.
    pub(crate) denied: BTreeSet<String>,
    /// Leases that stand, by id.
    pub(crate) leases: BTreeSet<String>,
    /// Seconds that a lease or a token made by a login lasts.
    pub(crate) lasts: u64,
    /// Whether what is made can be renewed.
    pub(crate) renewable: bool,
    /// The status that everything is answered with, where it is set.
    pub(crate) broken: Option<u16>,
    /// The namespace that requests must name.
    pub(crate) namespace: Option<String>,
    /// Each request: method and path.
    pub(crate) asked: Vec<String>,
    made: u64,
}

impl Inside {
    /// How often something was asked for.
    pub(crate) fn count(&self, request: &str) -> usize {
        self.asked.iter().filter(|asked| *asked == request).count()
    }

    fn next(&mut self) -> u64 {
        self.made += 1;
        self.made
    }
}

/// A vault on this machine, as long as it is not dropped.
pub(crate) struct VaultServer {
    pub(crate) address: String,
    inside: Arc<Mutex<Inside>>,
    tasks: Tasks,
}

impl VaultServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let inside = Arc::new(Mutex::new(Inside {
            lasts: 3_600,
            renewable: true,
            ..Inside::default()
        }));
        inside.lock().unwrap().tokens.insert("good-token".to_owned(), 0);
        let router = Router::new().fallback(answer).with_state(Arc::clone(&inside));
        let tasks = Tasks::new();
        tasks.spawn_until_stopped(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, inside, tasks }
    }

    pub(crate) fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap()
    }
}

impl Drop for VaultServer {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

type Answer = Result<Value, (u16, &'static str)>;

async fn answer(
    State(inside): State<Arc<Mutex<Inside>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut inside = inside.lock().unwrap();
    let path = uri.path().strip_prefix("/v1/").expect("a path below /v1").to_owned();
    inside.asked.push(format!("{method} {path}"));
    assert!(uri.query().is_none(), "nothing belongs into a query: {uri}");
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(
        header("x-vault-request").as_deref(),
        Some("true"),
        "as an agent may insist"
    );
    assert!(header("authorization").is_none() && header("cookie").is_none());
    let body: Value = if body.is_empty() {
        Value::Null
    } else {
        assert_eq!(header("content-type").as_deref(), Some("application/json"));
        serde_json::from_slice(&body).unwrap()
    };
    if let Some(status) = inside.broken {
        return said(status, "Vault is sealed");
    }
    if inside.namespace != header("x-vault-namespace") {
        return said(403, "permission denied");
    }
    let token = header("x-vault-token");
    match route(&mut inside, &method, &path, token.as_deref(), &body) {
        Ok(value) => axum::Json(value).into_response(),
        Err((status, words)) => said(status, words),
    }
}

fn said(status: u16, words: &str) -> Response {
    let errors: Vec<&str> = if words.is_empty() { vec![] } else { vec![words] };
    (
        StatusCode::from_u16(status).unwrap(),
        axum::Json(json!({ "errors": errors })),
    )
        .into_response()
}

const DENIED: (u16, &str) = (403, "permission denied");

fn route(inside: &mut Inside, method: &Method, path: &str, token: Option<&str>, body: &Value) -> Answer {
    if path == "auth/approle/login" {
        assert_eq!((method, token), (&Method::POST, None), "a login shows no token");
        return log_in(inside, body);
    }
    let Some(token) = token.filter(|token| inside.tokens.contains_key(*token)) else {
        return Err(DENIED);
    };
    let token = token.to_owned();
    if inside.denied.contains(path) {
        return Err(DENIED);
    }
    let (lasts, renewable) = (inside.lasts, inside.renewable);
    match (method.as_str(), path) {
        ("GET", "auth/token/lookup-self") => Ok(json!({ "data": {
            "id": token, "ttl": inside.tokens[&token], "renewable": inside.tokens[&token] > 0 && renewable,
            "policies": ["default"], "expire_time": null,
        } })),
        ("POST", "auth/token/renew-self") if renewable => {
            Ok(json!({ "auth": { "client_token": token, "lease_duration": lasts, "renewable": true } }))
        }
        ("POST", "auth/token/renew-self") => Err((400, "token is not renewable")),
        ("PUT", "sys/leases/lookup") => match body["lease_id"].as_str() {
            Some(id) if inside.leases.contains(id) => Ok(json!({ "data": { "id": id, "ttl": lasts } })),
            _ => Err((400, "invalid lease")),
        },
        ("PUT", "sys/leases/renew") => match body["lease_id"].as_str() {
            Some(id) if inside.leases.contains(id) => {
                Ok(json!({ "lease_id": id, "lease_duration": lasts, "renewable": renewable, "data": null }))
            }
            _ => Err((400, "lease not found")),
        },
        ("GET", _) => read(inside, path),
        _ => Err((405, "")),
    }
}

fn log_in(inside: &mut Inside, body: &Value) -> Answer {
    let known = body["role_id"].as_str().and_then(|role| inside.roles.get(role));
    if known.is_none() || known.map(String::as_str) != body["secret_id"].as_str() {
        return Err((400, "invalid role or secret ID"));
    }
    let token = format!("made-token-{}", inside.next());
    inside.tokens.insert(token.clone(), inside.lasts);
    Ok(json!({ "auth": { "client_token": token, "lease_duration": inside.lasts, "renewable": inside.renewable } }))
}

fn read(inside: &mut Inside, path: &str) -> Answer {
    let mounts = HashMap::from([
        ("secret", ("kv", "2")),
        ("old", ("kv", "1")),
        ("database", ("database", "")),
    ]);
    if let Some(below) = path.strip_prefix("sys/internal/ui/mounts/") {
        let first = below.split('/').next().unwrap();
        let Some((engine, version)) = mounts.get(first) else {
            return Err((
                403,
                "preflight capability check returned 403, please ensure client's policies grant access",
            ));
        };
        let options = if version.is_empty() {
            Value::Null
        } else {
            json!({ "version": version })
        };
        return Ok(
            json!({ "data": { "path": format!("{first}/"), "type": engine, "options": options, "accessor": "x" } }),
        );
    }
    if let Some(name) = path.strip_prefix("secret/data/") {
        return match inside.versioned.get(name) {
            Some(Some(data)) => Ok(
                json!({ "lease_id": "", "lease_duration": 0, "renewable": false, "data": {
                "data": data,
                "metadata": { "version": 1, "deletion_time": "", "destroyed": false, "created_time": "2026-11-22T00:00:00Z" },
            } }),
            ),
            _ => Err((404, "")),
        };
    }
    if let Some(name) = path.strip_prefix("old/") {
        let data = inside.plain.get(name).ok_or((404, ""))?;
        return Ok(json!({ "lease_id": "", "lease_duration": 2_764_800, "renewable": false, "data": data }));
    }
    if let Some(role) = path.strip_prefix("database/creds/") {
        let number = inside.next();
        let id = format!("database/creds/{role}/lease-{number}");
        inside.leases.insert(id.clone());
        return Ok(json!({
            "lease_id": id, "lease_duration": inside.lasts, "renewable": inside.renewable,
            "data": { "username": format!("v-{role}-{number}"), "password": format!("made-{number}") },
        }));
    }
    // What a version 2 engine says to a path of version 1.
    Err((404, "Invalid path for a versioned K/V secrets engine"))
}
