//! The control stream.

use std::collections::BTreeMap;

use domain::{Epoch, RunId, RunLimits, SessionId, ToolCall, ToolCallId, ToolResult};
use link::server::{LinkError, Outfit};
use protocol::{FileEntry, FileKind, Grants, PLACEHOLDER, Start, ToControl, ToRuntime, Transfer};
use secret::Secret;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::rig::{rig, within};

fn call(id: &str) -> ToolCall {
    ToolCall {
        id: ToolCallId(id.into()),
        name: "read".into(),
        input: json!({"path": "a"}),
    }
}

#[tokio::test]
async fn a_claim_brings_session_token_and_environment_and_waits_for_the_answer() {
    let rig = rig();
    let mut control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let session = SessionId::new();
    let outfit = Outfit {
        environment: BTreeMap::from([("KEY".to_owned(), PLACEHOLDER.to_owned())]),
        authorities: "-----BEGIN CERTIFICATE-----".to_owned(),
        known_hosts: "* ssh-ed25519 AAAA\n".to_owned(),
        filled: true,
        woken: true,
    };
    let runtime = async {
        let order = control.reader.next().await.unwrap().unwrap();
        assert_eq!(
            order,
            ToRuntime::Claim {
                session,
                token: Secret::new("t"),
                environment: outfit.environment.clone(),
                authorities: outfit.authorities.clone(),
                known_hosts: outfit.known_hosts.clone(),
                filled: true,
                woken: true,
            }
        );
        control
            .writer
            .send(&ToControl::Claimed { failure: None })
            .await
            .unwrap();
    };
    let token = Secret::new("t");
    let (claimed, ()) =
        within(async { tokio::join!(rig.linked.claim(session, &token, outfit.clone()), runtime) }).await;
    claimed.unwrap();
}

#[tokio::test]
async fn a_refused_claim_is_an_error_with_the_reason() {
    let rig = rig();
    let mut control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let runtime = async {
        control.reader.next().await.unwrap();
        let failure = Some("this sandbox belongs to another session".to_owned());
        control.writer.send(&ToControl::Claimed { failure }).await.unwrap();
    };
    let token = Secret::new("t");
    let (claimed, ()) =
        within(async { tokio::join!(rig.linked.claim(SessionId::new(), &token, Outfit::default()), runtime) }).await;
    let error = claimed.unwrap_err();
    assert!(error.to_string().contains("belongs to another session"), "{error}");
}

#[tokio::test]
async fn parallel_calls_get_their_own_results_and_progress_goes_to_the_handler() {
    let mut rig = rig();
    let mut control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let runtime = async {
        let mut calls = Vec::new();
        for _ in 0..2 {
            match control.reader.next().await.unwrap().unwrap() {
                ToRuntime::Call { call, .. } => calls.push(call.id),
                other => panic!("{other:?}"),
            }
        }
        let progress = ToControl::Progress {
            call: calls[0].clone(),
            text: "half".into(),
        };
        control.writer.send(&progress).await.unwrap();
        for id in calls.into_iter().rev() {
            let text = format!("result of {id}");
            control
                .writer
                .send(&ToControl::Result {
                    result: ToolResult::text(id, text),
                })
                .await
                .unwrap();
        }
    };
    let limits = RunLimits::default();
    let (first, second, ()) = within(async {
        tokio::join!(
            rig.linked.call(call("1"), limits),
            rig.linked.call(call("2"), limits),
            runtime
        )
    })
    .await;
    assert_eq!(first.unwrap(), ToolResult::text(ToolCallId("1".into()), "result of 1"));
    assert_eq!(second.unwrap(), ToolResult::text(ToolCallId("2".into()), "result of 2"));
    let progress = within(rig.events.recv()).await.unwrap();
    assert!(matches!(progress, ToControl::Progress { text, .. } if text == "half"));
}

#[tokio::test]
async fn start_goes_in_and_the_loops_end_comes_out() {
    let mut rig = rig();
    let mut control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let start = Start {
        run: RunId::new(),
        epoch: Epoch(3),
        turn: 1,
        tools: vec!["read".into()],
        limits: RunLimits::default(),
        grants: Grants::default(),
        traced: false,
    };
    within(rig.linked.start(start.clone())).await.unwrap();
    assert_eq!(
        within(control.reader.next()).await.unwrap(),
        Some(ToRuntime::Start(start.clone()))
    );
    let end = ToControl::LoopEnded {
        run: start.run,
        epoch: start.epoch,
        failure: None,
    };
    control.writer.send(&end).await.unwrap();
    assert_eq!(within(rig.events.recv()).await, Some(end));
}

