//! One request and its answer.

mod request;
mod response;

use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::Service;
use scrub::Scrub;
use tokio::sync::OwnedSemaphorePermit;

use super::body::{Download, Ledger};
use super::pool::{Key, Load};
use super::strict::Tunnel;
use super::tokens::Handling;
use super::upload::{Meter, Upload};
use super::upstream::{self, Line};
use super::{Decided, Matching, Pending, Shared, answer, facts, select, websocket};
use crate::inject::Substitute;
use crate::{Code, Denied, Outcome, Record, Rule};

/// How long an upstream may take until it begins to answer.
const ANSWER: Duration = Duration::from_secs(600);
/// Characters of a path that the audit is told.
const SHOWN: usize = 512;

/// Answers the requests of one connection.
#[derive(Clone)]
pub(super) struct Exchange {
    shared: Arc<Shared>,
    decided: Arc<Decided>,
    /// Where a WebSocket may begin; not in HTTP/2.
    tunnel: Option<(Tunnel, websocket::Place)>,
}

impl Service<Request<Incoming>> for Exchange {
    type Response = Response<Download>;
    type Error = Infallible;
    type Future = Pending<Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let exchange = self.clone();
        Box::pin(async move { Ok(exchange.answer(request).await) })
    }
}

/// A request that is ready to be sent, and what is to be done with its answer.
struct Outgoing {
    request: Request<Upload>,
    meter: Arc<Meter>,
    rule: Arc<Rule>,
    key: Key,
    scrub: Scrub,
    /// Whether anything was put into it.
    injected: bool,
    tokens: Handling,
    client: Option<hyper::upgrade::OnUpgrade>,
    /// What a WebSocket's messages are filled in with.
    frames: Option<Substitute>,
}

impl Exchange {
    pub(super) const fn new(
        shared: Arc<Shared>,
        decided: Arc<Decided>,
        tunnel: Option<(Tunnel, websocket::Place)>,
    ) -> Self {
        Self {
            shared,
            decided,
            tunnel,
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Download> {
        let mut ledger = Ledger::new(self.record(&request), Arc::clone(&self.shared.parts.audit));
        match self.carry(request, &mut ledger).await {
            Ok((response, Some(open))) => {
                ledger.answered(response.status().as_u16(), open.injected);
                self.open(open, ledger);
                response
            }
            Ok((response, None)) => response.map(|body| body.keep(ledger)),
            Err(denied) => {
                let response = answer::refusal(&denied, self.tunnel.is_some());
                ledger.answered(response.status().as_u16(), false);
                ledger.denied(&denied);
                response
            }
        }
    }

    /// So many places of the session's requests.
    fn places(&self, count: u32) -> Result<OwnedSemaphorePermit, Denied> {
        let places = self.shared.places(self.decided.session);
        places.try_acquire_many_owned(count).map_err(|_| {
            Denied::new(
                Code::TooManyRequests,
                "the session has too many requests under way",
                "wait for some of them to end",
            )
        })
    }

    async fn carry(
        &self,
        request: Request<Incoming>,
        ledger: &mut Ledger,
    ) -> Result<(Response<Download>, Option<Open>), Denied> {
        let decided = &*self.decided;
        facts::host(decided, request.version(), request.uri(), request.headers())?;
        if select::is_barred(request.method()) {
            return Err(Denied::new(
                Code::Method,
                format!("the method {} does not pass", request.method()),
                "use a method that asks for or changes a resource",
            ));
        }
        ledger.holds(self.places(1)?);
        let matching = (self.shared.parts.matching)(decided)?;
        let outgoing = self.prepare(request, &matching).await?;
        ledger.sends(&outgoing.rule.name, Arc::clone(&outgoing.meter));
        self.send(outgoing, ledger).await
    }

    async fn send(
        &self,
        outgoing: Outgoing,
        ledger: &mut Ledger,
    ) -> Result<(Response<Download>, Option<Open>), Denied> {
        let Outgoing {
            request,
            meter,
            rule,
            key,
            scrub,
            injected,
            tokens,
            client,
            frames,
        } = outgoing;
        let reply = tokio::time::timeout(ANSWER, self.dispatch(request, &rule, key, client.is_some())).await;
        let mut reply = match reply {
            Ok(Ok((reply, load))) => {
                ledger.shares(load);
                reply
            }
            // A body that was refused breaks the request; the reason is the refusal.
            Ok(Err(denied)) => return Err(meter.denied().unwrap_or(denied)),
            Err(_) => {
                return Err(Denied::new(
                    Code::TooSlow,
                    format!("{} did not begin to answer in time", self.decided.host),
                    "try again, with less to do at once",
                )
                .by(&rule.name));
            }
        };
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(client), true) = (client, websocket::is_websocket(reply.headers())) else {
                return Err(response::bad(
                    &rule.name,
                    "it changed to a protocol that was not asked for",
                ));
            };
            let upstream = hyper::upgrade::on(&mut reply);
            let response = response::switching(&reply, &scrub);
            return Ok((
                response,
                Some(Open {
                    client,
                    upstream,
                    scrub,
                    frames,
                    injected,
                }),
            ));
        }
        let response = response::clean(reply, scrub, tokens, &rule).await?;
        ledger.answered(response.status().as_u16(), injected);
        Ok((response, None))
    }

