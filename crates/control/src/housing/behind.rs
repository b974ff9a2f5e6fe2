//! Files that are nowhere but on a disk: kept before the sandbox that has it ends, where that can be, and else while their
//! session sleeps, as soon as the store of objects is of use again.
//!
//! Which sessions are behind is written down, so that it is known to who comes after this process. Those that are awake catch
//! up by themselves. Those that sleep are woken when it was seen that objects can be put where they are kept, a few at a time,
//! and are put to sleep again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causes::with_causes;
use domain::{ContentHash, SessionId};
use futures::StreamExt;
use futures::stream;
use link::server::LinkError;
use objects::{Key, ObjectError};
use sha2::{Digest, Sha256};
use store::{Asker, StoreError};
use tokio::sync::MutexGuard;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::keeping::UNUSED;
use super::meters::Transition;
use super::retries::Retries;
use super::usage::Yielding;
use super::{Housed, HousingError, Others, State};
use crate::live::{Live, lock};
use crate::{Control, ControlError, Files};

/// How long everything may take until it is kept.
pub(super) const KEPT_WITHIN: Duration = Duration::from_secs(600);
/// The same before a sandbox is hibernated.
const IDLE_WITHIN: Duration = Duration::from_secs(60);
/// The same where another session waits for its place.
const ROOM_WITHIN: Duration = Duration::from_secs(5);
/// How long a runtime may take until it begins to keep files.
const BEGINS_WITHIN: Duration = Duration::from_secs(20);
/// How long the store of objects may take to show that it is of use.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);
/// Sessions that are woken at the same time.
const AT_ONCE: usize = 4;
/// What is put there to see whether that can be done.
const TRIAL: &[u8] = b"?";
/// Why a sandbox ends that was there for this alone.
const CAUGHT_UP: &str = "it ran to keep files that had waited, and nobody uses it";

impl Control {
    /// A session's sandbox, awake, whose runtime keeps files; made where there is none. It takes no place that another session
    /// has, and gives way to one that needs it.
    pub(super) async fn house_to_keep(&self, live: &Arc<Live>) -> Result<(Arc<Housed>, Yielding), ControlError> {
        let stay = self.house_beside(live, Others::Stay).await?;
        let (housed, yielding) = (Arc::clone(&stay.housed), stay.usage.yielding());
        drop(stay);
        let begun = timeout(BEGINS_WITHIN, live.files.begun(housed.id)).await;
        begun.map_err(|_| {
            ControlError::Unavailable(
                "the runtime of this sandbox keeps no files; it may be of an older release".to_owned(),
            )
        })?;
        Ok((housed, yielding))
    }

    /// Has everything kept that is on the disk of a sandbox which is awake. Where that comes to no end, its session is behind.
    pub(super) async fn flush(&self, live: &Live, housed: &Housed, limit: Duration) -> Result<(), LinkError> {
        let kept = housed.linked.flush_files(limit).await;
        match &kept {
            Ok(()) => self.caught_up(live).await,
            // What has no room, or cannot be read, was told of; all else is kept.
            Err(LinkError::Failed { .. }) => {}
            Err(_) => self.fall_behind(live).await,
        }
        kept
    }

    /// Ends a sandbox that nobody uses; where its files are kept outside, as soon as they are, or when that takes too long.
    /// Whoever needs it meanwhile has it.
    pub(super) async fn hibernate(
        &self,
        live: &Arc<Live>,
        mut seat: MutexGuard<'_, Option<Arc<Housed>>>,
        housed: Arc<Housed>,
    ) {
        if !self.is_to_be_kept(live, &housed).await {
            *seat = None;
            return self.end_unused(live, &housed, UNUSED).await;
        }
        let (yielding, came) = (housed.usage.yielding(), housed.usage.came());
        let slept = housed.usage.is_frozen();
        drop(seat);
        let (control, live) = (self.clone(), Arc::clone(live));
        // Nobody else is kept waiting.
        self.0.tasks.spawn_until_stopped(async move {
            let woken = {
                let seat = live.seat.housed.lock().await;
                if !is_in(&seat, &housed) {
                    return;
                }
                control.wake_quietly(&live, &housed).await
            };
            control.keep_at_last(&live, &housed, woken, IDLE_WITHIN).await;
            let stays = !control.end_unneeded(&live, &housed, came, UNUSED).await;
            if stays && slept {
                control.tell_soon(&live, &housed, State::Running).await;
            }
            drop(yielding);
        });
    }

    /// Has the files of a sandbox kept that makes room for another. To be called with its seat held.
    pub(super) async fn keep_before_it_goes(&self, live: &Arc<Live>, housed: &Housed) {
        if self.is_to_be_kept(live, housed).await {
            let woken = self.wake_quietly(live, housed).await;
            self.keep_at_last(live, housed, woken, ROOM_WITHIN).await;
        }
    }

    /// Whether there may be files to be kept of a sandbox that is to end, and somewhere to keep them. Where it is known that
    /// they cannot be kept for now, its session is behind.
    async fn is_to_be_kept(&self, live: &Live, housed: &Housed) -> bool {
        if self.0.files.is_none() || !live.files.has_begun(housed.id) {
            return false;
        }
        if live.files.is_in_vain() {
            self.fall_behind(live).await;
            return false;
        }
        true
    }

