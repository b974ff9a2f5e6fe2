//! Whether a sandbox is used: what nobody uses is put to sleep.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use link::server::{Carrier, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::live::lock;

/// Who uses a sandbox, and since when nobody does.
#[derive(Debug)]
pub(crate) struct Usage {
    users: AtomicUsize,
    /// How many of them cannot do without it.
    needing: AtomicUsize,
    /// How many of those there were.
    came: AtomicU64,
    last: Mutex<Instant>,
    kept: Mutex<Kept>,
    /// Set before the processes are stopped, so that whoever comes at that moment sees it, or is seen.
    frozen: AtomicBool,
    pulse: Mutex<Pulse>,
    /// How many make its processes stand still for a while.
    stilled: AtomicUsize,
}

/// Whether programs in the background keep it awake.
#[derive(Clone, Copy, Default, Debug)]
struct Kept {
    until: Option<Instant>,
    /// While it is adopted: until when what a process before this one was told may keep it.
    promised: Option<Instant>,
}

/// What the runtime says when it is asked how it is.
#[derive(Debug)]
struct Pulse {
    /// When it was asked last.
    asked: Instant,
    /// Since when it owes an answer.
    owes: Option<Instant>,
}

/// What is to be done about a pulse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    Nothing,
    /// The runtime is to be asked.
    Ask,
    /// It has owed an answer for so long that it will not come.
    Missed,
}

impl Usage {
    pub(super) fn new() -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            users: AtomicUsize::new(0),
            needing: AtomicUsize::new(0),
            came: AtomicU64::new(0),
            last: Mutex::new(now),
            kept: Mutex::default(),
            frozen: AtomicBool::new(false),
            pulse: Mutex::new(Pulse { asked: now, owes: None }),
            stilled: AtomicUsize::new(0),
        })
    }

    /// It is used as long as what is returned is held.
    pub(crate) fn using(self: &Arc<Self>) -> Using {
        self.users.fetch_add(1, Ordering::SeqCst);
        self.needing.fetch_add(1, Ordering::SeqCst);
        self.came.fetch_add(1, Ordering::SeqCst);
        Using(Arc::clone(self))
    }

    /// It is used as long as what is returned is held, but goes where another session needs its place.
    pub(super) fn yielding(self: &Arc<Self>) -> Yielding {
        self.users.fetch_add(1, Ordering::SeqCst);
        Yielding(Arc::clone(self))
    }

    /// It was used at this moment.
    pub(crate) fn touch(&self) {
        *lock(&self.last) = Instant::now();
    }

    pub(crate) fn last(&self) -> Instant {
        *lock(&self.last)
    }

    /// One that is adopted: what its runtime says of programs in the background counts up to then, until it has settled in.
    pub(super) fn promise(&self, time: Duration) {
        lock(&self.kept).promised = Instant::now().checked_add(time);
    }

    /// It is adopted, and its runtime has said what there is.
    pub(super) fn settle_in(&self) {
        lock(&self.kept).promised = None;
    }

    /// Programs in the background are to keep it awake for so long from now: no longer than the run that is on allows, or, where
    /// none is, than they do already.
    pub(crate) fn keep(&self, time: Duration, run: Option<Duration>) {
        let now = Instant::now();
        let mut kept = lock(&self.kept);
        let known = kept.promised.or(kept.until);
        let known = known.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let time = time.min(run.unwrap_or_default().max(known));
        kept.until = now.checked_add(time).filter(|_| !time.is_zero());
    }

    /// Until when programs in the background keep it awake, where they do.
    pub(crate) fn kept_until(&self) -> Option<Instant> {
        lock(&self.kept).until.filter(|until| *until > Instant::now())
    }

    /// Since when nobody uses it and nothing keeps it.
    pub(super) fn idle_since(&self) -> Instant {
        let last = self.last();
        lock(&self.kept).until.map_or(last, |until| until.max(last))
    }

    pub(crate) fn is_used(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }

    /// Whether somebody uses it who cannot do without it.
    pub(super) fn is_needed(&self) -> bool {
        self.needing.load(Ordering::SeqCst) > 0
    }

    /// How many have come so far who could not do without it.
    pub(super) fn came(&self) -> u64 {
        self.came.load(Ordering::SeqCst)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    pub(super) fn set_frozen(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::SeqCst);
        self.excuse();
    }

    /// Its processes may stand still as long as what is returned is held: the runtime owes no answer, and nobody puts it to sleep.
    pub(super) fn stilled(self: &Arc<Self>) -> Stilled {
        self.stilled.fetch_add(1, Ordering::SeqCst);
        Stilled(self.using())
    }

    /// No answer is expected of what stands still, and none of what has just been let go.
    fn excuse(&self) {
        let mut pulse = lock(&self.pulse);
        pulse.owes = None;
        pulse.asked = Instant::now();
    }

    /// Whether the runtime is to be asked, as it is each `period`, or has owed an answer for longer than `patience`.
    pub(super) fn due(&self, period: Duration, patience: Duration) -> Due {
        let mut pulse = lock(&self.pulse);
        // Looked at under the lock: whoever lets it go on excuses it first.
        if self.stilled.load(Ordering::SeqCst) > 0 {
            return Due::Nothing;
        }
        let now = Instant::now();
        match pulse.owes {
            Some(since) if now.duration_since(since) >= patience => Due::Missed,
            Some(_) => Due::Nothing,
            None if now.duration_since(pulse.asked) >= period => {
                pulse.asked = now;
                pulse.owes = Some(now);
                Due::Ask
            }
            None => Due::Nothing,
        }
    }

    /// The runtime has answered.
    pub(crate) fn alive(&self) {
        lock(&self.pulse).owes = None;
    }
}

