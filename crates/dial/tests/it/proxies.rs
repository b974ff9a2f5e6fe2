//! Ways that lead through a proxy, which speaks the real protocol and checks what it is told.

use std::net::SocketAddr;

use dial::{Allow, DialError, Login, Proxy, ProxyError, ProxyKind};
use lifecycle::Tasks;
use secret::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::{Table, dialer, greeter, heard};

const USER: &str = "belljar";
const PASSWORD: &str = "open sesame";

fn proxy(kind: ProxyKind, at: SocketAddr, password: Option<&str>) -> Proxy {
    Proxy {
        kind,
        host: "proxy.test".to_owned(),
        port: at.port(),
        login: password.map(|password| Login {
            user: USER.to_owned(),
            password: Secret::new(password),
        }),
    }
}

/// The name that only a proxy knows.
const GOAL: &str = "db.tailnet.test";

/// A proxy that connects whoever logs in with `goal`, and answers in the same packet as the goal's first words.
async fn listening(tasks: &Tasks, kind: ProxyKind, goal: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tasks.spawn_until_stopped(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            match kind {
                ProxyKind::Http => connect(stream, goal).await,
                ProxyKind::Socks5 => socks(stream, goal).await,
            }
        }
    });
    at
}

async fn connect(mut near: TcpStream, goal: SocketAddr) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(near.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let lines: Vec<_> = head.lines().collect();
    let place = format!("{GOAL}:{}", goal.port());
    assert_eq!(lines[0], format!("CONNECT {place} HTTP/1.1"));
    assert_eq!(lines[1], format!("Host: {place}"));
    let answer = match lines[2] {
        // belljar:open sesame
        "Proxy-Authorization: Basic YmVsbGphcjpvcGVuIHNlc2FtZQ==" => "HTTP/1.1 200 Connected\r\nVia: test\r\n\r\n",
        "" => "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
        _ => "HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n",
    };
    pass(near, answer.as_bytes(), answer.contains("200"), goal).await;
}

async fn socks(mut near: TcpStream, goal: SocketAddr) {
    let (version, methods) = (near.read_u8().await.unwrap(), near.read_u8().await.unwrap());
    assert_eq!(version, 5);
    let mut offered = vec![0; usize::from(methods)];
    near.read_exact(&mut offered).await.unwrap();
    if !offered.contains(&2) {
        near.write_all(&[5, 0xff]).await.unwrap();
        return;
    }
    near.write_all(&[5, 2]).await.unwrap();
    assert_eq!(near.read_u8().await.unwrap(), 1);
    let user = word(&mut near).await;
    let password = word(&mut near).await;
    if (user.as_str(), password.as_str()) != (USER, PASSWORD) {
        near.write_all(&[1, 1]).await.unwrap();
        return;
    }
    near.write_all(&[1, 0]).await.unwrap();
    let mut request = [0; 4];
    near.read_exact(&mut request).await.unwrap();
    assert_eq!(request, [5, 1, 0, 3], "connect, to a name");
    assert_eq!(word(&mut near).await, GOAL);
    assert_eq!(near.read_u16().await.unwrap(), goal.port());
    pass(near, &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0], true, goal).await;
}

async fn word(stream: &mut TcpStream) -> String {
    let length = stream.read_u8().await.unwrap();
    let mut word = vec![0; usize::from(length)];
    stream.read_exact(&mut word).await.unwrap();
    String::from_utf8(word).unwrap()
}

async fn pass(mut near: TcpStream, answer: &[u8], opens: bool, goal: SocketAddr) {
    if !opens {
        near.write_all(answer).await.unwrap();
        return;
    }
    let mut far = TcpStream::connect(goal).await.unwrap();
    let mut first = answer.to_vec();
    first.push(far.read_u8().await.unwrap());
    near.write_all(&first).await.unwrap();
    let _ = copy_bidirectional(&mut near, &mut far).await;
}

#[tokio::test]
async fn a_proxy_leads_on_and_a_server_that_speaks_first_is_heard() {
    for kind in [ProxyKind::Http, ProxyKind::Socks5] {
        let tasks = Tasks::new();
        let goal = greeter(&tasks, "127.0.0.1", "SSH-2.0-test").await;
        let at = listening(&tasks, kind, goal).await;
        let table = Table::new([("proxy.test", ["127.0.0.1"].as_slice())]);
        let stream = dialer(&table)
            .dial(
                GOAL,
                goal.port(),
                &Allow::default(),
                Some(&proxy(kind, at, Some(PASSWORD))),
            )
            .await
            .unwrap();
        assert_eq!(heard(stream).await, "SSH-2.0-test", "{kind:?}");
        assert_eq!(
            table.asked(),
            ["proxy.test"],
            "the goal's name is the proxy's to resolve"
        );
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_is_quoted_without_the_password() {
    for (kind, password, expected) in [
        (ProxyKind::Http, Some("wrong"), ProxyError::Login),
        (ProxyKind::Http, None, ProxyError::Status(503)),
        (ProxyKind::Socks5, Some("wrong"), ProxyError::Login),
        (ProxyKind::Socks5, None, ProxyError::Login),
    ] {
        let tasks = Tasks::new();
        let goal = greeter(&tasks, "127.0.0.1", "hello").await;
        let at = listening(&tasks, kind, goal).await;
        let table = Table::new([("proxy.test", ["127.0.0.1"].as_slice())]);
        let proxy = proxy(kind, at, password);
        let refused = dialer(&table)
            .dial(GOAL, goal.port(), &Allow::default(), Some(&proxy))
            .await;
        let Err(error @ DialError::Proxy { .. }) = refused else {
            panic!("{kind:?} {password:?}: {refused:?}");
        };
        let said = format!("{error:?}");
        assert!(said.contains(&format!("{expected:?}")), "{said}");
        assert!(!said.contains("wrong"), "{said}");
    }
}

#[tokio::test]
async fn an_address_is_no_more_allowed_through_a_proxy() {
    let tasks = Tasks::new();
    let goal = greeter(&tasks, "127.0.0.1", "hello").await;
    let at = listening(&tasks, ProxyKind::Http, goal).await;
    let table = Table::new([("proxy.test", ["127.0.0.1"].as_slice())]);
    let proxy = proxy(ProxyKind::Http, at, Some(PASSWORD));
    let refused = dialer(&table)
        .dial("169.254.169.254", 80, &Allow::default(), Some(&proxy))
        .await;
    assert!(matches!(refused, Err(DialError::Refused { .. })), "{refused:?}");
    assert!(table.asked().is_empty(), "not even the proxy was looked for");
}
