//! The whole way of a host that is denied: the program reads why and how to ask, the code asks, a person approves, and the next
//! run's connection passes.

use serde_json::{Value, json};
use testkit::upstream::answered;

use crate::installation::Installation;
use crate::world::World;

const SECTIONS: &str = r#"
[egress.rules.docs]
hosts = ["docs.ask.test:80"]
schemes = ["http"]
networks = ["127.0.0.0/8"]
[roles.everybody]
tools = { exec = true }
egress = []
"#;

/// Runs what the prompt's file says.
const CODE: &str = "
const run = require('node:child_process').spawnSync;
const get = (url, ...how) => { const done = run('curl', ['-sS', ...how, url], { encoding: 'utf8' }); return done.stdout + done.stderr };
const proxied = (url) => JSON.parse(get(url, '-x', 'http://127.0.0.1:3128')).error;
const told = {
  direct: get('http://docs.ask.test/x'),
  unscoped: proxied('http://docs.ask.test/x'),
  unruled: proxied('http://other.ask.test/x'),
};
told.asked = [];
for (const { remedy } of [told.unscoped, told.unruled]) {
  // What the remedy says is what is done.
  const [, host] = remedy.match(/requestAccess\\(\\{ host: \"([^\"]+)\"/);
  told.asked.push(await services.belljar.requestAccess({ host, reason: 'to read the docs' }));
}
await writeToFile('told.json', JSON.stringify(told));";

#[test]
fn what_is_denied_says_how_to_ask_and_passes_once_a_person_approved_it() {
    let world = World::new(vec![(
        &["docs.ask.test"],
        Box::new(|_| answered(200, &[], "welcome to the docs")),
    )]);
    let script = json!({ "steps": [
        { "when": { "turn": 1, "text": "find out" }, "tools": [{ "name": "exec", "input": { "code": CODE } }] },
        { "when": { "turn": 1, "text": "again" }, "tools": [{ "name": "exec", "input": {
            "code": "return require('node:child_process').execSync('curl -sS http://docs.ask.test/x', { encoding: 'utf8' })"
        } }] },
        { "when": { "turn": 2 }, "text": "It said {{ result.0.text }}" },
    ] });
    let mut belljar = Installation::prepare(&script.to_string(), SECTIONS);
    belljar.live_in(&world, &[]);
    belljar.start_host();
    belljar.start_serve();
    belljar.done(&["run", "--session", "s", "find out"]);
    let told: Value = serde_json::from_str(&belljar.file("s", "told.json")).expect("what it was told");
    assert!(
        told["direct"].as_str().is_some_and(|said| said.contains("resolve")),
        "{told}"
    );
    let unscoped = &told["unscoped"];
    assert_eq!(
        (&unscoped["code"], &unscoped["rule"]),
        (&json!("out_of_scope"), &json!("egress.unlisted")),
        "{told}"
    );
    let unruled = &told["unruled"];
    assert_eq!(
        (&unruled["code"], &unruled["rule"]),
        (&json!("no_rule"), &Value::Null),
        "{told}"
    );
    for asked in told["asked"].as_array().expect("what it asked") {
        assert_eq!(asked["state"], "pending", "{told}");
    }
    assert_eq!(world.servers[0].connections(), 0, "a host that is denied was dialled");

    let listed = belljar.done(&["approvals", "--json"]);
    let questions: Vec<Value> = listed
        .lines()
        .map(|line| serde_json::from_str(line).expect("a question"))
        .collect();
    let of = |subject: &str| {
        questions
            .iter()
            .find(|question| question["subject"] == subject)
            .expect("a question")
    };
    let unruled = of("other.ask.test:80");
    assert!(unruled.to_string().contains("opens nothing"), "{unruled}");
    let docs = of("docs.ask.test:80")["id"].as_str().expect("an id");
    let whole: Value =
        serde_json::from_str(&belljar.done(&["approvals", "show", docs, "--json"])).expect("the question");
    let hash = whole["sha256"].as_str().expect("its hash");
    belljar.done(&["approve", docs, "--always", "--hash", hash]);
    let said = belljar.done(&["run", "--session", "s", "again"]);
    assert!(said.contains("welcome to the docs"), "{said}");
    assert_eq!(world.servers[0].connections(), 1);
}
