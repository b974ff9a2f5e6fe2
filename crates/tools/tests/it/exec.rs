//! `exec`.

use domain::ResultPart;
use lifecycle::Stop;
use serde_json::{Value, json};

use crate::bench::{Bench, PATIENCE, lives, node_folder, words};

async fn ok(bench: &Bench, code: &str) -> String {
    bench.ok("exec", json!({ "code": code })).await
}

async fn error(bench: &Bench, code: &str) -> String {
    bench.error("exec", json!({ "code": code })).await
}

#[tokio::test]
async fn the_returned_value_is_shown_as_json() {
    let bench = Bench::new();
    for (code, expected) in [
        ("return 1 + 1", "2"),
        ("return 'text'", "\"text\""),
        (
            "const x = await Promise.resolve({ a: [1, null, true] }); return x;",
            "{\"a\":[1,null,true]}",
        ),
        (
            "return [new Map([['k', 1]]), new Set([1, 2]), 10n, NaN, new Date(0), /x/g, new Float64Array(2)]",
            "[{\"k\":1},[1,2],10,\"NaN\",\"1970-01-01T00:00:00.000Z\",\"/x/g\",[0,0]]",
        ),
        (
            "const a = { b: {} }; a.b.a = a; return { a, again: a.b }",
            "{\"a\":{\"b\":{\"a\":\"[circular]\"}},\"again\":{\"a\":{\"b\":\"[circular]\"}}}",
        ),
        (
            "return process.env.GREETING + ' ' + process.cwd().endsWith('/workspace')",
            "\"hello true\"",
        ),
        ("", "[nothing returned, no output]"),
        ("return () => 1", "[nothing returned, no output]"),
        ("// only a comment", "[nothing returned, no output]"),
        ("return typeof require('node:fs').readFileSync", "\"function\""),
    ] {
        assert_eq!(ok(&bench, code).await, expected, "{code}");
    }
    let result = bench
        .call(
            "exec",
            json!({ "code": "console.log('to', 'you'); console.error('and me'); return { n: 1 }" }),
        )
        .await;
    let part = |text: &str| ResultPart::Text { text: text.to_owned() };
    assert_eq!(result.content, [part("to you\nand me\n"), part("{\"n\":1}")]);
    assert_eq!(*bench.progress.lock().unwrap(), "to you\nand me\n");
}

#[tokio::test]
async fn typescript_and_static_imports_are_understood() {
    let bench = Bench::new();
    bench.put(
        "lib/own.mjs",
        "export default 'default'; export const named = 'named'; export const other = 'other';",
    );
    bench.put(
        "lib/typed.ts",
        "export interface Row { n: number }\nexport const rows: Row[] = [{ n: 7 }];",
    );
    bench.put("data.json", "{\"k\": 5}");
    for (code, expected) in [
        (
            "const x: number = 1; interface A { b: string }\nreturn (x as any) satisfies number",
            "1",
        ),
        ("function id<T>(x: T): T { return x }\nreturn id<string>('s')", "\"s\""),
        (
            "const m = new Map<string, number[]>(); m.set('a', [1]); return [...m]",
            "[[\"a\",[1]]]",
        ),
        ("const a = 1, b = 2, c = 3; return [a < b, c > b]", "[true,true]"),
        (
            "import { basename as base, join } from 'node:path';\nreturn base(join('a', 'b'))",
            "\"b\"",
        ),
        (
            "// about\n/* more */ import own, { named, other as o } from './lib/own.mjs'\nimport * as all from \"./lib/own.mjs\";\nreturn [own, named, o, all.named]",
            "[\"default\",\"named\",\"other\",\"named\"]",
        ),
        (
            "import type { Row } from './lib/typed.ts';\nimport { type Row as R, rows } from './lib/typed.ts';\nconst r: Row[] = rows; return r",
            "[{\"n\":7}]",
        ),
        (
            "'use strict';\nimport data from './data.json' with { type: 'json' };\nreturn data.k",
            "5",
        ),
        (
            "import own, * as all from './lib/own.mjs';\nreturn own === all.default",
            "true",
        ),
        (
            "import 'node:fs'; import\n{\n  sep,\n}\nfrom 'node:path';\nreturn sep",
            "\"/\"",
        ),
        ("return (await import('node:path')).sep", "\"/\""),
        ("return `\nimport x from 'y'\n`.trim()", "\"import x from 'y'\""),
    ] {
        assert_eq!(ok(&bench, code).await, expected, "{code}");
    }
}

