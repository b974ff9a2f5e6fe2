//! What models are told and what they say, in the three languages they speak.
//!
//! A message is converted once, when it enters the history: [`encode_message`] gives the bytes that a request carries, and
//! [`request_body`] only joins such bytes. So a history of any length is rebuilt by copying, and what was sent once is sent
//! again byte for byte, which is what providers' prompt caches live on. Whatever changes from call to call (the most that
//! may be said, what the tools are for) stands behind the messages; cache marks are spliced in on the way out and leave the
//! stored bytes alone.
//!
//! The other way, a [`Decoder`] is fed with whatever pieces the network delivers and gives words as they come, and at the
//! end a [`Reply`]: whole blocks, why the model stopped, and tokens counted once each, whatever the provider's convention.
//! A stream that does not follow its format ends in a [`DecodeError`] that says where.
//!
//! Pure: no clock, no runtime, no IO.

mod bounds;
mod decode;
mod encode;
mod foreign;
mod format;
mod request;
mod sse;

pub use bounds::{Written, count_text, head_bound, message_bound};
pub use decode::{Counted, DecodeError, Decoder, Reply, StreamEvent, whole_reply};
pub use encode::{Thoughts, encode_message};
pub use foreign::{Foreign, ForeignError};
pub use format::Format;
pub use request::{CacheMarks, ChatLimit, Effort, Head, Opening, Thinking, request_body};
pub use sse::{SseError, SseEvent, SseParser};
