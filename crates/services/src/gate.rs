//! How much of a service is used at once, and in a minute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::{SessionId, UserId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::{Code, Failure};

const MINUTE: Duration = Duration::from_secs(60);
/// Calls of one user that wait for a free place. More are refused.
const WAITING: usize = 256;
/// Users, and sessions, that are remembered before those that have been quiet are forgotten.
const REMEMBERED: usize = 1_000;

/// Lets calls of one service, or of one kind, through: so many at once, of which one user has at most half in however many
/// sessions, and so many a minute. Who comes too often is refused at once, with the time to wait; who only comes while others
/// are under way waits, in the order of coming.
#[derive(Debug)]
pub(crate) struct Gate {
    places: Arc<Semaphore>,
    share: usize,
    bucket: Option<Mutex<Bucket>>,
    session_rate: Option<u32>,
    sessions: Mutex<HashMap<SessionId, Bucket>>,
    users: Mutex<HashMap<UserId, Arc<Turnstile>>>,
}

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) user: UserId,
    pub(crate) session: SessionId,
}

/// What one user uses.
#[derive(Debug)]
struct Turnstile {
    share: Arc<Semaphore>,
    /// Room for those that wait.
    waiting: Arc<Semaphore>,
}

/// A call that may wait at some gates for its places, and is counted in their rates.
#[derive(Debug)]
pub(crate) struct Admitted(Vec<Waiting>);

/// One that waits at a gate.
#[derive(Debug)]
struct Waiting {
    places: Arc<Semaphore>,
    turnstile: Arc<Turnstile>,
    _room: OwnedSemaphorePermit,
}

/// The right to have one request under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _common: OwnedSemaphorePermit,
    _share: OwnedSemaphorePermit,
}

/// Fills evenly, one minute's worth at most.
#[derive(Debug)]
struct Bucket {
    per_minute: f64,
    filled: f64,
    at: Instant,
}

/// Lets a call wait at these gates, which are always passed in the same order, the one that most calls pass last; or refuses it
/// at once.
pub(crate) fn admit<'g>(
    gates: impl IntoIterator<Item = &'g Gate>,
    caller: Caller,
    what: &str,
) -> Result<Admitted, Failure> {
    let waiting = gates.into_iter().map(|gate| gate.admit(caller, what));
    waiting.collect::<Result<_, _>>().map(Admitted)
}

impl Admitted {
    /// A place at each gate, as soon as there are. Who waits for the end of their own user's calls takes up no place meanwhile
    /// that others could have: the shares at all gates come before the first place.
    pub(crate) async fn enter(self, what: &str) -> Result<Vec<Place>, Failure> {
        // Nobody closes them.
        let closed = |_| Failure::new(Code::Busy, format!("{what}: the service is closed"));
        let mut shares = Vec::with_capacity(self.0.len());
        for waiting in &self.0 {
            let share = Arc::clone(&waiting.turnstile.share).acquire_owned().await;
            shares.push(share.map_err(closed)?);
        }
        let mut places = Vec::with_capacity(shares.len());
        for (waiting, share) in self.0.iter().zip(shares) {
            let common = Arc::clone(&waiting.places).acquire_owned().await;
            places.push(Place {
                _common: common.map_err(closed)?,
                _share: share,
            });
        }
        Ok(places)
    }
}

impl Gate {
    pub(crate) fn new(concurrency: u32, per_minute: Option<u32>, session_per_minute: Option<u32>) -> Self {
        let places = usize::try_from(concurrency.clamp(1, 1_024)).unwrap_or(1);
        Self {
            places: Arc::new(Semaphore::new(places)),
            share: places.div_ceil(2),
            bucket: per_minute.map(|rate| Mutex::new(Bucket::new(rate))),
            session_rate: session_per_minute,
            sessions: Mutex::default(),
            users: Mutex::default(),
        }
    }

