//! From a message to the bytes that a request carries.

use bytes::Bytes;
use domain::Message;

use crate::Format;

/// What becomes of the thoughts in an assistant's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thoughts {
    /// They go back unmodified: the model that reads them is of the family that had them.
    Keep,
    /// They are left out.
    Drop,
}

/// What a request of this format carries for this message: one JSON value, or several joined by commas, or nothing where
/// nothing of the message can be said in it. Joined by commas, such bytes are the format's list of messages.
#[must_use]
pub fn encode_message(format: Format, thoughts: Thoughts, message: &Message) -> Bytes {
    let _ = (format, thoughts, message);
    Bytes::new()
}
