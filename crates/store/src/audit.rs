//! The audit log: who did what, in a chain of hashes, written in the transaction of what it tells.

mod read;
mod verify;

use std::time::Duration;

use domain::{Money, RunId, SessionId, Timestamp, UserId};
use serde_json::Value;

pub use read::{AuditFilter, AuditFrom, AuditPage};
pub use verify::{AuditBreak, AuditVerdict, verify_audit_of};

use crate::batch::binds;
use crate::row::Row;
use crate::stored;
use crate::writer::Work;
use crate::{Asker, Hash, Store, StoreError, chain, head};

/// Something worth knowing later.
#[derive(Clone, PartialEq, Debug)]
pub struct AuditEntry {
    /// What was done, in one word for a program: `token.created`, `egress.denied`…
    pub action: String,
    /// To what: `user:…`, `session:…`, `token:…`.
    pub subject: String,
    /// What can be asked for.
    pub facts: AuditFacts,
    /// More; never a secret.
    pub detail: Value,
}

/// What every entry says in the same words, as far as it applies. Entries are found by it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct AuditFacts {
    /// The user who did it, or whose session did. Filled in by the store where it is left out and somebody is known.
    pub user: Option<UserId>,
    /// The session that it belongs to. Filled in by the store where a session asks.
    pub session: Option<SessionId>,
    /// The run that it belongs to.
    pub run: Option<RunId>,
    /// The service that was called.
    pub service: Option<String>,
    /// The host that was to be reached.
    pub host: Option<String>,
    /// What was decided: `allow`, `ask` or `deny`.
    pub decision: Option<String>,
    /// The layer that decided.
    pub layer: Option<String>,
    /// The rule by which.
    pub rule: Option<String>,
    /// Bytes that were carried, both ways.
    pub bytes: Option<u64>,
    /// How long it took, in microseconds.
    pub micros: Option<u64>,
    /// What it cost.
    pub cost: Option<Money>,
}

/// An entry as it is stored.
#[derive(Clone, PartialEq, Debug)]
pub struct AuditRecord {
    /// Its place, from 1 without a gap.
    pub number: i64,
    /// When; never before the entry before it.
    pub at: Timestamp,
    /// Who: `system`, `user:…`, `session:…`.
    pub actor: String,
    /// What.
    pub entry: AuditEntry,
    /// Its link of the chain.
    pub hash: Hash,
}

impl AuditEntry {
    /// An entry about one thing.
    #[must_use]
    pub fn new(action: impl Into<String>, subject: impl Into<String>, detail: Value) -> Self {
        Self {
            action: action.into(),
            subject: subject.into(),
            facts: AuditFacts::default(),
            detail,
        }
    }

    /// An entry about a session.
    #[must_use]
    pub fn about(action: impl Into<String>, session: SessionId, detail: Value) -> Self {
        let entry = Self::new(action, format!("session:{session}"), detail);
        entry.of(session, None)
    }

    /// It belongs to this session, and this run of it.
    #[must_use]
    pub fn of(mut self, session: SessionId, run: Option<RunId>) -> Self {
        self.facts.session = Some(session);
        self.facts.run = run;
        self
    }

    /// It was decided: `allow`, `ask` or `deny`, by this layer and rule. What is empty is left out.
    #[must_use]
    pub fn decided(mut self, decision: &str, layer: &str, rule: &str) -> Self {
        let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        self.facts.decision = known(decision);
        self.facts.layer = known(layer);
        self.facts.rule = known(rule);
        self
    }