    /// Sends a request on a kept connection or a new one, and again where a kept one turned out to be closed.
    async fn dispatch(
        &self,
        mut request: Request<Upload>,
        rule: &Arc<Rule>,
        key: Key,
        may_change: bool,
    ) -> Result<(Response<Incoming>, Option<Load>), Denied> {
        let pool = &self.shared.pool;
        let decided = &*self.decided;
        let failed = |error: hyper::Error| upstream::unreachable(decided, rule, &causes(&error));
        if !may_change {
            if let Some((mut line, load)) = pool.many(&key) {
                request::for_many(&mut request, decided);
                match line.try_send_request(request).await {
                    Ok(reply) => return Ok((reply, Some(load))),
                    Err(mut unsent) => match unsent.take_message() {
                        Some(message) => request = message,
                        None => return Err(failed(unsent.into_error())),
                    },
                }
            }
            while let Some(mut line) = pool.one(&key) {
                request::for_one(&mut request, decided);
                match line.try_send_request(request).await {
                    Ok(reply) => {
                        pool.keep_one(key, line);
                        return Ok((reply, None));
                    }
                    Err(mut unsent) => match unsent.take_message() {
                        Some(message) => request = message,
                        None => return Err(failed(unsent.into_error())),
                    },
                }
            }
        }
        match self
            .shared
            .upstream
            .open(&self.shared.parts, decided, rule, may_change)
            .await?
        {
            Line::Many(mut line) => {
                let load = Load::default();
                pool.keep_many(key, line.clone(), Arc::clone(&load));
                request::for_many(&mut request, decided);
                let reply = line.send_request(request).await.map_err(failed)?;
                Ok((reply, Some(load)))
            }
            Line::One(mut line) => {
                request::for_one(&mut request, decided);
                let reply = line.send_request(request).await.map_err(failed)?;
                if reply.status() != StatusCode::SWITCHING_PROTOCOLS {
                    pool.keep_one(key, line);
                }
                Ok((reply, None))
            }
        }
    }

    fn open(&self, open: Open, ledger: Ledger) {
        let Some((tunnel, place)) = &self.tunnel else {
            return;
        };
        tunnel.open();
        let Open {
            client,
            upstream,
            scrub,
            frames,
            ..
        } = open;
        let agreed = websocket::Agreed {
            client,
            upstream,
            scrub,
            frames,
            ledger,
        };
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(agreed);
    }

    fn key(&self, rule: &Rule, matching: &Matching) -> Key {
        self.shared.pool.renew(self.decided.session, matching.generation);
        Key::new(&self.decided, rule, matching)
    }

    fn record(&self, request: &Request<Incoming>) -> Record {
        Record {
            session: self.decided.session,
            host: self.decided.host.to_string(),
            port: self.decided.port,
            protocol: self.decided.scheme.as_str(),
            rule: None,
            request: Some(crate::Request {
                method: request.method().to_string(),
                path: request.uri().path().chars().take(SHOWN).collect(),
                status: 0,
                injected: false,
            }),
            outcome: Outcome::Allowed,
            sent: 0,
            received: 0,
            took: Duration::ZERO,
        }
    }
}

/// A tunnel that both sides agreed to.
struct Open {
    client: hyper::upgrade::OnUpgrade,
    upstream: hyper::upgrade::OnUpgrade,
    scrub: Scrub,
    frames: Option<Substitute>,
    injected: bool,
}

/// A placeholder where no rule replaces it.
pub(super) fn unbound(place: &str, rule: &str) -> Denied {
    Denied::new(
        Code::PlaceholderUnbound,
        format!("the request has credential-brokered in its {place}, where no rule puts a credential"),
        "leave the credential out, or ask for a rule that puts it there",
    )
    .by(rule)
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        words.push_str(": ");
        words.push_str(&error.to_string());
        source = error.source();
    }
    words
}
