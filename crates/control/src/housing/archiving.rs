//! A session without a disk: its files are in the object store only, until it is needed again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use causes::with_causes;
use domain::{SessionId, Timestamp};
use link::server::{LinkError, Linked};
use store::Asker;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::behind::{KEPT_WITHIN, not_kept};
use super::meters::Transition;
use super::reconcile::ReconcileError;
use super::retries::Retries;
use super::{State, Suspects};
use crate::live::Live;
use crate::{Control, ControlError};

/// How long what changed a moment ago may take until it is kept.
const REST_WITHIN: Duration = Duration::from_secs(60);
/// How often sessions that nobody uses any more are looked for.
const PERIOD: Duration = Duration::from_secs(600);
/// How long one must have been seen so: the machine's clock, by which it is told, may have been set.
const GRACE: Duration = Duration::from_secs(3_600);
/// The file that says what of a workspace is not kept.
const RULES: &str = ".belljarignore";
/// Why a sandbox is ended that cannot say whether there is one, as runtimes of the release before cannot: the next has a newer one.
const UNSURE: &str = "its runtime does not say whether there is a .belljarignore, so its disk stays for now: it is asked in a new \
                      sandbox, or all of it is put away by `belljar archive`";
/// Why a session with such a file keeps its disk.
const HAS_RULES: &str = "its disk stays though nobody uses it: what .belljarignore leaves out would be lost with it \
                         (`belljar archive` removes it all the same)";

/// What came of putting a session away.
enum Away {
    Done,
    /// Its sandbox was ended, since it could not say what has to be known.
    Unsure,
}

impl Control {
    /// Removes an archived session's sandbox and disk when all of its files are kept outside; the next prompt brings them
    /// back. What is ignored (`.belljarignore`), and what was changed outside of the workspace, is gone. Programs in the
    /// background end.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; it is in use, or a prompt has brought it back; something of it
    /// cannot be kept: then nothing is removed.
    pub async fn archive_files(&self, asker: Asker, session: SessionId) -> Result<(), ControlError> {
        let live = self.live(asker, session).await?;
        if self.0.files.is_none() {
            let words = "this installation keeps no files outside of disks ([objects] says where)";
            return Err(ControlError::Conflict(words.to_owned()));
        }
        let control = self.clone();
        self.to_its_end(async move {
            let _alone = control.alone(&live).await?;
            control.put_away(&live, None).await
        })
        .await
    }

    /// Puts a session away; where nobody asked for it, only one that nobody has used since then, and that loses nothing which
    /// cannot be made again.
    async fn put_away(&self, live: &Arc<Live>, unused_since: Option<Timestamp>) -> Result<(), ControlError> {
        let began = Instant::now();
        if !self.is_to_be_put_away(live).await? {
            return Ok(());
        }
        let mut put_away = self.try_to_put_away(live, unused_since).await;
        if matches!(put_away, Ok(Away::Unsure)) {
            put_away = self.try_to_put_away(live, unused_since).await;
        }
        let put_away = put_away.and_then(|away| match away {
            Away::Done => Ok(()),
            Away::Unsure => Err(ControlError::Unavailable(UNSURE.to_owned())),
        });
        // What is in use, or has a reason to stay, was not begun.
        if !matches!(put_away, Err(ControlError::Conflict(_))) {
            self.stepped(live.session, Transition::Archive, began, &put_away);
        }
        put_away
    }

    async fn is_to_be_put_away(&self, live: &Live) -> Result<bool, ControlError> {
        let disks = self.0.housing.provider.disks().await;
        let disks = disks.map_err(|error| ControlError::internal("look for a disk", error))?;
        let kept = self.0.store.workspace(Asker::System, live.session).await?;
        // Without a disk, and not written down as archived, one is half put away: its files come back, and it is done anew.
        Ok(disks.contains(&live.session) || kept.is_some_and(|kept| kept.archived.is_none()))
    }

