//! From a provider's stream to events and a reply.

use domain::{Block, ToolCallId, Usage};
use protocol::StopReason;

use crate::{Format, SseError};

/// Something a model says, as it says it.
#[derive(Clone, PartialEq, Debug)]
pub enum StreamEvent {
    /// More words of the answer.
    Text(String),
    /// More words of a thought.
    Thinking(String),
    /// The model began to write a tool call; the whole of it stands in the reply.
    ToolCallStarted {
        /// The call's id.
        id: ToolCallId,
        /// The tool's name, as the model wrote it.
        name: String,
    },
    /// The model has finished; nothing follows.
    Done(Reply),
}

/// What a model said, whole.
#[derive(Clone, PartialEq, Debug)]
pub struct Reply {
    /// Its blocks, in order.
    pub blocks: Vec<Block>,
    /// Why it stopped.
    pub stop: StopReason,
    /// Tokens.
    pub usage: Usage,
    /// Who counted them.
    pub counted: Counted,
}

/// Who counted the tokens of a [`Usage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// The provider, all of them.
    ByProvider,
    /// The provider those of the input; the output is our own count.
    InputByProvider,
    /// Nobody but us: the output is our own count, and the input fields are 0 because it is not known.
    ByUs,
}

/// Why a stream is not a reply.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// It is no event stream.
    #[error("the stream could not be read")]
    Sse(#[from] SseError),
    /// An event is not JSON, or not of the format.
    #[error("event {event} of the stream is malformed")]
    Event {
        /// The event's type, or its number in the stream.
        event: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// Events contradict each other.
    #[error("the stream contradicts itself: {what}")]
    Inconsistent {
        /// In words.
        what: String,
    },
    /// The provider reported a failure in mid-stream.
    #[error("the provider reported {kind}: {message}")]
    Provider {
        /// The provider's word for it, such as `overloaded_error`.
        kind: String,
        /// What it says, as it says it.
        message: String,
    },
    /// The stream ended before the reply did.
    #[error("the stream ended before the reply was complete")]
    Cut,
    /// The reply is longer than any that is asked for.
    #[error("the reply is longer than {limit} bytes")]
    TooLong {
        /// The most that is accepted.
        limit: usize,
    },
}

/// Reads the stream of one reply.
#[derive(Debug)]
pub struct Decoder {
    format: Format,
}

impl Decoder {
    /// A decoder at the beginning of a stream.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self { format }
    }

    /// Takes the next piece of the stream and appends what it says to `events`. After an error, and after `Done`, nothing
    /// more is to be fed; what follows `Done` is ignored.
    pub fn feed(&mut self, piece: &[u8], events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        let _ = (self.format, piece, events);
        Ok(())
    }

    /// Says that the stream has ended. Some formats have no last word of their own: there this gives the `Done`.
    pub fn end(&mut self, events: &mut Vec<StreamEvent>) -> Result<(), DecodeError> {
        let _ = events;
        Err(DecodeError::Cut)
    }

    /// What has been said so far: whole blocks, open texts as far as they came, no half-written tool call; for a stream
    /// that was cut. The stop reason is `Pause`.
    #[must_use]
    pub fn partial(&self) -> Reply {
        Reply {
            blocks: Vec::new(),
            stop: StopReason::Pause,
            usage: Usage::default(),
            counted: Counted::ByUs,
        }
    }
}
