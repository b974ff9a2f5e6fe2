//! A connection, from its first byte to its last.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::time::{Instant, timeout};

use super::Admitted;
use super::judge::{asking, speaking, unspoken};
use super::no_ssh::NoSsh;
use crate::intercept::{Decided, Stream};
use crate::opening::{self, Spoken};
use crate::prefixed::Prefixed;
use crate::rules::Match;
use crate::session::{Meter, Metered};
use crate::{Code, Denied, Outcome, Record, Rule, Scheme, ssh};

/// Bytes that are under way in each direction of a connection that passes.
const UNDER_WAY: usize = 64 << 10;
/// A fatal alert of TLS: access denied (RFC 8446, section 6.2).
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];
/// How long a client may take to be told that it is refused.
const FAREWELL: Duration = Duration::from_secs(2);

/// What is known of a connection so far, for the record of it.
struct Seen {
    protocol: &'static str,
    rule: Option<String>,
    /// Each of its requests is recorded, so it is not.
    read: bool,
}

impl Admitted {
    /// Carries the connection until it ends, is idle for too long, or is no longer allowed.
    pub async fn carry(self, client: impl Stream) {
        let began = Instant::now();
        let meter = Meter::new(self.session.clone());
        let mut seen = Seen {
            protocol: "tcp",
            rule: None,
            read: false,
        };
        let client = Metered::new(client, meter.clone());
        let idle = self.broker.inner.limits.idle;
        let ended = tokio::select! {
            biased;
            () = self.place.close.cancelled() => Err(self.closed()),
            ended = self.run(client, &mut seen) => ended,
            () = meter.idle(idle) => Ok(()),
        };
        let outcome = match ended {
            Ok(()) if seen.read => return,
            Ok(()) => Outcome::Allowed,
            Err(denied) => Outcome::Denied(denied),
        };
        let rule = match &outcome {
            Outcome::Denied(denied) if denied.rule.is_some() => denied.rule.clone(),
            _ => seen.rule,
        };
        self.broker.inner.audit.tell(Record {
            session: self.id,
            host: self.destination.to_string(),
            port: self.port,
            protocol: seen.protocol,
            rule,
            request: None,
            outcome,
            sent: meter.sent(),
            received: meter.received(),
            took: began.elapsed(),
        });
    }

    async fn run(&self, mut client: Metered<impl Stream>, seen: &mut Seen) -> Result<(), Denied> {
        // Once more, since time may have passed.
        let inner = &self.broker.inner;
        let matches = inner.judge(self.id, &self.session, &self.destination, Some(self.port))?;
        if let Some(found) = unread(&matches) {
            seen.rule = Some(found.rule.name.clone());
            return self
                .pass(NoSsh::new(client, &found.rule.name), Bytes::new(), &found.rule)
                .await;
        }
        if let Some((first, ssh)) = matches.first().zip(inner.ssh.as_ref())
            && first.rule.ssh.is_some()
        {
            seen.protocol = "ssh";
            seen.rule = Some(first.rule.name.clone());
            seen.read = true;
            return ssh.carry(self.ssh(&first.rule), client).await;
        }
        let opening = opening::read(&mut client, inner.limits.opening).await;
        let Ok(opening) = opening else {
            return Err(self.unsaid());
        };
        let is_tls = matches!(opening.spoken, Spoken::Tls { .. } | Spoken::BadTls);
        seen.protocol = match &opening.spoken {
            Spoken::Tls { .. } | Spoken::BadTls => "tls",
            Spoken::Http => "http",
            Spoken::Other | Spoken::Nothing => "tcp",
        };
        let scheme = match self.understood(&opening.spoken, &matches) {
            Ok(scheme) => scheme,
            Err(denied) => {
                if is_tls {
                    // Whoever does not listen will see the connection close.
                    let _ = timeout(FAREWELL, client.write_all(&ALERT)).await;
                }
                return Err(denied);
            }
        };
        // A hidden name and a pretended one look the same. Neither reaches the server: the broker is the one that answers,
        // by the name in the clear, and reads each request.
        let hides = matches!(opening.spoken, Spoken::Tls { encrypted: true, .. });
        let mut rules = speaking(&matches, scheme).peekable();
        let first = rules.peek().map(|found| &found.rule);
        seen.rule = first.map(|rule| rule.name.clone());
        match first {
            // What is plain HTTP is read in any case: request by request it says again which host it means.
            Some(first) if scheme == Scheme::Https && !hides && !rules.any(|found| found.rule.intercepts()) => {
                self.pass(client, opening.bytes, first).await
            }
            _ => {
                seen.read = true;
                let stream = Prefixed::new(opening.bytes, client);
                self.broker.intercept.carry(self.decided(scheme), stream).await
            }
        }
    }

