//! What nobody uses is frozen, then removed.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use causes::with_causes;
use futures::StreamExt;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Housed;
use crate::Control;
use crate::live::{Live, lock};

/// Sandboxes that are looked after at the same time.
const SIDE_BY_SIDE: usize = 64;

impl Control {
    /// Begins to look after the sandboxes.
    pub(crate) async fn begin_housekeeping(&self) {
        self.find_left().await;
        let began = Instant::now();
        let shorter = self.0.config.freeze_after.min(self.0.config.remove_after);
        let period = (shorter / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let now = ticks.tick().await;
                if now.duration_since(began) >= control.0.config.remove_after {
                    control.remove_left().await;
                }
                // One whose runtime does not read, or that cannot be frozen, holds up no other.
                let all = futures::stream::iter(control.0.lives.all());
                all.for_each_concurrent(SIDE_BY_SIDE, async |live| control.keep(&live).await)
                    .await;
            }
        });
    }

    /// Learns what sandboxes a process before this one left. They are adopted by their sessions, or removed when they were
    /// not needed for as long as an idle one is kept.
    async fn find_left(&self) {
        match self.0.housing.provider.list().await {
            Ok(left) => {
                let left = left.into_iter().map(|status| (status.session, status));
                lock(&self.0.housing.left).extend(left);
            }
            Err(error) => tracing::warn!(
                error = with_causes(&error),
                "could not list the sandboxes that are there"
            ),
        }
    }

    async fn remove_left(&self) {
        let left = std::mem::take(&mut *lock(&self.0.housing.left));
        for sandbox in left.into_values().map(|status| status.id) {
            if let Err(error) = self.0.housing.provider.destroy(sandbox).await {
                tracing::warn!(%sandbox, error = with_causes(&error), "could not remove a sandbox that nobody used");
            }
        }
    }

    async fn keep(&self, live: &Arc<Live>) {
        if !live.seat.is_taken() {
            return;
        }
        // Where somebody makes, wakes or removes it, it is not idle.
        let Some(housed) = live.seat.housed.try_lock().ok().and_then(|seat| seat.clone()) else {
            return;
        };
        // The host agent may be away for a while: nobody is kept from the sandbox meanwhile.
        self.follow_socket(&housed).await;
        let Ok(mut seat) = live.seat.housed.try_lock() else {
            return;
        };
        let Some(housed) = seat.as_ref() else { return };
        if housed.users.load(Ordering::SeqCst) > 0 {
            if let Err(error) = self.refresh_token(live, housed).await {
                let error = with_causes(&error);
                tracing::warn!(session = %live.session, error, "could not replace a session's token");
            }
            return;
        }
        let idle = Instant::now().duration_since(*lock(&housed.used));
        if idle >= self.0.config.remove_after {
            let housed = Arc::clone(housed);
            *seat = None;
            self.discard(live, &housed, "removed", Some("nobody used it; its files are kept"))
                .await;
        } else if idle >= self.0.config.freeze_after && !housed.frozen.load(Ordering::SeqCst) {
            self.freeze(housed).await;
        }
    }

    async fn freeze(&self, housed: &Housed) {
        match self.0.housing.provider.freeze(housed.id).await {
            Ok(()) => housed.frozen.store(true, Ordering::SeqCst),
            Err(error) => {
                tracing::warn!(sandbox = %housed.id, error = with_causes(&error), "could not freeze a sandbox that nobody uses");
            }
        }
    }

    /// A host agent that was started anew has made the link's socket again: from the old one nobody comes any more.
    async fn follow_socket(&self, housed: &Housed) {
        let listener = match self.0.housing.provider.link(housed.id).await {
            Ok(listener) => listener,
            // What became of it shows when it is used.
            Err(error) => {
                return tracing::debug!(sandbox = %housed.id, error = with_causes(&error), "no link at the moment");
            }
        };
        let socket = inode(&listener);
        if socket == housed.socket.load(Ordering::SeqCst) {
            return;
        }
        match housed.linked.relisten(listener) {
            Ok(()) => housed.socket.store(socket, Ordering::SeqCst),
            Err(error) => {
                tracing::warn!(sandbox = %housed.id, error = with_causes(&error), "could not listen on the link's new socket");
            }
        }
    }
}

/// What tells one socket from another; 0 where the kernel does not say.
pub(super) fn inode(listener: &UnixListener) -> u64 {
    let descriptor = listener.as_fd().try_clone_to_owned();
    let metadata = descriptor.and_then(|descriptor| File::from(descriptor).metadata());
    metadata.map_or(0, |metadata| metadata.ino())
}