    /// So many bytes were carried, in this time.
    #[must_use]
    pub fn carried(mut self, bytes: u64, took: Duration) -> Self {
        self.facts.bytes = Some(bytes);
        self.facts.micros = Some(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self
    }
}

impl Store {
    /// Adds entries that tell of something outside the store; the actor is the one who asks.
    ///
    /// # Errors
    /// Writing failed.
    pub async fn audit(&self, asker: Asker, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        self.write("write the audit log", move |work| append(work, asker, entries))
            .await
    }
}

/// The largest number that the database holds, for what is counted without a sign.
fn held(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl AuditFacts {
    fn of(row: &Row) -> Result<Self, StoreError> {
        let count = |name: &str| -> Result<Option<u64>, StoreError> {
            let count = row.integer_or_none(name)?;
            count
                .map(|count| u64::try_from(count).map_err(|source| stored::corrupt("audit entry", source)))
                .transpose()
        };
        Ok(Self {
            user: row.id_or_none("owner")?,
            session: row.id_or_none("session_id")?,
            run: row.id_or_none("run_id")?,
            service: row.text_or_none("service")?,
            host: row.text_or_none("host")?,
            decision: row.text_or_none("decision")?,
            layer: row.text_or_none("layer")?,
            rule: row.text_or_none("rule")?,
            bytes: count("bytes")?,
            micros: count("micros")?,
            cost: row.integer_or_none("cost")?.map(Money),
        })
    }

    /// As the chain counts them: in their order, what is left out as nothing. None where all is left out, as in entries from
    /// before there were any.
    fn sealed(&self) -> Option<String> {
        if *self == Self::default() {
            return None;
        }
        let id = |id: Option<String>| id.map_or(Value::Null, Value::from);
        let text = |text: &Option<String>| text.as_deref().map_or(Value::Null, Value::from);
        let number = |number: Option<i64>| number.map_or(Value::Null, Value::from);
        let parts = [
            id(self.user.map(|user| user.to_string())),
            id(self.session.map(|session| session.to_string())),
            id(self.run.map(|run| run.to_string())),
            text(&self.service),
            text(&self.host),
            text(&self.decision),
            text(&self.layer),
            text(&self.rule),
            number(self.bytes.map(held)),
            number(self.micros.map(held)),
            number(self.cost.map(|cost| cost.0)),
        ];
        Some(Value::from(parts.to_vec()).to_string())
    }

    /// Says whose it is, where it does not say so itself and the store knows.
    fn complete(&mut self, work: &mut Work, asker: Asker) -> Result<(), StoreError> {
        if let Asker::Session(session) = asker {
            self.session = self.session.or(Some(session));
        }
        match (asker, self.session) {
            _ if self.user.is_some() => {}
            (Asker::User { id, .. }, _) => self.user = Some(id),
            (_, Some(session)) => self.user = head::owner(work, session)?,
            (Asker::System | Asker::Session(_), None) => {}
        }
        Ok(())
    }
}

impl AuditRecord {
    fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            number: row.integer("number")?,
            at: row.time("at")?,
            actor: row.text("actor")?,
            entry: AuditEntry {
                action: row.text("action")?,
                subject: row.text("subject")?,
                facts: AuditFacts::of(row)?,
                detail: stored::read("audit entry", row.bytes("detail")?)?,
            },
            hash: row.hash("hash")?,
        })
    }

    /// The link that this entry makes after another.
    fn link(&self, before: Hash) -> Hash {
        let (at, detail, facts) = (
            self.at.0.to_be_bytes(),
            self.entry.detail.to_string(),
            self.entry.facts.sealed(),
        );
        let mut parts = vec![
            at.as_slice(),
            self.actor.as_bytes(),
            self.entry.action.as_bytes(),
            self.entry.subject.as_bytes(),
            detail.as_bytes(),
        ];
        parts.extend(facts.as_ref().map(String::as_bytes));
        chain::link(before, self.number, &parts)
    }
}

/// The end of the log, as far as a job has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Audited {
    pub(crate) number: i64,
    at: Timestamp,
    hash: Hash,
}

impl Audited {
    /// With what the job has added, which is not in the file yet.
    fn read(work: &mut Work) -> Result<Self, StoreError> {
        if let Some(last) = work.audited {
            return Ok(last);
        }
        let sql = "SELECT number, at, hash FROM audit ORDER BY number DESC LIMIT 1";
        Ok(match work.one(sql, Vec::new())? {
            None => Self {
                number: 0,
                at: work.now,
                hash: Hash::default(),
            },
            Some(row) => Self {
                number: row.integer("number")?,
                at: row.time("at")?,
                hash: row.hash("hash")?,
            },
        })
    }
}

/// Adds entries in the transaction of what they tell.
pub(crate) fn append(work: &mut Work, asker: Asker, entries: impl AsRef<[AuditEntry]>) -> Result<(), StoreError> {
    let mut last = Audited::read(work)?;
    // A clock that is set back does not bring the log out of its order: moments are looked for in it.
    last.at = last.at.max(work.now);
    for entry in entries.as_ref() {
        last.number += 1;
        let mut entry = entry.clone();
        entry.facts.complete(work, asker)?;
        let mut record = AuditRecord {
            number: last.number,
            at: last.at,
            actor: asker.word(),
            entry,
            hash: last.hash,
        };
        last.hash = record.link(last.hash);
        record.hash = last.hash;
        insert(work, record)?;
    }
    work.audited = Some(last);
    Ok(())
}

fn insert(work: &mut Work, record: AuditRecord) -> Result<(), StoreError> {
    let detail = String::from_utf8(stored::write("audit entry", &record.entry.detail)?)
        .map_err(|source| stored::corrupt("audit entry", source))?;
    let AuditEntry {
        action, subject, facts, ..
    } = record.entry;
    work.batch.add(
        "INSERT INTO audit (number, at, actor, action, subject, detail, hash, owner, session_id, run_id, service, host, \
         decision, layer, rule, bytes, micros, cost) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)",
        binds![
            record.number,
            record.at,
            record.actor,
            action,
            subject,
            detail,
            record.hash,
            facts.user,
            facts.session,
            facts.run,
            facts.service,
            facts.host,
            facts.decision,
            facts.layer,
            facts.rule,
            facts.bytes.map(held),
            facts.micros.map(held),
            facts.cost.map(|cost| cost.0)
        ],
    );
    Ok(())
}
