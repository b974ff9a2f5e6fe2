//! Sessions whose disk may have what is kept nowhere else: what waits for the object store, across restarts.

use domain::{Event, NumberedEvent, SessionId};

use super::whole;
use crate::batch::binds;
use crate::head::Head;
use crate::writer::Work;
use crate::{Asker, Store, StoreError};

impl Store {
    /// What a session's disk has is not all kept from now on, until [`Store::caught_up`] says so. Where it has no disk, nothing
    /// waits.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn fall_behind(&self, asker: Asker, session: SessionId) -> Result<(), StoreError> {
        asker.must_be_system("write down that files wait")?;
        self.write("write down that files wait", move |work| {
            work.batch.add(
                "UPDATE workspaces SET behind = $2 WHERE session_id = $1 AND behind IS NULL AND archived IS NULL",
                binds![session, work.now],
            );
            Ok(())
        })
        .await
    }

    /// Says that a session's files cannot be kept, or had, for this reason; once, until it is told that they are again.
    ///
    /// # Errors
    /// There is no such session.
    pub async fn tell_unkept(
        &self,
        asker: Asker,
        session: SessionId,
        reason: &str,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        asker.must_be_system("tell of a session's files")?;
        let reason = reason.to_owned();
        self.write("tell of a session's files", move |work| {
            let sql = "SELECT 1 FROM workspaces WHERE session_id = $1 AND unkept_told <> 0";
            if work.one(sql, binds![session])?.is_some() {
                return Ok(Vec::new());
            }
            work.batch.add(
                "UPDATE workspaces SET unkept_told = 1 WHERE session_id = $1",
                binds![session],
            );
            tell(work, session, "unkept", reason)
        })
        .await
    }

    /// Says for this reason that a session's files are kept again, where it was told that they cannot be.
    ///
    /// # Errors
    /// There is no such session.
    pub async fn tell_kept(
        &self,
        asker: Asker,
        session: SessionId,
        reason: &str,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        asker.must_be_system("tell of a session's files")?;
        let reason = reason.to_owned();
        self.write("tell of a session's files", move |work| kept(work, session, reason))
            .await
    }

    /// Nothing of a session's files waits any more. Says so for this reason, where it was told that they cannot be kept.
    ///
    /// # Errors
    /// There is no such session.
    pub async fn caught_up(
        &self,
        asker: Asker,
        session: SessionId,
        reason: &str,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        const ATTEMPT: &str = "write down that no file waits";
        asker.must_be_system(ATTEMPT)?;
        // Each sandbox says so once at least: mostly there is nothing to write.
        let sql = "SELECT 1 FROM workspaces WHERE session_id = $1 AND (behind IS NOT NULL OR unkept_told <> 0)";
        if self.read_one(ATTEMPT, sql, binds![session]).await?.is_none() {
            return Ok(Vec::new());
        }
        let reason = reason.to_owned();
        self.write(ATTEMPT, move |work| {
            work.batch.add(
                "UPDATE workspaces SET behind = NULL WHERE session_id = $1",
                binds![session],
            );
            kept(work, session, reason)
        })
        .await
    }

    /// The sessions whose disk may have what is kept nowhere else, the longest behind first, but for those that are being
    /// put away.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself; the store cannot be read.
    pub async fn sessions_behind(&self, asker: Asker) -> Result<Vec<SessionId>, StoreError> {
        const ATTEMPT: &str = "look for sessions whose files wait";
        asker.must_be_system(ATTEMPT)?;
        let sql = "SELECT w.session_id FROM workspaces w JOIN sessions s ON s.id = w.session_id \
                   WHERE w.behind IS NOT NULL AND s.archived IS NULL ORDER BY w.behind";
        let rows = self.read(ATTEMPT, sql, binds![]).await?;
        rows.iter().map(|row| row.id("session_id")).collect()
    }

    /// How many sessions have a disk with what is kept nowhere else.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself; the store cannot be read.
    pub async fn count_behind(&self, asker: Asker) -> Result<u64, StoreError> {
        const ATTEMPT: &str = "count sessions whose files wait";
        asker.must_be_system(ATTEMPT)?;
        let sql = "SELECT COUNT(*) AS behind FROM workspaces WHERE behind IS NOT NULL";
        let row = self.read_one(ATTEMPT, sql, binds![]).await?;
        row.map_or(Ok(0), |row| whole(row.integer("behind")?))
    }
}

fn kept(work: &mut Work, session: SessionId, reason: String) -> Result<Vec<NumberedEvent>, StoreError> {
    let sql = "SELECT 1 FROM workspaces WHERE session_id = $1 AND unkept_told <> 0";
    if work.one(sql, binds![session])?.is_none() {
        return Ok(Vec::new());
    }
    work.batch.add(
        "UPDATE workspaces SET unkept_told = 0 WHERE session_id = $1",
        binds![session],
    );
    tell(work, session, "kept", reason)
}

/// Says how the keeping of a session's files is from now on.
pub(super) fn tell(
    work: &mut Work,
    session: SessionId,
    state: &str,
    reason: String,
) -> Result<Vec<NumberedEvent>, StoreError> {
    let mut head = Head::read(work, session)?;
    let (state, reason) = (state.to_owned(), Some(reason));
    head.event(work, Event::Files { state, reason })?;
    head.finish(work)
}