    /// Wakes a sandbox that is to end: to those who watch it goes on sleeping.
    async fn wake_quietly(&self, live: &Arc<Live>, housed: &Housed) -> Result<(), HousingError> {
        lock(&housed.frozen_at).take();
        self.wake(live, housed).await
    }

    /// Has the files of a sandbox kept that is to end, if it was woken for it.
    async fn keep_at_last(&self, live: &Live, housed: &Housed, woken: Result<(), HousingError>, limit: Duration) {
        let error = match woken {
            Ok(()) => match self.flush(live, housed, limit).await {
                Ok(()) => return,
                Err(error) => with_causes(&error),
            },
            Err(error) => {
                self.fall_behind(live).await;
                with_causes(&error)
            }
        };
        tracing::info!(session = %live.session, error, "not all files of a workspace could be kept before its sandbox ended");
    }

    /// Ends a session's sandbox, unless somebody has come who needs it; whether it has ended. So many had come before.
    async fn end_unneeded(&self, live: &Arc<Live>, housed: &Arc<Housed>, came: u64, reason: &str) -> bool {
        let mut seat = live.seat.housed.lock().await;
        if !is_in(&seat, housed) {
            return true;
        }
        if live.active().is_some() || housed.usage.kept_until().is_some() || housed.usage.came() != came {
            return false;
        }
        *seat = None;
        self.end_unused(live, housed, reason).await;
        true
    }

    async fn end_unused(&self, live: &Arc<Live>, housed: &Housed, reason: &str) {
        let began = Instant::now();
        let ended = self.put_to_sleep(live, housed, reason).await;
        self.stepped(live.session, Transition::Hibernate, began, &ended);
    }

    /// Begins to wake sessions that are behind and sleep, when their files can be kept.
    pub(super) fn begin_catching_up(&self) {
        let Some(files) = self.0.files.clone() else {
            return;
        };
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            let mut retries = Retries::default();
            let mut ticks = interval(files.catch_up_every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if let Err(error) = control.wake_those_behind(&files, &mut retries).await {
                    tracing::warn!(
                        error = with_causes(&error),
                        "could not look for sessions whose files wait"
                    );
                }
            }
        });
    }

    async fn wake_those_behind(&self, files: &Files, retries: &mut Retries) -> Result<(), StoreError> {
        let behind = self.0.store.sessions_behind(Asker::System).await?;
        let behind: HashSet<_> = behind.into_iter().collect();
        let mut due = retries.due(&behind);
        due.retain(|session| self.sleeps(*session));
        if due.is_empty() || !is_of_use(files).await {
            return Ok(());
        }
        stream::iter(&due)
            .for_each_concurrent(AT_ONCE, async |session| {
                if let Err(error) = self.catch_up(*session).await {
                    tracing::info!(%session, error = with_causes(&error), "files of a session that sleeps still wait");
                }
            })
            .await;
        for session in due {
            retries.tried(session, files.catch_up_every);
        }
        Ok(())
    }

    /// Whether nothing of a session's runs, and nobody sees to that at this moment.
    fn sleeps(&self, session: SessionId) -> bool {
        let Some(live) = self.0.lives.find(session) else {
            return true;
        };
        let seat = live.seat.housed.try_lock();
        let is_awake = |seat: &Option<Arc<Housed>>| seat.as_ref().is_some_and(|housed| !housed.usage.is_frozen());
        live.active().is_none() && seat.is_ok_and(|seat| !is_awake(&seat))
    }

    /// Has a session's files kept that wait. Where it had no sandbox it has none afterwards, unless somebody came.
    async fn catch_up(&self, session: SessionId) -> Result<(), ControlError> {
        let live = self.live(Asker::System, session).await?;
        let control = self.clone();
        self.to_its_end(async move {
            let had_one = live.seat.is_taken() || lock(&control.0.housing.left).contains_key(&session);
            let (housed, yielding) = control.house_to_keep(&live).await?;
            let came = housed.usage.came();
            let kept = control.flush(&live, &housed, KEPT_WITHIN).await;
            if !had_one {
                control.end_unneeded(&live, &housed, came, CAUGHT_UP).await;
            }
            drop(yielding);
            kept.map_err(not_kept)
        })
        .await
    }
}

/// Why not all files of a session are kept.
pub(super) fn not_kept(error: LinkError) -> ControlError {
    ControlError::Unavailable(format!("not everything could be kept: {}", with_causes(&error)))
}

/// Whether a seat has this sandbox.
fn is_in(seat: &Option<Arc<Housed>>, housed: &Housed) -> bool {
    seat.as_ref().is_some_and(|now| now.id == housed.id)
}

/// Whether the store of objects takes one at the moment, which is removed at once.
async fn is_of_use(files: &Files) -> bool {
    let key = Key {
        // Whose nobody is.
        session: SessionId::new(),
        sha256: ContentHash(Sha256::digest(TRIAL).into()),
    };
    let tried = async {
        let bytes = stream::iter([Ok(Bytes::from_static(TRIAL))]).boxed();
        files.objects.put(key, TRIAL.len() as u64, bytes).await?;
        files.objects.delete(key).await
    };
    match timeout(SHOWN_WITHIN, tried).await {
        // What is written and cannot be removed can be kept.
        Ok(Ok(()) | Err(ObjectError::Refused { .. })) => true,
        Ok(Err(error)) => {
            tracing::debug!(error = with_causes(&error), "files that wait cannot be kept yet");
            false
        }
        Err(_) => false,
    }
}
