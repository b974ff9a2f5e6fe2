//! What is under way for the control plane: calls, and the loop, if it is here.

use std::sync::Arc;

use domain::{Epoch, RunId, RunLimits, ToolCall, ToolResult};
use lifecycle::{Stop, Tasks};
use link::client::Client;
use protocol::{Start, ToControl};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::gateway::LinkGateway;
use crate::grants::Granted;
use crate::hands::Hands;
use crate::outbox::Outbox;

/// The tool that runs code.
const EXEC: &str = "exec";

pub(crate) struct Work {
    client: Client,
    hands: Arc<Hands>,
    granted: Arc<Granted>,
    outbox: Outbox,
    tasks: Tasks,
    current: Option<Current>,
    /// Has everybody leave the hands alone who gives them calls.
    stop: Stop,
    /// Those who may. Closed, so that it can be waited for; whoever comes when it is empty finds the stop cancelled.
    callers: TaskTracker,
}

struct Current {
    run: RunId,
    epoch: Epoch,
    task: JoinHandle<()>,
}

impl Work {
    pub(crate) fn new(
        client: &Client,
        hands: &Arc<Hands>,
        granted: &Arc<Granted>,
        outbox: &Outbox,
        tasks: &Tasks,
    ) -> Self {
        let callers = TaskTracker::new();
        callers.close();
        Self {
            client: client.clone(),
            hands: Arc::clone(hands),
            granted: Arc::clone(granted),
            outbox: outbox.clone(),
            tasks: tasks.clone(),
            current: None,
            stop: Stop::new(),
            callers,
        }
    }

    /// Uses a tool for a loop that is elsewhere, and says what came of it.
    pub(crate) fn call(&self, call: ToolCall, limits: RunLimits) {
        let (hands, outbox) = (Arc::clone(&self.hands), self.outbox.clone());
        let (stop, callers) = (self.stop.clone(), self.callers.clone());
        self.tasks.spawn_until_stopped(async move {
            let calling = stop.run_until_cancelled(hands.call(&call, &limits));
            let result = callers.track_future(calling).await.unwrap_or_else(|| {
                ToolResult::error(call.id, "The call was stopped before it began, or in the middle.")
            });
            outbox.say(ToControl::Result { result }).await;
        });
    }

    /// Starts a loop in the place of the one before. The same order twice starts one loop.
    pub(crate) async fn start(&mut self, start: Start) {
        if let Some(current) = &self.current
            && !current.task.is_finished()
        {
            if current.run == start.run && current.epoch == start.epoch {
                return;
            }
            self.stop(false).await;
        }
        let stop = self.stop.child_token();
        self.current = Some(Current {
            run: start.run,
            epoch: start.epoch,
            task: self.tasks.spawn(run(
                self.client.clone(),
                Arc::clone(&self.hands),
                Arc::clone(&self.granted),
                self.outbox.clone(),
                start,
                stop,
                self.callers.clone(),
            )),
        });
    }

    /// Ends the loop and every call, and waits until every process of theirs is dead; with `background` those in the
    /// background too.
    pub(crate) async fn stop(&mut self, background: bool) {
        std::mem::take(&mut self.stop).cancel();
        // One of them may be about to make a call, which would begin when everything else has ended.
        self.callers.wait().await;
        self.hands.stop(background).await;
        if let Some(current) = self.current.take() {
            // A panic would have ended the process.
            let _ = current.task.await;
        }
    }
}

async fn run(
    client: Client,
    hands: Arc<Hands>,
    granted: Arc<Granted>,
    outbox: Outbox,
    mut start: Start,
    stop: Stop,
    callers: TaskTracker,
) {
    let mut grants = std::mem::take(&mut start.grants);
    if !start.tools.iter().any(|tool| tool == EXEC) {
        // Only code calls services and models, and every process of a sandbox could.
        grants.services.clear();
        grants.models.clear();
        grants.background_seconds = 0;
    }
    granted.begin(grants).await;
    let mut out_of_time = false;
    let cancel = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(start.limits.wall()) => out_of_time = true,
        }
    };
    let (gateway, hands) = (LinkGateway(&client), LoopHands(&hands));
    let end = callers
        .track_future(agent::run_loop(&gateway, &hands, &start, cancel))
        .await;
    granted.end().await;
    let failure = if out_of_time {
        Some(format!(
            "the run has used up its time of {} s",
            start.limits.wall_seconds
        ))
    } else {
        end.failure()
    };
    let (run, epoch) = (start.run, start.epoch);
    outbox.say(ToControl::LoopEnded { run, epoch, failure }).await;
}

struct LoopHands<'a>(&'a Hands);

impl agent::Hands for LoopHands<'_> {
    async fn use_tool(&self, call: &ToolCall, limits: &RunLimits) -> ToolResult {
        self.0.call(call, limits).await
    }
}
