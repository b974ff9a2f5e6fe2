//! A session goes back to a snapshot.

use domain::{Event, NumberedEvent, SessionId, SnapshotId};
use serde_json::json;

use super::{find, no_snapshot, theirs};
use crate::batch::binds;
use crate::skipped::Skipped;
use crate::{Asker, AuditEntry, Store, StoreError, audit, files};

impl Store {
    /// Takes a session's history back to where it stood when a snapshot was made, and owes it the snapshot's files. What was
    /// said since is told and shown no longer, and stays; a later snapshot brings it forth again.
    ///
    /// # Errors
    /// The session or the snapshot does not exist, for the one who asks; a run is under way or waits.
    pub async fn rewind(
        &self,
        asker: Asker,
        session: SessionId,
        snapshot: SnapshotId,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        self.write("rewind a session", move |work| {
            let mut head = theirs(work, asker, session)?;
            let (found, row) = find(work, session, snapshot)?;
            if !found.kept {
                return Err(no_snapshot(snapshot));
            }
            if head.open_runs > 0 {
                return Err(StoreError::Conflict {
                    subject: "going back to the snapshot",
                    reason: "a run is under way or waits: cancel it first".to_owned(),
                });
            }
            files::forget(work, session);
            let skipped = Skipped::of(&row)?.and(found.position, head.messages);
            let compacted = row.integer("compacted")?;
            let told = (1..=found.position).rev().find(|position| !skipped.contains(*position));
            let through = match told {
                None => None,
                Some(position) => {
                    let sql = "SELECT id FROM messages WHERE session_id = $1 AND position = $2";
                    let row = work.one(sql, binds![session, position])?;
                    row.map(|row| row.id("id")).transpose()?
                }
            };
            work.batch.add(
                "UPDATE sessions SET skipped = $2, compacted = $3, owed = $4 WHERE id = $1",
                binds![session, skipped.text()?, compacted, snapshot],
            );
            head.open_calls.clear();
            head.event(work, Event::Rewound { snapshot, through })?;
            let detail = json!({ "snapshot": snapshot, "name": found.name, "position": found.position });
            audit::append(work, asker, [AuditEntry::about("session.rewound", session, detail)])?;
            head.finish(work)
        })
        .await
    }
}
