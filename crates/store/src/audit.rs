//! The audit log: who did what, in a chain of hashes, written in the transaction of what it tells.

use domain::Timestamp;
use serde_json::Value;

use crate::{Asker, Hash, Store, StoreError};

/// Something worth knowing later.
#[derive(Clone, PartialEq, Debug)]
pub struct AuditEntry {
    /// What was done, in one word for a program: `token.created`, `egress.denied`…
    pub action: String,
    /// To what: `user:…`, `session:…`, `token:…`.
    pub subject: String,
    /// More; never a secret.
    pub detail: Value,
}

/// An entry as it is stored.
#[derive(Clone, PartialEq, Debug)]
pub struct AuditRecord {
    /// Its place, from 1 without a gap.
    pub number: i64,
    /// When.
    pub at: Timestamp,
    /// Who: `system`, `user:…`, `session:…`.
    pub actor: String,
    /// What.
    pub entry: AuditEntry,
    /// Its link of the chain.
    pub hash: Hash,
}

/// What verifying the log found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditVerdict {
    /// How many entries there are.
    pub entries: i64,
    /// The last link: who notes it elsewhere can tell later that nothing was cut off.
    pub head: Hash,
    /// The first entry that does not follow from the one before; none: all is well.
    pub broken_at: Option<i64>,
}

impl Store {
    /// Adds entries that tell of something outside the store; the actor is the one who asks.
    ///
    /// # Errors
    /// Writing failed.
    pub async fn audit(&self, asker: Asker, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        todo!()
    }

    /// Entries after `after` (0: from the first), at most `limit`; where `newest` says so, the newest ones before `after` (0: the very newest), newest first.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub async fn audit_page(
        &self,
        asker: Asker,
        after: i64,
        newest: bool,
        limit: u32,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        todo!()
    }

    /// Reads the whole log and follows its chain.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub async fn verify_audit(&self, asker: Asker) -> Result<AuditVerdict, StoreError> {
        todo!()
    }
}
