//! The keeping of the workspace's files: a process of the user's that watches them, and what PID 1 does for it.
//!
//! That process has no token and no way out. It asks over a socketpair, with descriptors beside its lines; PID 1 asks the
//! control plane, and moves bytes between a descriptor and the link. Until everything that another disk recorded is back, no
//! tool is used: it would see half a workspace. What has no room on the disk is not waited for, and each result says so:
//! only tools can make room.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lifecycle::Tasks;
use link::client::Client;
use protocol::DiskId;
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior, setsid};
use sandbox::inside::{GROUP_ID, USER_ID};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::warn;

use crate::gateway::backoff;
use crate::reaper::Reaper;

mod carry;

pub use carry::{Ended, Ordered, carry};

/// The argument that makes the program the one that watches.
pub(crate) const ROLE: &str = "sync";

/// One that lives this long was no failed start.
const LIVED: Duration = Duration::from_secs(5);

/// How long a session that brings no files has its processors for itself: the process that keeps files would take of them
/// what the first command needs.
const BEGIN_IN_PEACE: Duration = Duration::from_millis(50);

/// Orders to keep everything that may wait.
const FLUSHES: usize = 8;

/// What PID 1 holds of it.
#[derive(Clone)]
pub(crate) struct Keeper(Arc<Shared>);

struct Shared {
    client: Client,
    reaper: Reaper,
    tasks: Tasks,
    /// Everything is where it should be, but for so many files for which the disk has no room.
    filled: watch::Sender<Option<u64>>,
    flushes: Mutex<Option<mpsc::Sender<Flush>>>,
    /// The disk, as soon as it is known.
    disk: watch::Sender<Option<DiskId>>,
}

/// An order to keep everything; answered with how many files could not be.
pub type Flush = oneshot::Sender<u64>;

impl Keeper {
    pub(crate) fn new(client: &Client, reaper: &Reaper, tasks: &Tasks) -> Self {
        Self(Arc::new(Shared {
            client: client.clone(),
            reaper: reaper.clone(),
            tasks: tasks.clone(),
            filled: watch::Sender::new(Some(0)),
            flushes: Mutex::default(),
            disk: watch::Sender::new(None),
        }))
    }

    /// Whether the workspace holds everything that it should, but for so many files for which the disk has no room.
    pub(crate) fn filled(&self) -> watch::Receiver<Option<u64>> {
        self.0.filled.subscribe()
    }

    /// Begins to keep files, once. Unless the workspace is `filled`, nothing is done with them from now on until all of them
    /// are there.
    pub(crate) fn begin(&self, filled: bool) {
        let mut flushes = self.0.flushes.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = Arc::clone(&self.0);
        if flushes.is_some() {
            // Another process of the control plane may ask now, and learns that files are kept.
            self.0.tasks.spawn_until_stopped(async move {
                let disk = shared.disk.borrow().clone();
                if let Some(disk) = disk {
                    carry::agree(&shared.client, &disk).await;
                }
            });
            return;
        }
        let (order, ordered) = mpsc::channel(FLUSHES);
        *flushes = Some(order);
        self.0.filled.send_replace(filled.then_some(0));
        self.0.tasks.spawn_until_stopped(async move {
            if filled {
                tokio::time::sleep(BEGIN_IN_PEACE).await;
            }
            shared.keep(ordered).await;
        });
    }

    /// Has everything kept that is there now; says how many files could not be.
    pub(crate) async fn flush(&self) -> Result<u64, String> {
        let order = self.0.flushes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let order = order.ok_or("no files are kept here")?;
        let (answer, answered) = oneshot::channel();
        order.send(answer).await.map_err(|_| "no files are kept here")?;
        answered
            .await
            .map_err(|_| "the process that keeps files was lost, and is replaced".to_owned())
    }
}

impl Shared {
    /// Keeps files for ever, where the control plane does.
    async fn keep(&self, mut flushes: Ordered) {
        let mut failures = 0;
        loop {
            let began = Instant::now();
            match start(&self.reaper) {
                Ok(socket) => {
                    let ended = carry(&self.client, socket, &self.disk, &mut flushes, &self.filled).await;
                    self.reaper.forget_watcher();
                    if ended == Ended::NotKept {
                        self.filled.send_replace(Some(0));
                        return;
                    }
                    warn!("the process that keeps files is lost and will be replaced");
                }
                Err(error) => warn!(%error, "cannot start the process that keeps files"),
            }
            failures = if began.elapsed() < LIVED { failures + 1 } else { 0 };
            tokio::time::sleep(backoff(failures + 1)).await;
        }
    }
}

/// The same file as this process, as the sandbox's user: its socket is its standard input.
fn start(reaper: &Reaper) -> io::Result<UnixStream> {
    let (near, far) = std::os::unix::net::UnixStream::pair()?;
    near.set_nonblocking(true)?;
    let near = UnixStream::from_std(near)?;
    let child = Command::new(std::env::current_exe()?)
        .arg(ROLE)
        .uid(USER_ID)
        .gid(GROUP_ID)
        .current_dir("/")
        .stdin(OwnedFd::from(far))
        .stdout(Stdio::null())
        .spawn()?;
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        reaper.keep_watcher(pid);
    }
    Ok(near)
}

/// The watcher could not begin, or cannot go on; PID 1 starts another.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatcherError {
    #[error("cannot give up what this process must not have")]
    Confine(#[source] io::Error),
    #[error(transparent)]
    Sync(#[from] ::sync::SyncError),
}

/// Lives as the process that watches, until PID 1 hangs up.
pub(crate) fn run() -> Result<(), WatcherError> {
    let confine = || {
        // Fails only for who leads a group already, which is as good.
        let _ = setsid();
        rustix::thread::set_no_new_privs(true)?;
        let _ = std::fs::write("/proc/self/oom_score_adj", "300");
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let nothing = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stderr(&nothing)?;
        Ok(socket)
    };
    let socket = confine().map_err(WatcherError::Confine)?;
    let workspace = std::path::Path::new(sandbox::inside::WORKSPACE);
    ::sync::run(socket.into(), workspace, ::sync::Settings::default())?;
    Ok(())
}
