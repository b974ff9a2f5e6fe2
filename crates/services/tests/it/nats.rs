//! The package `nats` against a real server. Debian's package nats-server.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use dial::{Dialer, SystemResolver};
use domain::{SessionId, UserId};
use lifecycle::Tasks;
use serde_json::Value;
use serde_json::value::RawValue;
use services::{Call, Catalogue, ServiceSettings, Services, Trust};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::guard;

/// A server that ends with the test, its ports for clients and for watching.
struct Nats {
    child: Child,
    client: u16,
    http: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server on free ports, which it writes into a file.
async fn nats() -> Nats {
    let folder = tempfile::tempdir().unwrap();
    let child = Command::new("nats-server")
        .args([
            "--addr",
            "127.0.0.1",
            "--port",
            "-1",
            "--http_port",
            "-1",
            "--jetstream",
        ])
        .arg("--store_dir")
        .arg(folder.path().join("store"))
        .arg("--ports_file_dir")
        .arg(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nats-server is installed: scripts/prepare does it");
    let file = folder.path().join(format!("nats-server_{}.ports", child.id()));
    let ports = loop {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if let Ok(ports) = serde_json::from_str::<Value>(&text) {
            break ports;
        }
        tokio::task::yield_now().await;
    };
    let port = |kind: &str| -> u16 {
        let url = ports[kind][0].as_str().unwrap();
        url.rsplit(':').next().unwrap().parse().unwrap()
    };
    let (client, http) = (port("nats"), port("monitoring"));
    Nats {
        child,
        client,
        http,
        _folder: folder,
    }
}

/// A client of the server: says who it is, then this, and waits until all of it was taken.
async fn client(port: u16, name: &str, say: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let hello =
        format!("CONNECT {{\"verbose\":false,\"name\":{name:?},\"lang\":\"rust\",\"version\":\"1\"}}\r\n{say}PING\r\n");
    stream.write_all(hello.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    while !heard.windows(6).any(|bytes| bytes == b"PONG\r\n") {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&heard));
        heard.extend_from_slice(&buffer[..read]);
    }
    stream
}

/// A request to JetStream, and the acknowledged end of it.
fn request(subject: &str, body: &str) -> String {
    format!("SUB _INBOX.x 1\r\nPUB {subject} _INBOX.x {}\r\n{body}\r\n", body.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_package_nats_watches_a_real_server() {
    let nats = nats().await;
    let _one = client(nats.client, "one", "SUB a 1\r\nSUB b 2\r\n").await;
    let _two = client(nats.client, "two", "").await;
    let stream = r#"{"name":"ORDERS","subjects":["orders"],"storage":"memory","retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,"num_replicas":1,"discard":"old"}"#;
    let consumer = r#"{"stream_name":"ORDERS","config":{"durable_name":"mail","deliver_policy":"all","ack_policy":"explicit","replay_policy":"instant"}}"#;
    let mut making = client(nats.client, "making", &request("$JS.API.STREAM.CREATE.ORDERS", stream)).await;
    for say in [
        request("$JS.API.CONSUMER.DURABLE.CREATE.ORDERS.mail", consumer),
        "PUB orders 2\r\nhi\r\nPUB orders 2\r\nho\r\n".to_owned(),
    ] {
        making = client(nats.client, "making", &say).await;
    }
    drop(making);

    let (catalogue, mistakes) = Catalogue::load(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("../../services")]);
    assert!(mistakes.is_empty(), "{mistakes:?}");
    let settings = ServiceSettings {
        base_url: Some(format!("http://127.0.0.1:{}", nats.http)),
        addresses: vec!["127.0.0.0/8".parse().unwrap()],
        ..ServiceSettings::default()
    };
    let dialer = Dialer::new(Arc::new(SystemResolver::default()), dial::Settings::default());
    let secrets = Arc::new(BTreeMap::<secret::Reference, secret::Secret>::new());
    let settings = BTreeMap::from([("nats".to_owned(), settings)]);
    let trust = Trust::only(b"").unwrap();
    let (services, _) = Services::new(&catalogue, &settings, secrets, dialer, trust, Tasks::new(), guard()).unwrap();
    let ask = async |method: &str, arguments: &str| -> Value {
        let arguments = RawValue::from_string(arguments.to_owned()).unwrap();
        let call = Call {
            session: SessionId::new(),
            user: UserId::new(),
            service: "nats",
            method,
            arguments: &arguments,
            idempotency_key: None,
        };
        let answer = services.call(call).await.unwrap().whole().await.unwrap();
        let value = serde_json::from_slice(&answer).unwrap();
        let schema = catalogue.service("nats").unwrap().methods[method]
            .result
            .as_ref()
            .unwrap();
        assert!(jsonschema::is_valid(schema.value(), &value), "{method}: {value}");
        value
    };

    let server = ask("getServer", "{}").await;
    assert_eq!(
        (server["health"].as_str(), server["slowConsumers"].as_u64()),
        (Some("ok"), Some(0))
    );
    assert!(server["jetstream"].is_object(), "{server}");
    let connections = ask("listConnections", "{}").await;
    let items = connections["items"].as_array().unwrap();
    let one = items.iter().find(|connection| connection["name"] == "one").unwrap();
    assert_eq!(
        (one["subscriptions"].as_u64(), one["client"].as_str()),
        (Some(2), Some("rust 1"))
    );
    assert!(connections["next"].is_null());
    assert_eq!(ask("findSlowConnections", "{}").await, serde_json::json!([]));
    // What was published is stored in the server's own time.
    let streams = loop {
        let streams = ask("listStreams", "{}").await;
        if streams[0]["messages"] == 2 {
            break streams;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(
        (streams[0]["name"].as_str(), streams[0]["consumers"].as_u64()),
        (Some("ORDERS"), Some(1))
    );
    let consumers = ask("listConsumers", r#"{"stream":"ORDERS","leastPending":1}"#).await;
    assert_eq!(
        (consumers[0]["name"].as_str(), consumers[0]["pending"].as_u64()),
        (Some("mail"), Some(2))
    );
}
