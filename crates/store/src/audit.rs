//! The audit log: who did what, in a chain of hashes, written in the transaction of what it tells.

use domain::Timestamp;
use serde_json::Value;

use crate::batch::binds;
use crate::row::Row;
use crate::stored;
use crate::writer::Work;
use crate::{Asker, Hash, Store, StoreError, chain};

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
        self.write("write the audit log", move |work| append(work, asker, &entries))
            .await
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
        asker.must_be_admin("read the audit log")?;
        let sql = if newest {
            "SELECT * FROM audit WHERE $1 = 0 OR number < $1 ORDER BY number DESC LIMIT $2"
        } else {
            "SELECT * FROM audit WHERE number > $1 ORDER BY number LIMIT $2"
        };
        let limit = i64::from(limit.min(Self::LONGEST_PAGE));
        let rows = self.read("read the audit log", sql, binds![after, limit]).await?;
        rows.iter().map(record).collect()
    }

    /// Reads the whole log and follows its chain.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub async fn verify_audit(&self, asker: Asker) -> Result<AuditVerdict, StoreError> {
        let mut verdict = AuditVerdict {
            entries: 0,
            head: Hash::default(),
            broken_at: None,
        };
        loop {
            let page = self
                .audit_page(asker, verdict.entries, false, Self::LONGEST_PAGE)
                .await?;
            if page.is_empty() {
                return Ok(verdict);
            }
            for record in page {
                let follows = record.number == verdict.entries + 1 && record.hash == link(verdict.head, &record);
                if !follows && verdict.broken_at.is_none() {
                    verdict.broken_at = Some(record.number);
                }
                verdict.entries = record.number;
                verdict.head = record.hash;
            }
        }
    }
}

fn record(row: &Row) -> Result<AuditRecord, StoreError> {
    Ok(AuditRecord {
        number: row.integer("number")?,
        at: row.time("at")?,
        actor: row.text("actor")?,
        entry: AuditEntry {
            action: row.text("action")?,
            subject: row.text("subject")?,
            detail: stored::read("audit entry", row.text("detail")?.as_bytes())?,
        },
        hash: row.hash("hash")?,
    })
}

fn link(before: Hash, record: &AuditRecord) -> Hash {
    let detail = record.entry.detail.to_string();
    chain::link(
        before,
        record.number,
        &[
            &record.at.0.to_be_bytes(),
            record.actor.as_bytes(),
            record.entry.action.as_bytes(),
            record.entry.subject.as_bytes(),
            detail.as_bytes(),
        ],
    )
}

/// Adds entries in the transaction of what they tell; once in a job.
pub(crate) fn append(work: &mut Work, asker: Asker, entries: &[AuditEntry]) -> Result<(), StoreError> {
    let last = work.one(
        "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1",
        Vec::new(),
    )?;
    let (mut number, mut hash) = match last {
        None => (0, Hash::default()),
        Some(row) => (row.integer("number")?, row.hash("hash")?),
    };
    for entry in entries {
        number += 1;
        let record = AuditRecord {
            number,
            at: work.now,
            actor: asker.word(),
            entry: entry.clone(),
            hash,
        };
        hash = link(hash, &record);
        let detail = String::from_utf8(stored::write("audit entry", &entry.detail)?)
            .map_err(|source| stored::corrupt("audit entry", source))?;
        work.batch.add(
            "INSERT INTO audit (number, at, actor, action, subject, detail, hash) VALUES ($1, $2, $3, $4, $5, $6, $7)",
            binds![
                number,
                work.now,
                record.actor,
                entry.action.as_str(),
                entry.subject.as_str(),
                detail,
                hash
            ],
        );
    }
    Ok(())
}

/// An entry about one thing.
pub(crate) fn entry(action: &str, subject: String, detail: Value) -> AuditEntry {
    AuditEntry {
        action: action.to_owned(),
        subject,
        detail,
    }
}
