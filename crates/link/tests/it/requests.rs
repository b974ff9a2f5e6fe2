//! Turns, names and connections.

use lifecycle::Tasks;
use link::client::{Client, ClientError};
use protocol::{EarlyResults, RefusalCode, TurnRequest};
use secret::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::rig::{rig, turn, within};

fn code(error: ClientError) -> RefusalCode {
    match error {
        ClientError::Refused(refusal) => refusal.code,
        other => panic!("not a refusal: {other:?}"),
    }
}

#[tokio::test]
async fn a_turn_is_answered_or_refused_with_its_reason() {
    let rig = rig();
    let reply = within(rig.client.invoke_llm(&turn(1))).await.unwrap();
    assert!(reply.calls.is_empty());
    let refused = within(rig.client.invoke_llm(&turn(10))).await.unwrap_err();
    assert_eq!(refused.to_string(), "the run was taken over");
    assert_eq!(code(refused), RefusalCode::Stale);
    assert_eq!(rig.seen(), ["turn 1", "turn 10"]);
}

#[tokio::test]
async fn results_are_taken_ahead_of_their_turn_or_refused_with_a_reason() {
    let rig = rig();
    let early = |number| {
        let TurnRequest {
            run, epoch, results, ..
        } = turn(number);
        EarlyResults {
            run,
            epoch,
            turn: number,
            results,
            times: Vec::new(),
        }
    };
    within(rig.client.hand_in(&early(2))).await.unwrap();
    let refused = within(rig.client.hand_in(&early(10))).await.unwrap_err();
    assert_eq!(code(refused), RefusalCode::Stale);
    rig.client.set_token(Secret::new("stolen"));
    let refused = within(rig.client.hand_in(&early(2))).await.unwrap_err();
    assert_eq!(code(refused), RefusalCode::Unauthorized);
    assert_eq!(rig.seen(), ["results 2 1", "results 10 1", "results 2 1"]);
}

/// Reads one request with its body.
async fn request(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.unwrap().parse().unwrap() {
                return text.into_owned();
            }
        }
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "a request was cut off");
    }
}

#[tokio::test]
async fn a_turn_has_the_connection_of_the_one_before_and_another_where_that_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("link");
    let listener = UnixListener::bind(&socket).unwrap();
    let tasks = Tasks::new();
    let client = Client::new(&socket, &tasks);
    client.set_token(Secret::new("good"));

    let body = br#"{"code":"stale","message":"the run was taken over"}"#;
    let answer = format!("HTTP/1.1 409 Conflict\r\ncontent-length: {}\r\n\r\n", body.len());
    let answer = [answer.as_bytes(), body].concat();
    let control_plane = async {
        let (mut first, _) = listener.accept().await.unwrap();
        for number in 1..=2 {
            assert!(request(&mut first).await.contains(&format!("\"turn\":{number}")));
            first.write_all(&answer).await.unwrap();
        }
        assert!(request(&mut first).await.contains("\"turn\":3"));
        drop(first);
        let (mut second, _) = listener.accept().await.unwrap();
        assert!(request(&mut second).await.contains("\"turn\":3"));
        second.write_all(&answer).await.unwrap();
    };
    let runtime = async {
        for number in 1..=3 {
            let refused = client.invoke_llm(&turn(number)).await.unwrap_err();
            assert_eq!(code(refused), RefusalCode::Stale);
        }
    };
    within(async { tokio::join!(control_plane, runtime) }).await;
}

#[tokio::test]
async fn a_name_is_let_through_or_denied() {
    let rig = rig();
    assert_eq!(within(rig.client.resolve("good.test")).await.unwrap(), Some(7));
    let denied = within(rig.client.resolve("bad.test")).await.unwrap_err();
    assert_eq!(code(denied), RefusalCode::Denied);
}

#[tokio::test]
async fn a_connection_carries_bytes_both_ways_until_both_sides_close() {
    let rig = rig();
    let mut tunnel = within(rig.client.connect("good.test", 5432)).await.unwrap();
    let sent = vec![7_u8; 300_000];
    let mut back = vec![0; sent.len()];
    within(async {
        let (mut read, mut write) = tokio::io::split(&mut tunnel);
        let (written, read) = tokio::join!(write.write_all(&sent), read.read_exact(&mut back));
        written.unwrap();
        read.unwrap();
    })
    .await;
    assert!(back == sent);
    tunnel.shutdown().await.unwrap();
    assert_eq!(within(tunnel.read(&mut back)).await.unwrap(), 0);
    assert_eq!(rig.seen(), ["connect good.test 5432"]);
}

#[tokio::test]
async fn a_denied_connection_says_why() {
    let rig = rig();
    for host in ["192.0.2.7", "2001:db8::7", "bad.test"] {
        let denied = within(rig.client.connect(host, 22)).await.unwrap_err();
        assert_eq!(denied.to_string(), "no rule allows it");
    }
    assert_eq!(
        rig.seen(),
        ["connect 192.0.2.7 22", "connect 2001:db8::7 22", "connect bad.test 22"]
    );
}

#[tokio::test]
async fn without_a_token_nothing_is_asked_and_a_wrong_one_is_the_handlers_to_refuse() {
    let rig = rig();
    let nobody = link::client::Client::new(&rig.socket, &rig.tasks);
    assert!(matches!(
        within(nobody.resolve("good.test")).await,
        Err(ClientError::Unclaimed)
    ));
    nobody.set_token(Secret::new("stolen"));
    assert_eq!(
        code(within(nobody.resolve("good.test")).await.unwrap_err()),
        RefusalCode::Unauthorized
    );
    assert_eq!(rig.seen(), ["resolve good.test"]);
}

#[tokio::test]
async fn a_control_plane_that_is_gone_is_lost_and_not_a_refusal() {
    let rig = rig();
    rig.linked.close();
    let socket = rig.socket.clone();
    std::fs::remove_file(socket).unwrap();
    assert!(matches!(
        within(rig.client.invoke_llm(&turn(1))).await,
        Err(ClientError::Connect { .. })
    ));
}