#[tokio::test]
async fn a_folder_is_listed_and_a_failure_told() {
    let rig = rig();
    let mut control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let entry = FileEntry {
        path: "a".into(),
        kind: FileKind::File,
        bytes: 3,
        changed: 0,
    };
    let runtime = async {
        for (entries, failure, missing) in [
            (vec![entry.clone()], None, false),
            (Vec::new(), Some("no such folder".to_owned()), true),
            (Vec::new(), Some("no right to it".to_owned()), false),
        ] {
            let Some(ToRuntime::Transfer {
                request,
                transfer: Transfer::List { .. },
            }) = control.reader.next().await.unwrap()
            else {
                panic!("not a list")
            };
            control
                .writer
                .send(&ToControl::Transferred {
                    request,
                    entries,
                    failure,
                    missing,
                })
                .await
                .unwrap();
        }
    };
    let asked = async {
        assert_eq!(rig.linked.list_files("").await.unwrap(), std::slice::from_ref(&entry));
        let error = rig.linked.list_files("gone").await.unwrap_err();
        assert!(error.to_string().contains("no such folder"), "{error}");
        assert!(matches!(error, LinkError::Failed { missing: true, .. }), "{error:?}");
        let error = rig.linked.list_files("shut").await.unwrap_err();
        assert!(matches!(error, LinkError::Failed { missing: false, .. }), "{error:?}");
    };
    within(async { tokio::join!(asked, runtime) }).await;
}

#[tokio::test]
async fn what_waits_when_the_runtime_goes_is_lost_and_later_orders_too() {
    let rig = rig();
    let mut control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let runtime = async {
        control.reader.next().await.unwrap();
        drop(control);
    };
    let (called, ()) = within(async { tokio::join!(rig.linked.call(call("1"), RunLimits::default()), runtime) }).await;
    assert!(matches!(called, Err(LinkError::Lost { .. })), "{called:?}");
    within(rig.linked.closed()).await;
    assert!(matches!(within(rig.linked.stop()).await, Err(LinkError::Lost { .. })));
}

#[tokio::test]
async fn a_newer_control_stream_takes_the_place_of_the_older() {
    let rig = rig();
    let mut old = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let mut new = within(rig.client.control()).await.unwrap();
    // The older one is closed, and with that the newer one is in its place.
    assert!(matches!(within(old.reader.next()).await, Ok(None) | Err(_)));
    within(rig.linked.token(&Secret::new("newer"))).await.unwrap();
    let order = within(new.reader.next()).await.unwrap();
    assert_eq!(
        order,
        Some(ToRuntime::Token {
            token: Secret::new("newer")
        })
    );
    assert!(rig.linked.is_connected());
}

#[tokio::test]
async fn a_run_is_announced_to_a_runtime_that_knows_of_it() {
    let rig = rig();
    let mut control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
    let grants = Grants {
        skills: Some(["crm".to_owned()].into()),
        ..Grants::default()
    };
    within(rig.linked.prepare(true, grants.clone())).await.unwrap();
    let order = within(control.reader.next()).await.unwrap();
    assert_eq!(order, Some(ToRuntime::Prepare { on: true, grants }));
}

#[tokio::test]
async fn a_runtime_of_the_protocol_before_is_answered_in_it_and_told_nothing_that_it_cannot_read() {
    let rig = rig();
    let mut stream = UnixStream::connect(&rig.socket).await.unwrap();
    let open = "POST /v1/control HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: belljar-control\r\n\r\n";
    let hello = "{\"protocol\":2,\"build\":\"old\"}\n";
    stream.write_all(format!("{open}{hello}").as_bytes()).await.unwrap();
    within(rig.linked.connected()).await;
    assert!(!rig.linked.ask_pulse().unwrap(), "it does not know the question");
    within(rig.linked.token(&Secret::new("t"))).await.unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(stream).lines();
    while !said.contains("token") {
        said += &within(lines.next_line()).await.unwrap().unwrap();
    }
    assert!(said.contains("\"protocol\":2,"), "{said}");
    assert!(!said.contains("pulse"), "{said}");
}
