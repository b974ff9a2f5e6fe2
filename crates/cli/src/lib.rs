//! The command line as a door: what a person types becomes requests to the HTTP API, and what comes back something that is
//! pleasant to read.
//!
//! The answer of a job goes to stdout and everything about it (tools, thinking, cost) to stderr, so that `belljar run … > answer.md`
//! holds the answer and nothing else. What a command is asked to show, all of it, goes to stdout. With `--json` stdout has one JSON value a line. Whatever a model, a tool or a file
//! said is untrusted: before it reaches a terminal, characters that would command the terminal are made visible.
//!
//! * [`arguments`]: what can be typed
//! * [`client`]: requests, and errors in words
//! * [`watch`]: the event stream, joined again without loss when it breaks
//! * [`render`]: events as lines
//! * [`output`]: what is printed, and may not be read to its end
//! * [`terminal`]: untrusted text made harmless
//! * [`commands`]: what each command does

mod arguments;
mod client;
mod commands;
mod outcome;
mod output;
mod render;
mod terminal;
mod watch;

pub use arguments::{
    ApprovalsArguments, ApprovalsCommand, ApproveArguments, AuditArguments, ByArgument, ClientCommand,
    DecisionArgument, DeliveryArgument, FilesArguments, GetArguments, ImageCommand, ListArguments, Noted, PutArguments,
    RunArguments, SandboxCommand, TokenCommand, UserCommand,
};
pub use client::{Client, ClientError};
pub use commands::{backup, execute, image_uses, show_images, used_images};
pub use outcome::Outcome;
pub use output::{line, note, output};
pub use render::Screen;
pub use terminal::harmless;
