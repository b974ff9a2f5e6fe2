//! What PID 1 holds of the hands.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::{ResultPart, RunLimits, ToolCall, ToolCallId, ToolResult};
use futures::FutureExt;
use lifecycle::Tasks;
use protocol::{FileEntry, FileRequest, FromHands, Grants, ToControl, ToHands};
use rustix::fs::{FileType, fstat};
use serde_json::json;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::timeout;

use super::background::Programs;
use super::keeper;
use crate::outbox::Outbox;
use crate::reaper::Reaper;

/// How much longer than its limit a call is waited for: the hands keep the limit and clean up.
const GRACE: Duration = Duration::from_secs(15);

/// How long the hands may take for what they do at once; then they are replaced.
pub(super) const PROMPT: Duration = Duration::from_secs(20);

/// How long an order may wait for a place among [`ORDERS`]: hands that read none for so long are replaced.
const TAKEN: Duration = Duration::from_secs(5);

/// How long they may take to kill what is under way; then everything is killed from here.
const STOP: Duration = Duration::from_millis(1_500);

/// Seconds that the command of a rehearsal may take; it takes thousandths.
const REHEARSAL: u64 = 5;

/// How long a call waits at most until the workspace's files are back, and whoever wants one of them.
const FILLED: Duration = Duration::from_secs(600);
const FILE_FILLED: Duration = Duration::from_secs(15);

/// Orders that may wait for the hands to read them.
pub(super) const ORDERS: usize = 64;

/// Why a file could not be had.
#[derive(Debug)]
pub(crate) struct FileFailure {
    pub(crate) words: String,
    /// Because nothing is there.
    pub(crate) missing: bool,
}

impl<T: Into<String>> From<T> for FileFailure {
    fn from(words: T) -> Self {
        Self {
            words: words.into(),
            missing: false,
        }
    }
}

/// A file that the hands opened, or what they listed.
pub(crate) struct FileAnswer {
    pub(crate) request: u64,
    pub(crate) entries: Vec<FileEntry>,
    descriptor: Option<OwnedFd>,
}

impl FileAnswer {
    /// The file. Whoever broke the hands may have sent what makes a reader wait for ever, so it is looked at again.
    pub(crate) fn descriptor(self) -> Result<OwnedFd, String> {
        let descriptor = self
            .descriptor
            .ok_or("the hands opened the file and did not hand it over")?;
        match fstat(&descriptor) {
            Ok(status) if FileType::from_raw_mode(status.st_mode).is_file() => Ok(descriptor),
            _ => Err("what the hands opened is no regular file".to_owned()),
        }
    }

    /// The end of a pipe. Whoever broke the hands can make it silent for ever, which costs the transfer and one thread.
    pub(crate) fn pipe(self) -> Result<OwnedFd, String> {
        let descriptor = self
            .descriptor
            .ok_or("the hands made a pipe and did not hand it over")?;
        match fstat(&descriptor) {
            Ok(status) if FileType::from_raw_mode(status.st_mode).is_fifo() => Ok(descriptor),
            _ => Err("what the hands made is no pipe".to_owned()),
        }
    }
}

pub(crate) struct Hands {
    pub(super) shared: Arc<Shared>,
    /// Whether the workspace holds everything that it should, but for so many files for which the disk has no room.
    filled: watch::Receiver<Option<u64>>,
}

pub(super) struct Shared {
    next: AtomicU64,
    state: Mutex<State>,
    pub(super) ready: watch::Sender<bool>,
    /// The hands do not answer: replace them.
    pub(super) replace: Notify,
    pub(super) reaper: Reaper,
    pub(super) outbox: Outbox,
}

