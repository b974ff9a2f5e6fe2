//! The way to the collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use causes::with_causes;
use lifecycle::Tasks;
use reqwest::header::CONTENT_TYPE;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::mpsc;
use tokio::time::timeout;
use url::Url;

use crate::span::{Data, Place, Span, Value, past};
use crate::wire;

/// Spans that wait; one more is dropped.
const WAITING: usize = 4_096;
/// Spans of one request.
const AT_ONCE: usize = 512;
/// How long the first of them waits for others.
const GATHERED: Duration = Duration::from_secs(1);
/// How long a collector may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How long all of what is left may take when this process ends.
const LAST_WITHIN: Duration = Duration::from_secs(2);
/// What is read of its answer.
const LONGEST_ANSWER: usize = 64 << 10;

/// Traces cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The address is none.
    #[error("{address:?} is no address of a collector: write one such as http://127.0.0.1:4318")]
    Address {
        /// What stands there.
        address: String,
    },
    /// TLS could not be set up.
    #[error("cannot set up TLS for the collector of traces")]
    Tls(#[source] rustls::Error),
    /// The HTTP client could not be set up.
    #[error("cannot set up the HTTP client for the collector of traces")]
    Http(#[source] reqwest::Error),
}

/// Why a collector did not take some spans.
#[derive(Debug, thiserror::Error)]
enum TellError {
    #[error("no answer from the collector of traces")]
    Http(#[from] reqwest::Error),
    #[error("the collector of traces answered {0}")]
    Status(reqwest::StatusCode),
}

/// Where spans are told; nowhere, by default. Clones are the same.
#[derive(Clone, Default, Debug)]
pub struct Traces(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    queue: mpsc::Sender<Data>,
    told: AtomicU64,
    dropped: AtomicU64,
    /// The collector did not take the last ones.
    is_out: AtomicBool,
}

/// What became of spans since this process began.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Figures {
    /// The collector has them.
    pub told: u64,
    /// Nobody has them: it was slow, or gone, or would not take them.
    pub dropped: u64,
}

/// Checks a collector's address, and gives the one to which traces go.
fn target(address: &str) -> Result<Url, TelemetryError> {
    let wrong = || TelemetryError::Address {
        address: address.to_owned(),
    };
    let mut url = Url::parse(address).map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() || url.query().is_some() {
        return Err(wrong());
    }
    let path = format!("{}/v1/traces", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

impl Traces {
    /// Tells a collector that listens at this address (`/v1/traces` is added) from now on. What waits when `tasks` are to stop
    /// is told then, if that is quick.
    ///
    /// # Errors
    /// The address is none; TLS or HTTP cannot be set up.
    pub fn start(address: &str, tasks: &Tasks) -> Result<Self, TelemetryError> {
        let url = target(address)?;
        let http = client()?;
        let (queue, waiting) = mpsc::channel(WAITING);
        let shared = Arc::new(Shared {
            queue,
            told: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            is_out: AtomicBool::new(false),
        });
        let stop = tasks.stop();
        let teller = Teller {
            shared: Arc::clone(&shared),
            http,
            url,
            waiting,
        };
        tasks.spawn(async move { teller.tell(stop).await });
        Ok(Self(Some(shared)))
    }

    /// Whether an address is one that [`Traces::start`] takes.
    ///
    /// # Errors
    /// It is not.
    pub fn check(address: &str) -> Result<(), TelemetryError> {
        target(address).map(drop)
    }

    /// Whether anything is told at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Something begins.
    #[must_use]
    pub fn begin(&self, name: &'static str, place: Place) -> Span {
        Span::new(self, name, place)
    }

    /// Something is over that was not watched from here: it began so long ago, and took so long.
    pub fn was(
        &self,
        name: &'static str,
        place: Place,
        (ago, took): (Duration, Duration),
        failure: Option<&str>,
        attributes: impl IntoIterator<Item = (&'static str, Value)>,
    ) {
        if self.is_on() {
            let mut data = past(name, place, ago, took);
            data.attributes.extend(attributes);
            data.failure = failure.map(str::to_owned);
            self.tell(data);
        }
    }

    /// What became of spans, where they are told.
    #[must_use]
    pub fn figures(&self) -> Option<Figures> {
        let shared = self.0.as_ref()?;
        Some(Figures {
            told: shared.told.load(Ordering::Relaxed),
            dropped: shared.dropped.load(Ordering::Relaxed),
        })
    }

    pub(crate) fn tell(&self, data: Data) {
        if let Some(shared) = &self.0
            && shared.queue.try_send(data).is_err()
        {
            shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Teller {
    shared: Arc<Shared>,
    http: reqwest::Client,
    url: Url,
    waiting: mpsc::Receiver<Data>,
}

impl Teller {
    async fn tell(mut self, stop: lifecycle::Stop) {
        let mut spans = Vec::with_capacity(AT_ONCE);
        loop {
            let gather = async {
                // The sender is held by what is told to.
                self.waiting.recv_many(&mut spans, AT_ONCE).await;
                let more = async {
                    while spans.len() < AT_ONCE {
                        let left = AT_ONCE - spans.len();
                        self.waiting.recv_many(&mut spans, left).await;
                    }
                };
                let _ = timeout(GATHERED, more).await;
            };
            let stopped = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                () = gather => false,
            };
            if stopped {
                break;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = send(&self.shared, &self.http, &self.url, &spans) => spans.clear(),
            }
        }
        // Who comes from here on counts what it loses.
        self.waiting.close();
        while let Ok(span) = self.waiting.try_recv() {
            spans.push(span);
        }
        let mut left = spans.len() as u64;
        let last = async {
            for some in spans.chunks(AT_ONCE) {
                send(&self.shared, &self.http, &self.url, some).await;
                left -= some.len() as u64;
            }
        };
        let _ = timeout(LAST_WITHIN, last).await;
        self.shared.dropped.fetch_add(left, Ordering::Relaxed);
    }
}

/// Tells of some spans, once.
async fn send(shared: &Shared, http: &reqwest::Client, url: &Url, spans: &[Data]) {
    let count = spans.len() as u64;
    let dropped = match post(http, url, spans).await {
        Ok(rejected) => {
            if shared.is_out.swap(false, Ordering::Relaxed) {
                tracing::info!("traces are told again");
            }
            rejected.min(count)
        }
        Err(error) => {
            if !shared.is_out.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    error = with_causes(&error),
                    "traces cannot be told; work goes on, and spans are lost until they can"
                );
            }
            count
        }
    };
    shared.dropped.fetch_add(dropped, Ordering::Relaxed);
    shared.told.fetch_add(count - dropped, Ordering::Relaxed);
}

/// How many of them were rejected.
async fn post(http: &reqwest::Client, url: &Url, spans: &[Data]) -> Result<u64, TellError> {
    let request = http.post(url.clone()).header(CONTENT_TYPE, "application/json");
    let mut answer = request.body(wire::request(spans).to_string()).send().await?;
    if !answer.status().is_success() {
        return Err(TellError::Status(answer.status()));
    }
    let mut said = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        said.extend_from_slice(&piece);
        if said.len() > LONGEST_ANSWER {
            return Ok(0);
        }
    }
    Ok(wire::rejected(&said))
}

fn client() -> Result<reqwest::Client, TelemetryError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(TelemetryError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(ANSWERS_WITHIN)
        .user_agent(concat!("belljar/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(TelemetryError::Http)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_go_below_the_address_that_is_written() {
        for (written, goes) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            (
                "https://otel.example.com/tenant/",
                "https://otel.example.com/tenant/v1/traces",
            ),
        ] {
            assert_eq!(target(written).unwrap().as_str(), goes);
        }
        for wrong in ["127.0.0.1:4318", "grpc://x:4317", "http://", "http://x/?key=1", ""] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