    fn admit(&self, caller: Caller, what: &str) -> Result<Waiting, Failure> {
        let turnstile = self.turnstile(caller.user);
        let room = Arc::clone(&turnstile.waiting).try_acquire_owned().map_err(|_| {
            Failure::new(
                Code::Busy,
                format!("{what}: {WAITING} calls of this session's user wait already"),
            )
            .remedy("make fewer calls at once")
            .after(Some(Duration::from_secs(1)))
        })?;
        if let Some(rate) = self.session_rate {
            let mut sessions = lock(&self.sessions);
            forget(&mut sessions, caller.session, Bucket::is_full);
            let bucket = sessions.entry(caller.session).or_insert_with(|| Bucket::new(rate));
            take(bucket, what, "this session's share of the service")?;
        }
        if let Some(bucket) = &self.bucket {
            take(&mut lock(bucket), what, "the service's rate")?;
        }
        Ok(Waiting {
            places: Arc::clone(&self.places),
            turnstile,
            _room: room,
        })
    }

    fn turnstile(&self, user: UserId) -> Arc<Turnstile> {
        let mut users = lock(&self.users);
        // Whoever waits or has a place holds it, or a permit of it.
        forget(&mut users, user, |turnstile| {
            Arc::strong_count(turnstile) == 1 && turnstile.share.available_permits() == self.share
        });
        let made = users.entry(user).or_insert_with(|| {
            Arc::new(Turnstile {
                share: Arc::new(Semaphore::new(self.share)),
                waiting: Arc::new(Semaphore::new(WAITING)),
            })
        });
        Arc::clone(made)
    }
}

