//! Services of kind `script`: JavaScript between calls of an API.
//!
//! The script runs in a worker, a process that holds nothing and reaches nothing. What it fetches is asked for here, at the
//! places that the definition names and nowhere else, as any other request of a service: with the credential, which the
//! script never sees, and under the same checks of addresses, sizes and times.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use lifecycle::Tasks;
use scrub::Scrub;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use url::Url;
use worker::{Fetch, FetchRequest, ScriptJob, ScriptLimits, Worker, WorkerError};

use crate::definition::{Access, Method};
use crate::exchange::{Exchange, Received};
use crate::gate::Gate;
use crate::plan::{HttpMethod, HttpPlan, MethodPlan};
use crate::refusal::words;
use crate::request::Outgoing;
use crate::{Code, Failure};

/// `fetch`, as scripts know it. It stands in one line, so that the script's lines keep their numbers but for this one.
const FETCH: &str = include_str!("script/fetch.js");
/// The function that it is made of.
const REQUEST: &str = "request";

/// The most requests of one call.
const FETCHES: u32 = 100;
/// How much sooner than its caller a script is stopped, so that it can be told why.
const MARGIN: Duration = Duration::from_millis(700);

/// Headers that a script does not set.
const OURS: [&str; 12] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "host",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that a script is told of, and how the names of those begin that tell of rates.
const TOLD: [HeaderName; 5] = [CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK, RETRY_AFTER];
const RATES: [&str; 3] = ["ratelimit", "x-ratelimit-", "x-rate-limit-"];

/// A script, ready to be called.
pub(crate) struct ScriptPlan {
    /// The functions of `script.js`, without the word `export`.
    pub(crate) source: String,
    /// Where requests go: the API, under no name, and the others.
    pub(crate) sites: HashMap<String, HttpPlan>,
    /// How each method's answers are read: as texts.
    pub(crate) reading: HashMap<String, Method>,
    pub(crate) asked: HttpMethod,
    pub(crate) worker: Worker,
    /// Scripts of all services.
    pub(crate) running: Arc<Gate>,
}

/// What a script says of a request.
#[derive(Deserialize)]
struct Options {
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    headers: Option<Map<String, Value>>,
    #[serde(default)]
    body: Option<String>,
}

/// Makes the requests of one call.
struct Fetching<'a> {
    plan: &'a ScriptPlan,
    method: &'a MethodPlan,
    reading: &'a Method,
    tasks: &'a Tasks,
    deadline: Instant,
    /// What requests failed with.
    failures: Mutex<Vec<Failure>>,
}

impl ScriptPlan {
    /// Calls the function of a method's name; a JSON text.
    pub(crate) async fn call(
        &self,
        name: &str,
        method: &MethodPlan,
        arguments: Map<String, Value>,
        tasks: &Tasks,
        deadline: Instant,
    ) -> Result<Bytes, Failure> {
        let fetching = Fetching {
            plan: self,
            method,
            // Each method has one.
            reading: &self.reading[name],
            tasks,
            deadline,
            failures: Mutex::default(),
        };
        let job = ScriptJob {
            source: format!("{}{}\nreturn await {name}(args);", FETCH.trim_end(), self.source),
            arguments: Value::Object(arguments),
            functions: vec![REQUEST.to_owned()],
            limits: ScriptLimits {
                time: deadline
                    .saturating_duration_since(Instant::now())
                    .saturating_sub(MARGIN),
                output_bytes: method.answer_bytes,
                calls: FETCHES,
                ..ScriptLimits::default()
            },
        };
        match self.worker.run_script(job, &fetching).await {
            Ok(result) => Ok(result.value.to_string().into()),
            Err(error) => Err(fetching.failed(&error)),
        }
    }
}

