//! Which system calls a sandbox has: the reviewed list in `list.json`.
//!
//! Whoever makes a container is told it in words of its own. Where nobody is, as the kernel that answers is not this machine's,
//! the sandbox's first process gives it to itself and to all that it starts: [`give_to_this_process`].

mod filter;
mod list;

pub use filter::{FilterError, give_to_this_process};
pub use list::{Action, Condition, Rule, rules};
