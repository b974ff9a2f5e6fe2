//! MCP servers that are programs: foreign code beside the keys.

use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use serde_json::{Value, json};
use services::import::McpOptions;
use services::{Auth, Code, Command, Server, ServiceSettings};

use crate::rig::KEY;
use crate::shop::{ShopRig, settings};

/// A service of the server beside this file.
async fn started(ports: Vec<u16>) -> ShopRig {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/server.py");
    let options = McpOptions {
        name: "shop".to_owned(),
        server: Server::Command(Command {
            words: vec!["/usr/bin/python3".into(), script.to_string_lossy().into_owned()],
            environment: Vec::new(),
            read: vec![script],
            ports,
        }),
        auth: Some(Auth::Environment {
            name: "API_TOKEN".to_owned(),
        }),
        only: Vec::new(),
    };
    let settings = ServiceSettings {
        addresses: Vec::new(),
        ..settings()
    };
    ShopRig::of(&options, settings).await
}

async fn text(rig: &ShopRig, method: &str, arguments: Value) -> String {
    let answer = rig.ask(method, arguments).await.unwrap();
    answer["text"].as_str().unwrap().to_owned()
}

/// Waits until a process is gone.
async fn ended(pid: &str) {
    let gone = async {
        while lives(pid) {
            tokio::task::yield_now().await;
        }
    };
    testkit::within("the program's end", gone).await;
}

