//! A request and its answer, made again where that does no harm.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderMap, StatusCode};
use lifecycle::Tasks;
use scrub::Scrub;
use tokio::time::Instant;
use url::Url;

use crate::body::{Bounds, Incoming};
use crate::client::host;
use crate::credentials::{Given, Means};
use crate::definition::{Access, Answer as Output, Body, Method};
use crate::plan::{HttpMethod, HttpPlan, MethodPlan};
use crate::refusal::{Refusal, is_used_up};
use crate::request::Outgoing;
use crate::retry::{delay, retry_after};
use crate::select::Json;
use crate::{Code, Failure, withhold};

/// How many redirects of an upstream to itself are followed.
const REDIRECTS: usize = 3;
/// The most bytes of an answer that says no.
const REFUSAL_BYTES: u64 = 64 << 10;

/// What came back.
pub(crate) enum Received {
    /// Everything.
    Whole {
        body: Bytes,
        headers: HeaderMap,
        /// What must not come back, for whoever hands on a header.
        scrub: Scrub,
    },
    /// The beginning.
    Flowing { body: Box<Incoming>, media_type: String },
}

/// One call's exchange with its upstream.
pub(crate) struct Exchange<'a> {
    pub(crate) plan: &'a HttpPlan,
    pub(crate) method: &'a MethodPlan,
    pub(crate) definition: &'a Method,
    pub(crate) asked: &'a HttpMethod,
    pub(crate) tasks: &'a Tasks,
    pub(crate) deadline: Instant,
    /// Whether a repeat does no harm.
    pub(crate) may_repeat: bool,
    /// What the last answer said that was a no.
    pub(crate) refused: Mutex<Option<Refused>>,
}

/// An answer that says no, freed of what must not come back.
pub(crate) struct Refused {
    pub(crate) body: Bytes,
    pub(crate) headers: HeaderMap,
    pub(crate) scrub: Scrub,
}

