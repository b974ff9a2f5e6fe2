use std::collections::VecDeque;
use std::future::{pending, ready};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use domain::{Epoch, MessageId, ResultPart, RunId, RunLimits, ToolCall, ToolCallId, ToolResult};
use futures::executor::block_on;
use futures::future::poll_fn;
use protocol::{EarlyResults, Grants, Refusal, RefusalCode};
use serde_json::json;

use super::*;

/// A gateway that plays replies and checks what every request must hold.
struct Script {
    replies: Mutex<VecDeque<Result<TurnReply, GatewayError>>>,
    asked: Mutex<Vec<TurnRequest>>,
    patience: u32,
    /// What it says to results ahead of their turn; none: nothing, as long as it is waited for.
    keeps: Option<bool>,
    early: Mutex<Vec<EarlyResults>>,
    /// So many results were handed in.
    handed: AtomicUsize,
}

impl Script {
    fn new(replies: impl IntoIterator<Item = Result<TurnReply, GatewayError>>) -> Self {
        Self {
            replies: Mutex::new(replies.into_iter().collect()),
            asked: Mutex::default(),
            patience: 3,
            keeps: Some(false),
            early: Mutex::default(),
            handed: AtomicUsize::new(0),
        }
    }

    fn early(&self) -> Vec<EarlyResults> {
        self.early.lock().unwrap().clone()
    }

    fn asked(&self) -> Vec<TurnRequest> {
        self.asked.lock().unwrap().clone()
    }
}

impl Gateway for Script {
    async fn invoke_llm(&self, request: &TurnRequest) -> Result<TurnReply, GatewayError> {
        self.asked.lock().unwrap().push(request.clone());
        self.replies
            .lock()
            .unwrap()
            .pop_front()
            .expect("a turn more than the script has")
    }

    async fn hand_in(&self, results: &EarlyResults) -> bool {
        self.early.lock().unwrap().push(results.clone());
        self.handed.fetch_add(results.results.len(), Ordering::SeqCst);
        match self.keeps {
            Some(keeps) => keeps,
            None => pending().await,
        }
    }

    async fn pause(&self, attempt: u32) -> bool {
        attempt < self.patience
    }
}

/// Hands whose call `slow` ends when the results of the two others were handed in; or of one, where no answer comes.
struct Uneven<'a>(&'a Script);

