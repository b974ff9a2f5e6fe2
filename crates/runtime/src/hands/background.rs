//! Programs that go on when the call that started them is over: how many there are, and for how long at most.

use std::collections::HashMap;
use std::time::Duration;

use protocol::{ServiceFailure, ToControl, ToHands};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::handle::{Hands, PROMPT, Shared};

/// Programs in the background at once.
const PROGRAMS: usize = 8;

/// Those there are.
#[derive(Default)]
pub(super) struct Programs {
    /// When the time of each is up.
    until: HashMap<u64, Instant>,
    /// Who waits for one to be started.
    starts: HashMap<u64, oneshot::Sender<Option<String>>>,
}

impl Programs {
    fn left(&self) -> Duration {
        let last = self.until.values().max();
        last.map_or(Duration::ZERO, |last| last.saturating_duration_since(Instant::now()))
    }
}

impl Hands {
    /// Starts a command of the shell, which may go on for so long and no longer.
    pub(crate) async fn background(&self, command: String, time: Duration) -> Result<(), ServiceFailure> {
        let shared = &self.shared;
        let request = shared.next();
        let (answer, answered) = oneshot::channel();
        {
            let mut state = shared.state();
            if state.background.until.len() >= PROGRAMS {
                let words = format!("{PROGRAMS} programs run in the background already");
                return Err(ServiceFailure::new(429, "too_many", words).remedy("end one of them first"));
            }
            state.background.until.insert(request, Instant::now() + time);
            state.background.starts.insert(request, answer);
        }
        let seconds = time.as_secs();
        let order = ToHands::Background {
            request,
            command,
            seconds,
        };
        let failure = if shared.order(order).await {
            match timeout(PROMPT, answered).await {
                Ok(Ok(None)) => return Ok(()),
                Ok(Ok(Some(failure))) => failure,
                Ok(Err(_)) => "the process that starts programs was lost, and is replaced".to_owned(),
                Err(_) => {
                    shared.replace.notify_one();
                    "the process that starts programs did not answer, and is replaced".to_owned()
                }
            }
        } else {
            "there is no process at the moment that starts programs".to_owned()
        };
        let mut state = shared.state();
        state.background.until.remove(&request);
        state.background.starts.remove(&request);
        drop(state);
        let words = format!("the program was not started: {failure}");
        Err(ServiceFailure::new(503, "unavailable", words))
    }

    /// Says again how long programs in the background run: who asks may not have heard it.
    pub(crate) async fn repeat_background(&self) {
        if !self.shared.state().background.until.is_empty() {
            self.shared.tell_background().await;
        }
    }
}

impl Shared {
    /// The hands say what came of a start. Whoever asked may have hung up.
    pub(super) async fn background_started(&self, request: u64, failure: Option<String>) {
        let waiting = {
            let mut state = self.state();
            if failure.is_some() {
                state.background.until.remove(&request);
            }
            state.background.starts.remove(&request)
        };
        if failure.is_none() {
            self.tell_background().await;
        }
        if let Some(waiting) = waiting {
            let _ = waiting.send(failure);
        }
    }

    pub(super) async fn background_ended(&self, request: u64) {
        if self.state().background.until.remove(&request).is_some() {
            self.tell_background().await;
        }
    }

    async fn tell_background(&self) {
        let left = self.state().background.left();
        // Rounded up: one that has a moment left is still there.
        let seconds = left.as_millis().div_ceil(1_000).try_into().unwrap_or(u64::MAX);
        self.outbox.say(ToControl::Background { seconds }).await;
    }

    /// They were the hands' own, and are gone with them.
    pub(super) fn background_lost(&self) {
        let lost = std::mem::take(&mut self.state().background);
        if !lost.until.is_empty() {
            self.outbox.mention(ToControl::Background { seconds: 0 });
        }
    }
}
