//! The client table of docs/egress.md, in a real sandbox: programs that nobody prepared reach hosts that want a key which they do
//! not have, and trust what the runtime told them to trust.
//!
//! Each of them must be there, in a layer upon the miniature; BELLJAR_TEST_FULL=1 takes the base image, which lacks two.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::clients::{self, CLIENTS, Client, HOSTS, KEY};
use testkit::miniature;

use crate::installation::Installation;
use crate::lots::is_full;
use crate::world::World;

const SECTIONS: &str = r#"
[egress.rules.keyed]
hosts = ["api.client.test", "npm.client.test", "pypi.client.test"]
networks = ["127.0.0.0/8"]
inject = [{ kind = "bearer", secret = "env:CLIENT_KEY" }]
[egress.rules.git]
hosts = ["git.client.test"]
networks = ["127.0.0.0/8"]
git = { repositories = ["acme/app"], write = true, secret = "env:CLIENT_KEY" }
[egress.rules.passed]
hosts = ["pass.client.test"]
networks = ["127.0.0.0/8"]
[roles.everybody]
egress = ["**.client.test"]
[run]
tool_time = "20m"
"#;

/// What the base image does not have, and nobody can bring to it alone.
const LACKING: [&str; 2] = ["wget", "java HttpClient"];

/// The head of the table in docs/egress.md.
const HEAD: &str =
    "| client | finds the authority by | a host that is read | a host that passes unread |\n|---|---|---|---|\n";

/// Runs each client in a shell of its own, and returns what each said.
const RUN: &str = r#"
const { spawnSync } = require("node:child_process");
const fs = require("node:fs");
const said = {};
for (const { name, script } of JSON.parse(fs.readFileSync("table.json", "utf8"))) {
  const done = spawnSync("sh", ["-c", script], { encoding: "utf8", timeout: 120000, env: {
    ...process.env, PATH: `/clients/bin:${process.env.PATH}`, PYTHONPATH: "/clients/python", PYTHONDONTWRITEBYTECODE: "1" } });
  said[name] = `${done.stdout}${done.stderr}${done.error ?? ""}`;
}
await writeToFile("said.json", JSON.stringify(said));
return Object.keys(said).length;
"#;

#[test]
fn every_client_reaches_a_host_with_a_key_that_it_does_not_have() {
    let full = is_full();
    let served = tempfile::tempdir().expect("make a folder");
    clients::furnish(served.path());
    let folder = served.path().to_owned();
    let world = World::signed_by(
        &clients::authority(),
        vec![(&HOSTS, Box::new(move |arrived| clients::answer(&folder, arrived)))],
    );
    let step = json!({ "steps": [
        { "when": { "turn": 1 }, "tools": [{ "name": "exec", "input": { "code": RUN } }] },
        { "when": { "turn": 2 }, "text": "It said {{ result.0.text }}" },
    ] });
    let mut belljar = Installation::prepare(&step.to_string(), SECTIONS);
    belljar.live_in(&world, &[("CLIENT_KEY", KEY)]);
    let image = if full {
        base(&belljar)
    } else {
        miniature().digest.clone()
    };
    belljar.use_image(&testkit::install_clients(&belljar.data().join("images"), &image));
    let tried: Vec<_> = CLIENTS
        .iter()
        .filter(|client| !full || !LACKING.contains(&client.name))
        .collect();
    let table = tried.iter().flat_map(|client| {
        let unread = client
            .unread()
            .map(|(script, _)| json!({ "name": unread(client), "script": script }));
        [Some(json!({ "name": client.name, "script": client.script })), unread]
    });
    let table_file = belljar.path("table.json");
    fs::write(&table_file, Value::from_iter(table.flatten()).to_string()).expect("write the table");
    belljar.start_host();
    belljar.start_serve();
    belljar.done(&[
        "run",
        "--session",
        "s",
        "--file",
        &table_file.to_string_lossy(),
        "try them",
    ]);

    let said = belljar.file("s", "said.json");
    assert!(!said.contains(KEY), "a client was told the key");
    let said: Value = serde_json::from_str(&said).expect("what they said");
    let (mut failed, mut rows) = (Vec::new(), HEAD.to_owned());
    for client in tried {
        let mut says = |name: &str, expected: &str| {
            let words = said[name].as_str().unwrap_or_default();
            if !words.contains(expected) {
                failed.push(format!("{name}: {words}"));
            }
        };
        says(client.name, client.says);
        if let Some((_, expected)) = client.unread() {
            says(&unread(client), &expected);
        }
        rows += &client.row();
    }
    println!("{rows}");
    assert!(
        failed.is_empty(),
        "scripts/prepare tests brings what is lacking\n{}",
        failed.join("\n")
    );
    assert!(clients::pushed(served.path()).exists(), "nothing was pushed");
    let events = belljar.done(&["events", "s", "--json"]);
    let audit = belljar.done(&["audit", "--limit", "1000", "--json"]);
    assert!(!events.contains(KEY) && !audit.contains(KEY));
    // The event says what happened and what to do, the audit log its code.
    let says = |told: &str, word: &str| {
        told.lines()
            .any(|line| line.contains(word) && line.contains("api.client.test"))
    };
    assert!(
        says(&events, "TLS handshake") && says(&events, "SSL_CERT_FILE"),
        "{events}"
    );
    assert!(says(&audit, "\"handshake\""), "{audit}");
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/egress.md")).expect("read the page");
    let is_told = if full {
        rows.lines().all(|row| page.contains(row))
    } else {
        page.contains(&format!("\n{rows}\n"))
    };
    assert!(
        is_told,
        "docs/egress.md says something else: put this table in its place\n{rows}"
    );
}

/// What a client is called where nothing of what it says is read.
fn unread(client: &Client) -> String {
    format!("{}, unread", client.name)
}

/// The base image, built into this installation; its digest.
fn base(belljar: &Installation) -> String {
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/base");
    belljar.locally(&["image", "build", &recipe.to_string_lossy()], "");
    let listed = belljar.locally(&["image", "list", "--json"], "");
    let newest = listed.lines().find_map(|line| {
        let image: Value = serde_json::from_str(line).ok()?;
        let image = if image.is_array() { image[0].clone() } else { image };
        (image["name"] == "base").then(|| image["digest"].as_str().map(str::to_owned))?
    });
    newest.unwrap_or_else(|| panic!("no base image: {listed}"))
}
