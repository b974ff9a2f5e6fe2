//! What the kernel offers and safe Rust does not reach: the only crate with `unsafe`.
//!
//! Each module wraps a family of system calls in functions that cannot be misused from safe code; what `rustix` covers
//! safely is not repeated here.
//!
//! - [`socket`]: where a captured connection was bound for

pub mod socket;
