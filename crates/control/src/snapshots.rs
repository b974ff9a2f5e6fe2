//! What is kept of a session: its files at one moment, and how far its history had come. A session goes back to it, and others
//! begin at it.
//!
//! The store is told first, always: a row without files was never finished, files without a row are nobody's, and what a
//! session is still owed is brought before it gets a sandbox. So whatever dies in between is mended by who comes next.

mod export;
mod fork;
mod mend;
mod runs;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use causes::with_causes;
use domain::{SessionId, SnapshotId};
use sandbox::ProviderError;
use store::{Asker, NewSnapshot, Snapshot, StoreError};
use tokio::sync::{MutexGuard, OwnedMutexGuard, Semaphore};
use tokio::time::{Instant, timeout};

use crate::housing::meters::Transition;
use crate::live::Live;
use crate::{Control, ControlError};

pub use fork::NewFork;

/// How long the end of a run may take to have ended in its sandbox too.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// How long a session's files may take to be on its disk.
const FILLED_WITHIN: Duration = Duration::from_secs(60);
/// How long nothing may come meanwhile.
const STALLED_WITHIN: Duration = Duration::from_secs(10);
/// How long whoever wants files kept or brought waits for others who do.
const TURN_WITHIN: Duration = Duration::from_secs(60);

/// What is known of the host's disks.
#[derive(Debug)]
pub(crate) struct Disks {
    /// Snapshots share what they hold with them: one after each run costs next to nothing.
    shared: AtomicBool,
    /// Places for snapshots that are read.
    read: Arc<Semaphore>,
}

impl Default for Disks {
    fn default() -> Self {
        Self {
            shared: AtomicBool::default(),
            read: Arc::new(Semaphore::new(export::AT_ONCE)),
        }
    }
}

/// A session's snapshots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotList {
    /// Those that are whole, newest first.
    pub snapshots: Vec<Snapshot>,
    /// Why none is made after each run, where none is.
    pub note: Option<String>,
}

impl Control {
    /// Keeps a session's files as they are now, while its sandbox runs as well. Those of one that was archived come back first.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; it has no files yet; they do not come back in time; the name is no
    /// name, or taken; no room.
    pub async fn save_snapshot(
        &self,
        asker: Asker,
        session: SessionId,
        name: Option<String>,
    ) -> Result<Snapshot, ControlError> {
        let live = self.live(asker, session).await?;
        let control = self.clone();
        self.to_its_end(async move {
            let _alone = control.alone(&live).await?;
            control.settle_files(&live).await?;
            control.check_disk(&live).await?;
            let new = NewSnapshot::Named(name);
            match control.0.store.begin_snapshot(asker, session, new).await? {
                Some(snapshot) => Ok(control.keep_files(snapshot).await?),
                None => Err(ControlError::Conflict("a run has just begun: try again".to_owned())),
            }
        })
        .await
    }

