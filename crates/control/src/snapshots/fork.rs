//! Sessions that begin where another stands.

use domain::SessionId;
use policy::Scope;
use sandbox::ProviderError;
use store::{Asker, Fork, NewSnapshot, Session, Snapshot};

use super::KeepError;
use crate::prompts::stored_scope;
use crate::{Control, ControlError};

/// Forks that are wanted.
#[derive(Clone, PartialEq, Debug)]
pub struct NewFork {
    /// How many.
    pub count: u32,
    /// The snapshot that they begin at, by its id or name; the session as it stands where left out.
    pub snapshot: Option<String>,
    /// What they may not do, beside what their parent may not.
    pub scope: Option<Scope>,
}

impl Control {
    /// Makes sessions with the files and the history of another. Each has a sandbox, tokens and caps of its own.
    ///
    /// # Errors
    /// The session or the snapshot does not exist, for the one who asks; there are to be none or too many; no room for the
    /// files, in which case a fork gets them when it is used.
    pub async fn fork(&self, asker: Asker, session: SessionId, new: NewFork) -> Result<Vec<Session>, ControlError> {
        let live = self.live(asker, session).await?;
        let narrowing = new.scope.as_ref().map(stored_scope).transpose()?;
        let named = match &new.snapshot {
            Some(name) => Some(self.find_snapshot(asker, session, name).await?),
            None => None,
        };
        let control = self.clone();
        self.to_its_end(async move {
            let _alone = control.alone(&live).await?;
            let made_for_it = named.is_none();
            let snapshot = match named {
                Some(named) => Some(named),
                None => {
                    control.settle_files(&live).await?;
                    control.check_disk(&live).await?;
                    control.keep_for_forks(session).await?
                }
            };
            let fork = Fork {
                snapshot: snapshot.as_ref().map(|snapshot| snapshot.id),
                count: new.count,
                narrowing,
            };
            let forks = match control.0.store.fork(asker, session, fork).await {
                Ok(forks) => forks,
                Err(error) => {
                    if let Some(snapshot) = snapshot.filter(|_| made_for_it) {
                        // Forks that were made before it failed still get their files from it.
                        control.forget(&snapshot).await;
                        control.drop_unless_owed(&snapshot).await?;
                    }
                    return Err(error.into());
                }
            };
            let mut sessions = Vec::with_capacity(forks.len());
            for fork in forks {
                let live = control.live(asker, fork).await?;
                // What it is still owed it gets when it is used; the reason was logged.
                let _owed = control.settle_files(&live).await;
                sessions.push(control.0.store.session(asker, fork).await?);
            }
            Ok(sessions)
        })
        .await
    }

    /// Removes the files of a snapshot that was made for forks, unless one is owed them.
    async fn drop_unless_owed(&self, snapshot: &Snapshot) -> Result<(), ControlError> {
        let all = self.0.store.all_snapshots(Asker::System).await?;
        if all.iter().all(|known| known.id != snapshot.id) {
            self.drop_files(snapshot.id).await;
        }
        Ok(())
    }

    /// Keeps a session's files until its forks have them; none where it has no files.
    async fn keep_for_forks(&self, session: SessionId) -> Result<Option<Snapshot>, ControlError> {
        let store = &self.0.store;
        let Some(begun) = store.begin_snapshot(Asker::System, session, NewSnapshot::Fork).await? else {
            return Ok(None);
        };
        match self.keep_files(begun).await {
            Err(KeepError::Provider(ProviderError::NoDisk(_))) => Ok(None),
            kept => Ok(Some(kept?)),
        }
    }
}