#[tokio::test]
async fn errors_name_the_lines_of_the_author() {
    let bench = Bench::new();
    bench.put(
        "lib.mjs",
        "export function fail() {\n  throw new RangeError('deep');\n}",
    );
    for (code, expected) in [
        (
            "const a = 1;\n\nnull.x",
            vec!["TypeError: Cannot read properties of null", "3 | null.x", "at exec:3:6"],
        ),
        (
            "import { fail } from './lib.mjs';\nfail()",
            vec!["RangeError: deep", "2 | fail()", "lib.mjs:2:9", "exec:2:1"],
        ),
        (
            "import {\n  join\n} from 'node:path';\nundefinedName",
            vec!["undefinedName is not defined", "4 | undefinedName", "exec:4:1"],
        ),
        (
            "const x: number = 1;\nthrow new Error('typed', { cause: new Error('why') })",
            vec!["Error: typed", "exec:2:7", "Caused by Error: why"],
        ),
        (
            "const a = 1;\nconst a = 2;",
            vec!["SyntaxError: Identifier 'a' has already been declared", "exec:2"],
        ),
        ("if (true) {\n  return 1 +;\n}", vec!["SyntaxError", "exec:2"]),
        ("throw 'a text'", vec!["The code threw 'a text'"]),
        ("await Promise.reject(new Error('no'))", vec!["Error: no", "exec:1:22"]),
        (
            "setTimeout(() => { throw new Error('later') }, 1); await new Promise(() => setTimeout(() => {}, 5000))",
            vec!["Error: later"],
        ),
        (
            "Promise.reject(new Error('unhandled')); await new Promise((r) => setTimeout(r, 5000))",
            vec!["Error: unhandled"],
        ),
        (
            "await new Promise(() => {})",
            vec!["waits for a promise that nothing will ever settle"],
        ),
        ("process.exit(3)", vec!["exit code 3 before the code returned"]),
        ("import { x } from './none.mjs'", vec!["Cannot find module", "none.mjs"]),
        (
            "const a = 1;\nimport fs from 'node:fs'",
            vec!["Static imports go before everything else"],
        ),
        ("enum A { B }\nreturn A.B", vec!["enum is not supported"]),
        (
            "throw new Error('\\x1b[31mred\\x1b]8;;http://x\\x07link')",
            vec!["Error: redlink"],
        ),
    ] {
        let said = error(&bench, code).await;
        for words in expected {
            assert!(said.contains(words), "{code}\n{words} is not in:\n{said}");
        }
        assert!(
            !said.contains("bootstrap") && !said.contains("node:internal") && !said.contains("[eval]"),
            "{said}"
        );
    }
    let said = error(&bench, "console.log('before'); throw new Error('after')").await;
    assert!(said.starts_with("before\n\n---\nError: after"), "{said}");
}

