//! What lives in a sandbox: one static program in four roles.
//!
//! **PID 1** (`pid1`) is root inside, which is nobody outside. It holds the session's token and the [`link`], runs the agent
//! loop, and reaps. It never opens a file that a user may have made and never runs what a model asked for. **Hands**
//! (`hands`) are the same file run as the sandbox's user, without a capability and without a token; they use the tools and
//! open the files, and talk to PID 1 over a socketpair. A **supervisor** (`supervise`) stands over each program that a
//! tool starts, so that nothing of a call survives it; one waits for the next program. A **watcher** (`sync`), a user's
//! process too, sees what changes in the workspace and has it kept outside.
//!
//! Whoever breaks the hands has won what the sandbox's user has, and nothing more: PID 1 believes them no result but of a
//! call that it made, takes no order from them, and replaces them when they die or do not answer.
//!
//! While a run may use services, the user's processes call them at a socket in `offers`; the token is added there.
//! Connections and DNS questions of the sandbox arrive in `capture` and go over the link, each with the name that it was
//! meant for. When PID 1 dies the sandbox dies with it; there is no other way out.

mod capture;
mod gateway;
mod grants;
mod hands;
mod log;
mod offers;
mod orders;
mod outbox;
mod pid1;
mod program;
mod reaper;
mod sync;
mod transfers;
mod trust;
mod work;

pub use crate::sync::{Ended, Flush, Ordered, carry};
pub use program::main;