    async fn try_to_put_away(&self, live: &Arc<Live>, unused_since: Option<Timestamp>) -> Result<Away, ControlError> {
        drop(self.without_run(Asker::System, live).await?);
        // Nobody waits for it.
        let (housed, yielding) = self.house_to_keep(live).await?;
        // Most of it with nobody waiting, then what came since with nobody able to come in between.
        self.flush(live, &housed, KEPT_WITHIN).await.map_err(not_kept)?;
        let id = housed.id;
        drop((yielding, housed));
        let _no_run_begins = self.without_run(Asker::System, live).await?;
        let busy = || ControlError::Conflict("the session is in use: archive it when nobody uses it".to_owned());
        let mut seat = live.seat.housed.lock().await;
        let Some(housed) = seat.as_ref().filter(|housed| housed.id == id).map(Arc::clone) else {
            return Err(busy());
        };
        if housed.usage.is_needed() {
            return Err(busy());
        }
        let session = self.0.store.session(Asker::System, live.session).await?;
        let is_wanted = match unused_since {
            Some(since) => session.active < since && housed.usage.kept_until().is_none(),
            // What runs have done since it was brought back is not all in its workspace.
            None => session.archived.is_some(),
        };
        if !is_wanted {
            return Err(busy());
        }
        self.wake(live, &housed).await?;
        // What a program in the background writes after the last look would be gone with the disk.
        let stopped = housed.linked.stop_all().await;
        stopped.map_err(|error| {
            ControlError::Unavailable(format!("what runs in it could not be stopped: {}", with_causes(&error)))
        })?;
        if unused_since.is_some() {
            match has_rules(&housed.linked).await.map_err(not_kept)? {
                Some(false) => {}
                Some(true) => {
                    *seat = None;
                    self.discard(live, &housed, State::Hibernated, Some(HAS_RULES)).await;
                    return Err(ControlError::Conflict(HAS_RULES.to_owned()));
                }
                None => {
                    *seat = None;
                    self.discard(live, &housed, State::Hibernated, Some(UNSURE)).await;
                    return Ok(Away::Unsure);
                }
            }
        }
        self.flush(live, &housed, REST_WITHIN).await.map_err(not_kept)?;
        *seat = None;
        self.discard(live, &housed, State::Hibernated, Some("its files are kept outside"))
            .await;
        let removed = self.0.housing.provider.remove_disk(live.session).await;
        removed.map_err(|error| ControlError::internal("remove a disk", error))?;
        self.tell_soon(live, &housed, State::Archived).await;
        self.tell_archived(live).await?;
        Ok(Away::Done)
    }

    async fn tell_archived(&self, live: &Live) -> Result<(), ControlError> {
        let mut writing = live.writing.lock().await;
        let events = self.0.store.archive_files(Asker::System, live.session).await?;
        live.note(&mut writing, events);
        Ok(())
    }

    /// Begins to put away what was archived and still has its disk, and what nobody has used for long, one after the other.
    pub(super) fn begin_archiving(&self) {
        if self.0.files.is_none() {
            return;
        }
        let after = Some(self.0.config.archive_after).filter(|after| !after.is_zero());
        let period = after.map_or(PERIOD, |after| PERIOD.min(after / 4));
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            let mut half = Retries::default();
            let mut quiet = Suspects::default();
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                match control.disks_of_archived().await {
                    Ok(disks) => {
                        for session in half.due(&disks) {
                            let done = control.archive_files(Asker::System, session).await;
                            half.tried(session, period);
                            told(session, done);
                        }
                    }
                    Err(error) => could_not_look(&error),
                }
                let Some(after) = after else {
                    continue;
                };
                match control.quiet_disks(after).await {
                    Ok(disks) => {
                        for session in quiet.ripe(disks, GRACE.min(after)) {
                            // It has been heard of by that, and is tried again when it was quiet for as long once more.
                            told(session, control.archive_unused(session, after).await);
                        }
                    }
                    Err(error) => could_not_look(&error),
                }
            }
        });
    }

    /// The sessions that somebody put away and that have a disk: what was to remove it came to no end, or could not.
    async fn disks_of_archived(&self) -> Result<HashSet<SessionId>, ReconcileError> {
        let disks = self.0.housing.provider.disks().await;
        let disks = disks.map_err(ReconcileError::Provider)?;
        let archived = self.0.store.archived_among(Asker::System, disks).await;
        archived.map_err(ReconcileError::Store)
    }

    /// The sessions with a disk of which nothing was heard for so long.
    async fn quiet_disks(&self, after: Duration) -> Result<HashSet<SessionId>, ReconcileError> {
        let disks = self.0.housing.provider.disks().await;
        let disks = disks.map_err(ReconcileError::Provider)?;
        let quiet = self
            .0
            .store
            .quiet_sessions(Asker::System, disks, self.before_now(after))
            .await;
        quiet.map_err(ReconcileError::Store)
    }

    /// So long ago, by the clock by which sessions are active.
    fn before_now(&self, time: Duration) -> Timestamp {
        let time = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Timestamp(self.0.store.now().0.saturating_sub(time))
    }

    async fn archive_unused(&self, session: SessionId, after: Duration) -> Result<(), ControlError> {
        let live = self.live(Asker::System, session).await?;
        let control = self.clone();
        self.to_its_end(async move {
            let _alone = control.alone(&live).await?;
            // Others were put away before it, which takes its time.
            let since = control.before_now(after);
            let quiet = control.0.store.quiet_sessions(Asker::System, vec![session], since);
            if !quiet.await?.contains(&session) {
                return Ok(());
            }
            control.put_away(&live, Some(since)).await
        })
        .await
    }
}

fn told(session: SessionId, done: Result<(), ControlError>) {
    if let Err(error) = done {
        tracing::info!(%session, error = with_causes(&error), "a session that nobody uses keeps its disk");
    }
}

fn could_not_look(error: &ReconcileError) {
    tracing::warn!(error = with_causes(error), "could not look for sessions to archive");
}

/// Whether a workspace says by itself what is not kept; none where its runtime does not say.
async fn has_rules(linked: &Linked) -> Result<Option<bool>, LinkError> {
    match linked.read_file(RULES).await {
        Ok(_) => Ok(Some(true)),
        Err(LinkError::Failed { missing: true, .. }) => Ok(Some(false)),
        Err(LinkError::Failed { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
