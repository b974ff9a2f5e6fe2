//! Who may speak, and what happens to those who speak nonsense.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use domain::InstallationId;
use lifecycle::Tasks;
use sandbox::SandboxProvider;

use crate::agent::{Agent, simulator};

const HELLO: &str = r#"{"protocol":1,"build":"test"}"#;
const BELLJAR: u32 = 61_234;
const STRANGER: u32 = 61_235;

fn dial(socket: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

/// Says something, and hears everything until the other side ends the connection.
fn converse(mut stream: UnixStream, say: &[u8]) -> String {
    // The other side may have hung up before it heard everything.
    let _ = stream.write_all(say);
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    String::from_utf8(heard).unwrap()
}

/// Does something as another user, in a thread of its own.
async fn as_user<T: Send + 'static>(uid: u32, act: impl FnOnce() -> T + Send + 'static) -> T {
    let acting = std::thread::spawn(move || {
        let uid = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        act()
    });
    testkit::eventually_async("the other user", async || acting.is_finished().then_some(())).await;
    acting.join().unwrap()
}

#[tokio::test]
async fn only_the_named_user_and_root_are_served() {
    let agent = Agent::start(Arc::new(simulator()), BELLJAR);
    let socket = agent.socket();
    std::fs::set_permissions(socket.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let list = format!("{HELLO}\n{{\"number\":5,\"order\":\"list\"}}\n");
    let listing = |socket: std::path::PathBuf| {
        let list = list.clone();
        move || {
            let mut stream = dial(&socket)?;
            // Who is refused may find the door shut already; what was said can be heard all the same.
            let _ = stream.write_all(list.as_bytes());
            let mut lines = BufReader::new(stream).lines();
            Ok::<_, std::io::Error>((lines.next().unwrap()?, lines.next().and_then(Result::ok)))
        }
    };
    for uid in [BELLJAR, 0] {
        let (hello, reply) = as_user(uid, listing(socket.clone())).await.unwrap();
        assert!(hello.contains(r#""protocol":2"#), "{hello}");
        assert_eq!(reply.unwrap(), r#"{"reply":{"number":5,"answer":{"statuses":[]}}}"#);
    }
    // The file system is the first wall.
    let refused = as_user(STRANGER, listing(socket.clone())).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    // The kernel's word is the second, should the first be open.
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let (refused, more) = as_user(STRANGER, listing(socket)).await.unwrap();
    assert!(
        refused.contains("serves the user with id 61234 and root, and you are 61235"),
        "{refused}"
    );
    assert_eq!(more, None);
}

#[tokio::test]
async fn nonsense_is_refused_in_words_and_harms_nobody() {
    let agent = Agent::start(Arc::new(simulator()), 0);
    let tasks = Tasks::new();
    let client = agent.client(&tasks);

    let long = format!("{HELLO}\n{}", "x".repeat(100_000));
    for (say, words) in [
        ("GET / HTTP/1.1\n".to_owned(), "no hello"),
        (
            "{\"protocol\":2,\"build\":\"test\"}\n".to_owned(),
            "of which installation you are",
        ),
        (
            "{\"protocol\":0,\"build\":\"test\"}\n".to_owned(),
            "run the same release of Belljar on both sides",
        ),
        (format!("{HELLO}\nnonsense\n"), "no order"),
        (
            format!("{HELLO}\n{{\"number\":1,\"order\":{{\"exec\":[\"sh\"]}}}}\n"),
            "no order",
        ),
        (
            format!("{HELLO}\n{{\"number\":1,\"order\":{{\"link\":\"../../etc/passwd\"}}}}\n"),
            "no order",
        ),
        (format!("{HELLO}\n\u{0}\u{1}\n"), "no order"),
        (long, "longer than"),
    ] {
        let socket = agent.socket();
        let hearing = tokio::task::spawn_blocking(move || converse(dial(&socket).unwrap(), say.as_bytes()));
        let heard = testkit::within("the refusal", hearing).await.unwrap();
        assert!(
            heard.contains(r#"{"refused":""#) && heard.contains(words),
            "{words}: {heard}"
        );
    }
    // One that goes away in the middle of a word, or says nothing at all.
    drop(dial(&agent.socket()).unwrap());
    let mut half = dial(&agent.socket()).unwrap();
    half.write_all(&HELLO.as_bytes()[..7]).unwrap();
    drop(half);
    assert_eq!(testkit::within("the list", client.list()).await.unwrap(), []);
}

#[tokio::test]
async fn a_crowd_is_told_that_there_is_no_room() {
    let agent = Agent::start(Arc::new(simulator()), 0);
    let mut crowd = Vec::new();
    let socket = agent.socket();
    let last = tokio::task::spawn_blocking(move || {
        for _ in 0..40 {
            let mut line = String::new();
            let stream = dial(&socket).unwrap();
            BufReader::new(stream.try_clone().unwrap())
                .read_line(&mut line)
                .unwrap();
            crowd.push(stream);
            if line.contains("refused") {
                return line;
            }
        }
        "everybody was let in".to_owned()
    });
    let last = testkit::within("the refusal", last).await.unwrap();
    assert!(last.contains("32 connections"), "{last}");
}

#[tokio::test]
async fn a_newer_release_is_served_because_it_decides_for_both() {
    let agent = Agent::start(Arc::new(simulator()), 0);
    let newer = serde_json::json!({
        "protocol": 99, "build": "test", "installation": InstallationId::new(), "since": "it knows more",
    });
    let say = format!("{newer}\n{{\"number\":1,\"order\":\"list\"}}\n");
    let socket = agent.socket();
    let hearing = tokio::task::spawn_blocking(move || {
        let mut stream = dial(&socket).unwrap();
        stream.write_all(say.as_bytes()).unwrap();
        let lines: Vec<String> = BufReader::new(stream).lines().take(2).map(Result::unwrap).collect();
        lines
    });
    let heard = testkit::within("both lines", hearing).await.unwrap();
    assert!(heard[1].contains("statuses"), "{heard:?}");
}
