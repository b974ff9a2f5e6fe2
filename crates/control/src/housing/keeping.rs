//! What nobody uses is frozen, then hibernated; what does not answer is replaced.
//!
//! All times here are the monotonic clock's: setting the machine's clock puts nothing to sleep.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use causes::with_causes;
use futures::StreamExt;
use link::server::Linked;
use store::TokenState;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::meters::Transition;
use super::usage::{Due, Usage};
use super::{Housed, HousingError, State};
use crate::live::{Live, lock};
use crate::{Config, Control};

/// Sandboxes that are looked after at the same time.
pub(crate) const SIDE_BY_SIDE: usize = 64;
/// How often a runtime is asked whether it lives, at most.
const PULSE: Duration = Duration::from_secs(5);

/// Why a sandbox is put to sleep.
pub(super) const UNUSED: &str = "nobody used it";

impl Control {
    /// Begins to look after the sandboxes.
    pub(crate) async fn begin_housekeeping(&self) {
        let found_left = self.find_left().await;
        let shorter = self.0.config.freeze_after.min(self.0.config.hibernate_after);
        let period = (shorter / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                // One whose runtime does not read, or that cannot be frozen, holds up no other.
                let all = futures::stream::iter(control.0.lives.all());
                all.for_each_concurrent(SIDE_BY_SIDE, async |live| control.keep(&live).await)
                    .await;
            }
        });
        self.begin_hearing();
        self.begin_reconciling(found_left);
        self.begin_warming();
        self.begin_archiving();
        self.begin_catching_up();
    }

    async fn keep(&self, live: &Arc<Live>) {
        // Where somebody makes, wakes or removes it, it is not idle.
        let Some(housed) = live.seat.housed.try_lock().ok().and_then(|seat| seat.clone()) else {
            return;
        };
        // The host agent may be away for a while: nobody is kept from the sandbox meanwhile. What is frozen dials nobody.
        if !housed.usage.is_frozen() {
            let socket = housed.socket.load(Ordering::SeqCst);
            if let Some(now) = self.followed(&housed.linked, socket).await {
                housed.socket.store(now, Ordering::SeqCst);
            }
        }
        if !live.seat.is_taken() {
            // It is built in, and nobody's to be put to sleep.
            return;
        }
        // Asked before the seat is taken: whoever needs room passes over a sandbox whose seat is.
        let token = self.token_state(live, &housed).await;
        let Ok(mut seat) = live.seat.housed.try_lock() else {
            return;
        };
        if seat.as_ref().is_none_or(|now| now.id != housed.id) {
            return;
        }
        if !housed.usage.is_frozen() && !feels_pulse(&housed.linked, &housed.usage, &self.0.config) {
            *seat = None;
            let words = match housed.linked.refused() {
                Some(error) => format!("its runtime is not understood: {error}"),
                None => format!(
                    "its runtime did not answer for {} s",
                    self.0.config.hung_after.as_secs()
                ),
            };
            return self.discard(live, &housed, State::Lost, Some(&words)).await;
        }
        // A model may think, or a person be asked, while no request of the sandbox is under way.
        let is_used = housed.usage.is_used() || live.active().is_some() || live.files.is_under_way();
        if is_used {
            housed.usage.touch();
        }
        if token == TokenState::Revoked {
            *seat = None;
            let words = with_causes(&HousingError::Revoked);
            return self.discard(live, &housed, State::Lost, Some(&words)).await;
        }
        if is_used || housed.usage.kept_until().is_some() {
            if let Err(error) = self.refresh_token(live, &housed).await {
                let error = with_causes(&error);
                tracing::warn!(session = %live.session, error, "could not replace a session's token");
            }
            return;
        }
        if self.is_tired(&housed) {
            self.hibernate(live, seat, housed).await;
        } else if self.is_sleepy(&housed) && lock(&housed.unfrozen).is_due() {
            self.freeze(live, &housed).await;
        }
    }

    /// Whether it is to be frozen: unused for long enough.
    fn is_sleepy(&self, housed: &Housed) -> bool {
        let idle = Instant::now().duration_since(housed.usage.idle_since());
        !housed.usage.is_frozen() && idle >= self.0.config.freeze_after
    }

    /// Whether it is to be hibernated: frozen for as long as the settings' two times are apart, or impossible to freeze.
    fn is_tired(&self, housed: &Housed) -> bool {
        let config = &self.0.config;
        let now = Instant::now();
        let idle = now.duration_since(housed.usage.idle_since());
        match *lock(&housed.frozen_at) {
            Some(since) => now.duration_since(since) >= config.hibernate_after.saturating_sub(config.freeze_after),
            None => idle >= config.hibernate_after && self.is_sleepy(housed),
        }
    }

    async fn freeze(&self, live: &Arc<Live>, housed: &Housed) {
        // Whoever comes from here on sees this, or is seen below.
        housed.usage.set_frozen(true);
        let began = Instant::now();
        let frozen = self.0.housing.provider.freeze(housed.id).await;
        self.stepped(live.session, Transition::Freeze, began, &frozen);
        if let Err(error) = frozen {
            housed.usage.set_frozen(false);
            let is_news = lock(&housed.unfrozen).failed(self.0.config.freeze_after);
            if is_news {
                tracing::warn!(sandbox = %housed.id, error = with_causes(&error), "could not freeze a sandbox that nobody uses; it is tried again less and less often");
            }
            return;
        }
        *lock(&housed.unfrozen) = Unfrozen::default();
        if housed.usage.is_used() {
            // It asked for something at the last moment.
            if let Err(error) = self.thaw(live, housed).await {
                tracing::warn!(sandbox = %housed.id, error = with_causes(&error), "could not let a sandbox go on");
            }
            return;
        }
        *lock(&housed.frozen_at) = Some(Instant::now());
        self.tell_soon(live, housed, State::Frozen).await;
    }

    /// A host agent that was started anew has made the link's socket again: from the old one nobody comes any more. Gives
    /// the new one, where it is followed.
    pub(super) async fn followed(&self, linked: &Linked, socket: u64) -> Option<u64> {
        let sandbox = linked.sandbox();
        let listener = match self.0.housing.provider.link(sandbox).await {
            Ok(listener) => listener,
            // What became of it shows when it is used.
            Err(error) => {
                tracing::debug!(%sandbox, error = with_causes(&error), "no link at the moment");
                return None;
            }
        };
        let now = inode(&listener);
        if now == socket {
            return None;
        }
        match linked.relisten(listener) {
            Ok(()) => Some(now),
            Err(error) => {
                tracing::warn!(%sandbox, error = with_causes(&error), "could not listen on the link's new socket");
                None
            }
        }
    }
}

