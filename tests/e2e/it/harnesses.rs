//! Other harnesses and SDKs inside a real sandbox: as their makers ship them, with a key that is none, on the session's bill.
//!
//! `scripts/prepare tests` brings them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::miniature;

use crate::installation::Installation;

/// The model of the session is the model of the harness: one script for both.
const SCRIPT: &str = r#"
steps:
  - when: { turn: 1, text: try the harness }
    tools:
      - name: exec
        input: { code: "RUN" }
  - when: { turn: 2, text: try the harness }
    text: "It said {{ result.0.text }}"
  - when: { turn: 1, text: note the moon }
    text: "I write it down."
    tools:
      - name: bash
        input: { command: "echo moon > note.txt", description: "Writes a note" }
  - when: { turn: 2, text: note the moon }
    text: "Noted, and nothing else."
  - text: "Good day to you."
    usage: { input: 1000, cache_read: 200, output: 50 }
"#;

const OPENCODE_RUNS: &str = r#"
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
spawnSync('tar', ['xf', 'harness.tar']);
fs.mkdirSync('job');
fs.writeFileSync('job/opencode.json', JSON.stringify({
  model: 'belljar/scripted', small_model: 'belljar/scripted', autoupdate: false, share: 'disabled', enabled_providers: ['belljar'],
  provider: { belljar: { npm: '@ai-sdk/anthropic',
    options: { baseURL: process.env.ANTHROPIC_BASE_URL + '/v1', apiKey: process.env.ANTHROPIC_API_KEY },
    models: { scripted: { limit: { context: 200000, output: 8192 } } } } },
  permission: { '*': 'allow' },
}));
const done = spawnSync('/workspace/harness/opencode', ['run', 'note the moon'], { cwd: '/workspace/job', encoding: 'utf8', timeout: 240000,
  env: { ...process.env, HOME: '/workspace/home', OPENCODE_DISABLE_AUTOUPDATE: '1', OPENCODE_DISABLE_MODELS_FETCH: '1' } });
await writeToFile('said.txt', done.stdout + done.stderr + (done.error ?? ''));
return fs.existsSync('job/note.txt') ? fs.readFileSync('job/note.txt', 'utf8') : 'nothing was written';
"#;

const SDKS: &str = r#"
import anthropic, openai, json, os
assert os.environ['ANTHROPIC_API_KEY'] == os.environ['OPENAI_API_KEY'] == 'credential-brokered'
a, o = anthropic.Anthropic(), openai.OpenAI()
hello = [{'role': 'user', 'content': 'hello'}]
said = {}
said['models'] = [[m.id for m in c.models.list()] for c in (a, o)]
said['message'] = a.messages.create(model='scripted', max_tokens=100, messages=hello).content[0].text
with a.messages.stream(model='scripted', max_tokens=100, messages=hello) as stream:
    said['message stream'] = stream.get_final_text()
said['count'] = a.messages.count_tokens(model='scripted', messages=hello).input_tokens > 0
said['chat'] = o.chat.completions.create(model='scripted', messages=hello).choices[0].message.content
said['chat stream'] = ''.join(c.choices[0].delta.content or '' for c in o.chat.completions.create(model='scripted', messages=hello, stream=True))
said['response'] = o.responses.create(model='scripted', input='hello').output_text
with o.responses.stream(model='default', input='hello') as stream:
    said['response stream'] = stream.get_final_response().output_text
def refused(call):
    try:
        call()
        return 'nothing'
    except (anthropic.APIStatusError, openai.APIStatusError) as error:
        return error.status_code
said['dear'] = refused(lambda: a.messages.create(model='claude-opus-4-1', max_tokens=9, messages=hello))
said['embeddings'] = refused(lambda: o.embeddings.create(model='scripted', input='hello'))
said['search'] = refused(lambda: o.responses.create(model='scripted', input='hello', tools=[{'type': 'web_search'}]))
json.dump(said, open('said.txt', 'w'))
print('moon')
"#;

/// Runs a program of Python's with the packages that were prepared.
pub(crate) const PYTHON_RUNS: &str = r#"
const { spawnSync } = require('node:child_process');
spawnSync('tar', ['xf', 'harness.tar']);
const done = spawnSync('python3', ['client.py'], { encoding: 'utf8', timeout: 240000,
  env: { ...process.env, PYTHONPATH: '/workspace/harness/python', LD_LIBRARY_PATH: '/workspace/harness/python/libraries', PYTHONDONTWRITEBYTECODE: '1' } });
return done.stdout + done.stderr;
"#;