/// Somebody uses a sandbox: it is not put to sleep while this is held.
#[derive(Debug)]
pub(crate) struct Using(Arc<Usage>);

impl Drop for Using {
    fn drop(&mut self) {
        self.0.touch();
        self.0.needing.fetch_sub(1, Ordering::SeqCst);
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Somebody uses a sandbox who can do without it: it is not put to sleep while this is held.
#[derive(Debug)]
pub(super) struct Yielding(Arc<Usage>);

impl Drop for Yielding {
    fn drop(&mut self) {
        self.0.touch();
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A sandbox's processes may stand still while this is held.
#[derive(Debug)]
pub(super) struct Stilled(Using);

impl Drop for Stilled {
    fn drop(&mut self) {
        let Using(usage) = &self.0;
        usage.excuse();
        usage.stilled.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connection of somebody inside: the sandbox is used whenever bytes move on it. One that is only open keeps nothing awake.
pub(crate) struct Watched {
    pub(crate) carrier: Box<dyn Carrier>,
    pub(crate) usage: Arc<Usage>,
}

#[async_trait::async_trait]
impl Carrier for Watched {
    async fn carry(self: Box<Self>, near: Box<dyn Connection>) {
        let Self { carrier, usage } = *self;
        carrier.carry(Box::new(Touching { near, usage })).await;
    }
}

struct Touching {
    near: Box<dyn Connection>,
    usage: Arc<Usage>,
}

impl AsyncRead for Touching {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.near).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.usage.touch();
        }
        read
    }
}

impl AsyncWrite for Touching {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.near).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.usage.touch();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.near).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.near).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const PERIOD: Duration = Duration::from_secs(5);
    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn who_owes_an_answer_for_long_has_missed_it() {
        let usage = Usage::new();
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Nothing);
        advance(PERIOD).await;
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Ask);
        advance(PATIENCE / 2).await;
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Nothing);
        usage.alive();
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Ask);
        advance(PATIENCE).await;
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Missed);
    }

    #[tokio::test]
    async fn who_yields_uses_it_and_does_not_need_it() {
        let usage = Usage::new();
        let seen = || (usage.is_used(), usage.is_needed());
        let yields = usage.yielding();
        assert_eq!(seen(), (true, false));
        let needs = usage.using();
        assert_eq!(seen(), (true, true));
        // One goes and another comes: the one who needs it counts by itself.
        drop(yields);
        assert_eq!(seen(), (true, true));
        drop(needs);
        assert_eq!(seen(), (false, false));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_expected_of_what_is_frozen() {
        let usage = Usage::new();
        advance(PERIOD).await;
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Ask);
        usage.set_frozen(true);
        advance(PATIENCE * 100).await;
        usage.set_frozen(false);
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Nothing);
        advance(PERIOD).await;
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Ask);
    }
    #[tokio::test(start_paused = true)]
    async fn nothing_is_expected_while_it_is_made_to_stand_still() {
        let usage = Usage::new();
        advance(PERIOD).await;
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Ask);
        let (first, second) = (usage.stilled(), usage.stilled());
        advance(PATIENCE * 100).await;
        drop(first);
        advance(PATIENCE * 100).await;
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Nothing);
        assert!(usage.is_used(), "nobody puts it to sleep meanwhile");
        drop(second);
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Nothing);
        advance(PERIOD).await;
        assert_eq!(usage.due(PERIOD, PATIENCE), Due::Ask);
    }
    #[tokio::test(start_paused = true)]
    async fn between_runs_nothing_is_kept_longer_than_it_was() {
        let (minute, usage) = (Duration::from_secs(60), Usage::new());
        let left = || {
            let until = usage.kept_until();
            until.map(|until| until.saturating_duration_since(Instant::now()))
        };
        usage.keep(Duration::MAX, None);
        assert_eq!(left(), None);
        usage.keep(Duration::MAX, Some(10 * minute));
        assert_eq!(left(), Some(10 * minute));
        advance(minute).await;
        usage.keep(Duration::MAX, None);
        assert_eq!(left(), Some(9 * minute));
        // Nor by a run that may have none; what is there goes on.
        usage.keep(Duration::MAX, Some(Duration::ZERO));
        assert_eq!(left(), Some(9 * minute));
        usage.keep(minute, None);
        usage.keep(2 * minute, None);
        assert_eq!(left(), Some(minute));
        usage.keep(Duration::ZERO, None);
        usage.keep(minute, None);
        assert_eq!(left(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_adopted_is_kept_for_what_was_promised_and_no_longer() {
        let (minute, usage) = (Duration::from_secs(60), Usage::new());
        let left = || {
            let until = usage.kept_until();
            until.map(|until| until.saturating_duration_since(Instant::now()))
        };
        usage.promise(5 * minute);
        assert_eq!(left(), None, "nothing was said yet");
        // What had waited to be said, and what is so now.
        usage.keep(Duration::ZERO, None);
        usage.keep(3 * minute, None);
        assert_eq!(left(), Some(3 * minute));
        advance(minute).await;
        usage.keep(Duration::MAX, None);
        assert_eq!(left(), Some(4 * minute));
        usage.keep(2 * minute, None);
        usage.settle_in();
        usage.keep(Duration::MAX, None);
        assert_eq!(left(), Some(2 * minute));
    }
}
