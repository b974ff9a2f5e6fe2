//! Services, as the agent's code calls them: real processes, a real sandbox, and upstreams that speak the vendors' real shapes,
//! as they are recorded in `services/*/fixtures`, or misbehave.

mod upstreams;

use std::path::Path;

use serde_json::{Value, json};

use crate::harnesses::{PYTHON_RUNS, pack, prepared};
use crate::installation::Installation;
use crate::transcript::Transcript;
use crate::world::World;

const ODD: &str = r#"
name = "odd"
summary = "Does not do as it says"
kind = "http"
base_url = "https://odd.api.test"
[auth]
kind = "bearer"
[limits]
timeout = "60s"
response = "1MiB"
[methods.short]
summary = "Says more than it sends"
access = "write"
request = "GET /short"
[methods.endless]
summary = "Never ends"
access = "write"
request = "GET /endless"
answer = "text"
limits = { response = "1MiB", timeout = "4s" }
[methods.large]
summary = "Sends a gigabyte"
access = "write"
request = "GET /large"
answer = "text"
[methods.largeFile]
summary = "Sends eight megabytes"
access = "read"
request = "GET /file"
answer = "binary"
limits = { response = "64MiB", timeout = "60s" }
[methods.circle]
summary = "Leads in a circle"
access = "write"
request = "GET /circle"
[methods.forbidden]
summary = "Nobody may"
access = "write"
request = "GET /forbidden"
"#;

const EXPIRED: &str = r#"
name = "expired"
summary = "Its certificate has expired"
kind = "http"
base_url = "https://expired.api.test"
[auth]
kind = "bearer"
[methods.get]
summary = "Get it"
access = "read"
request = "GET /thing"
"#;

const RENEWED: &str = r#"
name = "renewed"
summary = "Its token must be renewed, and cannot be the second time"
kind = "http"
base_url = "https://renewed.api.test"
[auth]
kind = "refresh_token"
token_url = "https://renewed.api.test/oauth/token"
[methods.get]
summary = "Get it"
access = "read"
request = "GET /thing"
"#;

const SECTIONS: &str = r#"
[roles.everybody]
services = { allow = ["**"], deny = ["odd.forbidden", "crm.create*"] }
[services.crm]
base_url = "https://crm.api.test"
addresses = ["127.0.0.0/8"]
[services.crm.auth]
token = "env:CRM_KEY"
[services.support]
base_url = "https://support.api.test"
addresses = ["127.0.0.0/8"]
[services.support.auth]
token = "env:SUPPORT_KEY"
[services.issues]
base_url = "https://issues.api.test"
addresses = ["127.0.0.0/8"]
[services.issues.auth]
token = "env:ISSUES_KEY"
[services.odd]
addresses = ["127.0.0.0/8"]
[services.odd.auth]
token = "env:CRM_KEY"
[services.expired]
addresses = ["127.0.0.0/8"]
[services.expired.auth]
token = "env:CRM_KEY"
[services.renewed]
addresses = ["127.0.0.0/8"]
[services.renewed.auth]
client_id = "belljar"
client_secret = "env:CRM_KEY"
refresh_token = "env:CRM_KEY"
[services.chat]
addresses = ["127.0.0.0/8"]
[services.chat.auth]
token = "file:/nonexistent/chat-token"
"#;

const KEYS: [(&str, &str); 3] = [
    ("CRM_KEY", upstreams::CRM_KEY),
    ("SUPPORT_KEY", upstreams::SUPPORT_KEY),
    ("ISSUES_KEY", upstreams::ISSUES_KEY),
];

const NAMES: [&str; 6] = [
    "crm.api.test",
    "support.api.test",
    "issues.api.test",
    "odd.api.test",
    "expired.api.test",
    "renewed.api.test",
];

/// An installation with shipped services and odd ones, whose model runs this code.
fn installed(world: &World, code: &str) -> Installation {
    let belljar = installing(world, code);
    belljar.start_host();
    belljar.start_serve();
    belljar
}

