//! The runtime's end of the link.
//!
//! Each request has a connection of its own, save that turns keep theirs for the next one. A connection that fails says so as [`ClientError::Lost`]: the control plane may
//! be starting anew, and the same request may go through a moment later.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use protocol::{
    BETA_HEADER, EarlyResults, Hello, ModelRoute, NameAnswer, NameRequest, Refusal, SYNC_BYTES, ServiceError,
    ServiceFailure, SyncAnswer, SyncCall, TurnReply, TurnRequest, VersionError,
};
use secret::Secret;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::time::timeout;

mod control;
mod files;

pub use crate::lines::LineError;
pub use control::{Control, ControlReader, ControlWriter};
pub use files::Fetched;

/// How long the control plane may take for what it does at once.
const PROMPT: Duration = Duration::from_secs(30);

/// How long a turn may take: models think long. The same turn is then asked for again, which joins it.
const TURN: Duration = Duration::from_secs(1_800);

/// How long a file may take.
const TRANSFER: Duration = Duration::from_secs(3_600);

/// How long a content of a file may take: its URL is good as long.
const OBJECT: Duration = Duration::from_secs(300);

/// How long a service may take until its result begins: the control plane keeps each method's own limit.
const SERVICE: Duration = Duration::from_secs(600);

/// The longest answer that says no.
const FAILURE_BYTES: usize = 64 << 10;

/// The longest answer to a turn.
const REPLY_BYTES: usize = 32 << 20;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A connection that the control plane has made for somebody inside.
pub type Tunnel = TokioIo<Upgraded>;