#[derive(Default)]
pub(super) struct State {
    orders: Option<mpsc::Sender<ToHands>>,
    environment: BTreeMap<String, String>,
    /// What stands in it beside, while a run is on; what the session says of the same variable wins.
    offered: BTreeMap<String, String>,
    prepared: Prepared,
    calls: HashMap<ToolCallId, oneshot::Sender<ToolResult>>,
    stops: HashMap<u64, oneshot::Sender<()>>,
    files: HashMap<u64, oneshot::Sender<Result<FileAnswer, FileFailure>>>,
    pub(super) background: Programs,
}

impl State {
    fn whole_environment(&self) -> ToHands {
        let mut environment = self.offered.clone();
        environment.extend(self.environment.clone());
        ToHands::Environment { environment }
    }
}

/// The run that is on, if one is.
#[derive(Clone, Default)]
struct Prepared {
    on: bool,
    grants: Grants,
}

impl From<Prepared> for ToHands {
    fn from(Prepared { on, grants }: Prepared) -> Self {
        Self::Prepare { on, grants }
    }
}

impl Hands {
    /// Starts hands, and others whenever they die.
    pub(crate) fn start(reaper: &Reaper, outbox: &Outbox, filled: watch::Receiver<Option<u64>>, tasks: &Tasks) -> Self {
        let shared = Arc::new(Shared {
            next: AtomicU64::new(1),
            state: Mutex::default(),
            ready: watch::Sender::new(false),
            replace: Notify::new(),
            reaper: reaper.clone(),
            outbox: outbox.clone(),
        });
        tasks.spawn_until_stopped(keeper::keep(Arc::clone(&shared)));
        Self { shared, filled }
    }

