//! Claims, loops, and control planes that come and go.

use domain::{Epoch, RunId, SessionId};
use link::server::Outfit;
use protocol::{Grants, Start, ToControl};
use secret::Secret;
use serde_json::json;

use crate::handler::{TOKEN, reply};
use crate::jail::{AT_REST, Jail, exec, limits, tool_call, words};

fn start(steps: u32) -> Start {
    Start {
        run: RunId::new(),
        epoch: Epoch(1),
        turn: 1,
        tools: ["read", "write", "exec"].map(Into::into).into(),
        limits: domain::RunLimits { steps, ..limits() },
        grants: Grants::default(),
        traced: false,
    }
}

#[tokio::test]
async fn a_loop_uses_tools_in_parallel_hands_in_the_results_and_ends() {
    let mut jail = Jail::claimed().await;
    jail.play([
        reply(vec![
            tool_call("a", "write", json!({"path": "/workspace/a.txt", "content": "alpha"})),
            tool_call("b", "write", json!({"path": "/workspace/b.txt", "content": "beta"})),
        ]),
        reply(vec![tool_call("c", "read", json!({"path": "/workspace/a.txt"}))]),
        reply(vec![]),
    ]);
    let start = start(10);
    jail.linked.start(start.clone()).await.unwrap();
    let end = ToControl::LoopEnded {
        run: start.run,
        epoch: start.epoch,
        failure: None,
    };
    loop {
        match jail.event().await {
            ToControl::Progress { .. } => {}
            event => break assert_eq!(event, end),
        }
    }
    let turns = jail.handler.turns.lock().unwrap();
    let said: Vec<Vec<_>> = turns
        .iter()
        .map(|turn| turn.results.iter().map(|result| result.id.0.as_str()).collect())
        .collect();
    assert_eq!(said, [vec![], vec!["a", "b"], vec!["c"]]);
    assert!(words(&turns[2].results[0]).contains("alpha"), "{:?}", turns[2]);
    assert_eq!(std::fs::read_to_string(jail.workspace().join("b.txt")).unwrap(), "beta");
}

#[tokio::test]
async fn a_refused_turn_ends_the_loop_and_says_why() {
    let mut jail = Jail::claimed().await;
    jail.linked.start(start(10)).await.unwrap();
    match jail.event().await {
        ToControl::LoopEnded {
            failure: Some(failure), ..
        } => assert_eq!(failure, "there are no more replies"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_sandbox_never_changes_its_session() {
    let mut jail = Jail::claimed().await;
    let token = Secret::new(TOKEN);
    let stranger = jail.linked.claim(SessionId::new(), &token, Outfit::default());
    let error = testkit::within("the claim", stranger).await.unwrap_err();
    assert!(error.to_string().contains("belongs to another session"), "{error}");
    jail.claim().await;
    jail.restart_control().await;
    jail.claim().await;
}

#[tokio::test]
async fn a_control_plane_that_comes_back_finds_the_sandbox_as_it_was() {
    let mut jail = Jail::claimed().await;
    jail.call("write", json!({"path": "/workspace/kept.txt", "content": "still here"}))
        .await;
    jail.restart_control().await;
    let result = jail.call("read", json!({"path": "/workspace/kept.txt"})).await;
    assert!(words(&result).contains("still here"), "{result:?}");
    // The token is kept too.
    jail.shell("getent hosts x.test || true").await;
    assert!(jail.seen().contains(&"resolve x.test".to_owned()), "{:?}", jail.seen());
}

const FOREVER: &str = "console.log('begun'); await new Promise(done => setTimeout(done, 1e6))";

/// Waits until a call has said something.
async fn begun(jail: &mut Jail) {
    while !matches!(jail.event().await, ToControl::Progress { .. }) {}
}

/// The reason for which a loop ended.
async fn failure(jail: &mut Jail, start: &Start) -> Option<String> {
    loop {
        match jail.event().await {
            ToControl::LoopEnded { run, epoch, failure } => {
                assert_eq!((run, epoch), (start.run, start.epoch));
                return failure;
            }
            ToControl::Progress { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_stop_ends_the_loop_and_its_calls() {
    let mut jail = Jail::claimed().await;
    jail.play([reply(vec![exec("a", FOREVER)])]);
    let start = start(10);
    jail.linked.start(start.clone()).await.unwrap();
    begun(&mut jail).await;
    testkit::within("the stop", jail.linked.stop()).await.unwrap();
    jail.assert_at_rest();
    assert_eq!(
        failure(&mut jail, &start).await.as_deref(),
        Some("the run was told to stop")
    );
    assert_eq!(jail.seen(), ["turn 1"]);
}

#[tokio::test]
async fn a_newer_start_takes_the_place_of_the_older_loop_and_a_repeated_one_changes_nothing() {
    let mut jail = Jail::claimed().await;
    jail.play([reply(vec![exec("a", FOREVER)]), reply(vec![])]);
    let first = start(10);
    jail.linked.start(first.clone()).await.unwrap();
    begun(&mut jail).await;
    jail.linked.start(first.clone()).await.unwrap();
    let second = Start {
        epoch: Epoch(2),
        ..first.clone()
    };
    jail.linked.start(second.clone()).await.unwrap();
    assert_eq!(
        failure(&mut jail, &first).await.as_deref(),
        Some("the run was told to stop")
    );
    assert_eq!(failure(&mut jail, &second).await, None);
    assert_eq!(jail.seen(), ["turn 1", "turn 1"]);
}

#[tokio::test]
async fn a_run_that_has_used_up_its_time_ends_and_says_so() {
    let mut jail = Jail::claimed().await;
    jail.play([reply(vec![exec("a", FOREVER)])]);
    let mut start = start(10);
    start.limits.wall_seconds = 2;
    jail.linked.start(start.clone()).await.unwrap();
    let failure = failure(&mut jail, &start).await.unwrap();
    assert!(failure.contains("used up its time"), "{failure}");
    testkit::eventually("the call's end", || (jail.commands() == AT_REST).then_some(()));
}

#[tokio::test]
async fn a_loop_outlives_the_control_plane() {
    let mut jail = Jail::claimed().await;
    let waits = "console.log('begun'); \
        const fs = await import('node:fs'); while (!fs.existsSync('/workspace/go')) await new Promise(done => setTimeout(done, 10)); \
        return 'went on'";
    jail.play([reply(vec![exec("a", waits)]), reply(vec![])]);
    let start = start(10);
    jail.linked.start(start.clone()).await.unwrap();
    begun(&mut jail).await;
    jail.restart_control().await;
    std::fs::write(jail.workspace().join("go"), "").unwrap();
    assert_eq!(failure(&mut jail, &start).await, None);
    let turns = jail.handler.turns.lock().unwrap();
    assert!(words(&turns[1].results[0]).contains("went on"), "{turns:?}");
}