/// The same, before it is started.
fn installing(world: &World, code: &str) -> Installation {
    let step = json!({ "steps": [
        { "when": { "turn": 1 }, "tools": [{ "name": "exec", "input": { "code": code } }] },
        { "when": { "turn": 2 }, "text": "It said {{ result.0.text }}" },
    ] });
    let mut belljar = Installation::prepare(&step.to_string(), SECTIONS);
    let folder = belljar.path("services");
    std::fs::create_dir(&folder).expect("make a folder");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../services");
    for name in ["crm", "support", "issues", "chat"] {
        std::os::unix::fs::symlink(shipped.join(name), folder.join(name)).expect("link a service");
    }
    for (name, definition) in [("odd", ODD), ("expired", EXPIRED), ("renewed", RENEWED)] {
        std::fs::create_dir(folder.join(name)).expect("make a folder");
        std::fs::write(folder.join(name).join("service.toml"), definition).expect("write a definition");
    }
    belljar.live_in(world, &KEYS);
    belljar
}

/// What the code returned, and what watchers saw.
fn run(belljar: &Installation) -> (Value, Transcript) {
    belljar.done(&["run", "--session", "s", "do it"]);
    let transcript = belljar.transcript("s");
    transcript.assert_whole();
    let said = transcript.said();
    let value = said.strip_prefix("It said ").unwrap_or(&said);
    // What was written to the console comes first.
    let value = value.lines().find_map(|line| serde_json::from_str(line).ok());
    (value.unwrap_or_else(|| panic!("no result: {said}")), transcript)
}

/// Python's official client of the Model Context Protocol.
const CLIENT: &str = r#"
import anyio, json, os
from mcp import ClientSession, MCPError
from mcp.client.streamable_http import streamable_http_client
async def main():
    said = {}
    async with streamable_http_client('http://127.0.0.1:3129/mcp') as streams, ClientSession(*streams[:2]) as session:
        said['begun'] = (await session.initialize()).model_dump(by_alias=True, mode='json')
        said['tools'] = [tool.name for tool in (await session.list_tools()).tools]
        called = await session.call_tool('crm-searchContacts', {'query': 'ada'})
        said['called'] = called.model_dump(by_alias=True, mode='json')
        try:
            await session.call_tool('crm-createContact', {'properties': {}})
            said['denied'] = 'nothing'
        except MCPError as error:
            said['denied'] = error.code
    json.dump(said, open('said.json', 'w'))
anyio.run(main)
"#;