/// Whether a runtime lives, as far as it is known; asks it from time to time.
pub(super) fn feels_pulse(linked: &Linked, usage: &Usage, config: &Config) -> bool {
    let period = PULSE.min(config.freeze_after / 4);
    match usage.due(period, config.hung_after) {
        Due::Missed => false,
        Due::Nothing => true,
        Due::Ask => {
            // Where it is not connected, or does not read, it owes the answer all the same.
            if let Ok(false) = linked.ask_pulse() {
                // It is of a release that does not know the question.
                usage.alive();
            }
            true
        }
    }
}

/// A sandbox that could not be frozen the last time.
#[derive(Debug, Default)]
pub(super) struct Unfrozen {
    /// How long it is let be, and until when.
    rest: Option<(Duration, Instant)>,
}

impl Unfrozen {
    /// Whether it may be tried.
    fn is_due(&self) -> bool {
        self.rest.is_none_or(|(_, until)| until <= Instant::now())
    }

    /// It could not be frozen, once more or for the first time, which is news: it is let be for so long, or twice as long as the
    /// last time.
    fn failed(&mut self, first: Duration) -> bool {
        let rest = self.rest.map_or(first, |(rest, _)| rest * 2);
        self.rest.replace((rest, Instant::now() + rest)).is_none()
    }
}

/// What tells one socket from another; 0 where the kernel does not say.
pub(super) fn inode(listener: &UnixListener) -> u64 {
    let descriptor = listener.as_fd().try_clone_to_owned();
    let metadata = descriptor.and_then(|descriptor| File::from(descriptor).metadata());
    metadata.map_or(0, |metadata| metadata.ino())
}
