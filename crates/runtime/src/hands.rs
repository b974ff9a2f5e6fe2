//! The hands: another uid, no capability, no token. What the model asks for happens here.
//!
//! [`Hands`] is what PID 1 holds of them, [`run`] is their own `main`. Between the two is a socketpair, on it the hands protocol
//! of `protocol`: a JSON value a line, files as descriptors.

mod handle;
mod keeper;
mod process;
mod wire;

pub(crate) use handle::Hands;
pub(crate) use process::run;

/// The argument that makes the program the hands.
pub(crate) const ROLE: &str = "hands";