/// Where a harness is, or what is needed of one.
pub(crate) fn prepared(name: &str) -> PathBuf {
    let place = testkit::prepared(&format!("../harnesses/{name}"));
    assert!(
        place.exists(),
        "{} is not here: `scripts/prepare tests` installs it",
        place.display()
    );
    place
}

/// Puts a harness into an archive, below this folder.
pub(crate) fn pack(program: &Path, folder: &str, archive: &Path) {
    let (above, name) = (
        program.parent().expect("a folder above"),
        program.file_name().expect("a name"),
    );
    let mut tar = Command::new("tar");
    tar.arg("cf")
        .arg(archive)
        .arg("-C")
        .arg(above)
        .arg(format!("--transform=s,^,{folder},"));
    testkit::run_within(Duration::from_secs(120), tar.arg(name));
}

/// A session in which code ran with these files beside it, and what came of it.
fn run(code: &str, folder: &str, program: &Path, more: Option<(&str, &str)>) -> (Installation, String) {
    let code = serde_json::to_string(code).expect("a text is JSON");
    let script = SCRIPT.replace("\"RUN\"", &code);
    let belljar = Installation::prepare(&script, "[run]\ntool_time = \"10m\"\n[budget]\nrun = 5.00\n");
    belljar.use_image(&miniature().digest);
    let archive = belljar.path("harness.tar");
    pack(program, folder, &archive);
    let mut arguments = vec!["run", "--session", "s", "--file"];
    let archive = archive.to_string_lossy().into_owned();
    arguments.push(&archive);
    let beside = more.map(|(name, text)| {
        let path = belljar.path(name);
        fs::write(&path, text).expect("write a file");
        path.to_string_lossy().into_owned()
    });
    if let Some(beside) = &beside {
        arguments.extend(["--file", beside]);
    }
    arguments.push("try the harness");
    belljar.start_host();
    belljar.start_serve();
    let said = belljar.done(&arguments);
    (belljar, said)
}

/// What programs asked of models, and what everything cost, in nano-dollars, as the session's events tell it.
fn calls(belljar: &Installation) -> (Vec<Value>, i64) {
    let events = belljar.done(&["events", "s", "--json"]);
    let events = events
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (mut calls, mut cost) = (Vec::new(), 0);
    for event in events {
        let event = event
            .get("event")
            .filter(|inner| inner.is_object())
            .cloned()
            .unwrap_or(event);
        match event["type"].as_str() {
            Some("model_called") => calls.push(event),
            Some("usage") => cost += event["cost"].as_i64().unwrap_or_default(),
            _ => {}
        }
    }
    (calls, cost)
}

#[test]
fn official_clients_ask_in_three_languages_and_the_session_pays() {
    let (belljar, answer) = run(PYTHON_RUNS, "harness/", &prepared("python"), Some(("client.py", SDKS)));
    assert!(answer.contains("moon"), "{answer}");
    let said: Value = serde_json::from_str(&belljar.file("s", "said.txt")).expect("what they said");
    for way in [
        "message",
        "message stream",
        "chat",
        "chat stream",
        "response",
        "response stream",
    ] {
        assert_eq!(said[way], "Good day to you.", "{way}: {said}");
    }
    assert_eq!(said["models"], json!([["scripted"], ["scripted"]]));
    assert_eq!(
        (&said["count"], &said["dear"], &said["embeddings"]),
        (&json!(true), &json!(404), &json!(404))
    );
    assert_eq!(said["search"], 403);
    let (calls, cost) = calls(&belljar);
    let paid: Vec<&Value> = calls.iter().filter(|call| call["status"] == 200).collect();
    assert_eq!(paid.len(), 6, "{calls:#?}");
    // $3, $3 from the cache, and $15 for a million tokens.
    let each = 1_000 * 3_000 + 200 * 3_000 + 50 * 15_000;
    assert!(paid.iter().all(|call| call["cost"] == each), "{paid:#?}");
    assert!(cost > 6 * each, "{cost}: the session's own turns are paid too");
}

#[test]
fn opencode_does_a_step_inside_and_the_session_pays() {
    let (belljar, answer) = run(OPENCODE_RUNS, "harness/", &prepared("opencode"), None);
    let said = belljar.file("s", "said.txt");
    assert!(answer.contains("moon"), "{answer}\n{said}");
    assert!(said.contains("Noted, and nothing else."), "{said}");
    let (calls, cost) = calls(&belljar);
    assert!(
        calls.len() >= 2 && calls.iter().all(|call| call["status"] == 200),
        "{calls:#?}"
    );
    let programs: i64 = calls.iter().filter_map(|call| call["cost"].as_i64()).sum();
    assert!(programs > 0 && cost > programs, "{programs} of {cost}");
    println!("OpenCode: {} calls, {programs} nano-dollars", calls.len());
}