#[test]
fn the_official_client_of_mcp_finds_what_the_scope_allows_and_calls_it() {
    let world = World::new(vec![(&NAMES, Box::new(upstreams::answer))]);
    let belljar = installing(&world, PYTHON_RUNS);
    belljar.use_image(&testkit::miniature().digest);
    belljar.start_host();
    belljar.start_serve();
    let (archive, client) = (belljar.path("harness.tar"), belljar.path("client.py"));
    pack(&prepared("python"), "harness/", &archive);
    std::fs::write(&client, CLIENT).expect("write the client");
    let files = [archive, client].map(|path| path.to_string_lossy().into_owned());
    let words = [
        "run",
        "--session",
        "s",
        "--file",
        &files[0],
        "--file",
        &files[1],
        "do it",
    ];
    let answer = belljar.done(&words);
    let said: Value =
        serde_json::from_str(&belljar.file("s", "said.json")).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert!(said["begun"]["protocolVersion"].is_string(), "{said}");
    let tools: Vec<&str> = said["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    assert!(tools.contains(&"crm-searchContacts"), "{tools:?}");
    assert!(
        !tools.contains(&"crm-createContact") && !tools.contains(&"odd-forbidden"),
        "{tools:?}"
    );
    let items = &said["called"]["structuredContent"]["items"];
    assert_eq!(items.as_array().map(Vec::len), Some(1), "{said}");
    assert_eq!(said["denied"], -32602, "{said}");
    let transcript = belljar.transcript("s");
    assert_eq!(
        spans(&transcript, "crm", "searchContacts"),
        [("allow".to_owned(), 200, None)]
    );
}

/// The spans of a method's calls: outcome, status and code.
fn spans(transcript: &Transcript, service: &str, method: &str) -> Vec<(String, u64, Option<String>)> {
    let calls = transcript.of("service_called");
    calls
        .filter(|event| event["service"] == service && event["method"] == method)
        .map(|event| {
            assert!(event["micros"].as_u64().is_some_and(|micros| micros > 0), "{event}");
            (
                event["outcome"].as_str().unwrap_or_default().to_owned(),
                event["status"].as_u64().unwrap_or_default(),
                event["code"].as_str().map(str::to_owned),
            )
        })
        .collect()
}

#[test]
fn code_calls_three_services_at_once_and_every_call_is_a_span() {
    let world = World::new(vec![(&NAMES, Box::new(upstreams::answer))]);
    let belljar = installed(
        &world,
        "const [contacts, issue, page] = await Promise.all([
           services.crm.searchContacts({ query: 'ada' }),
           services.support.getIssue({ id: '12' }),
           services.issues.listIssues({ filter: { team: { key: { eq: 'ENG' } } }, first: 1 }),
         ]);
         const written = await writeToFile('out/issues.json', services.issues.listTeams());
         const file = await writeToFile('out/large.bin', services.odd.largeFile());
         const types = await describe('crm');
         const refused = await new Promise((done) => {
           const body = JSON.stringify({ service: 'crm', method: 'createContact', args: { properties: {} } });
           const request = require('node:http').request({ socketPath: '/run/belljar-services.sock', path: '/v1/services', method: 'POST' }, (response) => {
             let text = '';
             response.on('data', (piece) => (text += piece)).on('end', () => done([response.statusCode, JSON.parse(text).error.code]));
           });
           request.end(body);
         });
         return JSON.stringify({ contacts: contacts.items.length, title: issue.title, page: page.items[0].identifier, written, file,
           types: types.includes('searchContacts'), hidden: types.includes('createContact'), absent: typeof services.crm.createContact,
           services: Object.keys(services), refused });",
    );
    let (said, transcript) = run(&belljar);
    let said: Value = serde_json::from_str(said.as_str().unwrap_or_default()).expect("the code returned JSON");
    assert_eq!(
        (&said["contacts"], &said["title"], &said["page"]),
        (&json!(1), &json!("Lid slips"), &json!("ENG-12")),
        "{said}"
    );
    assert_eq!(
        (&said["types"], &said["hidden"], &said["absent"]),
        (&json!(true), &json!(false), &json!("undefined"))
    );
    assert_eq!(said["refused"], json!([403, "denied"]), "{said}");
    // Chat's key cannot be found, and yet it is there: it fails when it is called, and the others do not feel it.
    let names: Vec<&str> = said["services"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(
        names,
        [
            "belljar", "chat", "crm", "expired", "issues", "odd", "renewed", "support"
        ]
    );
    assert_eq!(said["file"], json!({ "path": "out/large.bin", "bytes": 8 << 20 }));
    let teams: Value = serde_json::from_str(&belljar.file("s", "out/issues.json")).expect("JSON was written");
    assert_eq!(teams["items"][0]["key"], "ENG");

    let allowed = |service, method| spans(&transcript, service, method);
    for (service, method) in [
        ("crm", "searchContacts"),
        ("support", "getIssue"),
        ("issues", "listIssues"),
        ("issues", "listTeams"),
        ("odd", "largeFile"),
    ] {
        assert_eq!(
            allowed(service, method),
            [("allow".to_owned(), 200, None)],
            "{service}.{method}"
        );
    }
    let refused = spans(&transcript, "crm", "createContact");
    assert_eq!(refused, [("deny".to_owned(), 403, Some("denied".to_owned()))]);
    let bytes = transcript
        .of("service_called")
        .find(|event| event["method"] == "largeFile");
    assert_eq!(bytes.expect("a span")["bytes"], 8 << 20);
    // Each was told its own key, and the sandbox none.
    let arrived = world.servers[0].arrived();
    assert!(arrived.iter().any(|request| request.host == "issues.api.test"));
    let shown = belljar.done(&["events", "s", "--json"]) + &belljar.done(&["audit", "--json"]) + &belljar.log("serve");
    for (_, key) in KEYS {
        assert!(!shown.contains(key));
    }
}

