//! What doors ask for beside prompts and watching: thin, since the store and the sandboxes decide.

mod approvals;
mod files;
mod images;
mod people;
mod policy;
mod sandboxes;
mod sessions;

pub use files::FileStream;
pub(crate) use files::transferred;
pub use images::{GenerationEntry, ImageEntry, ImageUse};
pub(crate) use people::USER_REMOVED;
pub use sandboxes::{Health, RemovedSandboxes, SandboxEntry, SandboxFigures};