    /// Waits until there are hands.
    pub(crate) async fn ready(&self) {
        // The sender lives as long as this.
        let _ = self.shared.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// The environment of the processes that tools start from now on, beside what the image says.
    pub(crate) async fn set_environment(&self, environment: BTreeMap<String, String>) {
        let whole = {
            let mut state = self.shared.state();
            state.environment = environment;
            state.whole_environment()
        };
        self.shared.order(whole).await;
    }

    /// What stands in that environment while a run is on.
    pub(crate) async fn offer(&self, offered: BTreeMap<String, String>) {
        let whole = {
            let mut state = self.shared.state();
            if state.offered == offered {
                return;
            }
            state.offered = offered;
            state.whole_environment()
        };
        self.shared.order(whole).await;
    }

    /// Whether a run is on, and what it may use: the hands keep something started ahead.
    pub(crate) async fn prepare(&self, on: bool, grants: Grants) {
        let prepared = Prepared { on, grants };
        self.shared.state().prepared.clone_from(&prepared);
        self.shared.order(prepared.into()).await;
    }

    /// Whether somebody waits for the result of this call.
    pub(crate) fn is_under_way(&self, call: &ToolCallId) -> bool {
        self.shared.state().calls.contains_key(call)
    }

    /// Uses a tool. Always answers; when this is dropped instead, every process of the call dies.
    pub(crate) async fn call(&self, call: &ToolCall, limits: &RunLimits) -> ToolResult {
        if !self.is_filled(FILLED.min(limits.tool())).await {
            return ToolResult::error(
                call.id.clone(),
                "The files of this session are still being brought back to this machine. Nothing was done; try again in a while.",
            );
        }
        let limit = limits.tool() + GRACE;
        let mut result = match timeout(limit, self.call_without_limit(call, limits)).await {
            Ok(result) => result,
            Err(_) => {
                self.shared.replace.notify_one();
                interrupted(call)
            }
        };
        if let Some(no_room @ 1..) = *self.filled.borrow() {
            let text = format!(
                "[The disk of this sandbox is full: {no_room} files of /workspace are not back on it. They are kept, and come by \
                 themselves when there is room: delete what is not needed.]"
            );
            result.content.push(ResultPart::Text { text });
        }
        result
    }

    /// Waits until the workspace's files are back: whoever looked before would see half of them.
    async fn is_filled(&self, limit: Duration) -> bool {
        let mut filled = self.filled.clone();
        // An error: nobody keeps files any more.
        timeout(limit, filled.wait_for(Option::is_some)).await.is_ok()
    }

    async fn call_without_limit(&self, call: &ToolCall, limits: &RunLimits) -> ToolResult {
        self.ready().await;
        let (answer, answered) = oneshot::channel();
        match self.shared.state().calls.entry(call.id.clone()) {
            Entry::Vacant(place) => place.insert(answer),
            Entry::Occupied(_) => {
                return ToolResult::error(
                    call.id.clone(),
                    "A call of this very id is under way; nothing was done.",
                );
            }
        };
        let _waiting = Calling {
            shared: &self.shared,
            call: &call.id,
        };
        let order = ToHands::Call {
            call: call.clone(),
            limits: *limits,
        };
        self.shared.order(order).await;
        // An error: the hands are gone, and with them the other end.
        answered.await.unwrap_or_else(|_| interrupted(call))
    }

    /// Has a command run as a session's first will be, so that what that takes is in memory. Whether the hands answered; what came of
    /// the command is the image's business.
    pub(crate) async fn rehearse(&self) -> bool {
        self.ready().await;
        let call = ToolCall {
            id: ToolCallId(format!("rehearsal-{}", self.shared.next())),
            name: "safebash".to_owned(),
            input: json!({ "command": "pwd" }),
        };
        let limits = RunLimits {
            tool_seconds: REHEARSAL,
            ..RunLimits::default()
        };
        let answered = timeout(PROMPT, self.call_without_limit(&call, &limits)).await.is_ok();
        if !answered {
            self.shared.replace.notify_one();
        }
        answered
    }

    /// Kills every process of every call, and with `background` the programs in the background too, and waits until they are
    /// dead.
    pub(crate) async fn stop(&self, background: bool) {
        let request = self.shared.next();
        let (answer, mut answered) = oneshot::channel();
        self.shared.state().stops.insert(request, answer);
        let asked = async {
            if self.shared.order(ToHands::Stop { request, background }).await {
                let _ = (&mut answered).await;
            }
        };
        if timeout(STOP, asked).await.is_err() {
            self.shared.replace.notify_one();
            // The other end is dropped when the hands and everything of theirs are dead.
            let _ = answered.await;
        }
        self.shared.state().stops.remove(&request);
        self.shared.reaper.swept().await;
    }

    /// Opens, makes or lists files of the workspace.
    pub(crate) async fn file(&self, file: FileRequest) -> Result<FileAnswer, FileFailure> {
        self.file_within(file, PROMPT).await
    }

    /// The same, where it may take longer.
    pub(crate) async fn file_within(&self, file: FileRequest, patience: Duration) -> Result<FileAnswer, FileFailure> {
        if !self.is_filled(FILE_FILLED).await {
            return Err("the files of this session are still being brought back; try again in a while".into());
        }
        self.ready().await;
        let request = self.shared.next();
        let (answer, answered) = oneshot::channel();
        self.shared.state().files.insert(request, answer);
        self.shared.order(ToHands::File { request, file }).await;
        match timeout(patience, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err("the process that opens files was lost, and is replaced".into()),
            Err(_) => {
                self.shared.state().files.remove(&request);
                self.shared.replace.notify_one();
                Err("the process that opens files did not answer, and is replaced".into())
            }
        }
    }
}

impl Shared {
    /// These hands take orders from now on. First they learn what the ones before knew.
    pub(super) fn begin(&self, orders: mpsc::Sender<ToHands>) {
        // What was said of the ones before says nothing of these.
        let _ = self.replace.notified().now_or_never();
        let mut state = self.state();
        // The queue is new and longer than this.
        let _ = orders.try_send(state.whole_environment());
        if state.prepared.on {
            let _ = orders.try_send(state.prepared.clone().into());
        }
        state.orders = Some(orders);
    }

