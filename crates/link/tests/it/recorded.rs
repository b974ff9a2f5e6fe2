//! The release before: what its runtime said to its control plane is said to today's control plane, and the other way round.
//! `tests/recorded/README.md` says how a release is recorded.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use domain::SandboxId;
use lifecycle::Tasks;
use link::client::{Client, ClientError};
use link::server::{LinkError, LinkHandler, Linked};
use protocol::{Hello, PROTOCOL, ToControl};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::exchange::{self, Answers};
use crate::recording::{Door, Player, Recorder, Side, Step, keep, load};
use crate::rig::within;

/// A control plane that answers.
struct Served {
    linked: Linked,
    answers: Arc<Answers>,
    events: mpsc::Receiver<ToControl>,
    socket: PathBuf,
    tasks: Tasks,
    folder: tempfile::TempDir,
}

fn served() -> Served {
    let (folder, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let socket = folder.path().join("link.sock");
    let (answers, events) = Answers::new();
    let answers = Arc::new(answers);
    let listener = UnixListener::bind(&socket).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let handler: Arc<dyn LinkHandler> = answers.clone();
    let linked = link::server::serve(listener, SandboxId::new(), uid, handler, &tasks).unwrap();
    Served {
        linked,
        answers,
        events,
        socket,
        tasks,
        folder,
    }
}

fn recording(protocol: u32) -> String {
    format!("protocol-{protocol}.jsonl")
}

/// What a control plane says to a runtime that is newer by one.
fn newer(protocol: u32) -> String {
    format!("protocol-{protocol}-newer-runtime.jsonl")
}

#[tokio::test]
async fn the_control_plane_says_to_the_runtime_before_what_the_control_plane_before_said() {
    let mut served = served();
    let mut player = Player::new(Side::Runtime, Door::Opens(served.socket.clone()));
    let steps = load(&recording(PROTOCOL - 1));
    tokio::join!(
        player.play(&steps),
        exchange::control_plane(&served.linked, &mut served.events),
    );
    assert_eq!(served.answers.seen(), Answers::SEEN);
    // What it does not know it is not asked.
    assert!(!served.linked.ask_pulse().unwrap(), "it was asked for its pulse");
    let failed = within(served.linked.pack()).await.unwrap_err();
    assert!(matches!(failed, LinkError::Failed { .. }), "{failed}");
    served.linked.close();
    player.finish().await;
}

#[tokio::test]
async fn the_runtime_says_to_the_control_plane_before_what_the_runtime_before_said() {
    let (folder, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let socket = folder.path().join("link.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let client = Client::new(&socket, &tasks);
    let control_plane = async {
        // It refuses what it does not know, and is then spoken to as it wants.
        let mut player = Player::new(Side::Control, Door::Waits(listener));
        player.play(&load(&newer(PROTOCOL - 1))).await;
        player.finish().await;
        player.play(&load(&recording(PROTOCOL - 1))).await;
        player.finish().await;
    };
    tokio::join!(control_plane, exchange::runtime(&client));
}

#[tokio::test]
async fn a_control_plane_that_is_older_than_the_release_before_is_refused_in_words() {
    let (folder, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let socket = folder.path().join("link.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let client = Client::new(&socket, &tasks);
    let before = format!("\"protocol\":{},", PROTOCOL - 1);
    let older = format!("\"protocol\":{},", PROTOCOL - 2);
    let steps: Vec<Step> = load(&newer(PROTOCOL - 1))
        .into_iter()
        .map(|step| step.with(&before, &older))
        .collect();
    let mut player = Player::new(Side::Control, Door::Waits(listener));
    let ((), refused) = tokio::join!(player.play(&steps), within(client.control()));
    let error = refused.unwrap_err();
    assert!(matches!(error, ClientError::Version(_)), "{error}");
    assert!(error.to_string().contains("run the same release of Belljar"), "{error}");
}

#[tokio::test]
async fn a_runtime_that_is_older_than_the_release_before_is_refused_in_words() {
    let served = served();
    assert_eq!(served.linked.refused(), None);
    let mut stream = tokio::net::UnixStream::connect(&served.socket).await.unwrap();
    let greeting = format!(
        "POST /v1/control HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: belljar-control\r\n\r\n\
         {{\"protocol\":{},\"build\":\"older\"}}\n",
        PROTOCOL - 2
    );
    stream.write_all(greeting.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.unwrap();
    let refused = served.linked.refused().unwrap().to_string();
    assert!(refused.contains("(build older)"), "{refused}");
    assert!(refused.contains("run the same release of Belljar"), "{refused}");
    // One that is understood takes its place.
    let client = Client::new(&served.socket, &served.tasks);
    let _control = within(client.control()).await.unwrap();
    within(served.linked.connected()).await;
    assert_eq!(served.linked.refused(), None);
}

/// Both ends of today have the same exchange, and what they say is written where the next release finds it.
#[tokio::test]
async fn the_exchange_of_this_release_can_be_recorded() {
    let into = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (mut served, recorder) = (served(), Recorder::default());
    let front = served.folder.path().join("front.sock");
    let listener = tokio::net::UnixListener::bind(&front).unwrap();
    recorder.stand_between(listener, served.socket.clone(), &served.tasks);
    let client = Client::new(&front, &served.tasks);
    let control_plane = async {
        exchange::control_plane(&served.linked, &mut served.events).await;
        let steps = recorder.steps();
        served.linked.close();
        steps
    };
    let (steps, ()) = tokio::join!(control_plane, exchange::runtime(&client));
    assert_eq!(served.answers.seen(), Answers::SEEN);
    keep(&steps, &into.join(recording(PROTOCOL)));
}

#[tokio::test]
async fn a_runtime_that_is_newer_is_told_what_this_release_speaks() {
    let into = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (served, recorder) = (served(), Recorder::default());
    let front = served.folder.path().join("front.sock");
    let listener = tokio::net::UnixListener::bind(&front).unwrap();
    recorder.stand_between(listener, served.socket.clone(), &served.tasks);
    let mut runtime = UnixStream::connect(&front).await.unwrap();
    let open = "POST /v1/control HTTP/1.1\r\nconnection: upgrade\r\nupgrade: belljar-control\r\n\r\n";
    runtime.write_all(open.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        assert!(within(runtime.read_buf(&mut answer)).await.unwrap() > 0, "it hung up");
    }
    let hello = serde_json::json!({"protocol": PROTOCOL + 1, "build": "newer"});
    runtime.write_all(format!("{hello}\n").as_bytes()).await.unwrap();
    answer.clear();
    within(runtime.read_to_end(&mut answer)).await.unwrap();
    let told: Hello = serde_json::from_slice(&answer).unwrap();
    assert_eq!(told.protocol, PROTOCOL);
    assert!(!served.linked.is_connected());
    keep(&recorder.steps(), &into.join(newer(PROTOCOL)));
}
