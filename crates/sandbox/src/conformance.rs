//! What every provider must do, as a program that knows nothing of any provider's inside.
//!
//! It asks two things of the runtime that is started in the sandboxes: that it dials the link, and dials again when the
//! connection is closed. `belljar-runtime` does, and so does the simulator's default program.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::{ImageDigest, SandboxProvider};

/// A provider on trial.
pub struct Subject {
    /// The provider, without sandboxes.
    pub provider: Arc<dyn SandboxProvider>,
    /// An image that it has.
    pub image: ImageDigest,
    /// Ends a provider as suddenly as it can and starts another in its place.
    pub restart: Restart,
}

/// Ends a provider as suddenly as it can and starts another in its place.
pub type Restart = Box<
    dyn Fn(Arc<dyn SandboxProvider>) -> Pin<Box<dyn Future<Output = Arc<dyn SandboxProvider>> + Send>> + Send + Sync,
>;
