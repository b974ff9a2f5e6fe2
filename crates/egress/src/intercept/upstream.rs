//! Connections to upstreams: at an address that was checked, with a certificate that is.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use lifecycle::Tasks;
use policy::Destination;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::upload::Upload;
use super::{Decided, HEAD, HEADERS, Parts, Stream};
use crate::{Code, Denied, Rule, Scheme};

/// For a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(15);

/// Runs what hyper runs beside a connection, in our group of tasks.
#[derive(Clone)]
pub(super) struct Executor(pub(super) Tasks);

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn_until_stopped(async move {
            task.await;
        });
    }
}

/// A connection that is ready for requests.
pub(super) enum Line {
    /// One request at a time.
    One(http1::SendRequest<Upload>),
    /// Many at once.
    Many(http2::SendRequest<Upload>),
}

/// Opens connections to upstreams.
pub(super) struct Upstream {
    any: Arc<ClientConfig>,
    oldest: Arc<ClientConfig>,
    tasks: Tasks,
}

impl Upstream {
    pub(super) fn new(roots: &Arc<RootCertStore>, tasks: Tasks) -> Result<Self, rustls::Error> {
        let config = |protocols: &[&[u8]]| {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let mut config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()?
                .with_root_certificates(Arc::clone(roots))
                .with_no_client_auth();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Ok::<_, rustls::Error>(Arc::new(config))
        };
        Ok(Self {
            any: config(&[b"h2", b"http/1.1"])?,
            oldest: config(&[b"http/1.1"])?,
            tasks,
        })
    }

    /// Opens a connection; one that may change its protocol speaks HTTP/1.1.
    pub(super) async fn open(
        &self,
        parts: &Parts,
        decided: &Decided,
        rule: &Arc<Rule>,
        may_change: bool,
    ) -> Result<Line, Denied> {
        let stream = (parts.dial)(decided, rule).await.map_err(|denied| match denied.rule {
            Some(_) => denied,
            None => denied.by(&rule.name),
        })?;
        if decided.scheme == Scheme::Http {
            return self.speak(stream, false, decided, rule).await;
        }
        let name = match &decided.host {
            Destination::Name(name) => ServerName::try_from(name.as_str().to_owned())
                .map_err(|_| unreachable(decided, rule, &"its name fits no certificate"))?,
            Destination::Address(address) => ServerName::from(*address),
        };
        let config = if may_change { &self.oldest } else { &self.any };
        let connector = TlsConnector::from(Arc::clone(config));
        let stream = match tokio::time::timeout(HANDSHAKE, connector.connect(name, stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(untrusted(decided, rule, &error)),
            Err(_) => {
                return Err(unreachable(
                    decided,
                    rule,
                    &"it did not answer the TLS handshake in time",
                ));
            }
        };
        let newest = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        self.speak(stream, newest, decided, rule).await
    }

    async fn speak(&self, stream: impl Stream, newest: bool, decided: &Decided, rule: &Rule) -> Result<Line, Denied> {
        let io = TokioIo::new(stream);
        if newest {
            let (line, connection) = http2::Builder::new(Executor(self.tasks.clone()))
                .timer(TokioTimer::new())
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(4 << 20)
                .max_header_list_size(u32::try_from(HEAD).unwrap_or(u32::MAX))
                .keep_alive_interval(Duration::from_secs(30))
                .handshake(io)
                .await
                .map_err(|error| unreachable(decided, rule, &error))?;
            self.tasks.spawn_until_stopped(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "an upstream's connection ended");
                }
            });
            return Ok(Line::Many(line));
        }
        let (line, connection) = http1::Builder::new()
            .max_headers(HEADERS)
            .max_buf_size(4 * HEAD)
            .handshake(io)
            .await
            .map_err(|error| unreachable(decided, rule, &error))?;
        self.tasks.spawn_until_stopped(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "an upstream's connection ended");
            }
        });
        Ok(Line::One(line))
    }
}

/// The upstream did not prove to be who it should be (threat 56).
fn untrusted(decided: &Decided, rule: &Rule, error: &std::io::Error) -> Denied {
    Denied::new(
        Code::Untrusted,
        format!(
            "the TLS handshake with {}:{} failed: {error}",
            decided.host, decided.port
        ),
        "renew the upstream's certificate, or have its authority added to those that Belljar trusts; a check cannot be \
         left out",
    )
    .by(&rule.name)
}

/// The upstream could not be reached or spoken with.
pub(super) fn unreachable(decided: &Decided, rule: &Rule, error: &dyn std::fmt::Display) -> Denied {
    Denied::new(
        Code::Unreachable,
        format!("{}:{} could not be spoken with: {error}", decided.host, decided.port),
        "see whether the host is up, then try again",
    )
    .by(&rule.name)
}
