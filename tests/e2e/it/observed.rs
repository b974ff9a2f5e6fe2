//! What operators see of the real programs: a run's trace at a collector, and how often each step of a sandbox was made.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use testkit::{Collector, eventually};

use crate::installation::Installation;

const JOB: &str = r#"
steps:
  - when: { turn: 1, text: look }
    tools:
      - name: exec
        input: { code: "await new Promise((done) => setTimeout(done, 100)); return 1;" }
  - when: { text: look }
    text: "Seen."
"#;

/// The metrics of the control plane.
fn metrics(belljar: &Installation) -> String {
    let token = fs::read_to_string(belljar.data().join("control/admin-token")).expect("the admin token");
    let mut stream = TcpStream::connect(("127.0.0.1", belljar.port())).expect("connect to the control plane");
    let head = format!(
        "GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nconnection: close\r\n\r\n",
        token.trim()
    );
    stream.write_all(head.as_bytes()).expect("ask the control plane");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the control plane's answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// How often a step was made.
fn count(metrics: &str, transition: &str) -> u64 {
    let name = format!("belljar_sandbox_transition_seconds_count{{transition=\"{transition}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("no {name}in {metrics}"))
}

#[test]
fn a_run_is_one_trace_at_a_collector_and_each_step_of_its_sandbox_is_counted() {
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let collector = runtime.block_on(Collector::start());
    let settings = format!(
        "[telemetry]\notlp = \"{}\"\n---\nfreeze_after = \"300ms\"\nhibernate_after = \"2s\"\n",
        collector.address()
    );
    let belljar = Installation::start_with(JOB, &settings);
    belljar.done(&["run", "--session", "s", "look"]);
    let transcript = belljar.transcript("s");
    let run = transcript.of("run").next().expect("a run")["run"]
        .as_str()
        .map(str::to_owned);
    let trace = hex::decode(run.expect("its id").replace('-', "")).expect("an id");

    let is_whole = |span: &testkit::CollectedSpan| span.name == "run" && span.trace_id == trace;
    let spans = runtime.block_on(collector.spans(|spans| spans.iter().any(is_whole)));
    let spans: Vec<_> = spans.iter().filter(|span| span.trace_id == trace).collect();
    let by_id: BTreeMap<_, _> = spans.iter().map(|span| (&span.span_id, span)).collect();
    let tool = spans.iter().find(|span| span.name == "tool").expect("the tool");
    let mut above = vec![tool.name.as_str()];
    let mut parent = by_id.get(&tool.parent_span_id);
    while let Some(span) = parent {
        above.push(&span.name);
        parent = by_id.get(&span.parent_span_id);
    }
    assert_eq!(above, ["tool", "turn", "run", "prompt"]);
    // What the sandbox says of the tool's time has come over the link.
    assert!(
        tool.end_time_unix_nano - tool.start_time_unix_nano >= 50_000_000,
        "{tool:?}"
    );

    let slept = |event: &Value| event["state"] == "hibernated";
    belljar.wait_for("s", "it to sleep", |seen| seen.of("sandbox").any(slept));
    belljar.done(&["files", "s"]);
    eventually("each step to be counted", || {
        let metrics = metrics(&belljar);
        let steps = ["create", "freeze", "hibernate", "wake"];
        steps.iter().all(|step| count(&metrics, step) > 0).then_some(())
    });
}
