//! Scripts, with a host that answers at once.

#![allow(clippy::unwrap_used, reason = "what is unexpected in a test is a failure")]

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use script::{Failure, Host, Job, Limits, run};
use serde_json::{Value, json};

/// Answers the last call first, so that nobody relies on order.
#[derive(Default)]
struct Parrot(VecDeque<(u32, Value)>);

impl Host for Parrot {
    fn call(&mut self, call: u32, name: &str, arguments: Vec<Value>) -> io::Result<()> {
        self.0
            .push_back((call, json!({ "name": name, "arguments": arguments })));
        Ok(())
    }

    fn answer(&mut self) -> io::Result<(u32, Result<Value, String>)> {
        let (call, answer) = self.0.pop_back().unwrap();
        if answer["arguments"][0] == "fail" {
            return Ok((call, Err("refused".to_owned())));
        }
        Ok((call, Ok(answer)))
    }
}

const LIMITS: Limits = Limits {
    time: Duration::from_secs(60),
    memory_bytes: 32 << 20,
    fuel: 300,
    output_bytes: 1 << 20,
    calls: 10,
};

fn ran(source: &str) -> Result<Value, Failure> {
    let job = Job {
        source: source.to_owned(),
        arguments: json!({ "a": [1, "zwei", null] }),
        functions: vec!["fetch".to_owned(), "log".to_owned()],
        limits: LIMITS,
    };
    run(&job, &mut Parrot::default())
}

#[track_caller]
fn threw(source: &str) -> (String, Option<u32>) {
    match ran(source) {
        Err(Failure::Threw { message, line }) => (message, line),
        other => panic!("{source}: {other:?}"),
    }
}

#[test]
fn a_script_is_the_body_of_an_asynchronous_function() {
    let cases = [
        ("return args", json!({ "a": [1, "zwei", null] })),
        ("", Value::Null),
        ("return undefined", Value::Null),
        ("return () => 1", Value::Null),
        ("return await 5", json!(5)),
        ("// a comment at the end\nreturn 1 // here", json!(1)),
        ("return new Date(0)", json!("1970-01-01T00:00:00.000Z")),
        ("return [...'aab'.matchAll(/a/g)].length", json!(2)),
        (
            "return [NaN, 1.5, 2 ** 53]",
            json!([null, 1.5, 9_007_199_254_740_992_u64]),
        ),
        (
            "const m = new Map([[1, 2]]); return Object.fromEntries(m)",
            json!({ "1": 2 }),
        ),
        (
            "return await fetch('x', { y: 1 })",
            json!({ "name": "fetch", "arguments": ["x", { "y": 1 }] }),
        ),
        (
            "return (await Promise.all([fetch(1), log(2)])).map(said => said.name)",
            json!(["fetch", "log"]),
        ),
        (
            "try { await fetch('fail') } catch (error) { return error instanceof Error && error.message }",
            json!("refused"),
        ),
    ];
    for (source, value) in cases {
        assert_eq!(
            ran(source).unwrap_or_else(|failure| panic!("{source}: {failure:?}")),
            value,
            "{source}"
        );
    }
}

#[test]
fn a_failure_has_words_and_a_line() {
    let cases = [
        ("throw new Error('no')", "no", Some(1)),
        ("\n\nthrow new TypeError('no')", "TypeError: no", Some(3)),
        (
            "const f = () => {\n  nowhere();\n};\nf();",
            "ReferenceError: nowhere is not defined",
            Some(2),
        ),
        (
            "await null;\nnull.x",
            "TypeError: cannot read property 'x' of null",
            Some(2),
        ),
        ("throw 'words'", "words", None),
        ("throw { a: 1 }", "it threw something that is no error", None),
        ("await fetch('fail')", "refused", None),
        (
            "await new Promise(() => {})",
            "it waits for something that never comes",
            None,
        ),
        ("const a = {}; a.a = a; return a", "TypeError: circular reference", None),
    ];
    for (source, message, line) in cases {
        let (said, at) = threw(source);
        assert_eq!(said, message, "{source}");
        if line.is_some() {
            assert_eq!(at, line, "{source}");
        }
    }
    let (said, at) = threw("const a = 1;\nconst b = ;");
    assert!(said.starts_with("SyntaxError") && at == Some(2), "{said} {at:?}");
}

#[test]
fn there_is_nothing_but_the_language_and_what_the_host_offers() {
    let absent = [
        "eval",
        "Function",
        "require",
        "process",
        "std",
        "os",
        "print",
        "console",
        "setTimeout",
        "WebAssembly",
        "XMLHttpRequest",
        "Worker",
        "importScripts",
        "scriptArgs",
        "performance",
        "gc",
    ];
    for name in absent {
        let source = format!("try {{ return typeof ({name}) }} catch {{ return 'undefined' }}");
        assert!(
            matches!(ran(&source).unwrap().as_str(), Some("undefined")),
            "{name} is there"
        );
    }
    // No way leads from a text to code.
    for source in [
        "return (() => {}).constructor('return 1')()",
        "return (async () => {}).constructor('return 1')()",
        "return (function* () {}).constructor('return 1')()",
        "return (async function* () {}).constructor('return 1')()",
        "return Reflect.construct((() => {}).constructor, ['return 1'])()",
        "return (await import('fs'))",
        "return (await import('data:text/javascript,export default 1'))",
    ] {
        threw(source);
    }
}

#[test]
fn limits_end_a_script_that_catches_everything() {
    let cases = [
        ("for (;;);", "fuel"),
        ("for (;;) { try { for (;;); } catch {} }", "fuel"),
        ("const spin = async () => { for (;;) await null }; await spin()", "fuel"),
        ("/(a+)+$/.test('a'.repeat(40) + 'b')", "fuel"),
        (
            "const a = []; for (;;) a.push(new Array(1000).fill(a.length))",
            "memory",
        ),
        ("return 'x'.repeat(2 << 20)", "may return 1048576"),
        (
            "for (let i = 0; i < 20; i++) { try { await log(i) } catch {} }",
            "more than 10 calls",
        ),
    ];
    for (source, words) in cases {
        match ran(source) {
            Err(Failure::Limit(why)) if why.contains(words) => {}
            other => panic!("{source}: {other:?}"),
        }
    }
    let (said, _) = threw("const f = () => f(); f()");
    assert!(said.contains("stack"), "{said}");
}

#[test]
fn a_host_offers_only_what_has_a_name() {
    let job = |functions: &str| Job {
        source: "return 1".to_owned(),
        arguments: Value::Null,
        functions: vec![functions.to_owned()],
        limits: LIMITS,
    };
    for name in ["", "a-b", "a) => { evil() }, (b", "1a", "ä"] {
        assert!(
            matches!(run(&job(name), &mut Parrot::default()), Err(Failure::Threw { .. })),
            "{name}"
        );
    }
    assert_eq!(run(&job("fetch2"), &mut Parrot::default()).unwrap(), 1);
}
