//! Hosts to which a rule's proxy leads.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use domain::SessionId;
use egress::Outcome;
use lifecycle::Tasks;
use secret::{Reference, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::{Setting, World, exchange};

/// A proxy that leads to `goal` whoever asks for the host behind it by name; gives what it was asked, and by whom.
async fn proxy(tasks: &Tasks, scheme: &str, goal: Arc<std::sync::OnceLock<SocketAddr>>) -> (SocketAddr, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let asked = Asked::default();
    let (noting, speaks_http) = (Arc::clone(&asked), scheme == "http");
    tasks.spawn_until_stopped(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let noted = if speaks_http {
                connect(&mut near).await
            } else {
                socks(&mut near).await
            };
            noting.lock().unwrap().push(noted.unwrap());
            let mut far = TcpStream::connect(goal.get().unwrap()).await.unwrap();
            // Ends when one of both hangs up.
            let _ = copy_bidirectional(&mut near, &mut far).await;
        }
    });
    (at, asked)
}

/// What a proxy was asked for, and the password that it was shown.
type Asked = Arc<std::sync::Mutex<Vec<(String, String)>>>;

/// Accepts a CONNECT of HTTP (RFC 9110, 9.3.6).
async fn connect(near: &mut TcpStream) -> std::io::Result<(String, String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(near.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let after = |start: &str| {
        head.lines()
            .find_map(|line| line.strip_prefix(start))
            .unwrap_or_default()
    };
    let goal = after("CONNECT ").strip_suffix(" HTTP/1.1").unwrap_or_default();
    let shown = match after("Proxy-Authorization: Basic ") {
        "YmVsbGphcjpvcGVuIHNlc2FtZQ==" => "belljar:open sesame",
        other => other,
    };
    let asked = (goal.to_owned(), shown.to_owned());
    near.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
    Ok(asked)
}

/// Accepts a request of SOCKS 5 to a name (RFC 1928), after the user's name and password (RFC 1929).
async fn socks(near: &mut TcpStream) -> std::io::Result<(String, String)> {
    assert_eq!(near.read_u8().await?, 5, "the version");
    let methods = word(near).await?;
    assert!(methods.contains('\u{2}'), "a password is offered: {methods:?}");
    near.write_all(&[5, 2]).await?;
    assert_eq!(near.read_u8().await?, 1, "the version of logging in");
    let shown = format!("{}:{}", word(near).await?, word(near).await?);
    near.write_all(&[1, 0]).await?;
    let mut request = [0; 4];
    near.read_exact(&mut request).await?;
    assert_eq!(request, [5, 1, 0, 3], "connect, to a name");
    let goal = format!("{}:{}", word(near).await?, near.read_u16().await?);
    near.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    Ok((goal, shown))
}

/// Bytes behind their number.
async fn word(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut word = vec![0; usize::from(stream.read_u8().await?)];
    stream.read_exact(&mut word).await?;
    Ok(String::from_utf8(word).unwrap())
}

/// A world in which a proxy alone leads to `inner.test`, where this password is known.
async fn behind_a_proxy(scheme: &str, password: Option<&str>) -> (World, SocketAddr, Asked) {
    let (tasks, goal) = (Tasks::new(), Arc::default());
    let (at, asked) = proxy(&tasks, scheme, Arc::clone(&goal)).await;
    let rules = format!(
        "[inner]\nhosts = [\"inner.test:*\"]\nproxy = {{ url = \"{scheme}://{at}\", user = \"belljar\", password = \"env:PROXY\" }}"
    );
    let reference: Reference = "env:PROXY".parse().unwrap();
    let secrets = password.map(|password| (reference, Secret::new(password)));
    let setting = Setting {
        secrets: BTreeMap::from_iter(secrets),
        ..Setting::default()
    };
    let world = World::with(&rules, setting);
    let server = world.tls_echo("inner.test").await;
    goal.set(server).unwrap();
    world.tasks.spawn_until_stopped(async move {
        // It lives as long as the world does.
        let _tasks = tasks;
        std::future::pending::<()>().await;
    });
    (world, server, asked)
}

#[tokio::test]
async fn a_rules_proxy_is_the_only_way_to_its_hosts_and_is_logged_in_to() {
    for scheme in ["http", "socks5"] {
        let (world, server, asked) = behind_a_proxy(scheme, Some("open sesame")).await;
        let tunnel = world.tunnel(SessionId::new(), "inner.test", server.port()).unwrap();
        let stream = world.tls(tunnel, "inner.test", world.upstream_roots()).await.unwrap();
        assert_eq!(exchange(stream, b"hello").await.unwrap(), b"hello");
        let asked = asked.lock().unwrap().clone();
        let expected = (
            format!("inner.test:{}", server.port()),
            "belljar:open sesame".to_owned(),
        );
        assert_eq!(asked, [expected], "{scheme}");
        let told = world.told().await;
        assert_eq!((told.rule.as_deref(), told.outcome), (Some("inner"), Outcome::Allowed));
    }
}

#[tokio::test]
async fn without_its_password_a_proxy_is_not_asked_and_nothing_goes_past_it() {
    for scheme in ["http", "socks5"] {
        let (world, server, asked) = behind_a_proxy(scheme, None).await;
        let tunnel = world.tunnel(SessionId::new(), "inner.test", server.port()).unwrap();
        world
            .tls(tunnel, "inner.test", world.upstream_roots())
            .await
            .unwrap_err();
        assert_eq!(world.told_denied().await, ("tls", "no_secret"));
        assert!(asked.lock().unwrap().is_empty());
    }
}