#[test]
fn upstreams_that_misbehave_fail_their_own_calls_and_no_others() {
    let world = World::new(vec![(&NAMES, Box::new(upstreams::answer))]);
    let belljar = installed(
        &world,
        "const outcome = (call) => call.then(() => 'worked', (error) => [error.code, error.status]);
         const out = {};
         out.first = await outcome(services.renewed.get());
         for (const name of ['short', 'endless', 'large', 'circle']) out[name] = await outcome(services.odd[name]());
         out.file = await outcome(writeToFile('endless.txt', services.odd.endless()));
         out.left = require('node:fs').readdirSync('.');
         out.expired = await outcome(services.expired.get());
         out.chat = await outcome(services.chat.listChannels());
         out.second = await outcome(services.renewed.get());
         out.third = await outcome(services.renewed.get());
         out.crm = await outcome(services.crm.searchContacts({ query: 'ada' }));
         return JSON.stringify(out);",
    );
    let (said, transcript) = run(&belljar);
    let said: Value = serde_json::from_str(said.as_str().unwrap_or_default()).expect("the code returned JSON");
    for (name, codes) in [
        ("short", ["answer_cut", "broken_off"].as_slice()),
        ("endless", &["timeout", "answer_too_large", "broken_off"]),
        ("large", &["answer_too_large", "broken_off"]),
        ("circle", &["upstream_redirected"]),
        ("file", &["timeout", "answer_too_large", "broken_off"]),
        ("expired", &["bad_certificate"]),
        ("chat", &["credential_missing"]),
        ("second", &["credential_refused"]),
        ("third", &["credential_refused"]),
    ] {
        assert!(codes.iter().any(|code| said[name][0] == *code), "{name}: {said}");
    }
    assert_eq!(
        (&said["first"], &said["crm"]),
        (&json!("worked"), &json!("worked")),
        "{said}"
    );
    assert_eq!(said["left"], json!([]), "what broke off leaves no file");
    assert_eq!(
        spans(&transcript, "expired", "get"),
        [("allow".to_owned(), 502, Some("bad_certificate".to_owned()))]
    );
    assert_eq!(spans(&transcript, "odd", "circle").len(), 1);
    let around = world.servers[0].arrived();
    assert_eq!(
        around.iter().filter(|request| request.target == "/circle").count(),
        1,
        "a redirect was followed"
    );
    assert!(!around.iter().any(|request| request.host == "expired.api.test"));
}

#[test]
fn a_secret_that_is_not_there_is_told_at_the_start_and_by_check() {
    let world = World::new(vec![(&NAMES, Box::new(upstreams::answer))]);
    let belljar = installed(
        &world,
        "return JSON.stringify((await services.support.getIssue({ id: '12' })).title)",
    );
    let log = belljar.log("serve");
    assert!(
        log.contains("services.chat.auth.token") && log.contains("/nonexistent/chat-token"),
        "{log}"
    );
    let checked = belljar.check();
    assert!(
        checked.contains("services.chat.auth.token") && checked.contains("/nonexistent/chat-token"),
        "{checked}"
    );
    assert!(!checked.contains("services.crm.auth"), "{checked}");
    let (said, _) = run(&belljar);
    assert_eq!(said, json!("\"Lid slips\""));
}
