//! The loop that is under way, if one is.

use std::sync::Arc;

use domain::{Epoch, RunId, RunLimits, ToolCall, ToolResult};
use lifecycle::{Stop, Tasks};
use link::client::Client;
use protocol::{Start, ToControl};
use tokio::task::JoinHandle;

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
}

struct Current {
    run: RunId,
    epoch: Epoch,
    stop: Stop,
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
        Self {
            client: client.clone(),
            hands: Arc::clone(hands),
            granted: Arc::clone(granted),
            outbox: outbox.clone(),
            tasks: tasks.clone(),
            current: None,
        }
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
        let stop = Stop::new();
        self.current = Some(Current {
            run: start.run,
            epoch: start.epoch,
            stop: stop.clone(),
            task: self.tasks.spawn(run(
                self.client.clone(),
                Arc::clone(&self.hands),
                Arc::clone(&self.granted),
                self.outbox.clone(),
                start,
                stop,
            )),
        });
    }

    /// Ends the loop, and waits until every process of every call is dead; with `background` those in the background too.
    pub(crate) async fn stop(&mut self, background: bool) {
        if let Some(current) = self.current.take() {
            current.stop.cancel();
            self.hands.stop(background).await;
            // A panic would have ended the process.
            let _ = current.task.await;
        } else {
            self.hands.stop(background).await;
        }
    }
}

async fn run(client: Client, hands: Arc<Hands>, granted: Arc<Granted>, outbox: Outbox, mut start: Start, stop: Stop) {
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
    let end = agent::run_loop(&LinkGateway(&client), &LoopHands(&hands), &start, cancel).await;
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
