//! One connection to a host agent, shared by all who ask.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use channel::{Descriptors, Lines};
use domain::InstallationId;
use lifecycle::{DropGuard, Stop, Tasks};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::wire::{Answer, Failure, Hello, LONGEST_REPLY, Order, Request, Saying};

/// Orders that wait to be written. Who gives more waits.
const MOST_ORDERS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(10);
const DIAL_AGAIN: Duration = Duration::from_millis(50);

/// The connection ended before an answer came.
#[derive(Debug)]
pub(super) struct Lost;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("no host agent answers on {path} ({source}): start it as root with `belljar host`")]
    Absent { path: PathBuf, source: io::Error },
    #[error(
        "the socket {path} of the host agent may not be opened by this user: `belljar host` names the user it serves"
    )]
    Forbidden { path: PathBuf },
    #[error("the host agent on {path} refuses: {reason}")]
    Refused { path: PathBuf, reason: String },
}

type Answered = (Answer, Option<OwnedFd>);

/// Who waits for which answer.
type Waiting = Mutex<HashMap<u64, oneshot::Sender<Answered>>>;

#[derive(Debug)]
pub(super) struct Connection {
    /// What the other side is.
    host: Hello,
    next: AtomicU64,
    orders: mpsc::Sender<Request>,
    waiting: Arc<Waiting>,
    /// Why the other side ended it, in words.
    refused: Arc<OnceLock<String>>,
    ended: Stop,
    _life: DropGuard,
}

/// Connects, however often it takes, to a host agent that is away no longer than `absence`.
pub(super) async fn dial(
    path: &Path,
    installation: InstallationId,
    absence: Duration,
    tasks: &Tasks,
) -> Result<Connection, DialError> {
    let begun = Instant::now();
    loop {
        let error = match attempt(path, installation, tasks).await {
            Err(error @ DialError::Absent { .. }) => error,
            end => return end,
        };
        if begun.elapsed() >= absence {
            return Err(error);
        }
        tokio::time::sleep(DIAL_AGAIN).await;
    }
}

async fn attempt(path: &Path, installation: InstallationId, tasks: &Tasks) -> Result<Connection, DialError> {
    let absent = |source| DialError::Absent {
        path: path.to_owned(),
        source,
    };
    let refused = |reason: String| DialError::Refused {
        path: path.to_owned(),
        reason,
    };
    let late = |_| absent(ErrorKind::TimedOut.into());
    let stream = match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(DialError::Forbidden { path: path.to_owned() });
        }
        connected => Arc::new(connected.map_err(absent)?),
    };
    let mut lines = Lines::new(Arc::clone(&stream), LONGEST_REPLY, Descriptors::Taken);
    // It may be refused and closed before it is written: what the other side said matters more.
    let _ = timeout(PATIENCE, channel::write(&stream, &Hello::of(installation), None)).await;
    let line = timeout(PATIENCE, lines.next()).await.map_err(late)?;
    let Some(line) = line.map_err(|error| absent(io::Error::other(error)))? else {
        return Err(absent(ErrorKind::UnexpectedEof.into()));
    };
    let host = match serde_json::from_slice(&line) {
        Ok(Saying::Hello(hello)) => hello.check().map(|()| hello).map_err(refused)?,
        Ok(Saying::Refused(reason)) => return Err(refused(reason)),
        _ => return Err(refused("it does not speak the host API".to_owned())),
    };
    let (orders, outgoing) = mpsc::channel(MOST_ORDERS);
    let waiting = Arc::new(Waiting::default());
    let ended = tasks.stop().child_token();
    let life = ended.clone().drop_guard();
    let refusal = Arc::new(OnceLock::new());
    let read = read_replies(lines, Arc::clone(&waiting), Arc::clone(&refusal));
    let write = write_orders(stream, outgoing);
    let (stop, answers) = (ended.clone(), Arc::clone(&waiting));
    tasks.spawn(async move {
        // Whichever ends first ends the connection, and with it whoever waits for an answer.
        let _ = stop
            .run_until_cancelled(async {
                tokio::pin!(read);
                let written = tokio::select! { () = &mut read => return, written = write => written };
                if written.is_err() {
                    // Its last words may still be there to be read.
                    let _ = timeout(PATIENCE, read).await;
                }
            })
            .await;
        stop.cancel();
        held(&answers).clear();
    });
    Ok(Connection {
        host,
        next: AtomicU64::new(0),
        orders,
        waiting,
        refused: refusal,
        ended,
        _life: life,
    })
}

impl Connection {
    /// Whether an order may still come through.
    pub(super) fn lives(&self) -> bool {
        !self.ended.is_cancelled()
    }

    /// Whether the other side knows an order.
    pub(super) fn knows(&self, order: &Order) -> bool {
        order.since() <= self.host.protocol
    }

    /// Gives an order and waits for its answer, for as long as it takes or the connection lives.
    pub(super) async fn ask(&self, order: Order) -> Result<Answered, Lost> {
        if !self.knows(&order) {
            let words = format!(
                "the host agent is older than this (build {}) and does not know that order: run the same release of \
                 Belljar on both sides",
                self.host.build.chars().take(40).collect::<String>()
            );
            return Ok((Answer::Failed(Failure::Unavailable(words)), None));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        held(&self.waiting).insert(number, sender);
        let _forget = Forget {
            waiting: &self.waiting,
            number,
        };
        let asked = async {
            self.orders.send(Request { number, order }).await.ok()?;
            answer.await.ok()
        };
        // The end is looked at beside the answer: it may have come before this order stood on the list.
        let answered = tokio::select! {
            biased;
            answered = asked => answered,
            () = self.ended.cancelled() => None,
        };
        match (answered, self.refused.get()) {
            (Some(answered), _) => Ok(answered),
            (None, Some(reason)) => {
                let words = format!("the host agent refuses: {reason}");
                Ok((Answer::Failed(Failure::Unavailable(words)), None))
            }
            (None, None) => Err(Lost),
        }
    }
}

/// Takes a number off the list when nobody waits for it any longer.
struct Forget<'a> {
    waiting: &'a Waiting,
    number: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        held(self.waiting).remove(&self.number);
    }
}

async fn read_replies(mut lines: Lines, waiting: Arc<Waiting>, refused: Arc<OnceLock<String>>) {
    loop {
        let line = match lines.next().await {
            Ok(Some(line)) => line,
            Ok(None) => return,
            Err(error) => return tracing::warn!(%error, "the connection to the host agent is given up"),
        };
        match serde_json::from_slice(&line) {
            Ok(Saying::Reply { number, answer }) => {
                let descriptor = if matches!(answer, Answer::Link) {
                    lines.descriptor()
                } else {
                    None
                };
                if let Some(asker) = held(&waiting).remove(&number) {
                    // Who does not wait any more does not want it.
                    let _ = asker.send((answer, descriptor));
                }
            }
            Ok(Saying::Refused(reason)) => {
                tracing::warn!(reason, "the host agent refuses");
                // It refuses once.
                let _ = refused.set(reason);
                return;
            }
            Ok(Saying::Hello(_)) => {}
            Err(error) => return tracing::warn!(%error, "the host agent is not understood"),
        }
    }
}

async fn write_orders(stream: Arc<UnixStream>, mut outgoing: mpsc::Receiver<Request>) -> io::Result<()> {
    while let Some(request) = outgoing.recv().await {
        channel::write(&stream, &request, None)
            .await
            .inspect_err(|error| tracing::debug!(%error, "an order could not be written to the host agent"))?;
    }
    Ok(())
}

fn held(waiting: &Waiting) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Answered>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
