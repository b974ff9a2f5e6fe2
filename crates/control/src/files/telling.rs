//! What a session's people are told of the keeping of its files.

use causes::with_causes;
use domain::SandboxId;
use objects::ObjectError;
use store::{Asker, StoreError};
use tokio::time::Instant;

use super::Files;
use crate::Control;
use crate::live::{Live, lock};

/// The store of objects, as it was when something of this session's was last kept there or had from there.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// Since when it is of no use, if it is.
    since: Option<Instant>,
    /// The session's people know.
    told: bool,
}

/// What was told of a sandbox whose disk has no room for the session's files. It is told once, and once that they are back:
/// what a sandbox says it could say for ever.
#[derive(Debug, Default)]
pub(super) struct NoRoom {
    sandbox: Option<SandboxId>,
    told: bool,
    told_back: bool,
}

impl NoRoom {
    /// Whether it is to be told that so many files are not back.
    fn is_news(&mut self, sandbox: SandboxId, files: u64) -> bool {
        if self.sandbox != Some(sandbox) {
            *self = Self {
                sandbox: Some(sandbox),
                ..Self::default()
            };
        }
        match files {
            0 => self.told && !std::mem::replace(&mut self.told_back, true),
            _ => !std::mem::replace(&mut self.told, true),
        }
    }
}

impl Control {
    /// Says it once when the store of objects goes away, and when it is there again: at once in the log, to the session's people
    /// when it lasts.
    pub(super) async fn note_outage(&self, files: &Files, live: &Live, error: Option<&ObjectError>) {
        let (state, reason) = match error {
            None => {
                let before = std::mem::take(&mut *lock(&live.files.outage));
                if before.since.is_some() {
                    tracing::info!(session = %live.session, "files of the workspace are kept again");
                }
                if !before.told {
                    return;
                }
                (
                    "kept",
                    "the place where files are kept works again; what waited is kept now",
                )
            }
            Some(error @ (ObjectError::Unavailable { .. } | ObjectError::Full { .. })) => {
                let mut outage = lock(&live.files.outage);
                let since = *outage.since.get_or_insert_with(|| {
                    tracing::warn!(session = %live.session, error = with_causes(error), "files of a workspace cannot be kept or had at the moment; it is tried again");
                    Instant::now()
                });
                if since.elapsed() < files.patience || std::mem::replace(&mut outage.told, true) {
                    return;
                }
                let words = match error {
                    ObjectError::Full { .. } => {
                        "there is no room left in the place where files are kept; whoever runs Belljar can make some. Work goes \
                         on, and nothing is lost while this disk is there: what waits is kept as soon as it can be"
                    }
                    _ => {
                        "the place where files are kept cannot be used at the moment; the log says why. Work goes on, and nothing \
                         is lost while this disk is there: what waits is kept as soon as it can be"
                    }
                };
                ("unkept", words)
            }
            Some(error) => {
                if let ObjectError::NotFound(_) = error {
                    tracing::warn!(session = %live.session, error = with_causes(error), "a content of a file is not where it is kept");
                }
                return;
            }
        };
        if let Err(error) = self.tell_files(live, state, reason.to_owned()).await {
            tracing::warn!(session = %live.session, error = with_causes(&error), "it cannot be told how files are kept");
        }
    }

    /// Says it when files have no room on their sandbox's disk, and when they are back.
    pub(super) async fn tell_room(&self, live: &Live, sandbox: SandboxId, missing: u64) -> Result<(), StoreError> {
        if !lock(&live.files.no_room).is_news(sandbox, missing) {
            return Ok(());
        }
        let (state, reason) = no_room(missing);
        self.tell_files(live, state, reason).await
    }

    async fn tell_files(&self, live: &Live, state: &str, reason: String) -> Result<(), StoreError> {
        let mut writing = live.writing.lock().await;
        let told = self.0.store.tell_files(Asker::System, live.session, state, reason);
        live.note(&mut writing, told.await?);
        Ok(())
    }
}

/// What is said of a disk that has no room for so many files.
fn no_room(files: u64) -> (&'static str, String) {
    match files {
        0 => ("back", "all files are back on the sandbox's disk".to_owned()),
        files => (
            "no_room",
            format!(
                "the sandbox's disk is full: {files} files could not be brought back to it. They are kept, and come by themselves \
                 when there is room: have something deleted, or raise sandbox.disk"
            ),
        ),
    }
}
