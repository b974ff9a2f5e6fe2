//! Bytes as no client library sends them.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::house::House;
use super::upstream::{echo, text};

const BEARER: &str = r#"inject = [{ kind = "bearer", secret = "env:TOKEN" }]"#;

#[tokio::test]
async fn threat_033_what_can_be_read_in_two_ways_is_refused_and_the_connection_closed() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: api.bound.test\r\n\r\n";
    for lines in [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
        "content-length: 0\r\ncontent-length: 0\r\n\r\n",
        "content-length: 0, 0\r\n\r\n",
        "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        "x: a\r\n folded\r\n\r\n",
        "x: a\n\r\n",
        "x : a\r\n\r\n",
        "x: a\rb\r\n\r\n",
    ] {
        let bytes = format!("POST /first HTTP/1.1\r\nhost: api.bound.test\r\n{lines}{smuggled}");
        let answer = house.raw("api.bound.test", bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{lines:?}: {answer}");
        assert!(
            answer.contains("\"malformed\"") && answer.contains("connection: close"),
            "{answer}"
        );
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    }
    assert!(bound.seen().is_empty(), "{:?}", bound.seen());
}

#[tokio::test]
async fn threat_033_a_chunk_that_is_not_plain_ends_the_connection() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    for chunks in ["5;x=y\r\nhello\r\n0\r\n\r\n", "5\r\nhelloGET", "g\r\n"] {
        let bytes = format!("POST / HTTP/1.1\r\nhost: api.bound.test\r\ntransfer-encoding: chunked\r\n\r\n{chunks}");
        let answer = house.raw("api.bound.test", bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        // Read to its end: it was closed.
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    }
    assert!(bound.seen().is_empty());
}

#[tokio::test(start_paused = true)]
async fn threat_017_a_head_that_does_not_end_is_not_waited_for() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    let first = "GET / HTTP/1.1\r\nhost: api.bound.test\r\n";
    for bytes in [first.to_owned(), format!("{first}\r\n{first}")] {
        let mut stream = house.tls("api.bound.test", b"http/1.1").await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // Closed without TLS's farewell it is closed as well.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        let statuses: Vec<&str> = answer.split("HTTP/1.1 ").skip(1).map(|rest| &rest[..3]).collect();
        assert_eq!(statuses.last(), Some(&"408"), "{answer}");
        assert_eq!(statuses.len() - 1, bytes.matches("\r\n\r\n").count(), "{answer}");
    }
    assert_eq!(bound.seen().len(), 1);
}

/// A frame of HTTP/2 on the first stream (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

#[tokio::test]
async fn threat_017_a_head_of_http2_that_does_not_end_ends_the_connection() {
    const LONGEST: usize = 16_384;
    const ENOUGH: usize = 64 << 20;
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    // Literal headers without an index, each with a name and a value of one byte: `a: b`.
    let headers = [0, 1, b'a', 1, b'b'].repeat(LONGEST / 5);
    let (headers_kind, settings_kind, continuation_kind) = (1, 4, 9);
    let mut stream = house.tls("api.bound.test", b"h2").await;
    let preface = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(settings_kind, 0, 0, &[]),
        frame(headers_kind, 0, 1, &headers),
    ];
    stream.write_all(&preface.concat()).await.unwrap();
    let more = frame(continuation_kind, 0, 1, &headers);
    let (mut answers, mut sends) = tokio::io::split(stream);
    let sending = async {
        let mut sent = 0;
        while sent < ENOUGH && sends.write_all(&more).await.is_ok() {
            sent += more.len();
        }
        sent
    };
    let hearing = async {
        let mut heard = Vec::new();
        // Closed without TLS's farewell it is closed as well.
        let _ = answers.read_to_end(&mut heard).await;
        heard
    };
    let (sent, heard) = tokio::join!(sending, hearing);
    assert!(sent < ENOUGH, "{sent} bytes of a head were taken");
    let goaway_kind = 7;
    assert_eq!(heard_kinds(&heard).last(), Some(&goaway_kind), "{heard:?}");
    assert!(bound.seen().is_empty());
    // Others are served.
    assert!(house.many("api.bound.test").await.ready().await.is_ok());
}

/// The kinds of frames, in their order.
fn heard_kinds(mut heard: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let [first, second, third, kind, rest @ ..] = heard {
        kinds.push(*kind);
        let length = u32::from_be_bytes([0, *first, *second, *third]);
        heard = rest.get(5 + usize::try_from(length).unwrap()..).unwrap_or_default();
    }
    kinds
}

