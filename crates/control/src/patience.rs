//! What was done or paid for already is stored, as soon as the store takes it.

use std::time::Duration;

use causes::with_causes;
use lifecycle::Stop;
use store::StoreError;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Control;

/// Attempts to store something, where the store fails otherwise than for want of room.
const STORED_WITHIN: u32 = 6;
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Pauses between attempts to store something. While the disk is full there is no end to them. Nobody is to hold a session's
/// `writing` meanwhile: a person who stops a run does not wait for room.
pub(crate) struct Patience {
    /// What is stored, in words.
    what: &'static str,
    full: u32,
    failed: u32,
    stop: Stop,
    drain: Duration,
    /// When it ends because the process does.
    until: Option<Instant>,
}

impl Control {
    pub(crate) fn patience(&self, what: &'static str) -> Patience {
        Patience {
            what,
            full: 0,
            failed: 0,
            stop: self.0.tasks.stop(),
            drain: self.0.config.drain,
            until: None,
        }
    }
}

impl Patience {
    /// Waits until it is worth another attempt.
    ///
    /// # Errors
    /// With the error of the last attempt, where no other would do better or the process ends.
    pub(crate) async fn again(&mut self, error: StoreError) -> Result<(), StoreError> {
        let attempts = match &error {
            StoreError::DiskFull { .. } => {
                if self.full == 0 {
                    tracing::warn!(
                        what = self.what,
                        error = with_causes(&error),
                        "it is kept in memory until there is room for it: free some on the store's disk"
                    );
                }
                &mut self.full
            }
            // A disk that was full for long takes nothing from what another failure is allowed.
            StoreError::Database { .. } if self.failed < STORED_WITHIN => &mut self.failed,
            _ => return Err(error),
        };
        let pause = Duration::from_millis(100) * 2_u32.pow(STORED_WITHIN.min(*attempts));
        *attempts += 1;
        tokio::select! {
            () = self.process_ends() => Err(error),
            () = sleep(pause.min(LONGEST_PAUSE)) => Ok(()),
        }
    }

    async fn process_ends(&mut self) {
        self.stop.cancelled().await;
        sleep_until(*self.until.get_or_insert_with(|| Instant::now() + self.drain)).await;
    }
}