/// Whether a process is there and runs.
fn lives(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state
        .rsplit(") ")
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_asked_like_any_other_server() {
    let rig = started(Vec::new()).await;
    assert_eq!(text(&rig, "echo", json!({ "text": "hé" })).await, "hé");
    assert_eq!(text(&rig, "echo", json!({ "text": KEY })).await, "*".repeat(KEY.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_080_a_servers_program_finds_nothing_worth_stealing() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("key");
    std::fs::File::create(&secret)
        .unwrap()
        .write_all(b"canary-key-file")
        .unwrap();
    let path = folder.path().join("host.sock");
    let _host = UnixListener::bind(&path).unwrap();
    let inner = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = inner.local_addr().unwrap().port();
    for ports in [Vec::new(), vec![443]] {
        let rig = started(ports).await;
        let arguments = json!({ "secret": secret, "serve": std::process::id(), "path": path, "port": port });
        let found = text(&rig, "spy", arguments).await;
        assert!(!found.contains("canary-key-file"), "{found}");
        let found: Value = serde_json::from_str(&found).unwrap();
        for name in [
            "secret",
            "folder",
            "environ",
            "mem",
            "fds",
            "link",
            "shadow",
            "write",
            "signal",
            "unix",
            "tcp",
            "child",
            "session",
            "group",
            "x32",
            "shared",
            "hidden",
            "memory",
            "anonymous",
            "zero",
            "thread",
            "apart",
        ] {
            let outcome = found[name].as_str().unwrap();
            assert!(outcome.starts_with("refused: "), "{name}: {outcome}");
        }
        assert_eq!(found["scratch"], "x");
        assert_eq!(
            found["token"],
            "*".repeat(KEY.len()),
            "it is the one thing that it was given"
        );
        let uid = rustix::process::getuid();
        let uid = if uid.is_root() { 65_534 } else { uid.as_raw() };
        // Blocks of 512 bytes, kilobytes, seconds; and not root.
        assert_eq!(
            found["limits"],
            json!(["1024", "0", "524288", "2097152", "3600", uid.to_string()])
        );
        let environment: Vec<&str> = found["environment"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let known = [
            "API_TOKEN",
            "HOME",
            "LANG",
            "LC_CTYPE",
            "OLDPWD",
            "PATH",
            "PWD",
            "SHLVL",
            "TMPDIR",
            "_",
        ];
        assert!(environment.iter().all(|name| known.contains(name)), "{environment:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_named_can_be_reached() {
    let inner = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = inner.local_addr().unwrap().port();
    let rig = started(vec![port]).await;
    let arguments = json!({ "secret": "/none/x", "serve": 1, "path": "/none", "port": port });
    let found: Value = serde_json::from_str(&text(&rig, "spy", arguments).await).unwrap();
    assert_eq!(found["tcp"], "'connected'");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_dies_or_floods_is_started_anew() {
    let rig = started(Vec::new()).await;
    let first = text(&rig, "pid", json!({})).await;
    assert_eq!(
        text(&rig, "pid", json!({})).await,
        first,
        "one program serves all calls"
    );
    rig.fails("die", json!({}), Code::AnswerCut).await;
    let second = text(&rig, "pid", json!({})).await;
    assert_ne!(second, first);
    let failure = rig.ask("flood", json!({})).await.unwrap_err();
    assert_eq!(failure.code, Code::AnswerCut, "{failure:?}");
    assert_ne!(text(&rig, "pid", json!({})).await, second);
    assert!(!lives(&second));
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_068_a_program_whose_secret_changed_or_is_gone_ends_with_what_it_does() {
    let rig = started(Vec::new()).await;
    let first = text(&rig, "pid", json!({})).await;
    let (new, waits) = ("another-key-of-the-shop", json!({ "text": "" }));
    assert_eq!(text(&rig, "echo", json!({ "text": new })).await, new);
    let changed = async {
        rig.secrets.set("key", new);
        // The new one is masked from the first answer on.
        let said = text(&rig, "echo", json!({ "text": new })).await;
        assert_eq!(said, "*".repeat(new.len()));
    };
    // It never answers: it is under way when the secret changes.
    tokio::join!(rig.fails("greedy", waits, Code::AnswerCut), changed);
    ended(&first).await;
    let second = text(&rig, "pid", json!({})).await;
    assert_ne!(second, first);
    assert_eq!(
        text(&rig, "pid", json!({})).await,
        second,
        "the same secret, the same program"
    );
    rig.secrets.revoke("key");
    rig.fails("pid", json!({}), Code::CredentialMissing).await;
    ended(&second).await;
    rig.secrets.set("key", new);
    text(&rig, "pid", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_068_an_idle_program_ends_when_its_secret_is_changed_or_gone() {
    let rig = started(Vec::new()).await;
    let first = text(&rig, "pid", json!({})).await;
    // Nobody calls it from here on.
    rig.secrets.set("key", "another-key-of-the-shop");
    ended(&first).await;
    let second = text(&rig, "pid", json!({})).await;
    rig.secrets.revoke("key");
    ended(&second).await;
    // The same one again is no reason to take what has ended for what is there.
    rig.secrets.set("key", "another-key-of-the-shop");
    assert_ne!(text(&rig, "pid", json!({})).await, second);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_started_ends_with_the_service() {
    let rig = started(Vec::new()).await;
    let (server, child) = (text(&rig, "pid", json!({})).await, text(&rig, "leave", json!({})).await);
    assert!(lives(&server) && lives(&child));
    let ShopRig { services, tasks, .. } = rig;
    drop(services);
    tasks.shut_down(std::time::Duration::from_secs(10)).await;
    while lives(&server) || lives(&child) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_is_told() {
    let options = McpOptions {
        name: "shop".to_owned(),
        server: Server::Command(Command {
            words: vec!["no-such-program".into()],
            ..Command::default()
        }),
        auth: None,
        only: Vec::new(),
    };
    let folder = tempfile::tempdir().unwrap();
    let tasks = lifecycle::Tasks::new();
    let catalogue = options.catalogue(folder.path()).unwrap();
    let services = crate::shop::services(&catalogue, ServiceSettings::default(), &tasks);
    let failure = services.tools("shop").await.unwrap_err();
    assert_eq!(failure.code, Code::Unreachable);
    assert!(
        failure.message.contains("there is no program \"no-such-program\""),
        "{failure}"
    );
}

/// Each takes all of one thing that the machine has. What is killed was killed for it: nothing else ends it.
#[tokio::test(flavor = "multi_thread")]
async fn threat_080_a_program_that_takes_too_much_is_killed_with_all_that_it_started() {
    for what in [
        "processes",
        "threads",
        "memory",
        "disk",
        "removed",
        "mapped",
        "sent",
        "sockets",
        "headless",
        "files",
        "folders",
    ] {
        let rig = started(Vec::new()).await;
        let pid = text(&rig, "pid", json!({})).await;
        let failure = rig.ask("greedy", json!({ "text": what })).await.unwrap_err();
        assert_eq!(failure.code, Code::AnswerCut, "{what}: {failure:?}");
        let ended = async {
            while lives(&pid) || !session(&pid).is_empty() {
                tokio::task::yield_now().await;
            }
        };
        testkit::within("all that the program started ends", ended).await;
        assert_eq!(text(&rig, "echo", json!({ "text": "anew" })).await, "anew", "{what}");
    }
}

/// What a process alone takes too much of, it does not get.
#[tokio::test(flavor = "multi_thread")]
async fn threat_080_a_process_has_limits_of_its_own() {
    for what in ["file", "one"] {
        let rig = started(Vec::new()).await;
        let failure = rig.ask("greedy", json!({ "text": what })).await.unwrap_err();
        assert_eq!(failure.code, Code::AnswerCut, "{what}: {failure:?}");
    }
}

/// Processes of a session that run.
fn session(leader: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let about = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields: Vec<&str> = about.rsplit(") ").next().unwrap().split(' ').collect();
        if fields.get(3) == Some(&leader) && fields[0] != "Z" {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}
