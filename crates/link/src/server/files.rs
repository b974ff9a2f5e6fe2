//! Bytes of a file on their way out of a sandbox.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long a sandbox may pause between two pieces of a file.
const STALL: Duration = Duration::from_secs(30);

/// A file's bytes as they come. Dropping it gives the transfer up.
#[derive(Debug)]
pub struct FileReader {
    body: Incoming,
    /// Dropped with the reader: the request may be answered.
    _done: oneshot::Sender<()>,
}

impl FileReader {
    pub(super) fn new(body: Incoming) -> (Self, oneshot::Receiver<()>) {
        let (done, dropped) = oneshot::channel();
        (Self { body, _done: done }, dropped)
    }

    /// The next bytes; none at the file's end.
    ///
    /// # Errors
    /// When the transfer broke off, or the sandbox sent nothing for half a minute: what came so far is not the whole file.
    pub async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let stalled = || io::Error::new(io::ErrorKind::TimedOut, "the sandbox stopped sending the file");
            match timeout(STALL, self.body.frame()).await.map_err(|_| stalled())? {
                None => return Ok(None),
                Some(Err(error)) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error)),
                // Trailers say nothing here.
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// The bytes as a stream.
    #[must_use]
    pub fn into_stream(self) -> BoxStream<'static, io::Result<Bytes>> {
        stream::try_unfold(self, |mut reader| async move {
            Ok(reader.chunk().await?.map(|bytes| (bytes, reader)))
        })
        .boxed()
    }
}
