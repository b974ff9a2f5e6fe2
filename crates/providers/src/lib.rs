//! Streaming clients of model APIs.
//!
//! [`Providers`] holds the configured [`Model`]s. A call is a body that `llm::request_body` made; what comes back is a
//! [`ModelStream`] of words and, at the end, a reply with its usage. Until the model has said its first word a call that
//! failed is made again, with the provider's own delay or a growing one; after that never, since words that were seen
//! cannot be unsaid: the caller gets a typed [`ModelError`] and what had been said. Dropping the stream hangs up.
//!
//! The model of kind `scripted` plays a file instead of asking anybody. Its words take the same way as all others: they
//! are written as a provider's stream, faults included, and read by the same decoder.
//!
//! A call whose request another program wrote is a [`Relay`]: made once, and handed on event by event.
//!
//! A base address comes from the configuration only, redirects are not followed, no proxy is taken from the environment,
//! plain HTTP goes to this machine only unless the model says otherwise, and a key is sent to its own model's address and
//! found in no error.

mod calls;
mod error;
mod model;
mod refusal;
mod retry;
mod scripted;
mod settings;
mod stream;
mod transport;

pub use calls::{Providers, ProvidersError, Relay, RelayCall, RelayEvent, Retry};
pub use error::ModelError;
pub use model::Model;
pub use retry::RetryLimits;
pub use scripted::{Script, ScriptError};
pub use settings::{ModelProblem, ModelSettings, ProviderKind, SettingsPrice};
pub use stream::{ModelStream, Timeouts};
pub use transport::ClientError;
