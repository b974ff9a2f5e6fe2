use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::*;

/// A place to write that can be read.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("unpoisoned").clone()).expect("text")
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("unpoisoned").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Draws frames; gives back what stands on stdout and on stderr.
fn drawn(frames: &[Value], terminal: bool, json: bool) -> (String, String) {
    drawn_as(Shown::Answers, frames, terminal, json)
}

fn drawn_as(shown: Shown, frames: &[Value], terminal: bool, json: bool) -> (String, String) {
    let (out, notes) = (Page::default(), Page::default());
    let paper = Paper {
        out: Box::new(out.clone()),
        notes: Box::new(notes.clone()),
        out_terminal: terminal,
        notes_terminal: terminal,
        colours: terminal,
    };
    let mut render = Render::new(paper, json, shown);
    for raw in frames {
        let meaning = crate::watch::meaning(raw);
        render
            .draw(&Seen {
                raw: raw.clone(),
                meaning,
            })
            .expect("drawn");
    }
    render.bill(std::time::Duration::from_millis(1_500)).expect("drawn");
    (out.text(), notes.text())
}

const ID: &str = "0192f0c1-2d3e-7abc-8def-0123456789ab";

fn frames() -> Vec<Value> {
    vec![
        json!({"number": 1, "at": 1_000, "type": "message_opened", "message": ID, "run": ID}),
        json!({"type": "thinking", "message": ID, "offset": 0, "text": "hmm"}),
        json!({"type": "text", "message": ID, "offset": 0, "text": "Let me "}),
        json!({"type": "text", "message": ID, "offset": 7, "text": "look.\u{1b}[2J"}),
        json!({"number": 2, "at": 1_000, "type": "message", "message": {"id": ID, "role": "assistant",
            "author": {"kind": "model", "name": "m"}, "at": 1_000, "blocks": [{"type": "text", "text": "Let me look.\u{1b}[2J"},
            {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "data/\u{202e}x.csv"}}]}}),
        json!({"number": 3, "at": 1_000, "type": "tool_started", "call": "c1", "name": "read", "input": {"path": "data/\u{202e}x.csv"}}),
        json!({"number": 4, "at": 1_250, "type": "tool_ended", "call": "c1", "is_error": false, "summary": "3 lines"}),
        json!({"number": 5, "at": 1_250, "type": "tool_started", "call": "c2", "name": "exec", "input": {"code": "boom()\nmore"}}),
        json!({"type": "tool_progress", "call": "c2", "text": "row 1\nrow 2\n\n"}),
        json!({"number": 6, "at": 4_250, "type": "tool_ended", "call": "c2", "is_error": true, "summary": "ReferenceError: boom"}),
        json!({"number": 7, "at": 4_300, "type": "usage", "run": ID, "model": "m", "cost": 1_500_000, "estimated": false,
            "usage": {"input": 100, "cache_read": 900, "output": 20}}),
        json!({"number": 8, "at": 4_300, "type": "something_newer", "x": 1}),
        json!({"number": 9, "at": 4_400, "type": "run", "run": ID, "epoch": 1, "state": "failed", "reason": "the model is gone"}),
    ]
}

#[test]
fn the_answer_and_what_is_said_about_it_are_parted() {
    let (out, notes) = drawn(&frames(), false, false);
    assert_eq!(out, "Let me look.\u{1b}[2J\n", "not a terminal: the text as it is");
    let expected = [
        "  ✓ read data/�x.csv 250 ms",
        "  ✗ exec boom() 3.0 s failed: ReferenceError: boom",
        "failed: the model is gone",
        "$0.0015 · 1 model call · 1000 tokens in, 20 out · 1.5 s",
    ];
    assert_eq!(notes.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn threat_115_nothing_untrusted_commands_the_terminal() {
    let (out, notes) = drawn(&frames(), true, false);
    assert_eq!(out, "Let me look.␛[2J\n");
    assert!(notes.contains("\u{1b}[32m✓\u{1b}[0m"), "{notes:?}");
    assert!(notes.contains("data/�x.csv") && !notes.contains('\u{202e}'));
    assert!(
        notes.contains("… exec: row 2\u{1b}[0m\r\u{1b}[K"),
        "what a tool says goes away: {notes:?}"
    );
}

#[test]
fn all_of_a_conversation_has_what_tools_were_given_and_the_beginning_of_what_they_answered() {
    let answer: Vec<String> = (1..=45).map(|line| format!("line {line}\u{1b}[2J")).collect();
    let frames = [
        json!({"number": 1, "at": 1_000, "type": "message", "message": {"id": ID, "role": "assistant",
            "author": {"kind": "model", "name": "m"}, "at": 1_000, "blocks": [{"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "c1", "name": "exec", "input": {"code": "one()\ntwo()"}}]}}),
        json!({"number": 2, "at": 1_000, "type": "message", "message": {"id": ID, "role": "user",
            "author": {"kind": "sandbox"}, "at": 1_000, "blocks": [
            {"type": "tool_result", "id": "c1", "content": [{"type": "text", "text": answer.join("\n")}]}]}}),
    ];
    assert_eq!(
        drawn_as(Shown::Words, &frames, false, false).0,
        "Let me look.\n",
        "a line about each tool comes of other events"
    );
    let (out, _) = drawn_as(Shown::All, &frames, false, false);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines[..5],
        ["Let me look.", "  exec", "    code:", "      one()", "      two()"]
    );
    assert_eq!(lines[5], "  | line 1␛[2J");
    assert_eq!(lines[5 + RESULT_LINES..], ["  | … 5 more lines"]);
}

#[test]
fn a_name_that_is_refused_is_no_connection() {
    let denied = |protocol: &str, port: u16| {
        json!({"number": 1, "at": 1, "type": "egress_denied", "host": "example.com", "port": port, "protocol": protocol,
            "reason": "no rule lets it out"})
    };
    let (_, notes) = drawn(&[denied("dns", 53), denied("tcp", 443)], false, false);
    let expected = [
        "  ✗ the name example.com is not known in the sandbox: no rule lets it out",
        "  ✗ no way out to example.com:443: no rule lets it out",
    ];
    assert_eq!(notes.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn text_that_comes_again_is_not_written_again() {
    let mut frames = frames();
    frames.insert(
        4,
        json!({"type": "text", "message": ID, "offset": 0, "text": "Let me look"}),
    );
    frames.insert(
        5,
        json!({"type": "text", "message": ID, "offset": 4, "text": "me look.\u{1b}[2J"}),
    );
    assert_eq!(drawn(&frames, false, false).0, drawn(&self::frames(), false, false).0);
}

#[test]
fn json_is_every_frame_a_line_and_nothing_else() {
    let (out, notes) = drawn(&frames(), true, true);
    let lines: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines, frames());
    assert_eq!(notes, "");
}