#[tokio::test]
async fn threat_033_what_the_upstream_gets_was_written_anew() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.old_upstream("api.bound.test", echo).await;
    let bytes = b"POST /a HTTP/1.1\r\nHOST:api.bound.test\r\nConnection: close\r\nTransfer-Encoding: Chunked\r\n\r\n\
        3\r\nabc\r\n2\r\nde\r\n0\r\nhost: trailer\r\n\r\n";
    let answer = house.raw("api.bound.test", bytes).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let seen = bound.only();
    assert_eq!(
        (seen.text().as_str(), seen.header("host")),
        ("abcde", vec!["api.bound.test".to_owned()])
    );
    assert_eq!(seen.header("transfer-encoding"), ["chunked"]);
    assert!(seen.header("connection").is_empty());
}

#[tokio::test]
async fn threat_034_each_request_of_a_pipeline_is_checked() {
    let rule = format!("{BEARER}\npaths = [\"/allowed\"]");
    let house = House::new(&[("bound", &rule)]);
    let bound = house.upstream("api.bound.test", |_| text("fine")).await;
    let one = |path: &str, rest: &str| format!("GET {path} HTTP/1.1\r\nhost: api.bound.test\r\n{rest}\r\n");
    let pipeline = one("/allowed", "") + &one("/denied", "") + &one("/allowed", "connection: close\r\n");
    let answer = house.raw("api.bound.test", pipeline.as_bytes()).await;
    let statuses: Vec<&str> = answer.split("HTTP/1.1 ").skip(1).map(|rest| &rest[..3]).collect();
    assert_eq!(statuses, ["200", "403", "200"], "{answer}");
    assert!(bound.seen().iter().all(|seen| seen.target == "/allowed"));
    assert_eq!(bound.seen().len(), 2);
}

#[tokio::test]
async fn threat_034_a_broken_request_after_an_answered_one_is_refused() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", |_| text("fine")).await;
    let answer = house
        .raw(
            "api.bound.test",
            b"GET /1 HTTP/1.1\r\nhost: api.bound.test\r\n\r\nGET /2 HTTP/1.1\nhost: x\n\n",
        )
        .await;
    let statuses: Vec<&str> = answer.split("HTTP/1.1 ").skip(1).map(|rest| &rest[..3]).collect();
    assert_eq!(statuses, ["200", "400"], "{answer}");
    assert_eq!(bound.only().target, "/1");
}

#[tokio::test]
async fn threat_025_a_target_of_another_host_is_refused() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    for (target, status) in [
        ("http://other.test/", 400),
        ("https://other.test/", 421),
        ("http://api.bound.test/", 400),
        ("https://api.bound.test:8443/", 421),
    ] {
        let bytes = format!("GET {target} HTTP/1.1\r\nhost: api.bound.test\r\nconnection: close\r\n\r\n");
        let answer = house.raw("api.bound.test", bytes.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
    }
    assert!(bound.seen().is_empty());
    let bytes = b"GET https://api.bound.test/a HTTP/1.1\r\nhost: api.bound.test\r\nconnection: close\r\n\r\n";
    assert!(house.raw("api.bound.test", bytes).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(bound.only().target, "/a");
}

#[tokio::test]
async fn threat_026_a_host_with_more_than_a_host_is_refused() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    for host in [
        "api.bound.test@evil.test",
        "evil.test#@api.bound.test",
        "evil.test\\@api.bound.test",
        "api.bound.test\tevil.test",
        "api.bound.test%2fevil.test",
        "evil.test%00.api.bound.test",
        "api.bound.test\r\nhost: evil.test",
        "",
    ] {
        let bytes = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = house.raw("api.bound.test", bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{host:?}: {answer}");
    }
    for target in [
        "https://api.bound.test@evil.test/",
        "https://evil.test#@api.bound.test/",
    ] {
        let bytes = format!("GET {target} HTTP/1.1\r\nhost: api.bound.test\r\nconnection: close\r\n\r\n");
        let answer = house.raw("api.bound.test", bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{target}: {answer}");
    }
    assert!(bound.seen().is_empty());
}

#[tokio::test]
async fn threat_037_no_other_protocol_is_asked_for() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.old_upstream("api.bound.test", echo).await;
    for connection in ["Upgrade, HTTP2-Settings, close", "close"] {
        let bytes = format!(
            "GET / HTTP/1.1\r\nhost: api.bound.test\r\nconnection: {connection}\r\nupgrade: h2c\r\n\
             http2-settings: AAMAAABkAAQAAP__\r\n\r\n"
        );
        let answer = house.raw("api.bound.test", bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(bound.seen().len(), 2);
    for seen in bound.seen() {
        assert!(
            seen.header("upgrade").is_empty() && seen.header("http2-settings").is_empty(),
            "{seen:?}"
        );
    }
    let preface = house.raw("api.bound.test", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(preface.starts_with("HTTP/1.1 400 "), "{preface}");
}

#[tokio::test]
async fn threat_017_a_head_has_a_limit() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    let endless = [
        b"GET / HTTP/1.1\r\nhost: api.bound.test\r\nx: ".to_vec(),
        vec![b'a'; 100_000],
    ]
    .concat();
    let answer = house.raw("api.bound.test", &endless).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert!(bound.seen().is_empty());
}
