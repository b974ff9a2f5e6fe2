//! A run that waits for people: it says so, and its clock stands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causes::with_causes;
use store::{Asker, StoreError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::Control;
use crate::live::{Active, Live, lock};

/// The times of one run.
#[derive(Debug)]
pub(crate) struct Waits {
    clock: watch::Sender<Clock>,
    /// When the loop was given the calls that are under way.
    replied: Mutex<Instant>,
    /// A call was told to come again when it is answered: the model is not asked before.
    asked: AtomicBool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Clock {
    /// Grows with each turn: who began to wait before it no longer counts.
    turn: u64,
    waiters: usize,
    since: Option<Instant>,
    waited: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            clock: watch::Sender::default(),
            replied: Mutex::new(Instant::now()),
            asked: AtomicBool::new(false),
        }
    }
}

impl Waits {
    /// The calls of a reply begin now.
    pub(crate) fn reply(&self) {
        *lock(&self.replied) = Instant::now();
    }

    /// When the calls under way began.
    pub(crate) fn replied(&self) -> Instant {
        *lock(&self.replied)
    }

    /// Has the next turn wait for what is asked.
    pub(crate) fn ask(&self, asked: bool) {
        self.asked.store(asked, Ordering::SeqCst);
    }

    /// Whether the next turn is to wait for answers.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// A turn begins: the clock goes on, whoever waits.
    pub(crate) fn turn(&self) {
        self.clock.send_modify(|clock| {
            clock.stop();
            clock.turn += 1;
            clock.waiters = 0;
        });
    }

    /// Returns when the run has worked for `left` from `began` on, waiting not counted.
    pub(crate) async fn worked(&self, began: Instant, left: Duration) {
        let mut clock = self.clock.subscribe();
        loop {
            let Clock { since, waited, .. } = *clock.borrow_and_update();
            let over = async {
                match since {
                    Some(_) => std::future::pending().await,
                    None => sleep_until(began + left + waited).await,
                }
            };
            tokio::select! {
                () = over => return,
                // The sender is here.
                _ = clock.changed() => {}
            }
        }
    }

    fn begin(&self) -> u64 {
        let mut turn = 0;
        self.clock.send_modify(|clock| {
            turn = clock.turn;
            clock.waiters += 1;
            clock.since = clock.since.or_else(|| Some(Instant::now()));
        });
        turn
    }

    fn end(&self, turn: u64) {
        self.clock.send_modify(|clock| {
            if clock.turn != turn {
                return;
            }
            clock.waiters = clock.waiters.saturating_sub(1);
            if clock.waiters == 0 {
                clock.stop();
            }
        });
    }

    fn waiters(&self) -> usize {
        self.clock.borrow().waiters
    }
}

impl Clock {
    fn stop(&mut self) {
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
    }
}

/// Somebody waits for a person, as long as this is held.
pub(crate) struct Waiting {
    control: Control,
    live: Arc<Live>,
    active: Arc<Active>,
    turn: u64,
}

impl Waiting {
    /// The run waits from now on, and those who watch see it.
    pub(crate) async fn begin(control: &Control, live: &Arc<Live>, active: &Arc<Active>) -> Self {
        let turn = active.waits.begin();
        let waiting = Self {
            control: control.clone(),
            live: Arc::clone(live),
            active: Arc::clone(active),
            turn,
        };
        control.show_waiting(live, active).await;
        waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.active.waits.end(self.turn);
        let (control, live, active) = (self.control.clone(), Arc::clone(&self.live), Arc::clone(&self.active));
        self.control.0.tasks.spawn(async move {
            // Who is to stop leaves the run as it stands: the next process finds it waiting.
            if !control.0.tasks.stop().is_cancelled() {
                control.show_waiting(&live, &active).await;
            }
        });
    }
}

impl Control {
    /// Writes down whether a run waits.
    async fn show_waiting(&self, live: &Live, active: &Active) {
        let mut writing = live.writing.lock().await;
        if active.over.is_cancelled() {
            return;
        }
        let waits = active.waits.waiters() > 0;
        let told = self.0.store.set_waiting(Asker::System, active.run, active.epoch, waits);
        match told.await {
            Ok(events) => live.note(&mut writing, events),
            // It has ended, or is somebody else's.
            Err(StoreError::Stale { .. }) => {}
            Err(error) => {
                tracing::warn!(run = %active.run, error = with_causes(&error), "could not write down that a run waits");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_stands_while_somebody_waits_and_no_longer_than_a_turn() {
        let (waits, began) = (Waits::default(), Instant::now());
        let over = waits.worked(began, Duration::from_secs(10));
        tokio::pin!(over);
        let first = waits.begin();
        let second = waits.begin();
        advance(Duration::from_secs(100)).await;
        waits.end(first);
        advance(Duration::from_secs(100)).await;
        waits.end(second);
        advance(Duration::from_secs(9)).await;
        assert!(futures::poll!(&mut over).is_pending());
        let third = waits.begin();
        waits.turn();
        waits.end(third);
        advance(Duration::from_millis(1_100)).await;
        assert!(futures::poll!(&mut over).is_ready());
    }
}
