//! Upstreams that lie, stall and never end.

use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use lifecycle::Tasks;
use serde_json::json;
use services::Code;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::{Rig, Setting};

const METHODS: &str = r#"
[methods.get]
summary = "One contact"
access = "read"
request = "GET /contacts"
[methods.get.limits]
response = "1MiB"
timeout = "2s"

[methods.patient]
summary = "One contact, in its own time"
access = "read"
request = "GET /contacts"
[methods.patient.limits]
response = "1MiB"

[methods.export]
summary = "Everything"
access = "read"
request = "GET /export"
answer = "binary"
[methods.export.limits]
response = "4MiB"
timeout = "2s"
"#;

/// A service whose upstream writes to each connection what it likes.
async fn rig<F, W>(write: F) -> (Rig, Tasks)
where
    F: Fn(TcpStream) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let tasks = Tasks::new();
    let connections = tasks.clone();
    tasks.spawn_until_stopped(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The request has come when its head has.
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            connections.spawn_until_stopped(write(stream));
        }
    });
    (Setting::new(&base, METHODS).build(), tasks)
}

async fn say(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn an_answer_shorter_than_announced_is_told() {
    let (rig, _tasks) = rig(|mut stream| async move {
        say(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"a\":1}").await;
    })
    .await;
    let failure = rig.fails("get", json!({}), Code::AnswerCut).await;
    assert!(
        failure.message.contains("broke off its answer after 7 bytes"),
        "{failure}"
    );
    rig.fails("export", json!({}), Code::AnswerCut).await;
}

#[tokio::test]
async fn an_answer_longer_than_announced_is_what_was_announced() {
    let (rig, _tasks) = rig(|mut stream| async move {
        say(
            &mut stream,
            "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}{\"b\":2}",
        )
        .await;
    })
    .await;
    assert_eq!(rig.get("get", json!({})).await, json!({"a": 1}));
}

#[tokio::test]
async fn an_answer_that_announces_too_much_is_not_begun() {
    let (rig, _tasks) = rig(|mut stream| async move {
        say(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n{").await;
        std::future::pending::<()>().await;
    })
    .await;
    let failure = rig.fails("patient", json!({}), Code::AnswerTooLarge).await;
    assert!(failure.message.contains("more than 1048576 bytes"), "{failure}");
    assert!(failure.remedy.is_some());
    rig.fails("export", json!({}), Code::AnswerTooLarge).await;
}

#[tokio::test]
async fn a_gigabyte_that_nobody_announced_is_cut_at_the_limit() {
    let (rig, _tasks) = rig(|mut stream| async move {
        say(&mut stream, "HTTP/1.1 200 OK\r\n\r\n\"").await;
        let piece = vec![b'a'; 1 << 20];
        for _ in 0..1_024 {
            if stream.write_all(&piece).await.is_err() {
                return;
            }
        }
    })
    .await;
    rig.fails("patient", json!({}), Code::AnswerTooLarge).await;
    let mut answer = rig.ask("export", json!({})).await.unwrap();
    let mut came = 0;
    let failure = loop {
        match answer.piece().await {
            Ok(Some(piece)) => came += piece.len(),
            Ok(None) => panic!("it does not end"),
            Err(failure) => break failure,
        }
    };
    assert_eq!(failure.code, Code::AnswerTooLarge);
    assert!(came <= 4 << 20, "{came}");
}

#[tokio::test]
async fn an_answer_that_never_ends_or_never_begins_ends_with_words() {
    let (rig, _tasks) = rig(|mut stream| async move {
        say(&mut stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        loop {
            if stream.write_all(b"1\r\n \r\n").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let failure = rig.fails("get", json!({}), Code::Timeout).await;
    assert_eq!(failure.status(), 504);
    assert!(failure.message.contains("did not end its answer in time"), "{failure}");
    rig.fails("export", json!({}), Code::Timeout).await;
}

#[tokio::test]
async fn an_upstream_that_is_silent_ends_with_words() {
    let (silent, _tasks) = rig(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let failure = silent.fails("get", json!({}), Code::Timeout).await;
    assert!(failure.message.contains("did not begin to answer in time"), "{failure}");
    let (stalled, _tasks) = rig(|mut stream| async move {
        say(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\"").await;
        std::future::pending::<()>().await;
    })
    .await;
    let failure = stalled.fails("get", json!({}), Code::Timeout).await;
    assert!(failure.message.contains("4 bytes had come"), "{failure}");
}

#[tokio::test]
async fn a_packing_that_becomes_a_gigabyte_is_cut_at_the_limit() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let zeros = vec![b' '; 1 << 20];
    for _ in 0..64 {
        encoder.write_all(&zeros).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 100_000);
    let (rig, _tasks) = rig(move |mut stream| {
        let bomb = bomb.clone();
        async move {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
                bomb.len()
            );
            say(&mut stream, &head).await;
            stream.write_all(&bomb).await.unwrap();
        }
    })
    .await;
    rig.fails("patient", json!({}), Code::AnswerTooLarge).await;
    rig.fails("export", json!({}), Code::AnswerTooLarge).await;
}

#[tokio::test]
async fn a_packing_that_is_cut_is_told() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(b"{\"a\": 1}").unwrap();
    let packed = encoder.finish().unwrap();
    let (rig, _tasks) = rig(move |mut stream| {
        let cut = packed[..packed.len() - 6].to_vec();
        async move {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
                cut.len()
            );
            say(&mut stream, &head).await;
            stream.write_all(&cut).await.unwrap();
        }
    })
    .await;
    rig.fails("get", json!({}), Code::AnswerMalformed).await;
}

#[tokio::test]
async fn what_is_no_http_is_told() {
    let (rig, _tasks) = rig(|mut stream| async move {
        say(&mut stream, "SSH-2.0-OpenSSH_9.6\r\n").await;
    })
    .await;
    let failure = rig.fails("get", json!({}), Code::AnswerCut).await;
    assert!(
        failure.message.starts_with("crm: the connection to 127.0.0.1:"),
        "{failure}"
    );
}

#[tokio::test]
async fn nobody_there_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let rig = Setting::new(&base, METHODS).build();
    let failure = rig.fails("get", json!({}), Code::Unreachable).await;
    assert_eq!(failure.status(), 502);
    assert!(
        failure.message.starts_with("crm: no connection to 127.0.0.1:"),
        "{failure}"
    );
}
