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

/// A proxy that leads to `goal` whoever logs in and asks for the host behind it by name; gives what it was asked.
async fn proxy(tasks: &Tasks, goal: Arc<std::sync::OnceLock<SocketAddr>>) -> (SocketAddr, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let asked = Asked::default();
    let noting = Arc::clone(&asked);
    tasks.spawn_until_stopped(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(near.read_u8().await.unwrap());
            }
            noting.lock().unwrap().push(String::from_utf8(head).unwrap());
            near.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.unwrap();
            let mut far = TcpStream::connect(goal.get().unwrap()).await.unwrap();
            // Ends when one of both hangs up.
            let _ = copy_bidirectional(&mut near, &mut far).await;
        }
    });
    (at, asked)
}

type Asked = Arc<std::sync::Mutex<Vec<String>>>;

/// A world in which a proxy alone leads to `inner.test`, where this password is known.
async fn behind_a_proxy(password: Option<&str>) -> (World, SocketAddr, Asked) {
    let (tasks, goal) = (Tasks::new(), Arc::default());
    let (at, asked) = proxy(&tasks, Arc::clone(&goal)).await;
    let rules = format!(
        "[inner]\nhosts = [\"inner.test:*\"]\nproxy = {{ url = \"http://{at}\", user = \"belljar\", password = \"env:PROXY\" }}"
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
    let (world, server, asked) = behind_a_proxy(Some("open sesame")).await;
    let tunnel = world.tunnel(SessionId::new(), "inner.test", server.port()).unwrap();
    let stream = world.tls(tunnel, "inner.test", world.upstream_roots()).await.unwrap();
    assert_eq!(exchange(stream, b"hello").await.unwrap(), b"hello");
    let asked = asked.lock().unwrap().clone();
    let [head] = asked.as_slice() else { panic!("{asked:?}") };
    assert!(
        head.starts_with(&format!("CONNECT inner.test:{} HTTP/1.1\r\n", server.port())),
        "{head}"
    );
    // belljar:open sesame
    assert!(
        head.contains("\r\nProxy-Authorization: Basic YmVsbGphcjpvcGVuIHNlc2FtZQ==\r\n"),
        "{head}"
    );
    let told = world.told().await;
    assert_eq!((told.rule.as_deref(), told.outcome), (Some("inner"), Outcome::Allowed));
}

#[tokio::test]
async fn without_its_password_a_proxy_is_not_asked_and_nothing_goes_past_it() {
    let (world, server, asked) = behind_a_proxy(None).await;
    let tunnel = world.tunnel(SessionId::new(), "inner.test", server.port()).unwrap();
    world
        .tls(tunnel, "inner.test", world.upstream_roots())
        .await
        .unwrap_err();
    assert_eq!(world.told_denied().await, ("tls", "no_secret"));
    assert!(asked.lock().unwrap().is_empty());
}
