//! The seam of interception, until it is there: what it needs and gives, and a refusal in place of its work.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use domain::SessionId;
use lifecycle::Tasks;
use policy::Destination;
use rustls::{RootCertStore, ServerConfig};
use secret::Source;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{Code, Denied, Record, Rule, Scheme};

/// A stream of bytes, from a client or to an upstream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decided {
    pub session: SessionId,
    pub scheme: Scheme,
    pub host: Destination,
    pub port: u16,
}

#[derive(Clone, Debug)]
pub struct Matching {
    pub generation: u64,
    pub rules: Vec<Arc<Rule>>,
}

#[derive(Clone)]
pub struct Parts {
    pub matching: Arc<dyn Fn(&Decided) -> Result<Arc<Matching>, Denied> + Send + Sync>,
    pub dial: Arc<dyn Fn(&Decided, &Arc<Rule>) -> Pending<Result<Box<dyn Stream>, Denied>> + Send + Sync>,
    pub server: Arc<dyn Fn(&Decided) -> Result<Arc<ServerConfig>, Denied> + Send + Sync>,
    pub secrets: Arc<dyn Source>,
    pub audit: Arc<dyn Fn(Record) + Send + Sync>,
    pub roots: Arc<RootCertStore>,
    pub tasks: Tasks,
}

#[derive(Clone)]
pub struct Intercept(#[expect(dead_code)] Parts);

impl Intercept {
    pub fn new(parts: Parts) -> Result<Self, rustls::Error> {
        Ok(Self(parts))
    }

    pub async fn carry(&self, decided: Decided, _client: impl Stream) -> Result<(), Denied> {
        let words = format!("{} is not read yet", decided.host);
        Err(Denied::new(Code::Broken, words, "wait for it"))
    }

    pub fn forget(&self, _session: SessionId) {}
}
