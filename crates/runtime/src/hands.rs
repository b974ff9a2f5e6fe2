//! The hands: another uid, no capability, no token. What the model asks for happens here.
//!
//! [`Hands`] is what PID 1 holds of them, [`run`] is their own `main`. Between the two is a socketpair, on it the hands protocol
//! of `protocol`: a JSON value a line, files as descriptors.

mod background;
mod handle;
mod keeper;
mod process;

pub(crate) use handle::{FileFailure, Hands};
pub(crate) use process::run;

/// The longest line, the same as on the control stream.
const LONGEST: usize = 16 << 20;

/// The argument that makes the program the hands.
pub(crate) const ROLE: &str = "hands";
