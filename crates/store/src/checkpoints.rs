//! Checkpoints: what stands in the log is brought into the file by a thread of its own, so that a commit never waits for it.
//!
//! SQLite would do it within a commit, as soon as the log is long: some ten milliseconds, for whoever happens to commit then.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::wal::CheckpointMode;

use crate::StoreError;
use crate::connection::{Access, Connection};
use crate::error::database;

/// Pages of the log from which on it is brought into the file: some megabytes, which a start after a crash reads in a moment.
const LONG: i32 = 4_000;

/// How long the end of it may wait for whoever writes; they then wait for it, about two syncs long.
const TURN_WITHIN: Duration = Duration::from_millis(100);

/// The thread that does it.
#[derive(Debug)]
pub(crate) struct Checkpoints(JoinHandle<()>);

impl Checkpoints {
    /// Starts it. It ends once `writer` is closed.
    pub(crate) fn start(path: &Path, writer: &mut Connection) -> Result<Self, StoreError> {
        let failed = |source| database("open the store", source);
        let connection = Connection::open(path, Access::Write).map_err(failed)?;
        connection.wait_at_most(TURN_WITHIN).map_err(failed)?;
        let (wake, woken) = sync_channel(1);
        writer.after_commits(move |pages| tell(&wake, pages)).map_err(failed)?;
        let thread = std::thread::Builder::new().name("checkpoints".to_owned());
        let thread = thread.spawn(move || run(connection, &woken));
        let thread = thread.map_err(|source| StoreError::File {
            attempt: "start the checkpoints of",
            path: path.to_owned(),
            source,
        })?;
        Ok(Self(thread))
    }

    /// Waits for its end.
    pub(crate) fn join(self) {
        if self.0.join().is_err() {
            tracing::error!(
                "the checkpoints of the store broke down; what was acknowledged is on the disk, in the log"
            );
        }
    }
}

fn tell(wake: &SyncSender<()>, pages: i32) {
    if pages >= LONG {
        // It is awake already, or has ended with an error that it told.
        let _ = wake.try_send(());
    }
}

fn run(connection: Connection, woken: &Receiver<()>) {
    let mut failing = false;
    while woken.recv().is_ok() {
        // Most of it beside those who write, the rest while nobody does: else a log that grows all the time never ends.
        let done = connection
            .checkpoint(CheckpointMode::PASSIVE)
            .and_then(|()| connection.checkpoint(CheckpointMode::FULL));
        match done {
            Ok(()) if failing => {
                failing = false;
                tracing::info!("the store's log is brought into its file again");
            }
            Err(error) if !failing && !is_busy(&error) => {
                failing = true;
                tracing::warn!(%error, "the store's log cannot be brought into its file; it grows until that works");
            }
            _ => {}
        }
    }
    if let Err(error) = connection.close() {
        tracing::warn!(%error, "the store's file was not closed cleanly; what was acknowledged is on the disk");
    }
}

/// Somebody reads an older state, or writes without a pause: the next commit asks for it again.
fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::batch::binds;
    use crate::open::beside;
    use crate::{Config, Store};

    /// Bytes of one row: what is written here is soon more than a long log.
    const ROW: usize = 256 << 10;

    async fn add(store: &Store, number: usize) {
        let name = format!("{number}{}", " ".repeat(ROW));
        let added = store.write("add a name", |work| {
            work.batch.add(
                "INSERT INTO spend (name, spent, reserved) VALUES ($1, 0, 0)",
                binds![name],
            );
            Ok(())
        });
        added.await.unwrap();
    }

    /// What tells a log from the one before it in the same file.
    fn salt(path: &Path) -> [u8; 8] {
        let mut salt = [0; 8];
        let log = File::open(beside(path, "-wal")).unwrap();
        log.read_exact_at(&mut salt, 16).unwrap();
        salt
    }

    #[tokio::test]
    async fn a_log_that_is_long_is_brought_into_the_file_while_others_write_and_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let store = Store::open(Config::new(&path)).await.unwrap();
        add(&store, 0).await;
        let (length, first) = (fs::metadata(&path).unwrap().len(), salt(&path));
        let reader = Connection::open(&path, Access::Read).unwrap();
        reader.script("BEGIN").unwrap();
        let seen = "SELECT COUNT(*) FROM spend";
        assert_eq!(reader.first::<i64>(seen).unwrap(), Some(1));
        let mut written = 1;
        // What somebody still reads is not written over.
        while written * ROW < 2 * LONG as usize * 4_096 {
            add(&store, written).await;
            written += 1;
        }
        assert_eq!((salt(&path), reader.first::<i64>(seen).unwrap()), (first, Some(1)));
        reader.close().unwrap();
        while salt(&path) == first {
            assert!(written < 1_000, "the log only grows");
            add(&store, written).await;
            written += 1;
        }
        assert!(
            fs::metadata(&path).unwrap().len() > length,
            "nothing came into the file"
        );
        store.close().await;
        drop(store);
        let store = Store::open(Config::new(&path)).await.unwrap();
        let count = store.read_one("count", seen, Vec::new()).await.unwrap().unwrap();
        assert_eq!(count.integer("COUNT(*)").unwrap(), i64::try_from(written).unwrap());
    }
}
