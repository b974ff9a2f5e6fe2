//! `belljar serve` as a process.

use std::path::Path;
use std::process::Stdio;

use tempfile::tempdir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use crate::program::{belljar, run};

fn configure(folder: &Path) {
    let script = folder.join("script.yaml");
    std::fs::write(&script, "steps:\n  - text: hello\n").unwrap();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"{0}\"\nuser = \"root\"\n[sandbox]\nimage = \"{1}\"\nrun = \"{0}/run\"\n[models.m]\nprovider = \"scripted\"\nscript = \"script.yaml\"\n",
        folder.display(),
        "ab".repeat(32),
    );
    std::fs::write(folder.join("belljar.toml"), text).unwrap();
}

/// A control plane whose host agent is not there: everything but sandboxes works.
async fn serve(folder: &Path) -> (Child, String, Vec<String>) {
    configure(folder);
    let mut child = belljar(folder).arg("serve").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    loop {
        let line = testkit::within("the control plane to be ready", lines.next_line())
            .await
            .unwrap()
            .expect("a line");
        if let Some(url) = line.strip_prefix("ready: ") {
            return (child, url.to_owned(), said);
        }
        said.push(line);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_that_could_not_keep_the_token_is_no_first_start() {
    let folder = tempdir().unwrap();
    configure(folder.path());
    let place = folder.path().join("control/admin-token");
    std::fs::create_dir_all(&place).unwrap();
    let mut first = belljar(folder.path());
    first.arg("serve");
    let first = run(first, "").await;
    assert!(
        first.code == 1 && first.notes.contains(place.to_str().unwrap()),
        "{first:?}"
    );
    std::fs::remove_dir(&place).unwrap();
    let (mut child, url, said) = serve(folder.path()).await;
    let token = said.last().expect("the first token").trim();
    let mut users = belljar(folder.path());
    users
        .args(["user", "list"])
        .env("BELLJAR_URL", &url)
        .env("BELLJAR_TOKEN", token);
    let listed = run(users, "").await;
    assert!(listed.code == 0 && listed.out.contains("admin"), "{listed:?}");
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_makes_a_token_and_every_later_one_keeps_it() {
    let folder = tempdir().unwrap();
    let (mut child, url, said) = serve(folder.path()).await;
    let token = said.last().expect("the first token").trim().to_owned();
    assert_eq!(
        std::fs::read_to_string(folder.path().join("control/admin-token"))
            .unwrap()
            .trim(),
        token
    );
    let list = async |listen: &str| {
        let mut command = belljar(folder.path());
        command
            .args(["user", "list"])
            .env("BELLJAR_URL", &url)
            .env("BELLJAR_SERVER_LISTEN", listen);
        run(command, "").await
    };
    let listed = list(url.strip_prefix("http://").unwrap()).await;
    assert!(
        listed.code == 0 && listed.out.contains("admin"),
        "root finds the token: {listed:?}"
    );
    // Another address is another control plane's, and is not shown the token.
    let listed = list("127.0.0.1:1").await;
    assert!(
        listed.code == 3 && listed.notes.contains("set BELLJAR_TOKEN") && listed.notes.contains(&url),
        "{listed:?}"
    );

    let mut second = belljar(folder.path());
    second.arg("serve");
    let second = run(second, "").await;
    assert!(
        second.code == 1 && second.notes.contains("in use by another process"),
        "{second:?}"
    );

    let mut backup = belljar(folder.path());
    backup
        .args(["backup", "copy"])
        .env("BELLJAR_SERVER_LISTEN", url.strip_prefix("http://").unwrap());
    let backup = run(backup, "").await;
    assert_eq!(backup.code, 0, "{backup:?}");
    let store = folder.path().join("control/store.db");
    assert_eq!(backup.notes, format!("a copy of {}:\n", store.display()));
    assert_eq!(backup.out, format!("{}\n", folder.path().join("copy").display()));

    // Who names another installation gets that one's, or nothing.
    let elsewhere = tempdir().unwrap();
    let named = async |words: &[&str], token: Option<&str>| {
        let mut command = belljar(elsewhere.path());
        command
            .args(words)
            .env("BELLJAR_URL", &url)
            .env("BELLJAR_SERVER_DATA", elsewhere.path());
        command.envs(token.map(|token| ("BELLJAR_TOKEN", token)));
        run(command, "").await
    };
    let nobody = named(&["backup", "copy"], None).await;
    assert!(nobody.code == 1 && nobody.notes.contains("BELLJAR_TOKEN"), "{nobody:?}");
    let theirs = named(&["backup", "copy"], Some(&token)).await;
    assert!(
        theirs.code == 0 && theirs.notes.contains(&format!("the store at {url}")),
        "{theirs:?}"
    );
    let verified = named(&["audit", "--verify", "--file", "copy"], None).await;
    assert!(verified.out.starts_with("whole: "), "{verified:?}");
    let restored = named(&["restore", "copy"], Some(&token)).await;
    assert!(restored.code == 1 && restored.notes.contains(&url), "{restored:?}");
    assert!(!elsewhere.path().join("control").exists());

    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = testkit::within("the control plane to end", child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0));

    let mut restore = belljar(folder.path());
    restore.args(["restore", "copy"]);
    let restore = run(restore, "").await;
    assert_eq!(restore.code, 0, "{restore:?}");
    let (mut child, url, said) = serve(folder.path()).await;
    assert!(said.is_empty(), "the token is shown once: {said:?}");
    let mut me = belljar(folder.path());
    me.args(["user", "list"])
        .env("BELLJAR_URL", &url)
        .env("BELLJAR_TOKEN", &token);
    assert_eq!(run(me, "").await.code, 0);
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_owns_the_machine_is_not_left_outside_by_a_token_that_opens_nothing() {
    let folder = tempdir().unwrap();
    let place = folder.path().join("control/admin-token");
    let kept = || std::fs::read_to_string(&place).unwrap().trim().to_owned();
    let as_admin = async |url: &str, words: &[&str], token: &str| {
        let mut command = belljar(folder.path());
        command.args(words).env("BELLJAR_URL", url).env("BELLJAR_TOKEN", token);
        run(command, "").await.code
    };
    let (mut child, url, _) = serve(folder.path()).await;
    let first = kept();
    assert_eq!(as_admin(&url, &["token", "revoke", "first"], &first).await, 0);
    assert_eq!(as_admin(&url, &["user", "list"], &first).await, 3);
    child.kill().await.unwrap();

    let (mut child, url, said) = serve(folder.path()).await;
    let second = kept();
    assert_ne!(first, second);
    assert_eq!(said.last().map(|line| line.trim()), Some(second.as_str()));
    assert_eq!(as_admin(&url, &["user", "list"], &second).await, 0);
    assert_eq!(as_admin(&url, &["user", "list"], &first).await, 3);
    child.kill().await.unwrap();

    std::fs::remove_file(&place).unwrap();
    let (mut child, url, _) = serve(folder.path()).await;
    assert_eq!(as_admin(&url, &["user", "list"], &kept()).await, 0);
    child.kill().await.unwrap();

    // Nobody is to find one there.
    std::fs::write(&place, "").unwrap();
    let (mut child, _, said) = serve(folder.path()).await;
    assert!(said.is_empty() && kept().is_empty(), "{said:?}");
    child.kill().await.unwrap();

    // What cannot be read is left as it is, and keeps nobody from starting.
    std::fs::remove_file(&place).unwrap();
    std::fs::create_dir(&place).unwrap();
    let (mut child, _, said) = serve(folder.path()).await;
    assert!(said.is_empty() && place.is_dir(), "{said:?}");
    child.kill().await.unwrap();
}

#[tokio::test]
async fn a_second_up_is_told_of_the_first() {
    let folder = tempdir().unwrap();
    let lock = folder.path().join("up.lock");
    let first = std::fs::File::create(&lock).unwrap();
    first.lock().unwrap();
    std::fs::write(&lock, "process 7, at http://127.0.0.1:7").unwrap();
    let mut second = belljar(folder.path());
    second
        .arg("up")
        .env("BELLJAR_SERVER_DATA", folder.path())
        .env("BELLJAR_SERVER_LISTEN", "127.0.0.1:8");
    let second = run(second, "").await;
    assert!(
        second.code == 1 && second.notes.contains("(process 7, at http://127.0.0.1:7)"),
        "{second:?}"
    );
}
