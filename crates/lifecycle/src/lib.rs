//! Tasks have an owner that joins them, and shutdown is passed down: signal, drain, deadline, force.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use tokio_util::sync::{CancellationToken as Stop, DropGuard};

/// A group of tasks that end together.
///
/// Clones share the group. A task is told to stop through [`Tasks::stop`]; [`Tasks::shut_down`] waits for all of them.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// An empty group.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A group of its own that is told to stop when this one is, and is waited for with it.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            tracker: self.tracker.clone(),
            stop: self.stop.child_token(),
        }
    }

    /// What tells the tasks of this group to stop.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Runs a task that looks at [`Tasks::stop`] itself and ends in its own time.
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// Runs a task that is dropped where it stands when the group is told to stop.
    pub fn spawn_until_stopped<F>(&self, task: F) -> tokio::task::JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            stop.run_until_cancelled(task).await;
        })
    }

    /// Tells every task to stop and waits for them, at most `deadline`. False: some still run, and end with the process.
    pub async fn shut_down(&self, deadline: Duration) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn shutting_down_waits_for_what_was_begun() {
        let tasks = Tasks::new();
        let stop = tasks.stop();
        let work = tasks.spawn(async move {
            stop.cancelled().await;
            "cleaned up"
        });
        tasks.child().spawn_until_stopped(std::future::pending());
        assert!(tasks.shut_down(Duration::from_secs(10)).await);
        assert_eq!(work.await.unwrap(), "cleaned up");
    }
}
