//! What a watcher saw, and what must hold of it whatever happened.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The frames of a session, in the order in which they came.
#[derive(Debug)]
pub(crate) struct Transcript(pub(crate) Vec<Value>);

impl Transcript {
    /// Reads what `belljar … --json` printed.
    pub(crate) fn read(lines: &str) -> Self {
        Self(
            lines
                .lines()
                .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
                .collect(),
        )
    }

    /// The durable events of a kind.
    pub(crate) fn of<'t>(&'t self, kind: &'t str) -> impl Iterator<Item = &'t Value> {
        self.0
            .iter()
            .filter(move |frame| frame["type"] == kind && frame["number"].is_i64())
    }

    /// The state in which the last run stands.
    pub(crate) fn last_state(&self) -> &str {
        self.of("run")
            .last()
            .and_then(|event| event["state"].as_str())
            .unwrap_or("nothing")
    }

    /// Everything that the model said, in order.
    pub(crate) fn said(&self) -> String {
        let messages = self
            .of("message")
            .filter(|event| event["message"]["role"] == "assistant");
        messages
            .flat_map(|event| blocks(event, "text").filter_map(|block| block["text"].as_str().map(str::to_owned)))
            .collect()
    }

    /// What holds of every session, whatever was killed: the numbers go up by one, no message came twice, every call of a tool
    /// has one result, none is left running, and the last run has ended.
    pub(crate) fn assert_whole(&self) {
        let numbers: Vec<i64> = self.0.iter().filter_map(|frame| frame["number"].as_i64()).collect();
        let expected: Vec<i64> = (1..=i64::try_from(numbers.len()).expect("a small number")).collect();
        assert_eq!(numbers, expected, "a durable event is lost or doubled");
        let mut seen = BTreeSet::new();
        for event in self.of("message") {
            let id = event["message"]["id"].to_string();
            assert!(seen.insert(id.clone()), "message {id} came twice");
        }
        let mut results: BTreeMap<String, usize> = BTreeMap::new();
        for event in self.of("message") {
            for block in blocks(event, "tool_use") {
                results.entry(block["id"].to_string()).or_default();
            }
            for block in blocks(event, "tool_result") {
                *results.entry(block["id"].to_string()).or_insert(100) += 1;
            }
        }
        assert!(
            results.values().all(|count| *count == 1),
            "a call has not exactly one result: {results:?}"
        );
        let calls = |kind| {
            let mut calls: Vec<_> = self.of(kind).map(|event| event["call"].to_string()).collect();
            calls.sort_unstable();
            calls
        };
        assert_eq!(
            calls("tool_started"),
            calls("tool_ended"),
            "a tool is left running, or ended unbegun, or twice"
        );
        for ended in self.of("tool_ended") {
            let mut results = self.of("message").flat_map(|event| blocks(event, "tool_result"));
            let result = results.find(|result| result["id"] == ended["call"]);
            assert_eq!(
                result.map(|result| result["is_error"] == true),
                Some(ended["is_error"] == true),
                "what was told of {} is not what the history has",
                ended["call"]
            );
        }
        let state = self.last_state();
        assert!(
            ["done", "failed", "cancelled", "interrupted"].contains(&state),
            "the run stands at {state}"
        );
    }
}

fn blocks<'e>(event: &'e Value, kind: &'e str) -> impl Iterator<Item = &'e Value> {
    event["message"]["blocks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(move |block| block["type"] == kind)
}
