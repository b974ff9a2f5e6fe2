//! What is told while a tool works.

use serde_json::{Value, json};

use crate::bench::Bench;

#[tokio::test]
async fn every_tool_tells_what_it_is_at() {
    let bench = Bench::new();
    bench.put("there.txt", "one\n");
    std::fs::create_dir_all(bench.skills().join("report")).unwrap();
    std::fs::write(
        bench.skills().join("report/SKILL.md"),
        "---\nname: report\ndescription: d\n---\n",
    )
    .unwrap();
    let calls = [
        ("read", json!({ "path": "there.txt" }), "reading there.txt\n"),
        (
            "write",
            json!({ "path": "new.txt", "content": "one" }),
            "writing 3 bytes to new.txt\n",
        ),
        (
            "edit",
            json!({ "path": "there.txt", "old": "one", "new": "two" }),
            "changing there.txt\n",
        ),
        ("exec", json!({ "code": "console.log('said')" }), "said\n"),
        ("safebash", json!({ "command": "cat there.txt" }), "two\n"),
        ("skill", json!({ "name": "report" }), "loading report\n"),
    ];
    for (name, input, expected) in calls {
        bench.ok(name, input).await;
        assert_eq!(std::mem::take(&mut *bench.progress.lock().unwrap()), expected, "{name}");
    }
}

#[tokio::test]
async fn threat_115_what_a_model_names_is_told_without_what_steers_a_terminal() {
    let bench = Bench::new();
    let long = "x".repeat(1_000);
    for (name, key) in [("read", "path"), ("skill", "name")] {
        let mut input = Value::Object(serde_json::Map::default());
        input[key] = format!("a\u{1b}[2J\u{9b}2J\rb\n{long}").into();
        bench.error(name, input).await;
        let told = std::mem::take(&mut *bench.progress.lock().unwrap());
        let (line, rest) = told.split_once('\n').unwrap();
        assert!(rest.is_empty() && !line.contains(char::is_control), "{told:?}");
        assert!(line.len() < 250 && line.contains("a[2J2Jbx"), "{told:?}");
    }
}