#[tokio::test]
async fn write_to_file_takes_anything() {
    let bench = Bench::new();
    let code = "
        const done = await Promise.all([
            writeToFile('out/text.txt', 'é'),
            writeToFile('bytes.bin', new Uint8Array([1, 2, 3])),
            writeToFile('object.json', { a: 1 }),
            writeToFile('stream.txt', (async function* () { yield 'one'; yield 'two'; })()),
            writeToFile('response.txt', new Response('body')),
        ]);
        return done";
    let done: Value = serde_json::from_str(&ok(&bench, code).await).unwrap();
    let expected = [
        ("out/text.txt", 2),
        ("bytes.bin", 3),
        ("object.json", 12),
        ("stream.txt", 6),
        ("response.txt", 4),
    ];
    assert_eq!(
        done,
        json!(expected.map(|(path, bytes)| json!({ "path": path, "bytes": bytes })))
    );
    assert_eq!(bench.text("out/text.txt"), "é");
    assert_eq!(bench.text("object.json"), "{\n  \"a\": 1\n}");
    assert_eq!(bench.text("stream.txt"), "onetwo");
    assert_eq!(bench.text("response.txt"), "body");
    let code = "await writeToFile('half.txt', (async function* () { yield 'one'; throw new Error('cut'); })())";
    assert!(error(&bench, code).await.contains("Error: cut"));
    assert!(!std::fs::read_dir(bench.at("")).unwrap().any(|entry| {
        let name = entry.unwrap().file_name();
        name.to_string_lossy().ends_with(".new") || name == "half.txt"
    }));
    assert!(
        error(&bench, "await writeToFile('x')")
            .await
            .contains("there is no data")
    );
}

#[tokio::test]
async fn what_is_too_long_goes_to_a_file() {
    let bench = Bench::new();
    let result = bench
        .call("exec", json!({ "code": "console.log('x'.repeat(200_000)); return Array.from({ length: 9_999 }, (_, n) => ({ n }))" }))
        .await;
    let said = words(&result);
    assert!(
        !result.is_error && said.len() <= bench.limits.output_bytes,
        "{}",
        said.len()
    );
    assert!(
        said.contains("too long to be shown: array of 9999 × {n}]\n[{\"n\":0},"),
        "{said}"
    );
    let path = |end: &str| {
        let at = said.find(end).unwrap() + end.len();
        let from = said[..at].rfind("/workspace/").unwrap() + "/workspace/".len();
        said[from..at].to_owned()
    };
    let kept: Vec<Value> = serde_json::from_str(&bench.text(&path(".json"))).unwrap();
    assert_eq!(kept.len(), 9_999);
    assert_eq!(bench.text(&path(".txt")), format!("{}\n", "x".repeat(200_000)));
}

#[tokio::test]
async fn a_call_that_takes_too_long_or_too_much_is_killed() {
    let mut bench = Bench::new();
    let said = error(&bench, "const a = []; for (;;) a.push(new Array(1e5).fill({}))").await;
    assert!(said.contains("more memory than the 256 MiB"), "{said}");
    bench.limits.tool_seconds = 10;
    let said = error(&bench, "console.log('begun'); for (;;);").await;
    assert!(
        said.starts_with("begun\n\n---\n[killed: the code took longer than 10 s]"),
        "{said}"
    );
}

#[tokio::test]
async fn code_that_returned_ends_whatever_it_did_to_its_process() {
    let mut bench = Bench::new();
    // Longer than the test has patience: whatever ends here, it was not the deadline.
    bench.limits.tool_seconds = 2 * PATIENCE.as_secs();
    for tampering in [
        "process.kill = process._kill = process.reallyExit = process.exit = process.abort = () => {};",
        "process.stdout.write = () => true; Buffer.byteLength = () => 1e9;",
        "globalThis.leave = globalThis.end = () => {}; globalThis.ended = true; globalThis.mark = '';",
        "try { leave = end = () => {}; ended = true; mark = ''; } catch {}",
        "process.on('beforeExit', () => { for (;;); }); process.on('exit', () => { for (;;); });",
        "setInterval(() => {}, 1); require('node:net').createServer().listen(0);",
        "setTimeout(() => { for (;;); }, 1);",
        "for (const name of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(name, () => {});",
        "require('node:child_process').spawn('sleep', ['600'], { detached: true, stdio: 'inherit' }).unref();",
    ] {
        assert_eq!(
            ok(&bench, &format!("{tampering} return 'done'")).await,
            "\"done\"",
            "{tampering}"
        );
    }
}

