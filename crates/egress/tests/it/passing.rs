//! What passes, passes as it is.

use domain::SessionId;
use egress::Outcome;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::rig::{World, exchange};

const PASSED: &str = r#"
    [passed]
    hosts = ["passed.test:*", "**.wide.test:*"]
    networks = ["127.0.0.0/8"]
"#;

#[tokio::test]
async fn tls_passes_to_the_server_that_it_means() {
    let world = World::new(PASSED);
    let server = world.tls_echo("passed.test").await;
    let session = SessionId::new();
    world.broker.resolve(session, "passed.test").unwrap();
    assert!(
        world.names.asked().is_empty(),
        "a question is answered without asking anybody"
    );
    let tunnel = world.tunnel(session, "passed.test", server.port()).unwrap();
    // The client trusts the upstream's own authority, and would see if anybody else answered.
    let stream = world.tls(tunnel, "passed.test", world.upstream_roots()).await.unwrap();
    assert_eq!(exchange(stream, b"hello").await.unwrap(), b"hello");
    assert_eq!(world.names.asked(), ["passed.test"]);
    let told = world.told().await;
    assert_eq!(
        (told.host.as_str(), told.protocol, told.rule.as_deref()),
        ("passed.test", "tls", Some("passed"))
    );
    assert_eq!(told.outcome, Outcome::Allowed);
    assert!(told.sent > 100 && told.received > 100, "{told:?}");
}

#[tokio::test]
async fn threat_053_a_client_that_pins_a_certificate_passes_where_nothing_is_read() {
    let world = World::new(PASSED);
    let server = world.tls_echo("passed.test").await;
    let tunnel = world.tunnel(SessionId::new(), "passed.test", server.port()).unwrap();
    let stream = world.tls(tunnel, "passed.test", world.upstream_roots()).await.unwrap();
    let (_, connection) = stream.get_ref();
    let shown = connection.peer_certificates().unwrap()[0].clone();
    assert!(
        !world.broker.authorities().unwrap().contains("passed.test") && !shown.is_empty(),
        "the certificate is the server's own"
    );
    drop(stream);
    // Whoever trusts only the sandbox's authorities sees that it is not one of theirs.
    let tunnel = world.tunnel(SessionId::new(), "passed.test", server.port()).unwrap();
    world
        .tls(tunnel, "passed.test", world.sandbox_roots())
        .await
        .unwrap_err();
}

#[tokio::test]
async fn much_passes_both_ways_and_each_end_may_close_alone() {
    let world = World::new(PASSED);
    let server = world.tls_echo("passed.test").await;
    let tunnel = world.tunnel(SessionId::new(), "passed.test", server.port()).unwrap();
    let stream = world.tls(tunnel, "passed.test", world.upstream_roots()).await.unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    let sending = async {
        write.write_all(&bytes).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut heard = Vec::new();
    let (_, received) = tokio::join!(sending, read.read_to_end(&mut heard));
    received.unwrap();
    assert_eq!(heard.len(), bytes.len());
    assert!(heard == bytes);
}

#[tokio::test]
async fn what_a_rule_calls_tcp_passes_unread_and_the_server_may_speak_first() {
    let world = World::new(
        r#"
        [mail]
        hosts = ["mail.test:*"]
        schemes = ["tcp"]
        networks = ["127.0.0.1"]
    "#,
    );
    let server = world
        .server(|mut stream| async move {
            stream.write_all(b"220 mail.test at your service\r\n").await?;
            stream.shutdown().await
        })
        .await;
    world.names.lead("mail.test", "127.0.0.1");
    let mut tunnel = world.tunnel(SessionId::new(), "mail.test", server.port()).unwrap();
    let mut heard = String::new();
    tunnel.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "220 mail.test at your service\r\n");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told() {
    let world = World::new(PASSED);
    world.names.lead("passed.test", "127.0.0.1");
    // Taken, and nobody listens.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = held.local_addr().unwrap().port();
    let tunnel = world.tunnel(SessionId::new(), "passed.test", port).unwrap();
    world
        .tls(tunnel, "passed.test", world.upstream_roots())
        .await
        .unwrap_err();
    assert_eq!(world.told_denied().await, ("tls", "unreachable"));
}
