//! PID 1 inherits every orphan: it reaps the dead, and kills those who should be.
//!
//! Every program of a tool has a supervisor that adopts its descendants, and PID 1 has two children of its own: the hands, and who keeps files. So
//! any other child is a stray whose supervisor was killed, and nothing of a call survives it.

use std::sync::{Arc, Mutex, PoisonError};

use lifecycle::Tasks;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::warn;

#[derive(Clone)]
pub(crate) struct Reaper {
    hands: Arc<Mutex<Option<Pid>>>,
    /// The process that keeps files.
    watcher: Arc<Mutex<Option<Pid>>>,
    /// Counts the times that children died.
    deaths: watch::Sender<u64>,
}

impl Reaper {
    pub(crate) fn start(tasks: &Tasks) -> std::io::Result<Self> {
        let mut died = signal(SignalKind::child())?;
        let reaper = Self {
            hands: Arc::default(),
            watcher: Arc::default(),
            deaths: watch::Sender::new(0),
        };
        let at_work = reaper.clone();
        tasks.spawn_until_stopped(async move {
            while died.recv().await.is_some() {
                at_work.reap();
            }
        });
        Ok(reaper)
    }

    /// This child is no stray. To be called without an await between its start and here.
    pub(crate) fn keep(&self, hands: Pid) {
        *self.hands() = Some(hands);
    }

    /// Neither is this one.
    pub(crate) fn keep_watcher(&self, watcher: Pid) {
        *self.watcher() = Some(watcher);
    }

    /// It is a stray from now on.
    pub(crate) fn forget_watcher(&self) {
        *self.watcher() = None;
        self.sweep();
    }

    /// Waits until the hands are dead and buried.
    pub(crate) async fn hands_died(&self) {
        let mut deaths = self.deaths.subscribe();
        while self.hands().is_some() {
            if deaths.changed().await.is_err() {
                return;
            }
        }
    }

    /// Kills every process of the sandbox but this one: at once, and whatever they fork meanwhile.
    pub(crate) fn kill_everything(&self) {
        // To the first process of a namespace "group 1" means everybody else in it; to any other it would mean the machine.
        if getpid().is_init()
            && let Err(error) = kill_process_group(Pid::INIT, Signal::KILL)
            && error != rustix::io::Errno::SRCH
        {
            warn!(%error, "cannot kill the sandbox's processes");
        }
    }

    /// Kills strays; gives back whether there were any. They are gone when this says no.
    pub(crate) fn sweep(&self) -> bool {
        let kept = [*self.hands(), *self.watcher()];
        let mut found = false;
        for stray in children().into_iter().filter(|child| !kept.contains(&Some(*child))) {
            found = true;
            // It may be dead, and waits to be reaped.
            let _ = kill_process(stray, Signal::KILL);
        }
        found
    }

    /// Waits until there is no stray left.
    pub(crate) async fn swept(&self) {
        let mut deaths = self.deaths.subscribe();
        while self.sweep() {
            if deaths.changed().await.is_err() {
                return;
            }
        }
    }

    fn reap(&self) {
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            let mut hands = self.hands();
            if *hands == Some(pid) {
                *hands = None;
            }
            drop(hands);
            let mut watcher = self.watcher();
            if *watcher == Some(pid) {
                *watcher = None;
            }
        }
        // The children of who died are ours now.
        self.sweep();
        self.deaths.send_modify(|deaths| *deaths += 1);
    }

    fn watcher(&self) -> std::sync::MutexGuard<'_, Option<Pid>> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hands(&self) -> std::sync::MutexGuard<'_, Option<Pid>> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The children of this process; orphans are given to its first thread. gVisor's kernel lists the threads of a child beside it: to
/// kill one would kill all of them.
fn children() -> Vec<Pid> {
    let pid = getpid();
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_ascii_whitespace().filter_map(process_of).collect()
}

/// The process that a thread is of; none where it is gone. What it calls itself stands before that, and need be no text.
fn process_of(thread: &str) -> Option<Pid> {
    let status = std::fs::read(format!("/proc/{thread}/status")).ok()?;
    let mut lines = status.split(|byte| *byte == b'\n');
    let process = std::str::from_utf8(lines.find_map(|line| line.strip_prefix(b"Tgid:"))?).ok()?;
    Pid::from_raw(process.trim().parse().ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_thread_is_its_process() {
        let (run, ends) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let lives = std::thread::spawn(move || {
            rustix::thread::set_name(c"\xff)\nTgid:\t1").unwrap();
            tell.send(rustix::thread::gettid().as_raw_nonzero().to_string())
                .unwrap();
            ends.recv().unwrap_err();
        });
        assert_eq!(process_of(&told.recv().unwrap()), Some(getpid()));
        drop(run);
        lives.join().unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(process_of(&child.id().to_string()), None);
    }
}
