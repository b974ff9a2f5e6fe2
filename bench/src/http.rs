//! A small HTTP client: what the measured programs are asked by. One connection is kept for calls; each stream has its own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// No answer of a measured program takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client of one program.
pub(crate) struct Client {
    address: SocketAddr,
    authorization: String,
    kept: Mutex<Option<SendRequest<Full<Bytes>>>>,
    tasks: Tasks,
}

impl Client {
    /// Asks at this address, with this `Authorization`.
    pub(crate) fn new(address: SocketAddr, authorization: impl Into<String>) -> Self {
        Self {
            address,
            authorization: authorization.into(),
            kept: Mutex::default(),
            tasks: Tasks::new(),
        }
    }

    /// Where it asks.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::POST, path, body.to_string().into()).await
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Value> {
        let bytes = self.bytes(method, path, body).await?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).with_context(|| format!("{path} was not answered in JSON"))
    }

    /// The whole answer to a request.
    pub(crate) async fn bytes(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        let asked = async {
            let mut kept = self.kept.lock().await;
            let mut sender = match kept.take() {
                Some(sender) if !sender.is_closed() => sender,
                _ => self.connect().await?,
            };
            sender.ready().await?;
            let response = sender.send_request(self.request(method, path, body, &[])?).await?;
            let status = response.status();
            let bytes = response.into_body().collect().await?.to_bytes();
            *kept = Some(sender);
            if !status.is_success() {
                bail!("{path} was answered with {status}: {}", String::from_utf8_lossy(&bytes));
            }
            Ok(bytes)
        };
        timeout(PATIENCE, asked)
            .await
            .with_context(|| format!("{path} was not answered"))?
    }

    /// Opens a stream of server-sent events, on a connection of its own.
    pub(crate) async fn events(&self, path: &str, after: Option<&str>) -> anyhow::Result<Events> {
        let opened = async {
            let mut sender = self.connect().await?;
            let after = after.map(|after| ("last-event-id", after));
            let request = self.request(Method::GET, path, Bytes::new(), after.as_slice())?;
            let response = sender.send_request(request).await?;
            if !response.status().is_success() {
                bail!("{path} was answered with {}", response.status());
            }
            Ok(Events {
                response,
                _sender: sender,
                buffer: Vec::new(),
            })
        };
        timeout(PATIENCE, opened)
            .await
            .with_context(|| format!("{path} was not answered"))?
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        self.tasks.spawn_until_stopped(async move {
            // Whoever waits for an answer is told what went wrong.
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        more: &[(&str, &str)],
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .header("authorization", &self.authorization)
            .header("content-type", "application/json");
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        Ok(request.body(Full::new(body))?)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

/// A stream of server-sent events. Dropped, its connection is closed.
pub(crate) struct Events {
    response: Response<Incoming>,
    _sender: SendRequest<Full<Bytes>>,
    buffer: Vec<u8>,
}

/// One server-sent event.
pub(crate) struct Frame {
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

impl Events {
    /// The next event that carries data; none where the stream has ended.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Frame>> {
        timeout(PATIENCE, self.read()).await.context("no event came")?
    }

    async fn read(&mut self) -> anyhow::Result<Option<Frame>> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                if let Some(frame) = Frame::parse(&String::from_utf8_lossy(&event))? {
                    return Ok(Some(frame));
                }
            }
            match self.response.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}

impl Frame {
    fn parse(event: &str) -> anyhow::Result<Option<Self>> {
        let mut id = None;
        let mut data = String::new();
        for line in event.lines() {
            if let Some(text) = line.strip_prefix("id:") {
                id = Some(text.trim().to_owned());
            } else if let Some(text) = line.strip_prefix("data:") {
                data.push_str(text.trim_start());
            }
        }
        if data.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            id,
            data: serde_json::from_str(&data)?,
        }))
    }
}
