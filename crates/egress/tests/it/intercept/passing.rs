//! What passes as it should, and what it may cost.

use std::sync::Arc;

use bytes::Bytes;
use egress::Code;
use futures::future::join_all;
use http::{HeaderMap, StatusCode, Version};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use rcgen::date_time_ymd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::house::{House, SECRET, get, read, request, request2};
use super::upstream::{Answer, Authority, echo, text};

const HOST: &str = "api.bound.test";
const BEARER: &str = r#"inject = [{ kind = "bearer", secret = "env:TOKEN" }]"#;

#[tokio::test]
async fn threat_056_an_upstream_that_does_not_prove_who_it_is_is_refused() {
    let house = House::new(&[("bound", BEARER)]);
    let stranger = Authority::new();
    let configs = [
        ("self-signed", stranger.server(HOST, |_| {})),
        ("another name", house.theirs.server("other.test", |_| {})),
        (
            "expired",
            house.theirs.server(HOST, |params| {
                params.not_before = date_time_ymd(2020, 1, 1);
                params.not_after = date_time_ymd(2021, 1, 1);
            }),
        ),
    ];
    for (what, config) in configs {
        let upstream = house.upstream_with(HOST, config, echo).await;
        let reply = house.ask(HOST, get(HOST, "/")).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (StatusCode::BAD_GATEWAY, "untrusted"),
            "{what}"
        );
        assert!(upstream.seen().is_empty());
    }
}

#[tokio::test]
async fn threat_012_a_kept_connection_is_checked_and_closed_when_the_rules_change() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.old_upstream(HOST, |_| text("fine")).await;
    let mut client = house.one(HOST).await;
    let mut ask = async |path: &str| {
        client.ready().await.unwrap();
        read(client.send_request(get(HOST, path)).await.unwrap()).await
    };
    assert_eq!(ask("/1").await.status, StatusCode::OK);
    assert_eq!(ask("/2").await.status, StatusCode::OK);
    assert_eq!(bound.connections(), 1, "it was kept");
    house.change(2, &[("bound", BEARER)]);
    assert_eq!(ask("/3").await.status, StatusCode::OK);
    assert_eq!(bound.connections(), 2, "it was opened under the new rules");
    let tight = format!("{BEARER}\npaths = [\"/other\"]");
    house.change(3, &[("bound", &tight)]);
    assert_eq!(ask("/4").await.code(), "not_in_rule");
    assert_eq!(bound.seen().len(), 3);
}

#[tokio::test]
async fn many_streams_pass_at_once_over_one_connection() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream(HOST, echo).await;
    let client = house.many(HOST).await;
    let first = client
        .clone()
        .send_request(request2("GET", "https://api.bound.test/first", &[], ""))
        .await
        .unwrap();
    read(first).await;
    let replies = join_all((0..50).map(|number| {
        let mut client = client.clone();
        async move {
            let body = format!("{number}-").repeat(5_000);
            let uri = format!("https://api.bound.test/{number}");
            let reply = read(client.send_request(request2("POST", &uri, &[], &body)).await.unwrap()).await;
            assert!(reply.body.ends_with(&body) && reply.body.starts_with(&format!("POST /{number}\n")));
            reply.status
        }
    }))
    .await;
    assert!(replies.iter().all(|status| *status == StatusCode::OK));
    assert_eq!(bound.connections(), 1);
    assert!(bound.seen().iter().all(|seen| seen.version == Version::HTTP_2));
    assert_eq!(house.records(51).await.len(), 51);
}

#[tokio::test]
async fn a_call_of_grpc_passes_with_its_trailers() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house
        .upstream(HOST, |_| {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let frames = [
                Frame::data(Bytes::from_static(b"\0\0\0\0\x02hi")),
                Frame::trailers(trailers),
            ];
            let mut answer = Answer::new(StreamBody::new(futures::stream::iter(frames.map(Ok))).boxed_unsync());
            answer
                .headers_mut()
                .insert("content-type", "application/grpc".parse().unwrap());
            answer
        })
        .await;
    let mut client = house.many(HOST).await;
    let headers = [
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-accept-encoding", "gzip"),
        ("grpc-timeout", "1S"),
    ];
    let call = request2(
        "POST",
        "https://api.bound.test/pkg.Service/Call",
        &headers,
        "\0\0\0\0\u{1}x",
    );
    let reply = read(client.send_request(call).await.unwrap()).await;
    assert_eq!(reply.trailers["grpc-status"], "0");
    assert_eq!(reply.body.as_bytes(), b"\0\0\0\0\x02hi");
    let seen = bound.only();
    assert_eq!(
        (seen.header("te"), seen.header("grpc-timeout")),
        (vec!["trailers".into()], vec!["1S".into()])
    );
    assert_eq!(seen.header("grpc-accept-encoding"), ["identity"]);
    assert_eq!(seen.header("authorization"), [format!("Bearer {SECRET}")]);
}

