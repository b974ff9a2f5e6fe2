//! `belljar dev`.

use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use tempfile::tempdir;
use testkit::eventually_async;
use testkit::model_server::{Answer, ModelServer, Speech};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::program::{belljar, run};

/// Writes a configuration with these models, each of which stands in for the one before it.
fn configure(folder: &Path, before: &str, models: &[(&str, &ModelServer)]) {
    let mut text = format!("[server]\nmodel = \"{}\"\n{before}\n", models[0].0);
    for (place, (name, server)) in models.iter().enumerate() {
        let fallback: Vec<_> = models.get(place + 1).map(|(next, _)| next).into_iter().collect();
        text += &format!(
            "[models.{name}]\nprovider = \"anthropic\"\nmodel = \"fake\"\nkey = \"env:KEY_{place}\"\nbase_url = \"{}\"\nwindow = 200000\n\
             max_output = 8000\nprice = {{ input = 3.00, output = 15.00 }}\nfallback = {fallback:?}\n",
            server.base_url()
        );
    }
    std::fs::write(folder.join("belljar.toml"), text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loop_runs_here_with_tools_in_the_current_folder() {
    let folder = tempdir().unwrap();
    let models = ModelServer::start().await;
    configure(folder.path(), "", &[("m", &models)]);
    models.next(Answer::Say(
        Speech::text("Writing. ")
            .call("c1", "write", &json!({"path": "a.txt", "content": "hello"}))
            .call("c2", "safebash", &json!({"command": "ls /root"}))
            .call("c3", "safebash", &json!({"command": "wc -c belljar.toml"})),
    ));
    models.next(Answer::text("Written."));
    let mut dev = belljar(folder.path());
    dev.args(["dev", "write it"]).env("KEY_0", models.key());
    let came = run(dev, "").await;
    assert_eq!((came.code, came.out.as_str()), (0, "Writing. \nWritten.\n"), "{came:?}");
    assert_eq!(std::fs::read_to_string(folder.path().join("a.txt")).unwrap(), "hello");
    assert!(came.notes.contains("✓ write a.txt"), "{came:?}");
    assert!(came.notes.contains("✓ safebash wc -c belljar.toml"), "{came:?}");
    assert!(came.notes.contains("2 model calls"), "{came:?}");
    models.assert_nothing_refused();
    let told = models.received()[1].body.to_string();
    assert!(
        !told.contains("/root/"),
        "the jail does not see people's folders: {told}"
    );
}

/// What code sees of the machine: a file of somebody's, processes, and ways out.
const LOOK: &str = r#"
const fs = require("node:fs");
const processes = fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name));
const commands = processes.map((pid) => {
  try { return fs.readFileSync(`/proc/${pid}/cmdline`, "utf8"); } catch { return ""; }
});
return {
  file: fs.existsSync("SOMEBODYS"),
  ours: fs.existsSync("belljar.toml"),
  asker: commands.some((command) => command.includes("look" + " around")),
  ways: Object.keys(require("node:os").networkInterfaces()).filter((name) => name !== "lo"),
};
"#;

