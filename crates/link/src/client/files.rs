//! Bytes on their way into the workspace.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::{ClientError, lost};

/// How long the control plane may pause between two pieces of a file: its own source may be somebody's slow upload.
const STALL: Duration = Duration::from_secs(300);

/// A file's bytes as they come.
#[derive(Debug)]
pub struct Fetched(Incoming);

impl Fetched {
    pub(super) fn new(body: Incoming) -> Self {
        Self(body)
    }

    /// The next bytes; none at the file's end.
    ///
    /// # Errors
    /// When the transfer broke off: what came so far is not the whole file.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        let attempt = "fetch a file";
        loop {
            let frame = timeout(STALL, self.0.frame())
                .await
                .map_err(|_| ClientError::Silent { attempt })?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(lost(attempt, error)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}