impl Exchange<'_> {
    /// Makes the request, and makes it again where it failed in a way that may pass.
    pub(crate) async fn run(&self, request: Outgoing) -> Result<Received, Failure> {
        let mut failures = 0;
        loop {
            let failure = match self.attempt(&request).await {
                Ok(received) => return Ok(received),
                Err(failure) => failure,
            };
            failures += 1;
            let wait = delay(failures, &failure, rand::random()).filter(|_| self.may_repeat);
            match wait.filter(|wait| Instant::now() + *wait < self.deadline) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(failure),
            }
        }
    }

    async fn attempt(&self, request: &Outgoing) -> Result<Received, Failure> {
        let mut request = request.clone();
        let mut renewed = false;
        let mut redirects = 0;
        loop {
            let mut sent = request.clone();
            let means = Means {
                client: &self.plan.client,
                base: &self.plan.base,
                tasks: self.tasks,
                deadline: self.deadline,
            };
            let given = self.plan.credentials.give(&mut sent, &means).await?;
            let response = self.plan.client.send(sent, self.deadline).await?;
            let status = response.status();
            if status.is_success() {
                return self.receive(response, &given).await;
            }
            // Nothing was done, and a token may have been revoked before its time.
            if status == StatusCode::UNAUTHORIZED && !renewed && self.plan.credentials.discard(&given).await {
                renewed = true;
                continue;
            }
            if status.is_redirection() {
                request.url = self.redirect(&request, response.headers(), &given, redirects)?;
                redirects += 1;
                continue;
            }
            let headers = response.headers().clone();
            let refusal = self.refusal(status, &headers);
            let bounds = self.bounds(REFUSAL_BYTES);
            let scrub = Scrub::of(&given.secrets);
            let said = match Incoming::new(response, self.plan.client.clone(), &scrub, bounds) {
                Ok(incoming) => incoming.whole().await.unwrap_or_default(),
                Err(_) => Bytes::new(),
            };
            let failure = refusal.failure(&said);
            let body = withhold::from_text(said).unwrap_or_default();
            let refused = Refused { body, headers, scrub };
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(refused);
            return Err(failure);
        }
    }

    async fn receive(&self, response: reqwest::Response, given: &Given) -> Result<Received, Failure> {
        let scrub = Scrub::of(&given.secrets);
        let headers = response.headers().clone();
        let status = response.status();
        let bounds = self.bounds(self.method.answer_bytes);
        let incoming = Incoming::new(response, self.plan.client.clone(), &scrub, bounds)?;
        if self.definition.answer == Output::Binary {
            return Ok(Received::Flowing {
                body: Box::new(incoming),
                media_type: media_type(&headers),
            });
        }
        let mut body = incoming.whole().await?;
        if self.definition.answer == Output::Json {
            let json = Json::check(&body).map_err(|error| {
                Failure::new(
                    Code::AnswerMalformed,
                    format!(
                        "{}: {} answered with something that is not what the method gives: {}",
                        self.method.what,
                        host(&self.plan.base),
                        causes::with_causes(&error)
                    ),
                )
            })?;
            if says_no(&self.asked.request.body, &self.plan.api.failure, json) {
                return Err(self.refusal(status, &headers).failure(&body));
            }
            body = withhold::from_json(body);
        } else {
            body = withhold::from_text(body).map_err(|name| {
                Failure::new(
                    Code::AnswerWithheld,
                    format!(
                        "{}: the answer holds a credential ({name}), which is not handed out",
                        self.method.what
                    ),
                )
            })?;
        }
        Ok(Received::Whole { body, headers, scrub })
    }

    fn refusal(&self, status: StatusCode, headers: &HeaderMap) -> Refusal<'_> {
        let retry_after = retry_after(headers, jiff::Timestamp::now());
        Refusal {
            what: &self.method.what,
            failing: &self.plan.api.failure,
            status,
            retry_after,
            used_up: status == StatusCode::FORBIDDEN && (retry_after.is_some() || is_used_up(headers)),
        }
    }

    fn bounds(&self, bytes: u64) -> Bounds {
        Bounds {
            what: self.method.what.clone(),
            host: host(&self.plan.base),
            bytes,
            deadline: self.deadline,
        }
    }

    /// Where a redirect leads, if it may be followed: a read, to the same origin, below the same base. To any other place
    /// the credential does not go.
    fn redirect(
        &self,
        request: &Outgoing,
        headers: &HeaderMap,
        given: &Given,
        followed: usize,
    ) -> Result<Url, Failure> {
        let (what, base) = (&self.method.what, &self.plan.base);
        let target = headers
            .get(LOCATION)
            .and_then(|location| request.url.join(location.to_str().ok()?).ok());
        let Some(target) = target else {
            return Err(Failure::new(
                Code::Redirected,
                format!("{what}: {} answered with a redirect to nowhere", host(base)),
            ));
        };
        let below = base.path().trim_end_matches('/');
        let is_inside = target.origin() == base.origin()
            && target
                .path()
                .strip_prefix(below)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_inside && self.definition.access == Access::Read && request.verb == http::Method::GET {
            if followed < REDIRECTS {
                return Ok(target);
            }
            return Err(Failure::new(
                Code::Redirected,
                format!("{what}: {} redirects in a circle, or too often", host(base)),
            ));
        }
        // The query may hold the credential, or what it signs.
        let named = format!("{}{}", target.origin().ascii_serialization(), target.path());
        let named = Scrub::of(&given.secrets).clean(named.into());
        let named = crate::refusal::words(String::from_utf8_lossy(&named));
        Err(Failure::new(
            Code::Redirected,
            format!("{what}: {} points to {named}, which is not followed", host(base)),
        )
        .remedy("if that is where the API is now, an administrator writes it as the service's base_url or path"))
    }
}

/// Whether an answer with a good status is a no all the same.
fn says_no(body: &Body, failing: &crate::definition::Failing, json: Json<'_>) -> bool {
    let condition = failing
        .when
        .as_ref()
        .is_some_and(|condition| json.value_at(&condition.at.0).as_ref() == Some(&condition.equals));
    condition
        || matches!(body, Body::GraphQl { .. })
            && json
                .at("/errors")
                .and_then(Json::list)
                .is_some_and(|errors| !errors.is_empty())
}

/// What the upstream says its bytes are, as far as that can be repeated.
fn media_type(headers: &HeaderMap) -> String {
    let written = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let is_token = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|letter| letter.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&letter))
    };
    match written.split_once('/') {
        Some((kind, name)) if written.len() <= 100 && is_token(kind) && is_token(name) => written,
        _ => "application/octet-stream".to_owned(),
    }
}
