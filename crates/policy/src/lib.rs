//! Who may do what: a pure function from scopes and a question to a decision.
//!
//! A [`Scope`] is what somebody wrote: a role, the ceiling of a door, what one session was begun with. [`Layers`] puts
//! those that count for one session over each other and answers [`Question`]s: may `crm.search` be called, is there a
//! tool `exec`, does a connection leave for `api.example.com:443`. Every answer is a [`Decision`] with its reason, the
//! layer that decided and the rule in it.
//!
//! - Deny beats ask beats allow, in whatever order rules and layers stand.
//! - A key that a scope leaves out is left to the other layers; an empty list is none.
//! - What no layer grants is denied. Only what the operator wrote grants: roles and doors. What came with a
//!   request, and what a parent session hands to its child, can take away and nothing else. So no scope that a caller, a
//!   model or a sandbox thinks of widens anything.
//!
//! ```text
//! host             names of hosts in one form, and patterns for them
//! pattern          `crm.*`, `delete*`: globs in which a star stays in its segment
//! rules            lists of patterns that allow, ask and deny
//! tools, limits    the other keys of a scope
//! scope            all keys together, as they are written
//! question         what may be asked
//! layers, decision scopes over each other, and what comes of it
//! policies         the roles and ceilings that an operator wrote, and whose they are
//! lint             what a scope's patterns come to, given what there is
//! ```

mod decision;
mod host;
mod layers;
mod limits;
mod lint;
mod pattern;
mod policies;
mod question;
mod rules;
mod scope;
mod tools;

pub use decision::{Decision, Explanation, Outcome, Seen};
pub use host::{Destination, Host, HostError, HostPattern, Ports};
pub use layers::{Layer, Layers, TooMany};
pub use limits::{Dollars, Limits};
pub use lint::{Catalogue, Finding, Is, lint};
pub use pattern::{MethodPattern, NamePattern, PatternError};
pub use policies::{EVERYBODY, Group, Policies};
pub use question::{Question, QuestionError};
pub use rules::Rules;
pub use scope::Scope;
pub use tools::{Tool, Tools};