impl Fetching<'_> {
    /// One request, and what the script is told of its answer.
    async fn request(&self, target: &str, options: Options) -> Result<Value, Failure> {
        let (site, path) = match target.split_once(':') {
            Some((name, path)) if !target.starts_with('/') => (self.plan.sites.get(name), path),
            _ => (self.plan.sites.get(""), target),
        };
        let what = &self.method.what;
        let placed = site.and_then(|site| Some((site, below(&site.base, path)?)));
        let (site, url) = placed.ok_or_else(|| {
            let target = words(target.into());
            wrong(
                what,
                &format!("asks for {target:?}, which is at none of the places that the definition names"),
            )
        })?;
        let verb = options.method.as_deref().unwrap_or("GET").to_ascii_uppercase();
        let verb = match verb.as_str() {
            "GET" | "POST" | "PUT" | "PATCH" | "DELETE" => verb.parse().unwrap_or_default(),
            _ => return Err(wrong(what, &format!("asks with the verb {:?}", words(verb.into())))),
        };
        let body = options.body.unwrap_or_default();
        let mut headers = site.headers.clone();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        headers
            .entry(ACCEPT)
            .or_insert(HeaderValue::from_static("application/json"));
        if !body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        for (name, value) in options.headers.unwrap_or_default() {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match (name.parse::<HeaderName>(), text.parse()) {
                (Ok(name), Ok(value)) if !OURS.contains(&name.as_str()) => {
                    headers.insert(name, value);
                }
                _ => return Err(wrong(what, &format!("sets the header {:?}", words(name.into())))),
            }
        }
        let exchange = Exchange {
            plan: site,
            method: self.method,
            definition: self.reading,
            asked: &self.plan.asked,
            tasks: self.tasks,
            deadline: self.deadline,
            may_repeat: verb == http::Method::GET || self.reading.idempotent || self.reading.access == Access::Read,
            refused: Mutex::default(),
        };
        let outgoing = Outgoing {
            verb,
            url,
            headers,
            body: body.into(),
        };
        match exchange.run(outgoing).await {
            Ok(Received::Whole { body, headers, scrub }) => Ok(json!({
                "ok": true,
                "headers": told(&headers, &scrub),
                "body": String::from_utf8_lossy(&body),
            })),
            // Answers are read as texts, which come whole.
            Ok(Received::Flowing { .. }) => Err(wrong(what, "was answered with something that is no text")),
            Err(failure) if matches!(failure.code, Code::NotFound | Code::Refused) => {
                let refused = exchange.refused.into_inner().unwrap_or_else(PoisonError::into_inner);
                let (headers, body) = match &refused {
                    Some(refused) => (told(&refused.headers, &refused.scrub), &refused.body[..]),
                    None => (json!({}), &[][..]),
                };
                let told = json!({
                    "ok": false,
                    "code": failure.code.as_str(),
                    "message": failure.message,
                    "headers": headers,
                    "body": String::from_utf8_lossy(body),
                });
                self.remember(failure);
                Ok(told)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Keeps a failure: the script may throw what it was told.
    fn remember(&self, failure: Failure) {
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(failure);
    }

    /// Why the script has no result. Where it is because of what a request came to, that is what is told.
    fn failed(&self, error: &WorkerError) -> Failure {
        let what = &self.method.what;
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if let WorkerError::Failed { message, .. } = error
            && let Some(failure) = failures.iter().find(|failure| message.contains(&failure.message))
        {
            return failure.clone();
        }
        let code = match error {
            WorkerError::Late { .. } => Code::Timeout,
            WorkerError::Busy { .. } => Code::Busy,
            WorkerError::Limit { .. } if Instant::now() + 2 * MARGIN >= self.deadline => Code::Timeout,
            WorkerError::Start { .. } | WorkerError::Unconfined(_) => Code::Unreachable,
            WorkerError::Refused { .. }
            | WorkerError::File(_)
            | WorkerError::Failed { .. }
            | WorkerError::Limit { .. }
            | WorkerError::Crashed { .. }
            | WorkerError::Nonsense { .. } => Code::UpstreamFailed,
        };
        let failure = Failure::new(code, format!("{what}: {}", words(causes::with_causes(error).into())));
        match error {
            WorkerError::Failed { .. } => {
                failure.remedy("correct the arguments; if they are right, the service's script has a fault")
            }
            WorkerError::Limit { .. } | WorkerError::Late { .. } => failure.remedy("ask for less at once"),
            _ => failure,
        }
    }
}

#[async_trait]
impl Fetch for Fetching<'_> {
    async fn fetch(&self, request: FetchRequest) -> Result<Value, String> {
        let mut arguments = request.arguments.into_iter();
        let target = arguments.next().unwrap_or_default();
        let options = serde_json::from_value(arguments.next().unwrap_or_else(|| json!({})));
        let asked = match (target.as_str(), options) {
            (Some(target), Ok(options)) => self.request(target, options).await,
            _ => Err(wrong(&self.method.what, "asks for something that is no request")),
        };
        asked.map_err(|failure| {
            let message = failure.message.clone();
            self.remember(failure);
            message
        })
    }
}

fn wrong(what: &str, problem: &str) -> Failure {
    Failure::new(Code::Refused, format!("{what}: the script {problem}"))
        .remedy("the service's script has to be corrected")
}

/// A path below a base, if it stays there.
fn below(base: &Url, path: &str) -> Option<Url> {
    let root = base.as_str().trim_end_matches('/');
    let url = Url::parse(&format!("{root}{path}"))
        .ok()
        .filter(|_| path.starts_with('/'))?;
    let inside = url
        .path()
        .strip_prefix(base.path().trim_end_matches('/'))
        .is_some_and(|rest| rest.starts_with('/'));
    (inside && url.origin() == base.origin() && url.fragment().is_none()).then_some(url)
}

/// The headers that a script is told of, as they are but for the credential: what an answer is, where the next part of it is, and how
/// much may still be asked for.
fn told(headers: &HeaderMap, scrub: &Scrub) -> Value {
    let is_told =
        |name: &HeaderName| TOLD.contains(name) || RATES.iter().any(|beginning| name.as_str().starts_with(beginning));
    let told = headers.keys().filter(|name| is_told(name)).filter_map(|name| {
        let values = headers.get_all(name).iter().map(HeaderValue::to_str);
        let text = values.collect::<Result<Vec<_>, _>>().ok()?.join(", ");
        let clean = scrub.clean(text.into());
        Some((name.as_str().to_owned(), Value::from(String::from_utf8_lossy(&clean))))
    });
    Value::Object(told.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threat_074_a_script_reaches_the_named_places_and_nothing_else() {
        let base = Url::parse("https://api.example.com/v1").unwrap();
        for (path, url) in [
            ("/a?b=c", "https://api.example.com/v1/a?b=c"),
            ("/a/../b", "https://api.example.com/v1/b"),
            ("//evil.example/x", "https://api.example.com/v1//evil.example/x"),
            ("/\\evil.example", "https://api.example.com/v1//evil.example"),
            ("/@evil.example", "https://api.example.com/v1/@evil.example"),
        ] {
            assert_eq!(below(&base, path).unwrap().as_str(), url);
        }
        for path in [
            "",
            "a",
            "@evil.example/",
            ".evil.example/",
            ":8080/",
            "https://evil.example/",
            "/..",
            "/../",
            "/../v2/x",
            "/%2e%2e/x",
            "/a/%2E%2e/.%2e/x",
            "/..\\x",
            "/a#b",
        ] {
            assert!(below(&base, path).is_none(), "{path}");
        }
    }
}