#[tokio::test(flavor = "multi_thread")]
async fn code_sees_the_current_folder_and_nothing_else_of_the_machine() {
    let (folder, somebodys) = (tempdir().unwrap(), tempdir().unwrap());
    let secret = somebodys.path().join("secret");
    std::fs::write(&secret, "of somebody").unwrap();
    let node = testkit::miniature().rootfs().join("usr/local/bin/node");
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    std::fs::copy(node, folder.path().join("bin/node")).unwrap();
    let path = format!(
        "{}:{}",
        folder.path().join("bin").display(),
        std::env::var("PATH").unwrap()
    );
    let code = LOOK.replace("SOMEBODYS", secret.to_str().unwrap());
    for (jail, sees) in [(true, false), (false, true)] {
        let models = ModelServer::start().await;
        configure(folder.path(), "", &[("m", &models)]);
        models.next(Answer::Say(Speech::text("").call("c1", "exec", &json!({"code": code}))));
        models.next(Answer::text("Looked."));
        let mut dev = belljar(folder.path());
        dev.args(["dev", "look around"])
            .args((!jail).then_some("--no-jail"))
            .env("KEY_0", models.key())
            .env("PATH", &path);
        let came = run(dev, "").await;
        assert_eq!(came.code, 0, "{came:?}");
        let told = models.received()[1].body.to_string();
        let seen = |name: &str, value: &str| told.contains(&format!("\\\"{name}\\\":{value}"));
        assert!(seen("ours", "true"), "{told}");
        assert!(seen("file", &sees.to_string()), "with a jail: {jail}: {told}");
        assert!(seen("asker", &sees.to_string()), "with a jail: {jail}: {told}");
        assert!(!jail || seen("ways", "[]"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_model_stands_in_for_one_that_fails() {
    let folder = tempdir().unwrap();
    let (first, second) = (ModelServer::start().await, ModelServer::start().await);
    configure(folder.path(), "", &[("m", &first), ("n", &second)]);
    first.next(Answer::status(401));
    second.next(Answer::text("Here I am."));
    let mut dev = belljar(folder.path());
    dev.args(["dev", "who is there?"])
        .env("KEY_0", first.key())
        .env("KEY_1", second.key());
    let came = run(dev, "").await;
    assert_eq!((came.code, came.out.as_str()), (0, "Here I am.\n"), "{came:?}");
    assert!(came.notes.contains("m failed, trying again"), "{came:?}");
    second.assert_nothing_refused();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_after_a_run_that_was_ended_between_a_call_and_its_result() {
    let folder = tempdir().unwrap();
    let models = ModelServer::start().await;
    configure(folder.path(), "[run]\nsteps = 1", &[("m", &models)]);
    let call = json!({"path": "a.txt", "content": "hello"});
    models.next(Answer::Say(Speech::text("Writing.").call("c1", "write", &call)));
    models.next(Answer::text("It was not written."));
    let mut dev = belljar(folder.path());
    dev.arg("dev").env("KEY_0", models.key());
    let came = run(dev, "write it\nand now?\n").await;
    assert_eq!(came.out, "Writing.\nIt was not written.\n", "{came:?}");
    assert!(came.notes.contains("the run has used up its steps"), "{came:?}");
    models.assert_nothing_refused();
    assert!(!folder.path().join("a.txt").exists());
    let told = models.received()[1].body.to_string();
    assert!(told.contains("ended before this call had a result"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_at_its_cap() {
    let folder = tempdir().unwrap();
    let models = ModelServer::start().await;
    configure(folder.path(), "[budget]\nrun = 0.000001", &[("m", &models)]);
    let call = json!({"command": "ls"});
    models.next(Answer::Say(Speech::text("Looking.").call("c1", "safebash", &call)));
    let mut dev = belljar(folder.path());
    dev.args(["dev", "look"]).env("KEY_0", models.key());
    let came = run(dev, "").await;
    assert_eq!((came.code, models.count()), (4, 1), "{came:?}");
    assert!(came.notes.contains("budget.run lets it cost"), "{came:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_interrupted_ends_and_the_conversation_goes_on_until_it_is_interrupted_itself() {
    let folder = tempdir().unwrap();
    let models = ModelServer::start().await;
    configure(folder.path(), "", &[("m", &models)]);
    models.next(Answer::Silent);
    models.next(Answer::text("Here."));
    let mut dev = belljar(folder.path());
    dev.arg("dev")
        .env("KEY_0", models.key())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut dev = dev.spawn().unwrap();
    let process = rustix::process::Pid::from_raw(dev.id().unwrap().cast_signed()).unwrap();
    let mut stdin = dev.stdin.take().unwrap();
    let mut say = async |line: &str, requests: u64| {
        stdin.write_all(line.as_bytes()).await.unwrap();
        eventually_async("the model to be asked", async || {
            (models.count() == requests).then_some(())
        })
        .await;
    };
    say("wait\n", 1).await;
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    say("are you there?\n", 2).await;
    let mut notes = BufReader::new(dev.stderr.take().unwrap()).lines();
    eventually_async("the run's bill", async || {
        let line = notes.next_line().await.unwrap().unwrap();
        line.contains("1 model call").then_some(())
    })
    .await;
    // It waits for the next line, which never comes.
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let ended = testkit::within("the end", dev.wait()).await.unwrap();
    assert!(ended.success(), "{ended}");
}