#[tokio::test]
async fn a_head_an_empty_answer_and_a_length_stay_what_they_are() {
    let house = House::new(&[("bound", BEARER)]);
    let _bound = house
        .old_upstream(HOST, |seen| match seen.target.as_str() {
            "/none" => {
                let mut answer = text("");
                *answer.status_mut() = StatusCode::NO_CONTENT;
                answer
            }
            _ => text("twelve bytes"),
        })
        .await;
    let mut client = house.one(HOST).await;
    for (method, path, status, length, body) in [
        ("HEAD", "/", 200, Some("12"), ""),
        ("GET", "/none", 204, None, ""),
        ("GET", "/", 200, Some("12"), "twelve bytes"),
    ] {
        client.ready().await.unwrap();
        let reply = read(client.send_request(request(method, HOST, path, &[], "")).await.unwrap()).await;
        let said = reply.headers.get("content-length").map(|value| value.to_str().unwrap());
        assert_eq!(
            (reply.status.as_u16(), said, reply.body.as_str()),
            (status, length, body),
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn an_event_reaches_the_client_before_the_next_one_is_sent() {
    let house = House::new(&[("bound", BEARER)]);
    let first = Arc::new(tokio::sync::Notify::new());
    let seen = Arc::clone(&first);
    let _bound = house
        .upstream(HOST, move |_| {
            let seen = Arc::clone(&seen);
            let events = futures::stream::unfold(0, move |number| {
                let seen = Arc::clone(&seen);
                async move {
                    if number > 0 {
                        seen.notified().await;
                    }
                    (number < 2).then(|| {
                        (
                            Ok(Frame::data(Bytes::from(format!("data: tok {number}\n\n")))),
                            number + 1,
                        )
                    })
                }
            });
            Answer::new(StreamBody::new(Box::pin(events)).boxed_unsync())
        })
        .await;
    let mut client = house.one(HOST).await;
    let mut body = client.send_request(get(HOST, "/")).await.unwrap().into_body();
    let one = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(one, "data: tok 0\n\n");
    first.notify_one();
    let two = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(two, "data: tok 1\n\n");
    first.notify_one();
    assert!(body.frame().await.is_none());
}

/// An upstream of HTTP/1.1 that says what a test writes.
struct Bare(TcpListener, TlsAcceptor);

impl Bare {
    async fn start(house: &House) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        house.place(HOST, listener.local_addr().unwrap());
        let mut config = house.theirs.server(HOST, |_| {});
        config.alpn_protocols.clear();
        Self(listener, TlsAcceptor::from(Arc::new(config)))
    }

    /// The next connection, behind the head of its request.
    async fn asked(&self) -> TlsStream<TcpStream> {
        let (stream, _) = self.0.accept().await.unwrap();
        let mut stream = self.1.accept(stream).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_upstream_closed_is_replaced() {
    let house = House::new(&[("bound", BEARER)]);
    let upstream = Bare::start(&house).await;
    house.tasks.spawn_until_stopped(async move {
        // One answer a connection, which says nothing of closing, and closes.
        loop {
            let mut stream = upstream.asked().await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine")
                .await
                .unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    for _ in 0..5 {
        let reply = house.ask(HOST, get(HOST, "/")).await;
        assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, "fine"));
    }
}

#[tokio::test]
async fn an_upstream_that_lies_about_length_breaks_its_own_answer_only() {
    let house = House::new(&[("bound", BEARER)]);
    let upstream = Bare::start(&house).await;
    house.tasks.spawn_until_stopped(async move {
        for answer in ["HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\nshort", "garbage\r\n\r\n"] {
            let mut stream = upstream.asked().await;
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    let mut client = house.one(HOST).await;
    let answer = client.send_request(get(HOST, "/")).await.unwrap();
    assert!(answer.into_body().collect().await.is_err(), "it must not look whole");
    let reply = house.ask(HOST, get(HOST, "/")).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::BAD_GATEWAY, "unreachable")
    );
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_does_not_begin_to_answer_is_not_waited_for() {
    let house = House::new(&[("bound", BEARER)]);
    let upstream = Bare::start(&house).await;
    let (told, mut asked) = tokio::sync::mpsc::channel(1);
    house.tasks.spawn_until_stopped(async move {
        let _stream = upstream.asked().await;
        told.send(()).await.unwrap();
        std::future::pending::<()>().await;
    });
    let reply = house.ask(HOST, get(HOST, "/")).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::GATEWAY_TIMEOUT, "too_slow")
    );
    assert!(asked.recv().await.is_some(), "it was asked");
    assert_eq!(house.refusal().await, Code::TooSlow);
}

#[tokio::test]
async fn a_body_has_the_limit_of_its_rule() {
    let house = House::new(&[("bound", "body_limit = 1000")]);
    let bound = house.upstream(HOST, echo).await;
    let most = request("POST", HOST, "/", &[], &"x".repeat(1000));
    assert_eq!(house.ask(HOST, most).await.status, StatusCode::OK);
    let more = request("POST", HOST, "/", &[], &"x".repeat(1001));
    let reply = house.ask(HOST, more).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::PAYLOAD_TOO_LARGE, "too_large")
    );
    assert_eq!(bound.seen().len(), 1);
}

#[tokio::test]
async fn threat_017_a_session_has_so_many_requests_at_once_and_others_are_not_held_up() {
    let house = House::new(&[("bound", BEARER)]);
    let _bound = house
        .upstream(HOST, |seen| {
            if seen.target == "/wait" {
                Answer::new(StreamBody::new(futures::stream::pending()).boxed_unsync())
            } else {
                text("fine")
            }
        })
        .await;
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let client = house.many(HOST).await;
        for _ in 0..64 {
            let asked = request2("GET", "https://api.bound.test/wait", &[], "");
            waiting.push(client.clone().send_request(asked).await.unwrap());
        }
    }
    assert_eq!(
        waiting.iter().filter(|reply| reply.status() == StatusCode::OK).count(),
        256
    );
    let reply = house.ask(HOST, get(HOST, "/")).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::TOO_MANY_REQUESTS, "too_many_requests")
    );
    let mut decided = house.decided(egress::Scheme::Https, HOST, 443);
    decided.session = domain::SessionId::new();
    let name = rustls::pki_types::ServerName::try_from(HOST).unwrap();
    let stream = house
        .client(b"http/1.1")
        .connect(name, house.open(decided))
        .await
        .unwrap();
    let mut other = house.one_on(stream).await;
    assert_eq!(
        read(other.send_request(get(HOST, "/")).await.unwrap()).await.body,
        "fine"
    );
}

