//! Where contents of files are kept: in a service that speaks S3, or in a folder of this machine.
//!
//! An object is named by its session and by the SHA-256 of its bytes: nothing of a sandbox's choosing is in its name, the
//! same content is kept once in a session, and no session shares one with another.
//!
//! - [`Objects`]: puts, gets, looks for and removes objects. Bytes stream through, and an object is there only when
//!   all of it came and is what its name says.
//! - [`Tickets`]: signed URLs of the link, each good for one session's object, one method, one length, a few minutes.
//! - [`Objects::presign`]: the same promise in the words of S3.

mod local;
mod objects;
mod s3;
mod tickets;

pub use objects::{Key, ObjectError, Objects, Store};
pub use s3::{Presigned, S3Settings};
pub use tickets::{Method, Ticket, TicketError, Tickets};

/// How long a signed URL is good.
pub const GOOD_FOR: std::time::Duration = std::time::Duration::from_secs(300);
