//! What a call gives.

use bytes::{Bytes, BytesMut};
use futures::Stream;
use tokio::sync::{mpsc, oneshot};

use crate::Failure;
use crate::body::Incoming;

/// What a call gives: JSON, whole and checked, or bytes that flow while they come from the upstream. While they do, and
/// until the deadline, the call counts as under way for the service's limits.
pub struct Answer {
    media: Media,
    body: Body,
}

/// What an answer is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Media {
    /// A JSON text.
    Json,
    /// Bytes, of this media type as far as the upstream can be believed.
    Bytes(String),
}

enum Body {
    Whole(Option<Bytes>),
    Flowing { flow: Flow, _held: oneshot::Sender<()> },
}

/// Where bytes come from.
enum Flow {
    Upstream(Box<Incoming>),
    Written(mpsc::Receiver<Result<Bytes, Failure>>),
}

impl Flow {
    async fn piece(&mut self) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::Upstream(incoming) => incoming.piece().await,
            Self::Written(pieces) => pieces.recv().await.transpose(),
        }
    }
}

impl Answer {
    pub(crate) fn json(text: Bytes) -> Self {
        Self {
            media: Media::Json,
            body: Body::Whole(Some(text)),
        }
    }

    pub(crate) fn flowing(media_type: String, incoming: Box<Incoming>, held: oneshot::Sender<()>) -> Self {
        Self {
            media: Media::Bytes(media_type),
            body: Body::Flowing {
                flow: Flow::Upstream(incoming),
                _held: held,
            },
        }
    }

    pub(crate) fn written(
        media_type: &str,
        pieces: mpsc::Receiver<Result<Bytes, Failure>>,
        held: oneshot::Sender<()>,
    ) -> Self {
        Self {
            media: Media::Bytes(media_type.to_owned()),
            body: Body::Flowing {
                flow: Flow::Written(pieces),
                _held: held,
            },
        }
    }

    /// What it is.
    #[must_use]
    pub fn media(&self) -> &Media {
        &self.media
    }

    /// How many bytes it has; unknown while they flow.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        match &self.body {
            Body::Whole(text) => Some(text.as_ref().map_or(0, |text| text.len() as u64)),
            Body::Flowing { .. } => None,
        }
    }

    /// The next piece; none at the end. After a failure, which only flowing bytes have, there is no more, and what came
    /// before is not whole.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Failure> {
        match &mut self.body {
            Body::Whole(text) => Ok(text.take()),
            Body::Flowing { flow, .. } => flow.piece().await,
        }
    }

    /// All of it, in one buffer.
    pub async fn whole(self) -> Result<Bytes, Failure> {
        match self.body {
            Body::Whole(text) => Ok(text.unwrap_or_default()),
            Body::Flowing {
                flow: Flow::Upstream(incoming),
                ..
            } => incoming.whole().await,
            Body::Flowing { mut flow, _held } => {
                let mut whole = BytesMut::new();
                while let Some(piece) = flow.piece().await? {
                    whole.extend_from_slice(&piece);
                }
                Ok(whole.freeze())
            }
        }
    }

    /// The pieces as a stream, which ends after a failure.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, Failure>> + Send + 'static {
        futures::stream::unfold(Some(self), |answer| async move {
            let mut answer = answer?;
            match answer.piece().await {
                Ok(piece) => piece.map(|piece| (Ok(piece), Some(answer))),
                Err(failure) => Some((Err(failure), None)),
            }
        })
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Answer")
            .field("media", &self.media)
            .field("length", &self.length())
            .finish_non_exhaustive()
    }
}