/// Makes room for a new one where many are remembered: those go that forgetting gives nothing.
fn forget<K: Eq + std::hash::Hash, V>(all: &mut HashMap<K, V>, new: K, mut is_quiet: impl FnMut(&mut V) -> bool) {
    if all.len() >= REMEMBERED && !all.contains_key(&new) {
        all.retain(|_, one| !is_quiet(one));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes one from a bucket, or says when there will be one.
fn take(bucket: &mut Bucket, what: &str, whose: &str) -> Result<(), Failure> {
    bucket.take().map_err(|wait| {
        Failure::new(
            Code::RateLimited,
            format!("{what}: {whose} is used up: {} calls a minute", bucket.per_minute),
        )
        .remedy("wait, or ask for more at once where the method takes lists")
        .after(Some(wait))
    })
}

impl Bucket {
    fn new(per_minute: u32) -> Self {
        let per_minute = f64::from(per_minute.max(1));
        Self {
            per_minute,
            filled: per_minute,
            at: Instant::now(),
        }
    }

    fn fill(&mut self) {
        let now = Instant::now();
        let share = now.duration_since(self.at).as_secs_f64() / MINUTE.as_secs_f64();
        self.filled = share.mul_add(self.per_minute, self.filled).min(self.per_minute);
        self.at = now;
    }

    fn take(&mut self) -> Result<(), Duration> {
        self.fill();
        if self.filled >= 1.0 {
            self.filled -= 1.0;
            return Ok(());
        }
        Err(MINUTE.mul_f64((1.0 - self.filled) / self.per_minute))
    }

    fn is_full(&mut self) -> bool {
        self.fill();
        self.filled >= self.per_minute
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Gate {
        async fn enter(&self, caller: Caller, what: &str) -> Result<Vec<Place>, Failure> {
            admit([self], caller, what)?.enter(what).await
        }
    }

    impl Caller {
        fn new() -> Self {
            Self {
                user: UserId::new(),
                session: SessionId::new(),
            }
        }

        /// The same user in another session.
        fn elsewhere(self) -> Self {
            Self {
                session: SessionId::new(),
                ..self
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_refused_with_the_time_to_wait() {
        let gate = Gate::new(4, Some(2), None);
        let caller = Caller::new();
        for _ in 0..2 {
            gate.enter(caller, "crm.get").await.unwrap();
        }
        let failure = gate.enter(Caller::new(), "crm.get").await.unwrap_err();
        assert_eq!((failure.code, failure.status()), (Code::RateLimited, 429));
        assert_eq!(failure.retry_after, Some(Duration::from_secs(30)));
        tokio::time::advance(Duration::from_secs(30)).await;
        gate.enter(caller, "crm.get").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_has_its_own_rate_and_its_user_at_most_half_of_the_places() {
        let gate = Gate::new(4, None, Some(3));
        let (greedy, other) = (Caller::new(), Caller::new());
        let held = [
            gate.enter(greedy, "x").await.unwrap(),
            gate.enter(greedy, "x").await.unwrap(),
        ];
        let third = tokio::time::timeout(MINUTE / 100, gate.enter(greedy, "x")).await;
        assert!(third.is_err(), "the third waits");
        assert_eq!(gate.enter(greedy, "x").await.unwrap_err().code, Code::RateLimited);
        let elsewhere = tokio::time::timeout(MINUTE / 100, gate.enter(greedy.elsewhere(), "x")).await;
        assert!(
            elsewhere.is_err(),
            "what other sessions of the same user want waits too"
        );
        gate.enter(other, "x").await.unwrap();
        drop(held);
        tokio::time::advance(MINUTE).await;
        gate.enter(greedy, "x").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_their_own_calls_takes_up_no_place_of_others() {
        let (narrow, shared) = (Gate::new(1, None, None), Gate::new(2, None, None));
        let (greedy, other) = (Caller::new(), Caller::new());
        let held = shared.enter(greedy, "x").await.unwrap();
        let mut waits = Box::pin(admit([&narrow, &shared], greedy, "x").unwrap().enter("x"));
        assert!(futures::poll!(&mut waits).is_pending(), "their half is taken");
        let through = admit([&narrow, &shared], other, "x").unwrap().enter("x");
        let through = tokio::time::timeout(MINUTE, through).await;
        drop(through.expect("the narrow gate is free").unwrap());
        drop(held);
        waits.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_came_first_enters_first() {
        let gate = Gate::new(2, None, None);
        let callers = [Caller::new(), Caller::new(), Caller::new(), Caller::new()];
        let mut held = Vec::new();
        for caller in &callers[..2] {
            held.push(gate.enter(*caller, "x").await.unwrap());
        }
        let mut third = Box::pin(gate.enter(callers[2], "x"));
        let mut fourth = Box::pin(gate.enter(callers[3], "x"));
        assert!(futures::poll!(&mut third).is_pending() && futures::poll!(&mut fourth).is_pending());
        held.pop();
        // Who has one already comes after those who wait.
        let mut again = Box::pin(gate.enter(callers[1], "x"));
        assert!(futures::poll!(&mut again).is_pending());
        assert!(futures::poll!(&mut fourth).is_pending());
        drop(third.await.unwrap());
        assert!(futures::poll!(&mut again).is_pending());
        drop(fourth.await.unwrap());
        again.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_without_end_is_refused_and_who_is_quiet_forgotten() {
        let gate = Gate::new(1, None, Some(100));
        let caller = Caller::new();
        let held = gate.enter(caller, "x").await.unwrap();
        let mut waiting: Vec<_> = (0..WAITING).map(|_| Box::pin(gate.enter(caller, "x"))).collect();
        let mut refused = 0;
        for call in &mut waiting {
            if let std::task::Poll::Ready(result) = futures::poll!(call) {
                assert_eq!(result.unwrap_err().code, Code::RateLimited);
                refused += 1;
            }
        }
        assert_eq!(refused, WAITING - 99);
        let mut more: Vec<_> = (0..WAITING)
            .map(|_| Box::pin(gate.enter(caller.elsewhere(), "x")))
            .collect();
        let mut busy = 0;
        for call in &mut more {
            if let std::task::Poll::Ready(result) = futures::poll!(call) {
                assert_eq!(result.unwrap_err().code, Code::Busy);
                busy += 1;
            }
        }
        assert_eq!(busy, 99, "a user's calls wait together");
        drop((held, waiting, more));
        tokio::time::advance(MINUTE).await;
        for _ in 0..2 * REMEMBERED {
            gate.enter(Caller::new(), "x").await.unwrap();
            tokio::time::advance(MINUTE).await;
        }
        assert!(gate.sessions.lock().unwrap().len() <= REMEMBERED);
        assert!(gate.users.lock().unwrap().len() <= REMEMBERED);
    }
}
