//! `write` and `edit`.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::bench::Bench;

#[tokio::test]
async fn write_says_what_it_did_and_keeps_the_mode() {
    let bench = Bench::new();
    let said = bench
        .ok("write", json!({ "path": "a/b/c.txt", "content": "one\ntwo\n" }))
        .await;
    assert_eq!(said, "Created a/b/c.txt: 2 lines, 8 bytes.");
    std::fs::set_permissions(bench.at("a/b/c.txt"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = bench
        .ok("write", json!({ "path": "/workspace/a/b/c.txt", "content": "é" }))
        .await;
    assert_eq!(said, "Replaced /workspace/a/b/c.txt: 1 line, 2 bytes.");
    assert_eq!(bench.text("a/b/c.txt"), "é");
    assert_eq!(
        std::fs::metadata(bench.at("a/b/c.txt")).unwrap().permissions().mode() & 0o777,
        0o755
    );
    assert_eq!(std::fs::read_dir(bench.at("a/b")).unwrap().count(), 1);
}

#[tokio::test]
async fn edit_shows_the_difference_and_refuses_what_is_not_exact() {
    let bench = Bench::new();
    bench.put("f.txt", "one\ntwo\nthree\ntwo\n");
    let said = bench
        .ok("edit", json!({ "path": "f.txt", "old": "three", "new": "3" }))
        .await;
    assert!(
        said.starts_with("Edited f.txt: 1 place replaced.\n@@ -1,4 +1,4 @@\n one\n two\n-three\n+3\n two\n"),
        "{said}"
    );
    for (old, new, expected) in [
        ("two", "2", "occurs 2 times in f.txt, at lines 2, 4"),
        ("four", "4", "does not occur in f.txt"),
        ("", "x", "`old` is empty"),
        ("one", "one", "are the same"),
    ] {
        let said = bench
            .error("edit", json!({ "path": "f.txt", "old": old, "new": new }))
            .await;
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(bench.text("f.txt"), "one\ntwo\n3\ntwo\n");
    bench
        .ok(
            "edit",
            json!({ "path": "f.txt", "old": "two", "new": "2", "all": true }),
        )
        .await;
    assert_eq!(bench.text("f.txt"), "one\n2\n3\n2\n");

    bench.put("binary", b"\xff\xfe\x00");
    assert!(
        bench
            .error("edit", json!({ "path": "binary", "old": "a", "new": "b" }))
            .await
            .contains("not UTF-8")
    );
    assert!(
        bench
            .error("edit", json!({ "path": "none", "old": "a", "new": "b" }))
            .await
            .contains("there is no none")
    );
}

#[tokio::test]
async fn edits_of_one_file_at_once_lose_nothing() {
    let bench = Bench::new();
    let lines: String = (0..40).map(|number| format!("<{number}>\n")).collect();
    bench.put("f.txt", &lines);
    let edits = (0..40).map(|number| {
        bench.ok(
            "edit",
            json!({ "path": "f.txt", "old": format!("<{number}>"), "new": format!("[{number}]") }),
        )
    });
    futures::future::join_all(edits).await;
    let expected: String = (0..40).map(|number| format!("[{number}]\n")).collect();
    assert_eq!(bench.text("f.txt"), expected);
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_said() {
    let bench = Bench::new();
    let deep = format!(r#"{{"path":{}{}}}"#, "[".repeat(64), "]".repeat(64));
    for (name, input, expected) in [
        ("write", json!({ "path": "a" }), "missing field `content`"),
        (
            "write",
            json!({ "path": "a", "content": "b", "mode": 7 }),
            "unknown field `mode`",
        ),
        ("read", json!({ "path": "a", "offset": "x" }), "invalid type"),
        ("read", json!({ "path": "a", "offset": 0 }), "counts from 1"),
        ("edit", json!("{\"path\": \"a"), "not JSON"),
        ("edit", json!(deep), "nested deeper than 64 levels"),
        ("edit", json!("[".repeat(100_000)), "nested deeper than 64 levels"),
        (
            "edit",
            serde_json::from_str(&deep).unwrap(),
            "nested deeper than 64 levels",
        ),
        ("exec", json!(null), "do not fit"),
        ("safebash", json!([]), "do not fit"),
        ("bash", json!({}), "there is no tool \"bash\""),
    ] {
        let said = bench.error(name, input).await;
        assert!(said.contains(expected), "{name}: {said}");
    }
}
