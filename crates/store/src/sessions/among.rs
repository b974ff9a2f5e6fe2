//! Which of some sessions are there, and which of them nobody uses.

use std::collections::HashSet;

use domain::{SessionId, Timestamp};

use crate::batch::binds;
use crate::{Asker, Store, StoreError};

/// Sessions that are looked for by one statement.
const LOOKED_FOR_AT_ONCE: usize = 500;

impl Store {
    /// Of these sessions, those that exist, put away or not.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself; the store cannot be read.
    pub async fn sessions_among(&self, asker: Asker, ids: Vec<SessionId>) -> Result<HashSet<SessionId>, StoreError> {
        const ATTEMPT: &str = "look for sessions";
        asker.must_be_system(ATTEMPT)?;
        let mut known = HashSet::new();
        for some in ids.chunks(LOOKED_FOR_AT_ONCE) {
            let places: Vec<_> = (1..=some.len()).map(|place| format!("${place}")).collect();
            let sql = format!("SELECT id FROM sessions WHERE id IN ({})", places.join(", "));
            let binds = some.iter().flat_map(|id| binds![*id]).collect();
            for row in self.read(ATTEMPT, sql, binds).await? {
                known.insert(row.id("id")?);
            }
        }
        Ok(known)
    }

    /// Whether there is a snapshot, or among these sessions one, of which it is not known what image its files lie on. Earlier
    /// releases did not write that down.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself; the store cannot be read.
    pub async fn any_of_unknown_image(&self, asker: Asker, ids: Vec<SessionId>) -> Result<bool, StoreError> {
        const ATTEMPT: &str = "look for files of an unknown image";
        asker.must_be_system(ATTEMPT)?;
        let snapshot = "SELECT id FROM snapshots WHERE image IS NULL LIMIT 1";
        if self.read_one(ATTEMPT, snapshot, binds![]).await?.is_some() {
            return Ok(true);
        }
        for some in ids.chunks(LOOKED_FOR_AT_ONCE) {
            let places: Vec<_> = (1..=some.len()).map(|place| format!("${place}")).collect();
            let places = places.join(", ");
            let sql = format!("SELECT id FROM sessions WHERE image IS NULL AND id IN ({places}) LIMIT 1");
            let binds = some.iter().flat_map(|id| binds![*id]).collect();
            if !self.read(ATTEMPT, sql, binds).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Of these sessions, those without a sandbox and a run of which nothing was heard since a moment.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself; the store cannot be read.
    pub async fn quiet_sessions(
        &self,
        asker: Asker,
        ids: Vec<SessionId>,
        since: Timestamp,
    ) -> Result<HashSet<SessionId>, StoreError> {
        const ATTEMPT: &str = "look for sessions that nobody uses";
        asker.must_be_system(ATTEMPT)?;
        let mut quiet = HashSet::new();
        for some in ids.chunks(LOOKED_FOR_AT_ONCE) {
            let places: Vec<_> = (2..some.len() + 2).map(|place| format!("${place}")).collect();
            let sql = format!(
                "SELECT s.id FROM sessions s WHERE s.id IN ({}) \
                 AND COALESCE(s.sandbox_state, '') NOT IN ('starting', 'running', 'frozen') \
                 AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = s.id AND r.ended IS NULL) \
                 AND s.active < $1 AND NOT EXISTS \
                 (SELECT 1 FROM events e WHERE e.session_id = s.id AND e.number = s.events AND e.at >= $1)",
                places.join(", ")
            );
            let binds = binds![since].into_iter().chain(some.iter().flat_map(|id| binds![*id]));
            for row in self.read(ATTEMPT, sql, binds.collect()).await? {
                quiet.insert(row.id("id")?);
            }
        }
        Ok(quiet)
    }

    /// Of these sessions, those that are archived.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself; the store cannot be read.
    pub async fn archived_among(&self, asker: Asker, ids: Vec<SessionId>) -> Result<HashSet<SessionId>, StoreError> {
        const ATTEMPT: &str = "look for sessions that are archived";
        asker.must_be_system(ATTEMPT)?;
        let mut archived = HashSet::new();
        for some in ids.chunks(LOOKED_FOR_AT_ONCE) {
            let places: Vec<_> = (1..=some.len()).map(|place| format!("${place}")).collect();
            let sql = format!(
                "SELECT id FROM sessions WHERE archived IS NOT NULL AND id IN ({})",
                places.join(", ")
            );
            let binds = some.iter().flat_map(|id| binds![*id]).collect();
            for row in self.read(ATTEMPT, sql, binds).await? {
                archived.insert(row.id("id")?);
            }
        }
        Ok(archived)
    }
}
