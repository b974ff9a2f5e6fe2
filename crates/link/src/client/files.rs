//! Bytes on their way into the sandbox.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::{ClientError, lost};

/// How long the control plane may pause between two pieces: its own source may be somebody's slow upload.
const STALL: Duration = Duration::from_secs(300);

/// The bytes of a file, or of a service's result, as they come.
#[derive(Debug)]
pub struct Fetched {
    attempt: &'static str,
    body: Incoming,
}

impl Fetched {
    pub(super) fn new(attempt: &'static str, body: Incoming) -> Self {
        Self { attempt, body }
    }

    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// When the transfer broke off: what came so far is not the whole.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        let attempt = self.attempt;
        loop {
            let frame = timeout(STALL, self.body.frame())
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