/// A request that was not answered as wanted.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody has claimed the sandbox yet, so there is nothing to show.
    #[error("the sandbox belongs to no session yet")]
    Unclaimed,
    /// What was asked cannot be put into a request.
    #[error("cannot make a request ({attempt})")]
    Request {
        /// What was tried.
        attempt: &'static str,
        /// Why.
        #[source]
        source: http::Error,
    },
    /// The socket cannot be reached: the control plane is not there, or not yet.
    #[error("cannot connect to the link at {}", socket.display())]
    Connect {
        /// Where.
        socket: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The connection broke off before the answer was whole.
    #[error("the link broke off ({attempt})")]
    Lost {
        /// What was tried.
        attempt: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer came in time.
    #[error("the control plane did not answer in time ({attempt})")]
    Silent {
        /// What was tried.
        attempt: &'static str,
    },
    /// The control plane said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A service's method has no result, or a model no answer for a program.
    #[error(transparent)]
    Failed(ServiceFailure),
    /// The answer is not what the protocol says.
    #[error("the control plane's answer is malformed ({attempt}, status {status})")]
    Malformed {
        /// What was tried.
        attempt: &'static str,
        /// The answer's status.
        status: StatusCode,
    },
    /// The control stream cannot go on.
    #[error(transparent)]
    Line(#[from] LineError),
    /// The control plane is of another age.
    #[error(transparent)]
    Version(#[from] VersionError),
}

/// The result of a service's method, or what a model answers to a program, as it comes.
#[derive(Debug)]
pub struct ServiceResult {
    /// What the bytes are.
    pub media_type: Option<HeaderValue>,
    /// How many they are, where that is known.
    pub length: Option<HeaderValue>,
    /// The bytes.
    pub body: Fetched,
}

/// A way to the control plane. Clones share the token.
#[derive(Clone)]
pub struct Client {
    socket: Arc<PathBuf>,
    token: Arc<Mutex<Option<Secret>>>,
    /// The connection of the turn before.
    kept: Arc<Mutex<Option<Sender>>>,
    tasks: Tasks,
}

type Sender = http1::SendRequest<Body>;

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Client")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A way that leads through this socket; connections are driven by `tasks`.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>, tasks: &Tasks) -> Self {
        Self {
            socket: Arc::new(socket.into()),
            token: Arc::default(),
            kept: Arc::default(),
            tasks: tasks.clone(),
        }
    }

    /// What is shown from now on.
    pub fn set_token(&self, token: Secret) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }

    /// Opens the control stream: both sides have said what they speak.
    ///
    /// # Errors
    /// [`ClientError`]; `Version` where the control plane is of another age.
    pub async fn control(&self) -> Result<Control, ClientError> {
        let attempt = "open the control stream";
        let open = async {
            let mut ours = Hello::ours();
            loop {
                let (control, theirs) = self.greeted(attempt, &ours).await?;
                if theirs.protocol >= ours.protocol {
                    return Ok(control);
                }
                // It is of the release before, which closes the stream of who speaks what it does not know.
                ours = Hello::answering(&theirs);
            }
        };
        timeout(PROMPT, open)
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))
    }

    async fn greeted(&self, attempt: &'static str, ours: &Hello) -> Result<(Control, Hello), ClientError> {
        let mut request = Request::new(empty());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = http::Uri::from_static("/v1/control");
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("belljar-control"));
        let response = self.send(attempt, request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refused(attempt, response).await);
        }
        let stream = hyper::upgrade::on(response)
            .await
            .map_err(|error| lost(attempt, error))?;
        control::greet(TokioIo::new(stream), ours).await
    }

    /// Asks for the next call of the model.
    ///
    /// # Errors
    /// [`ClientError`]. Asking again for the same turn gives the same reply.
    pub async fn invoke_llm(&self, turn: &TurnRequest) -> Result<TurnReply, ClientError> {
        let attempt = "ask for a turn";
        let asked = async {
            let turn = Bytes::from(serde_json::to_vec(turn).unwrap_or_default());
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
            let response = match kept.filter(Sender::is_ready) {
                // Where it was closed meanwhile the same turn is asked for again, on another one.
                Some(sender) => match self.turn_by(attempt, sender, turn.clone()).await {
                    Err(ClientError::Lost { .. }) => self.turn_by(attempt, self.open(attempt).await?, turn).await?,
                    asked => asked?,
                },
                None => self.turn_by(attempt, self.open(attempt).await?, turn).await?,
            };
            let status = response.status();
            if status != StatusCode::OK {
                return Err(refused(attempt, response).await);
            }
            let body = read(attempt, response, REPLY_BYTES).await?;
            serde_json::from_slice(&body).map_err(|_| ClientError::Malformed { attempt, status })
        };
        timeout(TURN, asked)
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))
    }

    /// Hands in results ahead of the turn that would bring them.
    ///
    /// # Errors
    /// [`ClientError`]; `Refused` where the turn is to bring them, as where the control plane is too old to know of it. To hand
    /// in the same again is safe.
    pub async fn hand_in(&self, results: &EarlyResults) -> Result<(), ClientError> {
        self.say("hand in results", "/v1/results", results).await
    }

    /// Asks whether a name may have an address, and which; none where the control plane is too old to say.
    ///
    /// # Errors
    /// [`ClientError`]; `Refused` where it may not.
    pub async fn resolve(&self, name: &str) -> Result<Option<u32>, ClientError> {
        let attempt = "ask for a name";
        let name = NameRequest { name: name.to_owned() };
        let asked = async {
            let mut request = self.request(attempt, Method::POST, "/v1/names", body_of(&name))?;
            request
                .headers_mut()
                .insert(ACCEPT, HeaderValue::from_static("application/json"));
            let response = self.send(attempt, request).await?;
            match response.status() {
                StatusCode::NO_CONTENT => Ok(None),
                status @ StatusCode::OK => {
                    let body = read(attempt, response, FAILURE_BYTES).await?;
                    let answer: Result<NameAnswer, _> = serde_json::from_slice(&body);
                    answer
                        .map(|answer| Some(answer.number))
                        .map_err(|_| ClientError::Malformed { attempt, status })
                }
                _ => Err(refused(attempt, response).await),
            }
        };
        timeout(PROMPT, asked)
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))
    }

    /// Posts what is answered by a yes or a no.
    async fn say(&self, attempt: &'static str, path: &str, value: &impl Serialize) -> Result<(), ClientError> {
        let said = async {
            let response = self.post(attempt, path, value).await?;
            if response.status() != StatusCode::NO_CONTENT {
                return Err(refused(attempt, response).await);
            }
            Ok(())
        };
        timeout(PROMPT, said)
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))
    }

    /// Calls a method of a service. `request` is the JSON of a `ServiceRequest`; whoever wrote it is believed nothing here.
    ///
    /// # Errors
    /// [`ClientError`]; `Failed` where there is no result, `Lost` and `Silent` where the call may have taken effect.
    pub async fn service(&self, request: Bytes) -> Result<ServiceResult, ClientError> {
        let attempt = "call a service";
        let body = Full::new(request).map_err(|never| match never {}).boxed_unsync();
        let request = self.request(attempt, Method::POST, "/v1/services", body)?;
        self.called(attempt, request, SERVICE).await
    }

    /// Sends a request whose answer is bytes, or a `ServiceError`.
    async fn called(
        &self,
        attempt: &'static str,
        request: Request<Body>,
        limit: Duration,
    ) -> Result<ServiceResult, ClientError> {
        let response = timeout(limit, self.send(attempt, request))
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))?;
        let status = response.status();
        if status != StatusCode::OK {
            let body = read(attempt, response, FAILURE_BYTES).await?;
            if let Ok(ServiceError { error }) = serde_json::from_slice(&body) {
                let status = status.as_u16();
                return Err(ClientError::Failed(ServiceFailure { status, ..error }));
            }
            return Err(refusal(attempt, status, &body));
        }
        let headers = response.headers();
        Ok(ServiceResult {
            media_type: headers.get(CONTENT_TYPE).cloned(),
            length: headers.get(CONTENT_LENGTH).cloned(),
            body: Fetched::new(attempt, response.into_body()),
        })
    }

    /// Hands on what a program asks of a model, as it comes. `betas` is what it asked for beyond the standard.
    ///
    /// # Errors
    /// [`ClientError`]; `Failed` where there is no answer.
    pub async fn model(
        &self,
        route: ModelRoute,
        betas: impl IntoIterator<Item = HeaderValue>,
        body: BoxStream<'static, std::io::Result<Bytes>>,
    ) -> Result<ServiceResult, ClientError> {
        use futures::TryStreamExt;
        let attempt = "ask a model";
        let body = BodyExt::boxed_unsync(StreamBody::new(body.map_ok(Frame::data)));
        let path = format!("/v1/models/{}", route.path());
        let mut request = self.request(attempt, Method::POST, &path, body)?;
        for beta in betas {
            request.headers_mut().append(BETA_HEADER, beta);
        }
        self.called(attempt, request, TURN).await
    }

    /// Opens a connection to a name, or to an address that somebody wrote.
    ///
    /// # Errors
    /// [`ClientError`]; `Refused` where it may not be.
    pub async fn connect(&self, host: &str, port: u16) -> Result<Tunnel, ClientError> {
        let attempt = "open a connection";
        let authority = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        let request = self.request(attempt, Method::CONNECT, &authority, empty())?;
        let opened = async {
            let response = self.send(attempt, request).await?;
            if response.status() != StatusCode::OK {
                return Err(refused(attempt, response).await);
            }
            hyper::upgrade::on(response).await.map_err(|error| lost(attempt, error))
        };
        let stream = timeout(PROMPT, opened)
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))?;
        Ok(TokioIo::new(stream))
    }

    /// Fetches the bytes that a transfer sends in.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn fetch_file(&self, transfer: u64) -> Result<Fetched, ClientError> {
        let attempt = "fetch a file";
        let request = self.request(attempt, Method::GET, &format!("/v1/files/{transfer}"), empty())?;
        let response = timeout(PROMPT, self.send(attempt, request))
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))?;
        if response.status() != StatusCode::OK {
            return Err(refused(attempt, response).await);
        }
        Ok(Fetched::new(attempt, response.into_body()))
    }

    /// Sends the bytes that a transfer asked for.
    ///
    /// # Errors
    /// [`ClientError`]; `Refused` where nobody wants them any more.
    pub async fn send_file(
        &self,
        transfer: u64,
        bytes: BoxStream<'static, std::io::Result<Bytes>>,
    ) -> Result<(), ClientError> {
        use futures::TryStreamExt;
        let attempt = "send a file";
        let body = BodyExt::boxed_unsync(StreamBody::new(bytes.map_ok(Frame::data)));
        let request = self.request(attempt, Method::PUT, &format!("/v1/files/{transfer}"), body)?;
        let sent = async {
            let response = self.send(attempt, request).await?;
            if response.status() != StatusCode::NO_CONTENT {
                return Err(refused(attempt, response).await);
            }
            Ok(())
        };
        timeout(TRANSFER, sent)
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))
    }

    /// Asks for what keeping the workspace's files needs.
    ///
    /// # Errors
    /// [`ClientError`]; `Refused` where the control plane is too old to know of it, too.
    pub async fn sync(&self, call: &SyncCall) -> Result<SyncAnswer, ClientError> {
        let attempt = "keep files";
        let asked = async {
            let response = self.post(attempt, "/v1/sync", call).await?;
            let status = response.status();
            if status != StatusCode::OK {
                return Err(refused(attempt, response).await);
            }
            let body = read(attempt, response, SYNC_BYTES).await?;
            serde_json::from_slice(&body).map_err(|_| ClientError::Malformed { attempt, status })
        };
        timeout(PROMPT, asked)
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))
    }

    /// Uploads a content of a file, of so many bytes, by a URL that was signed for it.
    ///
    /// # Errors
    /// [`ClientError`]; `Refused` where the bytes are not what the URL was signed for.
    pub async fn keep_object(
        &self,
        url: &str,
        bytes: u64,
        body: BoxStream<'static, std::io::Result<Bytes>>,
    ) -> Result<(), ClientError> {
        use futures::TryStreamExt;
        let attempt = "upload a content";
        let body = BodyExt::boxed_unsync(StreamBody::new(body.map_ok(Frame::data)));
        let mut request = self.request(attempt, Method::PUT, url, body)?;
        request.headers_mut().insert(CONTENT_LENGTH, bytes.into());
        let sent = async {
            let response = self.send(attempt, request).await?;
            if response.status() != StatusCode::NO_CONTENT {
                return Err(refused(attempt, response).await);
            }
            Ok(())
        };
        timeout(OBJECT, sent)
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))
    }

    /// Fetches a content of a file by a URL that was signed for it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn fetch_object(&self, url: &str) -> Result<Fetched, ClientError> {
        let attempt = "fetch a content";
        let request = self.request(attempt, Method::GET, url, empty())?;
        let response = timeout(PROMPT, self.send(attempt, request))
            .await
            .unwrap_or(Err(ClientError::Silent { attempt }))?;
        if response.status() != StatusCode::OK {
            return Err(refused(attempt, response).await);
        }
        Ok(Fetched::new(attempt, response.into_body()))
    }

    /// Asks for a turn by this connection, and keeps it for the next.
    async fn turn_by(
        &self,
        attempt: &'static str,
        mut sender: Sender,
        turn: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        let body = Full::new(turn).map_err(|never| match never {}).boxed_unsync();
        let request = self.request(attempt, Method::POST, "/v1/turns", body)?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| lost(attempt, error))?;
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Ok(response)
    }

    async fn post(
        &self,
        attempt: &'static str,
        path: &str,
        value: &impl Serialize,
    ) -> Result<Response<Incoming>, ClientError> {
        self.send(attempt, self.request(attempt, Method::POST, path, body_of(value))?)
            .await
    }

    fn request(
        &self,
        attempt: &'static str,
        method: Method,
        uri: &str,
        body: Body,
    ) -> Result<Request<Body>, ClientError> {
        let malformed = |source| ClientError::Request { attempt, source };
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let token = token.as_ref().ok_or(ClientError::Unclaimed)?;
        let mut shown =
            HeaderValue::from_str(&format!("Bearer {}", token.expose())).map_err(|error| malformed(error.into()))?;
        shown.set_sensitive(true);
        Request::builder()
            .method(method)
            .uri(uri)
            .header(AUTHORIZATION, shown)
            .body(body)
            .map_err(malformed)
    }

    async fn send(&self, attempt: &'static str, request: Request<Body>) -> Result<Response<Incoming>, ClientError> {
        let mut sender = self.open(attempt).await?;
        sender.send_request(request).await.map_err(|error| lost(attempt, error))
    }

    async fn open(&self, attempt: &'static str) -> Result<Sender, ClientError> {
        let stream = UnixStream::connect(self.socket.as_path())
            .await
            .map_err(|source| ClientError::Connect {
                socket: self.socket.as_path().to_owned(),
                source,
            })?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| lost(attempt, error))?;
        self.tasks.spawn_until_stopped(async move {
            // Whoever waits for the answer is told what went wrong.
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }
}

fn lost(attempt: &'static str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
    ClientError::Lost {
        attempt,
        source: error.into(),
    }
}

async fn read(attempt: &'static str, response: Response<Incoming>, longest: usize) -> Result<Bytes, ClientError> {
    let body = Limited::new(response.into_body(), longest).collect().await;
    Ok(body.map_err(|error| lost(attempt, error))?.to_bytes())
}

/// What the control plane said instead of what was wanted.
async fn refused(attempt: &'static str, response: Response<Incoming>) -> ClientError {
    let status = response.status();
    match read(attempt, response, FAILURE_BYTES).await {
        Ok(body) => refusal(attempt, status, &body),
        Err(error) => error,
    }
}

fn refusal(attempt: &'static str, status: StatusCode, body: &[u8]) -> ClientError {
    serde_json::from_slice::<Refusal>(body).map_or(ClientError::Malformed { attempt, status }, ClientError::Refused)
}

fn body_of(value: &impl Serialize) -> Body {
    let body = Full::new(Bytes::from(serde_json::to_vec(value).unwrap_or_default()));
    body.map_err(|never| match never {}).boxed_unsync()
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}