    /// A session's snapshots.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn snapshots(&self, asker: Asker, session: SessionId) -> Result<SnapshotList, ControlError> {
        let snapshots = self.0.store.snapshots(asker, session).await?;
        Ok(SnapshotList {
            snapshots,
            note: self.why_none_after_runs(),
        })
    }

    /// Gives a snapshot, by its id or name, another name. One that was made after a run is kept from then on.
    ///
    /// # Errors
    /// There is none, for the one who asks; the name is no name, or taken.
    pub async fn name_snapshot(
        &self,
        asker: Asker,
        session: SessionId,
        snapshot: &str,
        name: &str,
    ) -> Result<Snapshot, ControlError> {
        let found = self.find_snapshot(asker, session, snapshot).await?;
        self.0.store.name_snapshot(asker, session, found.id, name).await?;
        self.find_snapshot(asker, session, name).await
    }

    /// Removes a snapshot, by its id or name.
    ///
    /// # Errors
    /// There is none, for the one who asks; a session is about to get its files from it.
    pub async fn remove_snapshot(&self, asker: Asker, session: SessionId, snapshot: &str) -> Result<(), ControlError> {
        let found = self.find_snapshot(asker, session, snapshot).await?;
        self.0.store.forget_snapshot(asker, session, found.id).await?;
        self.drop_files(found.id).await;
        Ok(())
    }

    /// Takes a session back to a snapshot, by its id or name: its files and what was said. Its sandbox ends; what was said since
    /// is kept, and told no longer.
    ///
    /// # Errors
    /// There is none, for the one who asks; a run is under way; no room for the files, in which case they are brought when the
    /// session is used next.
    pub async fn rewind(&self, asker: Asker, session: SessionId, snapshot: &str) -> Result<Snapshot, ControlError> {
        let live = self.live(asker, session).await?;
        let found = self.find_snapshot(asker, session, snapshot).await?;
        let control = self.clone();
        self.to_its_end(async move {
            let _alone = control.alone(&live).await?;
            let _no_run_begins = control.without_run(asker, &live).await?;
            // What is kept outside is forgotten with the first step back: the files must be there.
            let kept = control.0.housing.provider.snapshots().await.map_err(refused)?.kept;
            if !kept.iter().any(|status| status.id == found.id) {
                return Err(refused(ProviderError::NoSnapshot(found.id)));
            }
            let go_back = async {
                let mut writing = live.writing.lock().await;
                let events = control.0.store.rewind(asker, session, found.id).await?;
                live.owe(Some(found.id));
                live.note(&mut writing, events);
                writing.forget_history();
                Ok(())
            };
            control.exchange_files(&live, go_back).await?;
            Ok(found)
        })
        .await
    }

    /// Does what was asked for to its end, even if whoever asked no longer waits.
    pub(crate) async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ControlError>> + Send + 'static,
    ) -> Result<T, ControlError> {
        let done = self.0.tasks.spawn(work).await;
        done.unwrap_or_else(|error| Err(ControlError::internal("finish what it began", error)))
    }

    /// A session's files are kept, brought or put away by one at a time; others wait for their turn, a run that has ended
    /// goes first.
    pub(crate) async fn alone(&self, live: &Live) -> Result<OwnedMutexGuard<()>, ControlError> {
        if self.run_has_ended(Asker::System, live).await? {
            // Where it takes longer it does without a snapshot.
            let _late = timeout(ENDS_WITHIN, live.driving.lock()).await;
        }
        let turn = timeout(TURN_WITHIN, Arc::clone(&live.copying).lock_owned()).await;
        turn.map_err(|_| {
            let words = "files of this session are being kept or brought already: try again when that is done";
            ControlError::Conflict(words.to_owned())
        })
    }

    /// Whether the session's last run has ended in the store; what it does in its sandbox may not have.
    async fn run_has_ended(&self, asker: Asker, live: &Live) -> Result<bool, StoreError> {
        let stored = self.0.store.session(asker, live.session).await?;
        Ok(stored.run.is_none_or(|(_, state)| state.is_final()))
    }

    /// No run is under way in the session, and none begins as long as this is held.
    pub(crate) async fn without_run<'l>(
        &self,
        asker: Asker,
        live: &'l Live,
    ) -> Result<MutexGuard<'l, ()>, ControlError> {
        let under_way = || ControlError::Conflict("a run is under way in the session: cancel it first".to_owned());
        if !self.run_has_ended(asker, live).await? {
            return Err(under_way());
        }
        let held = timeout(ENDS_WITHIN, live.driving.lock())
            .await
            .map_err(|_| under_way())?;
        if self.run_has_ended(asker, live).await? {
            Ok(held)
        } else {
            Err(under_way())
        }
    }

    /// Waits until all of the session's files are on its disk; where it has none, as it was archived, one is made.
    async fn check_disk(&self, live: &Arc<Live>) -> Result<(), ControlError> {
        let workspace = self.0.store.workspace(Asker::System, live.session).await?;
        let is_archived = workspace.is_some_and(|workspace| workspace.archived.is_some());
        if is_archived && self.0.files.is_none() {
            let words = "the session's files are archived, and this installation keeps none outside of disks any more \
                         ([objects] says where)";
            return Err(ControlError::Conflict(words.to_owned()));
        }
        if !is_archived && self.has_all_files(live).await? {
            return Ok(());
        }
        let stay = self.house(live).await?;
        let all_there = async {
            // What its disk lacks, its runtime says.
            live.files.begun(stay.id).await;
            let mut moves = live.files.moves();
            while !self.has_all_files(live).await? {
                if timeout(STALLED_WITHIN, moves.changed()).await.is_err() {
                    return Ok(false);
                }
            }
            Ok::<_, ControlError>(true)
        };
        match timeout(FILLED_WITHIN, all_there).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Err(error)) => Err(error),
            Ok(Ok(false)) | Err(_) => {
                let words = "the session's files are still being brought back: try again in a while";
                Err(ControlError::Conflict(words.to_owned()))
            }
        }
    }

    /// A session's snapshot by its id or name.
    async fn find_snapshot(&self, asker: Asker, session: SessionId, name: &str) -> Result<Snapshot, ControlError> {
        let id: Option<SnapshotId> = name.parse().ok();
        let all = self.0.store.snapshots(asker, session).await?;
        let found = all
            .into_iter()
            .find(|snapshot| id == Some(snapshot.id) || snapshot.name.as_deref() == Some(name));
        found.ok_or_else(|| ControlError::NotFound {
            kind: "snapshot",
            name: name.chars().take(100).collect(),
        })
    }

    /// Keeps the files of a snapshot that was begun. Where that fails it is forgotten.
    async fn keep_files(&self, snapshot: Snapshot) -> Result<Snapshot, KeepError> {
        let began = Instant::now();
        let kept = self.0.housing.snapshot(snapshot.session, snapshot.id).await;
        self.stepped(snapshot.session, Transition::Snapshot, began, &kept);
        let status = match kept {
            Ok(status) => status,
            Err(error) => {
                // Where the host has only not answered it may still make it: then the row stays, so that it counts, until it is
                // seen what came of it.
                if !matches!(error, ProviderError::Unavailable(_)) {
                    self.forget(&snapshot).await;
                }
                return Err(error.into());
            }
        };
        let store = &self.0.store;
        store.keep_snapshot(Asker::System, snapshot.id, status.bytes).await?;
        Ok(Snapshot {
            bytes: status.bytes,
            kept: true,
            ..snapshot
        })
    }

    async fn forget(&self, snapshot: &Snapshot) {
        let store = &self.0.store;
        if let Err(error) = store
            .forget_snapshot(Asker::System, snapshot.session, snapshot.id)
            .await
        {
            tracing::warn!(snapshot = %snapshot.id, error = with_causes(&error), "could not forget a snapshot; it is seen to later");
        }
    }

    /// Removes the files of a snapshot that is forgotten.
    async fn drop_files(&self, snapshot: SnapshotId) {
        if let Err(error) = self.0.housing.provider.remove_snapshot(snapshot).await {
            tracing::warn!(%snapshot, error = with_causes(&error), "could not remove the files of a snapshot; it is seen to later");
        }
    }

    fn why_none_after_runs(&self) -> Option<String> {
        if self.0.config.run_snapshots == 0 {
            return Some("none is made after a run: sandbox.run_snapshots is 0".to_owned());
        }
        if !self.0.disks.shared.load(Ordering::SeqCst) {
            let words = "none is made after a run: the disk pool of this machine would copy all files each time; with btrfs \
                         it shares them";
            return Some(words.to_owned());
        }
        None
    }
}

/// What whoever wanted something kept is told.
fn refused(error: ProviderError) -> ControlError {
    match error {
        ProviderError::NoDisk(_) => {
            ControlError::Conflict("the session has no files yet: nothing was done in it".to_owned())
        }
        ProviderError::NoSnapshot(snapshot) => ControlError::NotFound {
            kind: "snapshot",
            name: snapshot.to_string(),
        },
        ProviderError::Full(_) | ProviderError::Unavailable(_) | ProviderError::Machine { .. } => {
            ControlError::Unavailable(error.to_string())
        }
        error => ControlError::internal("keep a session's files", error),
    }
}

/// Why files were not kept, or what was left of it not mended.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("the store failed")]
    Store(#[from] StoreError),
    #[error("the host failed")]
    Provider(#[from] ProviderError),
}

impl From<KeepError> for ControlError {
    fn from(error: KeepError) -> Self {
        match error {
            KeepError::Store(error) => error.into(),
            KeepError::Provider(error) => refused(error),
        }
    }
}
