//! Secrets are typed so that they cannot print, and named by references so that they stand in no file and no argument.
//!
//! * [`Secret`]: a text that must not be seen
//! * [`Reference`]: where a secret is, which may be seen
//! * [`Source`]: what follows references; [`Unresolved`] says why one leads nowhere
//! * [`Credential`]: a secret for whoever uses it again and again, asked for anew each time
//! * [`Successors`]: what keeps secrets that somebody outside gave in place of others; [`Custody`]: both

mod credential;
mod reference;
mod source;
mod successor;
mod text;

pub use credential::Credential;
pub use reference::{NameError, Reference, ReferenceError, SecretName};
pub use source::{Because, Source, Unresolved};
pub use successor::{Custody, Successors, Unkept};
pub use text::Secret;