    /// These hands are gone: whoever waits for them is told.
    pub(super) fn end(&self) {
        self.ready.send_replace(false);
        let mut state = self.state();
        state.orders = None;
        state.calls.clear();
        state.stops.clear();
        state.files.clear();
        drop(state);
        self.background_lost();
    }

    /// What the hands said. Answers to what nobody asked are forgotten.
    pub(super) async fn hear(&self, said: FromHands, descriptor: Option<OwnedFd>) {
        match said {
            FromHands::Ready => {
                self.ready.send_replace(true);
            }
            FromHands::Rested => {}
            FromHands::Progress { call, text } => {
                if self.state().calls.contains_key(&call) {
                    self.outbox.mention(ToControl::Progress { call, text });
                }
            }
            FromHands::Result { result } => {
                if let Some(waiting) = self.state().calls.remove(&result.id) {
                    let _ = waiting.send(result);
                }
            }
            FromHands::Stopped { request } => {
                if let Some(waiting) = self.state().stops.remove(&request) {
                    let _ = waiting.send(());
                }
            }
            FromHands::Background { request, failure } => self.background_started(request, failure).await,
            FromHands::BackgroundEnded { request } => self.background_ended(request).await,
            FromHands::File {
                request,
                entries,
                failure,
                missing,
                ..
            } => {
                if let Some(waiting) = self.state().files.remove(&request) {
                    let _ = waiting.send(match failure {
                        Some(words) => Err(FileFailure { words, missing }),
                        None => Ok(FileAnswer {
                            request,
                            entries,
                            descriptor,
                        }),
                    });
                }
            }
        }
    }

    /// False: there are no hands, or they take no orders and are replaced.
    pub(super) async fn order(&self, order: ToHands) -> bool {
        let orders = self.state().orders.clone();
        match orders {
            Some(orders) => passed(&orders, order, &self.replace).await,
            None => false,
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether hands took an order. Those that should have, and do not, are to be replaced.
async fn passed(orders: &mpsc::Sender<ToHands>, order: ToHands, replace: &Notify) -> bool {
    let sent = orders.send_timeout(order, TAKEN).await;
    if let Err(SendTimeoutError::Timeout(_)) = sent {
        replace.notify_one();
    }
    sent.is_ok()
}

/// A call that is waited for. When nobody waits any more, its processes die.
struct Calling<'a> {
    shared: &'a Shared,
    call: &'a ToolCallId,
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if state.calls.remove(self.call).is_none() {
            return;
        }
        if let Some(orders) = &state.orders {
            let call = self.call.clone();
            // A full queue means hands that do not read: they are replaced when the first of its orders runs out of time.
            let _ = orders.try_send(ToHands::Cancel { call });
        }
    }
}

fn interrupted(call: &ToolCall) -> ToolResult {
    ToolResult::error(
        call.id.clone(),
        "The call was interrupted: the process that uses tools was lost (killed, or out of memory) and is replaced. \
         What the call had done by then may have taken effect; look before you do it again.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hands_that_take_no_orders_are_replaced() {
        let (replace, order) = (Notify::new(), ToHands::from(Prepared::default()));
        let (orders, mut ordered) = mpsc::channel(1);
        assert!(passed(&orders, order.clone(), &replace).await);
        let waits = passed(&orders, order.clone(), &replace);
        let takes = async { ordered.recv().await.is_some() };
        assert_eq!(
            tokio::join!(waits, takes),
            (true, true),
            "one that only waits is passed on"
        );
        assert!(timeout(Duration::ZERO, replace.notified()).await.is_err(), "they read");

        assert!(!passed(&orders, order.clone(), &replace).await);
        assert!(
            timeout(Duration::ZERO, replace.notified()).await.is_ok(),
            "they are not replaced"
        );

        drop(ordered);
        assert!(!passed(&orders, order, &replace).await);
        assert!(
            timeout(Duration::ZERO, replace.notified()).await.is_err(),
            "they are gone already"
        );
    }
}
