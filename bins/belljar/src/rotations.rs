//! What services give in place of configured secrets: kept, and told to the audit log.

use causes::with_causes;
use secret::{Secret, Successors, Unkept};
use secrets::Rotated;
use serde_json::Value;
use store::{Asker, AuditEntry, Store};
use tokio::runtime::Handle;

/// Keeps what services give in place of configured secrets, and tells the audit log that they did.
pub(crate) struct Rotations {
    rotated: Rotated,
    store: Store,
    runtime: Handle,
}

impl Rotations {
    /// Called in the runtime that the store's own tasks run in.
    pub(crate) fn new(rotated: Rotated, store: Store) -> Self {
        Self {
            rotated,
            store,
            runtime: Handle::current(),
        }
    }
}

impl Successors for Rotations {
    fn turn(&self, service: &str) -> Result<Box<dyn Send>, Unkept> {
        self.rotated.turn(service)
    }

    fn newest(&self, service: &str, secret: &Secret) -> Result<Option<Secret>, Unkept> {
        self.rotated.newest(service, secret)
    }

    fn keep(&self, service: &str, secret: &Secret, newest: &Secret) -> Result<(), Unkept> {
        self.rotated.keep(service, secret, newest)?;
        let mut entry = AuditEntry::new("secret.rotated", format!("service:{service}"), Value::Null);
        entry.facts.service = Some(service.to_owned());
        // Here only waiting is allowed, as the secret is on the disk first.
        if let Err(error) = self.runtime.block_on(self.store.audit(Asker::System, vec![entry])) {
            tracing::error!(
                service,
                error = with_causes(&error),
                "the audit log is not told that a secret was rotated"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use secrets::KeyFrom;
    use store::{AuditFilter, AuditFrom};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_rotation_is_audited_and_no_secret_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let store = Store::open(store::Config::new(path("store.db")))
            .await
            .expect("a store");
        let rotated = Rotated::new(path("rotated"), KeyFrom::File(path("key")));
        let rotations = Rotations::new(rotated, store.clone());
        let kept = tokio::task::spawn_blocking(move || {
            rotations.keep("crm", &Secret::new("configured-canary"), &Secret::new("newest-canary"))
        });
        kept.await.expect("an end").expect("it is kept");
        let page = store
            .audit_page(Asker::System, AuditFilter::default(), AuditFrom::Newest, 10)
            .await;
        let told = page.expect("the log").records;
        let entry = &told.first().expect("an entry").entry;
        assert_eq!(
            (entry.action.as_str(), entry.subject.as_str()),
            ("secret.rotated", "service:crm")
        );
        assert!(!format!("{told:?}").contains("canary"));
    }
}
