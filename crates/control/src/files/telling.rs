//! What a session's people are told of the keeping of its files.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use causes::with_causes;
use domain::{ContentHash, NumberedEvent, SandboxId};
use objects::{Method, ObjectError};
use store::{Asker, StoreError};
use tokio::time::Instant;

use super::Files;
use crate::Control;
use crate::live::{Live, Writing, lock};

/// What is said when nothing waits any more.
const KEPT: &str = "the place where files are kept works again; what waited is kept now";

/// Contents of one session of which it is known that they wait, at most.
const MOST_WAITING: usize = 10_000;

/// The store of objects, as it is to a session: of no use until everything that failed has got through. Others that get
/// through say little: it may be that only small ones do.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// Since when it is of no use, if it is.
    since: Option<Instant>,
    /// The session's people know.
    told: bool,
    /// What failed, and did not get through since.
    waits: HashSet<(Method, ContentHash)>,
}

impl Outage {
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// A content got through: whether nothing waits any more that failed.
    fn got_through(&mut self, method: Method, sha256: ContentHash) -> bool {
        self.waits.remove(&(method, sha256)) && self.waits.is_empty()
    }

    fn failed(&mut self, method: Method, sha256: ContentHash) {
        if self.waits.len() < MOST_WAITING {
            self.waits.insert((method, sha256));
        }
    }
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
    /// Says it once when the store of objects goes away, and when all that failed got through: at once in the log, to the
    /// session's people when it lasts. What could not be uploaded is written down as waiting.
    pub(super) async fn note_outage(
        &self,
        files: &Files,
        live: &Live,
        (method, sha256): (Method, ContentHash),
        error: Option<&ObjectError>,
    ) {
        let words = match error {
            None => {
                if lock(&live.files.outage).got_through(method, sha256) && self.outage_is_over(live) {
                    self.try_to_tell_kept(live).await;
                }
                return;
            }
            Some(error @ (ObjectError::Unavailable { .. } | ObjectError::Full { .. })) => {
                if method == Method::Put {
                    self.fall_behind(live).await;
                }
                let mut outage = lock(&live.files.outage);
                outage.failed(method, sha256);
                let since = *outage.since.get_or_insert_with(|| {
                    tracing::warn!(session = %live.session, error = with_causes(error), "files of a workspace cannot be kept or had at the moment; it is tried again");
                    Instant::now()
                });
                if since.elapsed() < files.patience || std::mem::replace(&mut outage.told, true) {
                    return;
                }
                match error {
                    ObjectError::Full { .. } => {
                        "there is no room left in the place where files are kept; whoever runs Belljar can make some. Work goes \
                         on, and nothing is lost while this disk is there: what waits is kept as soon as it can be, also while the \
                         session sleeps"
                    }
                    _ => {
                        "the place where files are kept cannot be used at the moment; the log says why. Work goes on, and nothing \
                         is lost while this disk is there: what waits is kept as soon as it can be, also while the session sleeps"
                    }
                }
            }
            Some(error) => {
                if let ObjectError::NotFound(_) = error {
                    tracing::warn!(session = %live.session, error = with_causes(error), "a content of a file is not where it is kept");
                }
                return;
            }
        };
        let mut writing = live.writing.lock().await;
        let told = self.0.store.tell_unkept(Asker::System, live.session, words).await;
        note(live, &mut writing, told);
    }

    /// What the session's disk has is not all kept: written down, so that who comes after this process knows it too.
    pub(crate) async fn fall_behind(&self, live: &Live) {
        if live.files.behind.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Err(error) = self.0.store.fall_behind(Asker::System, live.session).await {
            live.files.behind.store(false, Ordering::SeqCst);
            tracing::warn!(session = %live.session, error = with_causes(&error), "it cannot be written down that files of a workspace are not kept yet");
        }
    }

    /// Nothing of a session's waits any more: the store of objects is of use again, if it was not.
    pub(crate) async fn caught_up(&self, live: &Live) {
        self.outage_is_over(live);
        live.files.behind.store(false, Ordering::SeqCst);
        let mut writing = live.writing.lock().await;
        let told = self.0.store.caught_up(Asker::System, live.session, KEPT).await;
        note(live, &mut writing, told);
    }

    /// Forgets what failed; whether the session's people may know of it.
    fn outage_is_over(&self, live: &Live) -> bool {
        let before = std::mem::take(&mut *lock(&live.files.outage));
        if before.since.is_some() {
            tracing::info!(session = %live.session, "files of the workspace are kept again");
        }
        before.told
    }

    async fn try_to_tell_kept(&self, live: &Live) {
        let mut writing = live.writing.lock().await;
        let told = self.0.store.tell_kept(Asker::System, live.session, KEPT).await;
        note(live, &mut writing, told);
    }

    /// Says it when files have no room on their sandbox's disk, and when they are back.
    pub(super) async fn tell_room(&self, live: &Live, sandbox: SandboxId, missing: u64) -> Result<(), StoreError> {
        if !lock(&live.files.no_room).is_news(sandbox, missing) {
            return Ok(());
        }
        if missing > 0 {
            tracing::warn!(session = %live.session, %sandbox, files = missing, "the disk of a sandbox has no room for all files of its session");
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

/// Has those who watch know what was told of a session's files.
fn note(live: &Live, writing: &mut Writing, told: Result<Vec<NumberedEvent>, StoreError>) {
    match told {
        Ok(events) => live.note(writing, events),
        Err(error) => {
            tracing::warn!(session = %live.session, error = with_causes(&error), "it cannot be told how files are kept");
        }
    }
}

/// What is said of a disk that has no room for so many files.
fn no_room(files: u64) -> (&'static str, String) {
    match files {
        0 => (
            "back",
            "what had no room on the sandbox's disk is back on it".to_owned(),
        ),
        files => (
            "no_room",
            format!(
                "the sandbox's disk is full: {files} files could not be brought back to it. They are kept, and come by themselves \
                 when there is room: have something deleted, or raise sandbox.disk"
            ),
        ),
    }
}
