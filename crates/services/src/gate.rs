//! How much of a service is used at once, and in a minute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::SessionId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::{Code, Failure};

const MINUTE: Duration = Duration::from_secs(60);
/// Calls of one session that wait for a free place. More are refused.
const WAITING: usize = 256;
/// Sessions that are remembered before those that have been quiet are forgotten.
const REMEMBERED: usize = 1_000;

/// Lets calls of one service, or of one kind, through: so many at once, of which one session has at most half, and so many a minute. Who
/// comes too often is refused at once, with the time to wait; who only comes while others are under way waits.
#[derive(Debug)]
pub(crate) struct Gate {
    places: Arc<Semaphore>,
    session_places: usize,
    bucket: Option<Mutex<Bucket>>,
    session_rate: Option<u32>,
    sessions: Mutex<HashMap<SessionId, Arc<Turnstile>>>,
}

/// What one session uses.
#[derive(Debug)]
struct Turnstile {
    places: Arc<Semaphore>,
    /// Room for those that wait.
    waiting: Semaphore,
    bucket: Option<Mutex<Bucket>>,
}

/// The right to have one request under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _service: OwnedSemaphorePermit,
    _session: OwnedSemaphorePermit,
}

/// Fills evenly, one minute's worth at most.
#[derive(Debug)]
struct Bucket {
    per_minute: f64,
    filled: f64,
    at: Instant,
}

impl Gate {
    pub(crate) fn new(concurrency: u32, per_minute: Option<u32>, session_per_minute: Option<u32>) -> Self {
        let places = usize::try_from(concurrency.clamp(1, 1_024)).unwrap_or(1);
        Self {
            places: Arc::new(Semaphore::new(places)),
            session_places: places.div_ceil(2),
            bucket: per_minute.map(|rate| Mutex::new(Bucket::new(rate))),
            session_rate: session_per_minute,
            sessions: Mutex::default(),
        }
    }

    /// A place for a call, as soon as there is one.
    pub(crate) async fn enter(&self, session: SessionId, what: &str) -> Result<Place, Failure> {
        let turnstile = self.turnstile(session);
        let waiting = turnstile.waiting.try_acquire().map_err(|_| {
            Failure::new(
                Code::Busy,
                format!("{what}: {WAITING} calls of this session wait already"),
            )
            .remedy("make fewer calls at once")
            .after(Some(Duration::from_secs(1)))
        })?;
        for (bucket, whose) in [
            (&turnstile.bucket, "this session's share of the service"),
            (&self.bucket, "the service's rate"),
        ] {
            take(bucket.as_ref(), what, whose)?;
        }
        let session = Arc::clone(&turnstile.places).acquire_owned().await;
        let service = Arc::clone(&self.places).acquire_owned().await;
        drop(waiting);
        match (session, service) {
            (Ok(session), Ok(service)) => Ok(Place {
                _service: service,
                _session: session,
            }),
            // Nobody closes them.
            _ => Err(Failure::new(Code::Busy, format!("{what}: the service is closed"))),
        }
    }

    fn turnstile(&self, session: SessionId) -> Arc<Turnstile> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= REMEMBERED && !sessions.contains_key(&session) {
            sessions
                .retain(|_, turnstile| Arc::strong_count(turnstile) > 1 || !turnstile.is_quiet(self.session_places));
        }
        let made = sessions.entry(session).or_insert_with(|| {
            Arc::new(Turnstile {
                places: Arc::new(Semaphore::new(self.session_places)),
                waiting: Semaphore::new(WAITING),
                bucket: self.session_rate.map(|rate| Mutex::new(Bucket::new(rate))),
            })
        });
        Arc::clone(made)
    }
}

impl Turnstile {
    /// Whether forgetting it gives nobody anything.
    fn is_quiet(&self, places: usize) -> bool {
        self.places.available_permits() == places
            && self
                .bucket
                .as_ref()
                .is_none_or(|bucket| bucket.lock().unwrap_or_else(PoisonError::into_inner).is_full())
    }
}

/// Takes one from a bucket, or says when there will be one.
fn take(bucket: Option<&Mutex<Bucket>>, what: &str, whose: &str) -> Result<(), Failure> {
    let Some(bucket) = bucket else { return Ok(()) };
    let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
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

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_refused_with_the_time_to_wait() {
        let gate = Gate::new(4, Some(2), None);
        let session = SessionId::new();
        for _ in 0..2 {
            gate.enter(session, "crm.get").await.unwrap();
        }
        let failure = gate.enter(SessionId::new(), "crm.get").await.unwrap_err();
        assert_eq!((failure.code, failure.status()), (Code::RateLimited, 429));
        assert_eq!(failure.retry_after, Some(Duration::from_secs(30)));
        tokio::time::advance(Duration::from_secs(30)).await;
        gate.enter(session, "crm.get").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_has_its_own_rate_and_at_most_half_of_the_places() {
        let gate = Gate::new(4, None, Some(3));
        let (greedy, other) = (SessionId::new(), SessionId::new());
        let held = [
            gate.enter(greedy, "x").await.unwrap(),
            gate.enter(greedy, "x").await.unwrap(),
        ];
        let third = tokio::time::timeout(MINUTE / 100, gate.enter(greedy, "x")).await;
        assert!(third.is_err(), "the third waits");
        assert_eq!(gate.enter(greedy, "x").await.unwrap_err().code, Code::RateLimited);
        gate.enter(other, "x").await.unwrap();
        drop(held);
        tokio::time::advance(MINUTE).await;
        gate.enter(greedy, "x").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_without_end_is_refused_and_who_is_quiet_forgotten() {
        let gate = Gate::new(1, None, Some(100));
        let session = SessionId::new();
        let held = gate.enter(session, "x").await.unwrap();
        let mut waiting: Vec<_> = (0..WAITING).map(|_| Box::pin(gate.enter(session, "x"))).collect();
        let mut refused = 0;
        for call in &mut waiting {
            if let std::task::Poll::Ready(result) = futures::poll!(call) {
                assert_eq!(result.unwrap_err().code, Code::RateLimited);
                refused += 1;
            }
        }
        assert_eq!(refused, WAITING - 99);
        drop((held, waiting));
        tokio::time::advance(MINUTE).await;
        for _ in 0..2 * REMEMBERED {
            gate.enter(SessionId::new(), "x").await.unwrap();
            tokio::time::advance(MINUTE).await;
        }
        assert!(gate.sessions.lock().unwrap().len() <= REMEMBERED);
    }
}