impl Hands for Uneven<'_> {
    async fn use_tool(&self, call: &ToolCall, _limits: &RunLimits) -> ToolResult {
        if call.id.0 == "slow" {
            poll_fn(|context| {
                let wanted = if self.0.keeps.is_some() { 2 } else { 1 };
                if self.0.handed.load(Ordering::SeqCst) >= wanted {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
        ToolResult::text(call.id.clone(), format!("did {}", call.id))
    }
}

/// Hands whose calls end only when all of them have begun.
#[derive(Default)]
struct Together {
    expected: usize,
    begun: AtomicUsize,
    dropped: AtomicUsize,
}

struct CountDrop<'a>(&'a AtomicUsize);

impl Drop for CountDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Hands for Together {
    async fn use_tool(&self, call: &ToolCall, _limits: &RunLimits) -> ToolResult {
        let _count = CountDrop(&self.dropped);
        self.begun.fetch_add(1, Ordering::SeqCst);
        poll_fn(|context| {
            if self.begun.load(Ordering::SeqCst) >= self.expected {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        ToolResult::text(ToolCallId("mistaken".into()), format!("did {}", call.id))
    }
}

struct Never;

impl Hands for Never {
    async fn use_tool(&self, call: &ToolCall, _limits: &RunLimits) -> ToolResult {
        panic!("{} must not reach the hands", call.name)
    }
}

fn start(limits: RunLimits) -> Start {
    Start {
        run: RunId::new(),
        epoch: Epoch(1),
        turn: 1,
        tools: vec!["read".into(), "exec".into()],
        limits,
        grants: Grants::default(),
        traced: false,
    }
}

fn call(id: &str, name: &str) -> ToolCall {
    ToolCall {
        id: ToolCallId(id.into()),
        name: name.into(),
        input: json!({}),
    }
}

fn reply(calls: Vec<ToolCall>) -> TurnReply {
    TurnReply {
        message: MessageId::new(),
        stop: if calls.is_empty() {
            StopReason::EndTurn
        } else {
            StopReason::ToolUse
        },
        calls,
    }
}

fn unavailable() -> GatewayError {
    Refusal::new(RefusalCode::Unavailable, "not now").into()
}

fn run(gateway: &Script, hands: &impl Hands, limits: &RunLimits) -> LoopEnd {
    block_on(run_loop(gateway, hands, &start(*limits), pending()))
}

fn words(result: &ToolResult) -> &str {
    match &result.content[..] {
        [ResultPart::Text { text }] => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_of_a_reply_run_at_once_and_their_results_keep_the_order() {
    let calls = ["a", "b", "c"].map(|id| call(id, "read")).to_vec();
    let gateway = Script::new([Ok(reply(calls)), Ok(reply(vec![]))]);
    let hands = Together {
        expected: 3,
        ..Together::default()
    };
    assert!(matches!(
        run(&gateway, &hands, &RunLimits::default()),
        LoopEnd::Finished
    ));
    let asked = gateway.asked();
    assert_eq!(asked.iter().map(|turn| turn.turn).collect::<Vec<_>>(), [1, 2]);
    assert!(asked[0].results.is_empty());
    let ids: Vec<_> = asked[1].results.iter().map(|result| result.id.0.as_str()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
    assert_eq!(words(&asked[1].results[1]), "did b");
}

#[test]
fn a_tool_that_is_not_there_gets_an_answer_in_words() {
    let mut broken = call("b", "exec");
    broken.input = json!("{\"code\": ");
    let gateway = Script::new([Ok(reply(vec![call("a", "rm"), broken])), Ok(reply(vec![]))]);
    assert!(matches!(
        run(&gateway, &Never, &RunLimits::default()),
        LoopEnd::Finished
    ));
    let results = &gateway.asked()[1].results;
    assert!(results.iter().all(|result| result.is_error));
    assert_eq!(
        words(&results[0]),
        "There is no tool \"rm\" here. The tools are: read, exec."
    );
    assert!(words(&results[1]).contains("not a JSON object"));
}

#[test]
fn the_step_limit_ends_the_loop_before_calls_nobody_will_read() {
    let gateway = Script::new([Ok(reply(vec![call("a", "read")])), Ok(reply(vec![call("b", "read")]))]);
    let limits = RunLimits {
        steps: 2,
        ..RunLimits::default()
    };
    let hands = Together::default();
    assert!(matches!(run(&gateway, &hands, &limits), LoopEnd::StepLimit));
    assert_eq!(hands.begun.load(Ordering::SeqCst), 1);
}

#[test]
fn a_turn_without_an_answer_is_asked_for_again_word_for_word() {
    let lost = GatewayError::NoAnswer("connection closed".into());
    let gateway = Script::new([Err(unavailable()), Err(lost), Ok(reply(vec![]))]);
    assert!(matches!(
        run(&gateway, &Never, &RunLimits::default()),
        LoopEnd::Finished
    ));
    let asked = gateway.asked();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|turn| *turn == asked[0]));
}

#[test]
fn patience_ends() {
    let gateway = Script::new((0..3).map(|_| Err(unavailable())));
    assert!(matches!(
        run(&gateway, &Never, &RunLimits::default()),
        LoopEnd::Failed(_)
    ));
    assert_eq!(gateway.asked().len(), 3);
}

#[test]
fn a_refusal_ends_the_loop_and_keeps_its_words() {
    let gateway = Script::new([Err(Refusal::new(RefusalCode::Stale, "taken over").into())]);
    let end = run(&gateway, &Never, &RunLimits::default());
    assert_eq!(end.failure().as_deref(), Some("taken over"));
    assert_eq!(gateway.asked().len(), 1);
}

#[test]
fn a_pause_is_not_an_end() {
    let mut pause = reply(vec![]);
    pause.stop = StopReason::Pause;
    let gateway = Script::new([Ok(pause), Ok(reply(vec![]))]);
    assert!(matches!(
        run(&gateway, &Never, &RunLimits::default()),
        LoopEnd::Finished
    ));
    assert_eq!(gateway.asked().len(), 2);
}

#[test]
fn a_cancelled_loop_drops_the_calls_under_way() {
    let gateway = Script::new([Ok(reply(vec![call("a", "read"), call("b", "exec")]))]);
    let hands = Together {
        expected: usize::MAX,
        ..Together::default()
    };
    let cancel = poll_fn(|context| {
        if hands.begun.load(Ordering::SeqCst) == 2 {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    let end = block_on(run_loop(&gateway, &hands, &start(RunLimits::default()), cancel));
    assert!(matches!(end, LoopEnd::Cancelled));
    assert_eq!(hands.dropped.load(Ordering::SeqCst), 2);
}

#[test]
fn a_loop_told_to_stop_beforehand_asks_nothing() {
    let gateway = Script::new([]);
    let end = block_on(run_loop(&gateway, &Never, &start(RunLimits::default()), ready(())));
    assert!(matches!(end, LoopEnd::Cancelled));
    assert!(gateway.asked().is_empty());
}

#[test]
fn long_output_is_cut() {
    struct Chatty;
    impl Hands for Chatty {
        async fn use_tool(&self, call: &ToolCall, _limits: &RunLimits) -> ToolResult {
            ToolResult::text(call.id.clone(), "x".repeat(100_000))
        }
    }
    let gateway = Script::new([Ok(reply(vec![call("a", "read")])), Ok(reply(vec![]))]);
    let limits = RunLimits {
        output_bytes: 1_000,
        ..RunLimits::default()
    };
    assert!(matches!(run(&gateway, &Chatty, &limits), LoopEnd::Finished));
    assert!(words(&gateway.asked()[1].results[0]).len() <= 1_000);
}

/// What is handed in of these calls while they are made, and what the turn brings.
fn handed_in(keeps: Option<bool>, ids: &[&str]) -> (Vec<Vec<String>>, Vec<String>) {
    let calls = ids.iter().map(|id| call(id, "read")).collect();
    let mut gateway = Script::new([Ok(reply(calls)), Ok(reply(vec![]))]);
    gateway.keeps = keeps;
    let mut order = start(RunLimits::default());
    order.traced = true;
    let end = block_on(run_loop(&gateway, &Uneven(&gateway), &order, pending()));
    assert!(matches!(end, LoopEnd::Finished));
    let ids = |results: &[ToolResult]| results.iter().map(|result| result.id.0.clone()).collect::<Vec<_>>();
    let timed = |times: &[protocol::CallTime]| times.iter().map(|time| time.call.0.clone()).collect::<Vec<_>>();
    let early = gateway.early();
    for early in &early {
        assert_eq!((early.run, early.epoch, early.turn), (order.run, order.epoch, 2));
        assert_eq!(timed(&early.times), ids(&early.results));
    }
    let turn = &gateway.asked()[1];
    assert_eq!(timed(&turn.times), ids(&turn.results));
    (
        early.iter().map(|early| ids(&early.results)).collect(),
        ids(&turn.results),
    )
}

#[test]
fn what_is_there_while_others_are_waited_for_is_handed_in_and_the_turn_brings_the_rest() {
    let calls = ["a", "slow", "c"];
    let (early, turn) = handed_in(Some(true), &calls);
    assert_eq!(early.concat(), ["a", "c"]);
    assert_eq!(turn, ["slow"]);
    // What is refused, or has no answer when the last call ends, comes with the turn, and is not tried again.
    for (keeps, handed) in [(Some(false), &["a", "c"][..]), (None, &["a"])] {
        let (early, turn) = handed_in(keeps, &calls);
        assert_eq!(early.concat(), handed);
        assert_eq!(turn, calls, "in the order of the calls");
    }
}

#[test]
fn a_call_that_nothing_is_waited_for_with_comes_with_the_turn_alone() {
    for calls in [&["a"][..], &[]] {
        let gateway = Script::new([Ok(pausing(calls)), Ok(reply(vec![]))]);
        assert!(matches!(
            run(&gateway, &Uneven(&gateway), &RunLimits::default()),
            LoopEnd::Finished
        ));
        assert!(gateway.early().is_empty());
        assert_eq!(gateway.asked()[1].results.len(), calls.len());
    }
}

/// A reply with these calls after which the run goes on, also where there are none.
fn pausing(calls: &[&str]) -> TurnReply {
    TurnReply {
        stop: StopReason::Pause,
        ..reply(calls.iter().map(|id| call(id, "read")).collect())
    }
}
