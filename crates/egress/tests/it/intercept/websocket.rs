//! WebSockets.

use std::sync::{Arc, Mutex};

use egress::Outcome;
use futures::{SinkExt as _, StreamExt as _};
use http::StatusCode;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::house::{House, PLACEHOLDER, SECRET};

const HOST: &str = "ws.bound.test";
const RULE: &str = "inject = [{ kind = \"bearer\", secret = \"env:TOKEN\" }]\nmethods = [\"GET\"]\npaths = [\"/live\"]";

/// What a server was told.
type Told<T> = Arc<Mutex<Vec<T>>>;

/// A server that repeats every message, and the secret of its handshake; it knows compression.
async fn server(house: &House) -> (Told<Request>, Told<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    house.place(HOST, listener.local_addr().unwrap());
    let mut config = house.theirs.server(HOST, |_| {});
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (handshakes, messages) = (Told::<Request>::default(), Told::<String>::default());
    let (seen, heard) = (Arc::clone(&handshakes), Arc::clone(&messages));
    house.tasks.spawn_until_stopped(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            #[allow(clippy::result_large_err, reason = "the signature is tungstenite's")]
            let callback = |request: &Request, mut response: Response| {
                if let Some(shown) = request.headers().get("authorization") {
                    response.headers_mut().insert("x-echo", shown.clone());
                }
                seen.lock().unwrap().push(request.clone());
                Ok(response)
            };
            let Ok(mut socket) = tokio_tungstenite::accept_hdr_async(stream, callback).await else {
                continue;
            };
            let _ = socket.send(Message::text(format!("you sent {SECRET}"))).await;
            while let Some(Ok(message)) = socket.next().await {
                heard.lock().unwrap().extend(message.to_text().map(str::to_owned));
                if message.is_text() && socket.send(message).await.is_err() {
                    break;
                }
            }
        }
    });
    (handshakes, messages)
}

#[tokio::test]
async fn threat_036_the_credential_is_in_the_handshake_and_nowhere_else() {
    let house = House::new(&[("bound", RULE)]);
    let (handshakes, _) = server(&house).await;
    let stream = house.tls(HOST, b"http/1.1").await;
    let mut request = format!("wss://{HOST}/live").into_client_request().unwrap();
    let extensions = "permessage-deflate; client_max_window_bits".parse().unwrap();
    request.headers_mut().insert("sec-websocket-extensions", extensions);
    let (mut socket, response) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    assert_eq!(
        response.headers()["x-echo"],
        format!("Bearer {}", "*".repeat(SECRET.len()))
    );
    let first = socket.next().await.unwrap().unwrap();
    assert_eq!(
        first.to_text().unwrap(),
        format!("you sent {}", "*".repeat(SECRET.len()))
    );
    for text in ["one", "two"] {
        socket.send(Message::text(text)).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap().to_text().unwrap(), text);
    }
    let handshake = handshakes.lock().unwrap()[0].clone();
    assert_eq!(handshake.headers()["authorization"], format!("Bearer {SECRET}"));
    assert!(handshake.headers().get("sec-websocket-extensions").is_none());
    socket.close(None).await.unwrap();
    while socket.next().await.is_some() {}
    drop(socket);
    let record = &house.records(1).await[0];
    assert_eq!(record.outcome, Outcome::Allowed);
    assert_eq!(record.request.as_ref().unwrap().status, 101);
    assert!(record.sent > 0 && record.received > 0);
}

#[tokio::test]
async fn threat_036_the_rule_holds_for_handshakes() {
    let house = House::new(&[("bound", RULE)]);
    let (handshakes, _) = server(&house).await;
    let stream = house.tls(HOST, b"http/1.1").await;
    let refused = tokio_tungstenite::client_async(format!("wss://{HOST}/other"), stream).await;
    let Err(Error::Http(response)) = refused else {
        panic!("it was not refused")
    };
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(handshakes.lock().unwrap().is_empty());
}

#[tokio::test]
async fn threat_036_what_is_said_is_looked_at_only_where_the_rule_says_so() {
    let fills = "inject = [{ kind = \"body\", secret = \"env:TOKEN\" }]";
    let house = House::new(&[("bound", RULE)]);
    let (handshakes, messages) = server(&house).await;
    let said = format!(r#"{{"op":"identify","token":"{PLACEHOLDER}"}}"#);
    let as_json = serde_json::json!({ "op": "identify", "token": SECRET }).to_string();
    for (generation, rule, arrives) in [(1, RULE, &said), (2, fills, &as_json)] {
        house.change(generation, &[("bound", rule)]);
        let stream = house.tls(HOST, b"http/1.1").await;
        let mut request = format!("wss://{HOST}/live").into_client_request().unwrap();
        let extensions = "permessage-deflate".parse().unwrap();
        request.headers_mut().insert("sec-websocket-extensions", extensions);
        let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
        socket.next().await.unwrap().unwrap();
        socket.send(Message::text(said.clone())).await.unwrap();
        let echoed = socket.next().await.unwrap().unwrap();
        assert!(
            !echoed.to_text().unwrap().contains(SECRET),
            "what comes back is masked: {echoed}"
        );
        assert_eq!(messages.lock().unwrap().last(), Some(arrives));
        let handshake = handshakes.lock().unwrap().last().unwrap().clone();
        assert!(handshake.headers().get("sec-websocket-extensions").is_none());
    }
}

#[tokio::test]
async fn threat_012_a_websocket_ends_with_the_connection_that_carries_it() {
    let house = House::new(&[("bound", RULE)]);
    server(&house).await;
    let (near, far) = tokio::io::duplex(64 * 1024);
    let decided = house.decided(egress::Scheme::Https, HOST, 443);
    let intercept = house.intercept.clone();
    let carried = house.tasks.spawn(async move { intercept.carry(decided, far).await });
    let name = rustls::pki_types::ServerName::try_from(HOST).unwrap();
    let stream = house.client(b"http/1.1").connect(name, near).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(format!("wss://{HOST}/live"), stream)
        .await
        .unwrap();
    socket.next().await.unwrap().unwrap();
    socket.send(Message::text("still here")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap().to_text().unwrap(), "still here");
    assert!(!carried.is_finished(), "whoever carries it can end it");
    carried.abort();
    assert!(socket.next().await.is_none_or(|message| message.is_err()));
    house.records(1).await;
}
