//! The sandboxes there are, and how Belljar itself does.

use std::time::Duration;

use domain::SandboxId;
use sandbox::{ProviderError, SandboxStatus, SandboxUsage};
use serde::Serialize;
use store::Asker;
use tokio::time::timeout;

use crate::{Control, ControlError};

/// How long a part may take to answer before it counts as down.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// A sandbox, and what it takes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SandboxEntry {
    /// How it is.
    pub status: SandboxStatus,
    /// What it takes; none where it is dead.
    pub usage: Option<SandboxUsage>,
}

/// How Belljar does. A part that is well has no words.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Health {
    /// What is wrong with the store.
    pub store: Option<String>,
    /// What is wrong with the sandbox provider.
    pub sandboxes: Option<String>,
    /// Runs under way.
    pub runs: usize,
}

impl Control {
    /// Every sandbox.
    ///
    /// # Errors
    /// The one who asks is no admin; the provider cannot be reached.
    pub async fn sandboxes(&self, asker: Asker) -> Result<Vec<SandboxEntry>, ControlError> {
        only_admins(asker, "list sandboxes")?;
        let provider = &self.0.housing.provider;
        let mut entries = Vec::new();
        for status in provider.list().await.map_err(provided)? {
            let usage = provider.usage(status.id).await.ok();
            entries.push(SandboxEntry { status, usage });
        }
        Ok(entries)
    }

    /// Removes a sandbox; the session's files are kept, and a run that it worked on goes on in another.
    ///
    /// # Errors
    /// The one who asks is no admin; there is no such sandbox.
    pub async fn remove_sandbox(&self, asker: Asker, sandbox: SandboxId) -> Result<(), ControlError> {
        only_admins(asker, "remove sandboxes")?;
        if let Some(live) = self.0.housing.session_of(sandbox) {
            self.unhouse(&live, Some(sandbox), "removed", Some("it was removed by hand"))
                .await;
            return Ok(());
        }
        let provider = &self.0.housing.provider;
        provider.status(sandbox).await.map_err(provided)?;
        provider.destroy(sandbox).await.map_err(provided)
    }

    /// How Belljar does.
    pub async fn health(&self) -> Health {
        let store = timeout(ANSWERS_WITHIN, self.0.store.pending_runs(Asker::System, 1));
        let sandboxes = timeout(ANSWERS_WITHIN, self.0.housing.provider.list());
        let (store, sandboxes) = tokio::join!(store, sandboxes);
        let silent = || "it did not answer in time".to_owned();
        Health {
            store: match store {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(silent()),
            },
            sandboxes: match sandboxes {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(silent()),
            },
            runs: self.0.dispatch.driven().len(),
        }
    }
}

fn only_admins(asker: Asker, attempt: &str) -> Result<(), ControlError> {
    if asker.is_admin() {
        return Ok(());
    }
    Err(ControlError::Denied(format!("only an admin may {attempt}")))
}

fn provided(error: ProviderError) -> ControlError {
    match error {
        ProviderError::NotFound(id) => ControlError::NotFound {
            kind: "sandbox",
            name: id.to_string(),
        },
        ProviderError::Unavailable(_) | ProviderError::Machine { .. } => ControlError::Unavailable(error.to_string()),
        error => ControlError::internal("use its sandbox provider", error),
    }
}