#[tokio::test]
async fn threat_053_a_client_that_does_not_take_the_certificate_fails_closed_with_words() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream(HOST, echo).await;
    let (near, far) = tokio::io::duplex(64 * 1024);
    let carried = house
        .intercept
        .carry(house.decided(egress::Scheme::Https, HOST, 443), far);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(house.theirs.certificate()).unwrap();
    let pinned = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(pinned));
    let name = rustls::pki_types::ServerName::try_from(HOST).unwrap();
    let (denied, connected) = tokio::join!(carried, connector.connect(name, near));
    assert!(connected.is_err());
    let denied = denied.unwrap_err();
    assert_eq!(denied.code, Code::Handshake);
    assert!(denied.remedy.contains("SSL_CERT_FILE"));
    assert_eq!(bound.connections(), 0);
}

#[tokio::test]
async fn what_is_sent_is_what_arrives_byte_for_byte() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream(HOST, |seen| text(seen.body.clone())).await;
    let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let sent = Bytes::from(bytes);
    let whole = http::Request::builder()
        .method("PUT")
        .uri("/")
        .header("host", HOST)
        .body(Full::new(sent.clone()))
        .unwrap();
    let mut client = house.one(HOST).await;
    let answer = client
        .send_request(whole)
        .await
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes();
    assert!(answer == sent);
    assert!(bound.only().body == sent);
    let record = &house.records(1).await[0];
    assert_eq!((record.sent, record.received), (12_000_000, 12_000_000));
}