    fn ssh(&self, rule: &Arc<Rule>) -> ssh::Connection {
        let (dialling, telling) = (Arc::clone(&self.broker.inner), Arc::clone(&self.broker.inner));
        let (decided, dialled) = (self.decided(Scheme::Ssh), Arc::clone(rule));
        ssh::Connection {
            rule: Arc::clone(rule),
            session: self.id,
            host: self.destination.clone(),
            port: self.port,
            secrets: Arc::clone(&self.broker.inner.secrets),
            dial: Arc::new(move || Arc::clone(&dialling).dial_for(&decided, &dialled)),
            audit: Arc::new(move |record| telling.audit.tell(record)),
            tasks: self.broker.inner.tasks.clone(),
            opening: self.broker.inner.limits.opening,
        }
    }

    fn decided(&self, scheme: Scheme) -> Decided {
        Decided {
            session: self.id,
            scheme,
            host: self.destination.clone(),
            port: self.port,
        }
    }

    /// What is spoken, if it may be: TLS must say, in the clear, that it means the host that was asked for.
    fn understood(&self, spoken: &Spoken, matches: &[Match]) -> Result<Scheme, Denied> {
        let (host, port) = (&self.destination, self.port);
        let unspoken = |words| Err(unspoken(matches, &self.decided(Scheme::Tcp), words));
        let is_allowed = |scheme| speaking(matches, scheme).next().is_some();
        match spoken {
            Spoken::Nothing => Err(self.unsaid()),
            Spoken::Other => unspoken("neither TLS nor HTTP"),
            Spoken::BadTls => unspoken("no proper TLS"),
            // Where nobody allows it, each request is answered with the reason.
            Spoken::Http => Ok(Scheme::Http),
            Spoken::Tls { .. } if !is_allowed(Scheme::Https) => unspoken("TLS"),
            Spoken::Tls {
                encrypted: true,
                server_name: None,
            } => Err(Denied::new(
                Code::EncryptedServerName,
                format!("TLS to {host}:{port} hides which server it means (Encrypted Client Hello)"),
                "switch Encrypted Client Hello off in this program",
            )),
            Spoken::Tls { server_name, .. } => match (host, server_name.as_deref()) {
                (policy::Destination::Address(_), None) => Ok(Scheme::Https),
                (policy::Destination::Name(host), Some(name))
                    if policy::Host::parse(name).is_ok_and(|name| name == *host) =>
                {
                    Ok(Scheme::Https)
                }
                (_, None) => Err(Denied::new(
                    Code::NoServerName,
                    format!("TLS to {host}:{port} does not say which server it means"),
                    "use a program that sends the server's name (SNI)",
                )),
                (_, Some(name)) => Err(Denied::new(
                    Code::OtherServerName,
                    format!("TLS to {host}:{port} means the server `{name}`"),
                    "connect to the host that is meant",
                )),
            },
        }
    }

    /// Passes bytes both ways as they are.
    async fn pass(&self, mut client: impl Stream, opening: Bytes, rule: &Rule) -> Result<(), Denied> {
        let inner = &self.broker.inner;
        let mut upstream = inner.dial(&self.destination, self.port, rule).await?;
        let copied = async {
            upstream.write_all(&opening).await?;
            copy_bidirectional_with_sizes(&mut client, &mut upstream, UNDER_WAY, UNDER_WAY).await
        };
        match copied.await {
            Ok(_) => Ok(()),
            Err(error) => match refusal(error) {
                Some(denied) => Err(denied),
                // One end is gone. That is how connections end.
                None => Ok(()),
            },
        }
    }

    fn unsaid(&self) -> Denied {
        let (host, port) = (&self.destination, self.port);
        Denied::new(
            Code::NothingSaid,
            format!("nothing that could be understood was sent to {host}:{port} in time"),
            "speak TLS or HTTP; where the server speaks first, ask for a rule with schemes = [\"tcp\"]",
        )
    }

    fn closed(&self) -> Denied {
        let (host, port) = (&self.destination, self.port);
        Denied::new(
            Code::OutOfScope,
            format!("the connection to {host}:{port} was closed: it is no longer allowed"),
            format!("ask whoever gave this session its scope; {}", asking(host, Some(port))),
        )
    }
}

/// The rule by which bytes pass unread, if nobody has to read them.
fn unread(matches: &[Match]) -> Option<&Match> {
    if matches.iter().any(|found| found.rule.intercepts()) {
        return None;
    }
    speaking(matches, Scheme::Tcp).next()
}

/// Why a copy was broken off by us, if it was.
fn refusal(error: io::Error) -> Option<Denied> {
    error.into_inner()?.downcast::<Denied>().ok().map(|denied| *denied)
}
