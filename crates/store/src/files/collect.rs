//! What no file needs any more.

use domain::{ContentHash, SessionId, Timestamp};

use super::{COMING, GOING};
use crate::batch::binds;
use crate::{Asker, Hash, Store, StoreError};

impl Store {
    /// Takes contents that no file has had since `before`, at most so many: they are not there for anybody from now on. Of those
    /// that were taken before that and not forgotten nobody knows whether they are there: they can be asked for again.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn take_unused_contents(
        &self,
        asker: Asker,
        before: Timestamp,
        limit: u32,
    ) -> Result<Vec<(SessionId, ContentHash)>, StoreError> {
        asker.must_be_system("collect contents of files")?;
        self.write("collect contents of files", move |work| {
            let sql = "SELECT c.session_id, c.sha256, c.going, EXISTS (SELECT 1 FROM pieces p \
                       WHERE p.session_id = c.session_id AND p.sha256 = c.sha256) AS used \
                       FROM contents c WHERE c.unused IS NOT NULL AND c.unused < $1 ORDER BY c.unused LIMIT $2";
            let mut taken = Vec::new();
            for row in work.all(sql, binds![before, i64::from(limit)])? {
                let (session, hash): (SessionId, _) = (row.id("session_id")?, row.hash("sha256")?);
                if row.integer("used")? != 0 {
                    work.batch.add(
                        "UPDATE contents SET unused = NULL WHERE session_id = $1 AND sha256 = $2",
                        binds![session, hash],
                    );
                    continue;
                }
                let was_taken = row.integer("going")? == GOING;
                work.batch.add(
                    "UPDATE contents SET going = $3, unused = $4 WHERE session_id = $1 AND sha256 = $2",
                    binds![session, hash, if was_taken { COMING } else { GOING }, work.now],
                );
                if !was_taken {
                    taken.push((session, ContentHash(hash.0)));
                }
            }
            Ok(taken)
        })
        .await
    }

    /// Nobody knows whether an object that was taken is removed, or will be: it is there for nobody, until it would be taken
    /// again.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn put_off_content(
        &self,
        asker: Asker,
        session: SessionId,
        sha256: ContentHash,
    ) -> Result<(), StoreError> {
        asker.must_be_system("collect contents of files")?;
        self.write("collect contents of files", move |work| {
            work.batch.add(
                "UPDATE contents SET unused = $3 WHERE session_id = $1 AND sha256 = $2 AND going = 1",
                binds![session, Hash(sha256.0), work.now],
            );
            Ok(())
        })
        .await
    }

    /// Objects that were taken are not removed, and will not be by what was tried: whoever asks for one uploads it, and has it.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn release_contents(
        &self,
        asker: Asker,
        contents: Vec<(SessionId, ContentHash)>,
    ) -> Result<(), StoreError> {
        asker.must_be_system("collect contents of files")?;
        self.write("collect contents of files", move |work| {
            for (session, sha256) in contents {
                work.batch.add(
                    "UPDATE contents SET going = $3, unused = $4 WHERE session_id = $1 AND sha256 = $2 AND going = $5",
                    binds![session, Hash(sha256.0), COMING, work.now, GOING],
                );
            }
            Ok(())
        })
        .await
    }

    /// An object that was taken is removed.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn forget_content(
        &self,
        asker: Asker,
        session: SessionId,
        sha256: ContentHash,
    ) -> Result<(), StoreError> {
        asker.must_be_system("collect contents of files")?;
        self.write("collect contents of files", move |work| {
            let hash = Hash(sha256.0);
            work.batch.add(
                "UPDATE workspaces SET bytes = bytes - COALESCE((SELECT bytes FROM contents \
                 WHERE session_id = $1 AND sha256 = $2 AND going = 1), 0), \
                 contents = contents - (SELECT COUNT(*) FROM contents \
                 WHERE session_id = $1 AND sha256 = $2 AND going = 1) WHERE session_id = $1",
                binds![session, hash],
            );
            work.batch.add(
                "DELETE FROM contents WHERE session_id = $1 AND sha256 = $2 AND going = 1",
                binds![session, hash],
            );
            Ok(())
        })
        .await
    }
}
