//! What a hostile sandbox may try on its link.

use std::time::Duration;

use protocol::{DiskId, SyncCall, SyncRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::rig::{Rig, rig, rig_for, turn, within};

/// Sends raw bytes and gives back what comes until the server closes.
async fn raw(rig: &Rig, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(&rig.socket).await.unwrap();
    // The server may close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = within(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn threat_058_another_uid_than_the_sandboxs_root_is_not_served() {
    let rig = rig_for(rustix::process::geteuid().as_raw() + 100_000);
    within(rig.client.resolve("good.test")).await.unwrap_err();
    within(rig.client.control()).await.unwrap_err();
    assert_eq!(rig.seen(), [""; 0]);
}

#[tokio::test]
async fn threat_064_a_token_in_the_query_is_refused() {
    let rig = rig();
    let answer = raw(
        &rig,
        b"POST /v1/names?token=good HTTP/1.1\r\nhost: x\r\nauthorization: Bearer good\r\ncontent-length: 20\r\n\r\n{\"name\":\"good.test\"}",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let referer = b"POST /v1/names HTTP/1.1\r\nhost: x\r\nreferer: http://x/?token=good\r\ncontent-length: 20\r\n\r\n{\"name\":\"good.test\"}";
    assert!(raw(&rig, referer).await.starts_with("HTTP/1.1 401"));
    assert_eq!(rig.seen(), [""; 0]);
}

#[tokio::test]
async fn every_request_shows_a_token_exactly_once() {
    let rig = rig();
    for request in [
        "POST /v1/turns",
        "POST /v1/names",
        "POST /v1/services",
        "POST /v1/sync",
        "GET /v1/objects/x?signature=x",
        "PUT /v1/objects/x?signature=x",
        "GET /v1/files/1",
        "PUT /v1/files/1",
        "CONNECT good.test:443",
    ] {
        for shown in [
            "",
            "authorization: Basic Z29vZA==\r\n",
            "authorization: Bearer good\r\nauthorization: Bearer good\r\n",
        ] {
            let answer = raw(
                &rig,
                format!("{request} HTTP/1.1\r\nhost: x\r\n{shown}content-length: 0\r\n\r\n").as_bytes(),
            )
            .await;
            assert!(answer.starts_with("HTTP/1.1 401"), "{request} {shown}: {answer}");
        }
    }
    assert_eq!(rig.seen(), [""; 0]);
}

#[tokio::test]
async fn malformed_requests_are_refused_and_nothing_is_asked() {
    let rig = rig();
    let head = "host: x\r\nauthorization: Bearer good\r\n";
    let bad = [
        format!("POST /v1/names HTTP/1.1\r\n{head}content-length: 5\r\n\r\n{{\"na\""),
        format!("POST /v1/names HTTP/1.1\r\n{head}content-length: 16\r\n\r\n{{\"name\":\"a\\u0000b\"}}"),
        format!("POST /v1/names HTTP/1.1\r\n{head}content-length: 9999999\r\n\r\n"),
        format!("POST /v1/turns HTTP/1.1\r\n{head}content-length: 2\r\n\r\n[]"),
        format!("POST /v1/turns HTTP/1.1\r\n{head}content-length: 99999999999\r\n\r\n[]"),
        format!("GET /v1/files/../../etc/passwd HTTP/1.1\r\n{head}\r\n"),
        format!("GET /v1/files/-1 HTTP/1.1\r\n{head}\r\n"),
        format!("CONNECT good.test HTTP/1.1\r\n{head}\r\n"),
        format!("CONNECT user@good.test:443 HTTP/1.1\r\n{head}\r\n"),
        format!("CONNECT good.test:99999 HTTP/1.1\r\n{head}\r\n"),
        format!("CONNECT good.test%00.evil:443 HTTP/1.1\r\n{head}\r\n"),
        format!("DELETE /v1/turns HTTP/1.1\r\n{head}\r\n"),
        "\u{1}\u{2}\u{3}\r\n\r\n".to_owned(),
    ];
    for request in bad {
        let mut stream = UnixStream::connect(&rig.socket).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.unwrap();
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{request}: {answer}"
        );
    }
    assert_eq!(rig.seen(), [""; 0]);
    within(rig.client.invoke_llm(&turn(1))).await.unwrap();
}

#[tokio::test]
async fn a_malformed_control_stream_is_closed_and_the_next_one_served() {
    let rig = rig();
    let open = "POST /v1/control HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: belljar-control\r\n\r\n";
    for greeting in [
        "nonsense\n".to_owned(),
        "{\"protocol\":1,\"build\":\"".to_owned() + &"x".repeat(100_000),
        "{\"protocol\":1,\"build\":\"x\"}\n".to_owned(),
        "{\"protocol\":99,\"build\":\"x\"}\n".to_owned(),
    ] {
        let mut stream = UnixStream::connect(&rig.socket).await.unwrap();
        // The server may close before it has read everything.
        let _ = stream.write_all(format!("{open}{greeting}").as_bytes()).await;
        let mut answer = Vec::new();
        let _ = within(stream.read_to_end(&mut answer)).await;
        assert!(answer.starts_with(b"HTTP/1.1 101"), "{greeting}");
        assert!(!rig.linked.is_connected(), "{greeting}");
    }
    let hello = format!("{{\"protocol\":{},\"build\":\"x\"}}\n", protocol::PROTOCOL);
    for (line, is_cut) in [
        ("{\"type\":\"become_root\"}\n", false),
        ("\u{0}\n", false),
        ("{\"type\":\"result\"", true),
    ] {
        let mut stream = UnixStream::connect(&rig.socket).await.unwrap();
        stream.write_all(format!("{open}{hello}").as_bytes()).await.unwrap();
        within(rig.linked.connected()).await;
        stream.write_all(line.as_bytes()).await.unwrap();
        if is_cut {
            stream.shutdown().await.unwrap();
        }
        // It is the server that closes.
        let mut answer = Vec::new();
        let _ = within(stream.read_to_end(&mut answer)).await;
        assert!(answer.starts_with(b"HTTP/1.1 101"), "{line}");
        within(rig.linked.closed()).await;
    }
    let _control = within(rig.client.control()).await.unwrap();
    within(rig.linked.connected()).await;
}

#[tokio::test]
async fn threat_017_a_gigabyte_of_header_is_cut_off_at_once() {
    let rig = rig();
    let mut stream = UnixStream::connect(&rig.socket).await.unwrap();
    stream.write_all(b"POST /v1/turns HTTP/1.1\r\nx: ").await.unwrap();
    let piece = vec![b'a'; 1 << 16];
    let mut taken = 0_usize;
    while taken < 1 << 30 {
        match within(stream.write(&piece)).await {
            Ok(written) => taken += written,
            Err(_) => break,
        }
    }
    assert!(taken < 8 << 20, "{taken} bytes of header were taken");
}

#[tokio::test]
async fn threat_017_ten_thousand_connections_shut_only_their_own_sandbox_out() {
    let flooded = rig();
    let other = rig();
    let mut slow = Vec::new();
    for _ in 0..10_000 {
        let connect = UnixStream::connect(&flooded.socket);
        // When the places and the queue are full, a further connection waits.
        let Ok(connected) = tokio::time::timeout(Duration::from_millis(50), connect).await else {
            break;
        };
        let Ok(mut stream) = connected else { break };
        let _ = stream.write_all(b"POST /v1/turns HTTP/1.1\r\n").await;
        slow.push(stream);
    }
    within(other.client.invoke_llm(&turn(1))).await.unwrap();
    // Slow ones are closed after a while, and their places are free again.
    drop(slow);
    within(async {
        while flooded.client.invoke_llm(&turn(1)).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

const SYNC: &str = "POST /v1/sync HTTP/1.1\r\nhost: x\r\nauthorization: Bearer good\r\n";
const KEEP: &str = "PUT /v1/objects/x?signature=x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer good\r\n";

fn question() -> SyncCall {
    SyncCall {
        disk: DiskId::try_from("ab".repeat(16)).unwrap(),
        request: SyncRequest::Begin,
    }
}

/// How many bytes of a request are taken until the other end reads no more.
async fn taken(rig: &Rig, head: &str, most: usize) -> usize {
    let mut stream = UnixStream::connect(&rig.socket).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![b' '; 1 << 16];
    let mut taken = 0;
    while taken < most {
        match tokio::time::timeout(Duration::from_millis(200), stream.write(&piece)).await {
            Ok(Ok(written)) => taken += written,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    taken
}

#[tokio::test]
async fn threat_017_questions_about_files_have_two_places_and_what_waits_is_not_read() {
    let flooded = rig();
    let other = rig();
    other.handler.questions.answers.add_permits(1);
    let question = question();
    let asked = futures::future::join_all((0..100).map(|_| flooded.client.sync(&question)));
    let meanwhile = async {
        within(async {
            while flooded.handler.questions.now() < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // What it may ask beside is answered, and others are not kept waiting.
        within(flooded.client.invoke_llm(&turn(1))).await.unwrap();
        within(other.client.sync(&question)).await.unwrap();
        let head = format!("{SYNC}content-length: {}\r\n\r\n", 8 << 20);
        let taken = taken(&flooded, &head, 8 << 20).await;
        assert!(taken < 1 << 20, "{taken} bytes were taken of what waits");
        flooded.handler.questions.answers.add_permits(100);
    };
    let (answers, ()) = within(async { tokio::join!(asked, meanwhile) }).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(flooded.handler.questions.most(), 2);
}

#[tokio::test]
async fn threat_017_contents_that_never_end_take_their_own_sandboxs_places_only() {
    let flooded = rig();
    let other = rig();
    flooded.handler.questions.answers.add_permits(1);
    let mut slow = Vec::new();
    for _ in 0..100 {
        let mut stream = UnixStream::connect(&flooded.socket).await.unwrap();
        let head = format!("{KEEP}content-length: 4194304\r\n\r\nand then nothing");
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    within(async {
        while flooded.handler.contents.now() < 16 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    within(flooded.client.sync(&question())).await.unwrap();
    within(flooded.client.invoke_llm(&turn(1))).await.unwrap();
    let body = || futures::StreamExt::boxed(futures::stream::iter([Ok(bytes::Bytes::from_static(b"words"))]));
    let url = "/v1/objects/x?signature=x";
    within(other.client.keep_object(url, 5, body())).await.unwrap();
    assert_eq!(flooded.handler.contents.most(), 16);
    // They are free again as soon as those who had them are gone.
    drop(slow);
    within(flooded.client.keep_object(url, 5, body())).await.unwrap();
    assert!(flooded.seen().contains(&"kept 5".to_owned()));
}

#[tokio::test]
async fn questions_about_files_that_are_too_long_or_have_too_many_parts_are_refused() {
    let rig = rig();
    let disk = "ab".repeat(16);
    let start = format!("{{\"disk\":\"{disk}\",\"request\":{{\"type\":\"record\",\"files\":[],\"gone\":[");
    let many = format!("{start}{}[]]}}}}", "[1],".repeat(500_000));
    let deep = format!("{start}{}", "[".repeat(1 << 20));
    let long = format!("{start}\"{}\"]}}}}", "x".repeat(9 << 20));
    for body in [many, deep, long] {
        let request = format!("{SYNC}content-length: {}\r\n\r\n{body}", body.len());
        let answer = raw(&rig, request.as_bytes()).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert_eq!(rig.seen(), [""; 0]);
    rig.handler.questions.answers.add_permits(1);
    within(rig.client.sync(&question())).await.unwrap();
}
