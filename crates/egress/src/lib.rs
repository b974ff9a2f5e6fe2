//! The egress broker: what leaves a sandbox leaves through here, or not at all.
//!
//! A sandbox has no network. Whatever its programs open arrives here as a session, a host and a port. Two must say yes
//! before anything happens outside: a rule of the installation ([`Rules`]) and the session's scope, a function that is handed
//! in. A name is answered without asking anybody; it is resolved when a connection to it was allowed, once, and what was
//! checked is dialled (crate `dial`).
//!
//! The first bytes then say what is spoken. TLS must name, in the clear, the host that was asked for; where no rule has
//! business inside, the bytes pass as they are. Plain HTTP, and TLS to hosts whose rules inject or restrict, is taken
//! apart request by request. SSH is spoken with both ends where a rule says `ssh`, and its commands are carried one by one.
//! Anything else passes where a rule says `tcp`.
//!
//! Whatever is refused is refused with a code, the rule, the reason and the remedy ([`Denied`]), and told to the audit.

mod audit_queue;
mod authority;
mod broker;
mod denied;
mod inject;
mod intercept;
mod limits;
mod opening;
mod prefixed;
mod private_file;
mod proxy;
mod record;
mod roots;
mod rules;
mod session;
mod ssh;

pub use audit_queue::{AuditReceiver, AuditSender, Tried, audit_queue};
pub use authority::{Authorities, AuthorityError};
pub use broker::{Admitted, Broker, BrokerError, Clock, Decide, Surroundings, machine_clock};
pub use denied::{Code, Denied};
pub use inject::{Aws, Git, Injection, Mode};
pub use intercept::{
    Ask, Decided, Dial, Intercept, Matching, Parts, PathPattern, PathPatternError, Pending, Stream, TokenAnswers,
};
pub use limits::Limits;
pub use private_file::PrivateFileError;
pub use proxy::{ProxySettings, ProxyUrl};
pub use record::{Outcome, Record, Request};
pub use roots::machine_roots;
pub use rules::{Mistake, Rule, Rules, Scheme};
pub use ssh::{CommandPattern, CommandPatternError, HostKey, HostKeyError, SshRule};
