//! Sessions are made from another.

use domain::{Event, SessionId, SnapshotId};
use serde_json::{Value, json};

use super::{find, no_snapshot, standing, theirs};
use crate::batch::binds;
use crate::head::Head;
use crate::row::Row;
use crate::skipped::Skipped;
use crate::writer::Work;
use crate::{Asker, AuditEntry, Store, StoreError, Target, addresses, audit, narrowings, prompts};

/// Forks that are made at once.
const MOST: u32 = 16;
/// Bytes of history that are copied for one request: everybody who writes waits while a fork is made.
const MOST_COPIED: i64 = 256 << 20;
/// Forks of one user that are not archived, and bytes of the histories of all of theirs.
const MOST_OF_OWNER: i64 = 1_000;
const MOST_BYTES_OF_OWNER: i64 = 2 << 30;

/// What forks are made of.
#[derive(Clone, PartialEq, Debug)]
pub struct Fork {
    /// The snapshot that they begin at; none: the session as it stands, without files.
    pub snapshot: Option<SnapshotId>,
    /// How many.
    pub count: u32,
    /// What they may not do, beside what their parent may not (a scope).
    pub narrowing: Option<Value>,
}

impl Store {
    /// Makes sessions of the same owner that have the history of another up to a snapshot, and owes them its files. They may do
    /// what it may and no more; nothing of its costs, its tokens or the approvals that it got is theirs.
    ///
    /// # Errors
    /// The session or the snapshot does not exist, for the one who asks; there are to be none or too many.
    pub async fn fork(&self, asker: Asker, session: SessionId, fork: Fork) -> Result<Vec<SessionId>, StoreError> {
        if !(1..=MOST).contains(&fork.count) {
            return Err(StoreError::Invalid {
                subject: "the number of forks",
                reason: format!("1 to {MOST} are made at once, not {}", fork.count),
            });
        }
        let mut made = Vec::new();
        for left in (1..=fork.count).rev() {
            // Each in a step of its own: others write in between.
            let narrowing = fork.narrowing.clone();
            let snapshot = fork.snapshot;
            let one = self.write("fork a session", move |work| {
                let parent = Parent::read(work, asker, session, snapshot)?;
                parent.check_room(work, i64::from(left))?;
                parent.fork(work, asker, narrowing.as_ref())
            });
            match one.await {
                Ok(session) => made.push(session),
                // Those that are there are told: nobody would find them otherwise.
                Err(error) if !made.is_empty() => {
                    tracing::warn!(parent = %session, made = made.len(), %error, "not all forks could be made");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(made)
    }
}

/// What forks get of their parent.
struct Parent {
    head: Head,
    door: String,
    title: String,
    snapshot: Option<SnapshotId>,
    messages: Vec<Row>,
    /// The summary that counts, and for how many of the messages it stands.
    summary: Option<(Vec<u8>, i64)>,
    narrowings: Vec<Row>,
}

impl Parent {
    fn read(
        work: &mut Work,
        asker: Asker,
        session: SessionId,
        snapshot: Option<SnapshotId>,
    ) -> Result<Self, StoreError> {
        let head = theirs(work, asker, session)?;
        let (position, skipped, compacted) = match snapshot {
            None => standing(work, &head)?,
            Some(snapshot) => {
                let (found, row) = find(work, session, snapshot)?;
                if !found.kept {
                    return Err(no_snapshot(snapshot));
                }
                (found.position, Skipped::of(&row)?, row.integer("compacted")?)
            }
        };
        let sql = "SELECT position, id, role, dialect, body_digest, ready_digest, LENGTH(ready) + LENGTH(body) AS bytes \
                   FROM messages WHERE session_id = $1 AND position <= $2 ORDER BY position";
        let mut messages = Vec::new();
        let mut summed_up = 0;
        for row in work.all(sql, binds![session, position])? {
            let place = row.integer("position")?;
            if !skipped.contains(place) {
                summed_up += i64::from(place <= compacted);
                messages.push(row);
            }
        }
        let sql = "SELECT summary FROM compactions WHERE session_id = $1 AND through = $2";
        let summary = match work.one(sql, binds![session, compacted])? {
            Some(row) => Some((row.into_bytes("summary")?, summed_up)),
            None => None,
        };
        let sql = "SELECT scope FROM narrowings WHERE session_id = $1 ORDER BY number";
        let narrowings = work.all(sql, binds![session])?;
        let about = work.one("SELECT door, title FROM sessions WHERE id = $1", binds![session])?;
        let about = about.ok_or_else(|| crate::head::not_found(session))?;
        Ok(Self {
            head,
            door: about.text("door")?,
            title: about.text("title")?,
            snapshot,
            messages,
            summary,
            narrowings,
        })
    }

    /// Refuses what would hold everybody up, or fill the store.
    fn check_room(&self, work: &mut Work, count: i64) -> Result<(), StoreError> {
        let refuse = |reason: String| StoreError::Conflict {
            subject: "forking the session",
            reason,
        };
        let bytes = self.messages.iter().map(|row| row.integer("bytes"));
        let bytes = bytes.sum::<Result<i64, _>>()?.saturating_mul(count);
        if bytes > MOST_COPIED {
            return Err(refuse(format!(
                "{bytes} bytes of what was said would be copied, and {MOST_COPIED} are at once: make fewer forks, or fork \
                 where less had been said"
            )));
        }
        let sql = "SELECT COUNT(*) FILTER (WHERE archived IS NULL) AS forks, COALESCE(SUM(stored), 0) AS bytes FROM sessions \
                   WHERE owner = $1 AND parent IS NOT NULL";
        let Some(row) = work.one(sql, binds![self.head.owner])? else {
            return Ok(());
        };
        if row.integer("forks")?.saturating_add(count) > MOST_OF_OWNER {
            return Err(refuse(format!(
                "its owner would have more than {MOST_OF_OWNER} forks: archive some first"
            )));
        }
        if row.integer("bytes")?.saturating_add(bytes) > MOST_BYTES_OF_OWNER {
            return Err(refuse(format!(
                "the histories of its owner's forks would have more than {MOST_BYTES_OF_OWNER} bytes"
            )));
        }
        Ok(())
    }

    fn fork(&self, work: &mut Work, asker: Asker, narrowing: Option<&Value>) -> Result<SessionId, StoreError> {
        let target = Target::New { owner: self.head.owner };
        let (mut head, _) =
            prompts::find_or_make(work, asker, &target, crate::sessions::door(&self.door)?, &self.title)?;
        let session = head.session;
        work.batch.add(
            "UPDATE sessions SET parent = $2, owed = $3 WHERE id = $1",
            binds![session, self.head.session, self.snapshot],
        );
        for row in &self.messages {
            head.copy(work, self.head.session, row)?;
        }
        if let Some((summary, through)) = &self.summary {
            work.batch.add(
                "INSERT INTO compactions (session_id, through, summary, at) VALUES ($1, $2, $3, $4)",
                binds![session, *through, summary.clone(), work.now],
            );
            work.batch.add(
                "UPDATE sessions SET compacted = $2 WHERE id = $1",
                binds![session, *through],
            );
        }
        addresses::copy(work, self.head.session, session);
        for row in &self.narrowings {
            narrowings::insert(work, session, row.text("scope")?);
        }
        if let Some(scope) = narrowing {
            narrowings::add(work, session, scope)?;
        }
        let (parent, snapshot) = (self.head.session, self.snapshot);
        head.event(work, Event::Forked { parent, snapshot })?;
        let detail = json!({ "parent": parent, "snapshot": snapshot });
        let mut entry = AuditEntry::about("session.forked", session, detail);
        entry.facts.user = Some(self.head.owner);
        audit::append(work, asker, [entry])?;
        head.finish(work)?;
        Ok(session)
    }
}
