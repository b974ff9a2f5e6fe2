//! The six tools: read, write, edit, exec, safebash, skill.
//!
//! [`Tools`] holds no conversation and no secret: a call comes in, a result goes out. It runs in a sandbox's hands as the
//! user of the sandbox, and inside `belljar dev`.
//!
//! Three rules hold for every tool. *Files* are reached through [`Files`] only, by one system call that leaves no room
//! between check and use. *Programs* are started by one function, each beneath a supervisor ([`supervise`]) that adopts
//! every descendant and kills them all when the call ends, whoever ended it, or the time of a program in the background is up. *Answers* are for a model: bounded, without
//! terminal codes, and a failure says what was tried and what to do next.

mod archive;
mod background;
mod bounded;
mod edit;
mod exec;
mod files;
mod process;
mod read;
mod safebash;
mod settings;
mod skill;
mod supervise;
mod toolbox;
mod write;

pub use archive::{ArchiveError, Leftover, Packing, Unpacking};
pub use background::Background;
pub use files::{Created, FileError, Files};
pub use settings::Settings;
pub use supervise::supervise;
pub use toolbox::{Progress, Tools};
