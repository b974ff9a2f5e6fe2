//! `belljar dev`.

use serde_json::json;
use tempfile::tempdir;
use testkit::model_server::{Answer, ModelServer, Speech};

use crate::program::{belljar, run};

#[tokio::test(flavor = "multi_thread")]
async fn the_loop_runs_here_with_tools_in_the_current_folder() {
    let folder = tempdir().unwrap();
    let models = ModelServer::start().await;
    let text = format!(
        "[models.m]\nprovider = \"anthropic\"\nmodel = \"fake\"\nkey = \"env:FAKE_KEY\"\nbase_url = \"{}\"\nwindow = 200000\nmax_output = 8000\nprice = {{ input = 3.00, output = 15.00 }}\n",
        models.base_url()
    );
    std::fs::write(folder.path().join("belljar.toml"), text).unwrap();
    models.next(Answer::Say(
        Speech::text("Writing. ")
            .call("c1", "write", &json!({"path": "a.txt", "content": "hello"}))
            .call("c2", "safebash", &json!({"command": "ls /root"}))
            .call("c3", "safebash", &json!({"command": "wc -c belljar.toml"})),
    ));
    models.next(Answer::text("Written."));
    let mut dev = belljar(folder.path());
    dev.args(["dev", "write it"]).env("FAKE_KEY", models.key());
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