#[tokio::test]
async fn calls_at_the_same_time_run_at_the_same_time() {
    let bench = Bench::new();
    // Each waits for the other: one after the other they would never end.
    let code = |own: &str, other: &str| {
        format!(
            "import {{ existsSync }} from 'node:fs';
             await writeToFile('{own}', '');
             while (!existsSync('{other}')) await new Promise((r) => setTimeout(r, 5));
             return '{own}'"
        )
    };
    let (a, b) = (code("a", "b"), code("b", "a"));
    let (one, other) = tokio::join!(ok(&bench, &a), ok(&bench, &b));
    assert_eq!((one.as_str(), other.as_str()), ("\"a\"", "\"b\""));
}

/// The Nodes that descend from this process and belong to the test of what is started ahead.
fn nodes() -> Vec<i32> {
    let mut found = Vec::new();
    let mut ask = vec![i32::try_from(std::process::id()).unwrap()];
    while let Some(pid) = ask.pop() {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().map(|word| word.parse::<i32>().unwrap()) {
                ask.push(child);
                // What stands over it has no environment.
                let own = std::fs::read_to_string(format!("/proc/{child}/environ")).unwrap_or_default();
                if own.contains("BENCH=spare") {
                    found.push(child);
                }
            }
        }
    }
    found
}

fn parent(pid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn the_next_process_is_started_ahead_while_a_run_is_on_and_none_is_left_after_it() {
    let bench = Bench::with(|settings| {
        settings.environment.insert("BENCH".to_owned(), "spare".to_owned());
    });
    assert_eq!(ok(&bench, "return 0").await, "0");
    assert_eq!(nodes(), [0; 0], "one was started ahead though no run is on");

    bench.tools.prepare();
    crate::bench::until("a process that is started ahead", || nodes().len() == 1).await;
    let ahead = nodes()[0];
    let used: i32 = ok(&bench, "return process.pid").await.parse().unwrap();
    assert_eq!(used, ahead, "the call did not use the process that was there");
    crate::bench::until("the next one", || nodes().len() == 1 && nodes()[0] != ahead).await;

    // One that died meanwhile is no trouble.
    let spare = nodes()[0];
    let supervisor = parent(spare);
    let number = rustix::process::Pid::from_raw(spare).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::KILL).unwrap();
    crate::bench::until("its end", || !lives(spare) && !lives(supervisor)).await;
    assert_eq!(ok(&bench, "return 'still'").await, "\"still\"");

    // A new environment reaches it.
    let environment = [
        ("PATH", std::env::var("PATH").unwrap()),
        ("BENCH", "spare".to_owned()),
        ("GREETING", "bye".to_owned()),
    ];
    let mut environment: std::collections::BTreeMap<String, String> =
        environment.map(|(name, value)| (name.to_owned(), value)).into();
    environment.insert("PATH".to_owned(), format!("{}:/usr/bin", node_folder().display()));
    bench.tools.set_environment(environment).await;
    assert_eq!(ok(&bench, "return process.env.GREETING").await, "\"bye\"");

    bench.tools.rest().await;
    assert_eq!(nodes(), [0; 0], "an idle process was left");
}

#[tokio::test]
async fn without_a_node_the_call_says_so() {
    let bench = Bench::with(|settings| {
        settings
            .environment
            .insert("PATH".to_owned(), "/nonexistent".to_owned());
    });
    assert!(
        error(&bench, "return 1")
            .await
            .contains("there is no `node` in the PATH")
    );
    // A Node that cannot be a Node.
    let bench = Bench::with(|settings| {
        let folder = settings.workspace.join("bin");
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/bin/false", folder.join("node")).unwrap();
        settings
            .environment
            .insert("PATH".to_owned(), folder.display().to_string());
    });
    assert!(
        error(&bench, "return 1")
            .await
            .contains("exit code 1 before the code returned")
    );
}

#[tokio::test]
async fn a_call_that_was_stopped_before_it_began_does_nothing() {
    let bench = Bench::new();
    let stop = Stop::new();
    stop.cancel();
    let result = bench
        .call_until("write", json!({ "path": "x", "content": "x" }), &stop)
        .await;
    assert!(result.is_error && !bench.at("x").exists(), "{}", words(&result));
}
