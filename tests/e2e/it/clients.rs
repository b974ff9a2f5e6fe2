//! The client table of docs/egress.md, in a real sandbox: programs that nobody prepared reach hosts that want a key which they do
//! not have, and trust what the runtime told them to trust.
//!
//! BELLJAR_TEST_FULL=1 takes the base image, and brings the programs that it lacks; otherwise it is the miniature, with what it has.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::clients::{self, CLIENTS, Client, HOSTS, KEY};

use crate::installation::Installation;
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

/// Without the variable Node knows the authorities that it was compiled with, and no others: it fails closed.
const COMPILED_IN: Client = Client {
    name: "node with compiled-in roots",
    needs: "/usr/bin/node",
    script: "env -u NODE_EXTRA_CA_CERTS -u SSL_CERT_FILE node -e \
             'fetch(`https://api.client.test/x`).then(r => r.text(), e => e.cause.code).then(console.log)'",
    says: "UNABLE_TO_VERIFY",
};

/// What a client says that is not there.
const LEFT_OUT: &str = "left out";

/// Runs each client in a shell of its own, and returns what each said.
const RUN: &str = r#"
const { spawnSync } = require("node:child_process");
const fs = require("node:fs");
if (fs.existsSync("clients.tar")) spawnSync("tar", ["xf", "clients.tar"]);
const said = {};
for (const { name, needs, script } of JSON.parse(fs.readFileSync("table.json", "utf8"))) {
  const places = [needs, needs.replace("/usr/bin/", "/usr/local/bin/")];
  if (!places.some(fs.existsSync)) { said[name] = "left out"; continue; }
  const done = spawnSync("sh", ["-c", script], { encoding: "utf8", timeout: 120000, env: {
    ...process.env, PATH: `/workspace/clients/bin:${process.env.PATH}`, PYTHONPATH: "/workspace/clients/python", PYTHONDONTWRITEBYTECODE: "1",
    // Only an image knows who signs for hosts that pass unread.
    ...(name.includes("passed through") && { CURL_CA_BUNDLE: "/workspace/authority.pem" }),
  } });
  said[name] = `${done.stdout}${done.stderr}${done.error ?? ""}`;
}
await writeToFile("said.json", JSON.stringify(said));
return Object.keys(said).length;
"#;

#[test]
fn every_client_reaches_a_host_with_a_key_that_it_does_not_have() {
    let full = std::env::var_os("BELLJAR_TEST_FULL").is_some();
    let served = tempfile::tempdir().expect("make a folder");
    clients::furnish(served.path());
    let folder = served.path().to_owned();
    let world = World::new(vec![(
        &HOSTS,
        Box::new(move |arrived| clients::answer(&folder, arrived)),
    )]);
    let step = json!({ "steps": [
        { "when": { "turn": 1 }, "tools": [{ "name": "exec", "input": { "code": RUN } }] },
        { "when": { "turn": 2 }, "text": "It said {{ result.0.text }}" },
    ] });
    let mut belljar = Installation::prepare(&step.to_string(), SECTIONS);
    belljar.live_in(&world, &[("CLIENT_KEY", KEY)]);
    let mut arguments = vec!["run".to_owned(), "--session".to_owned(), "s".to_owned()];
    let mut bring = |file: &Path| arguments.extend(["--file".to_owned(), file.to_string_lossy().into_owned()]);
    if full {
        belljar.use_image(&base(&belljar));
        let archive = belljar.path("clients.tar");
        let kept = clients::kept();
        let mut tar = Command::new("tar");
        tar.arg("cf")
            .arg(&archive)
            .arg("-C")
            .arg(kept.parent().expect("a folder above"));
        testkit::run_within(
            Duration::from_secs(120),
            tar.args(["--exclude=go-cache", "--exclude=*.deb", "clients"]),
        );
        bring(&archive);
    }
    let table = CLIENTS.iter().chain([&COMPILED_IN]).map(|client| {
        let here = |text: &str| {
            text.replace("/clients/", "/workspace/clients/")
                .replace("/sources/", "/workspace/")
        };
        json!({ "name": client.name, "needs": here(client.needs), "script": here(client.script) })
    });
    let table_file = belljar.path("table.json");
    fs::write(&table_file, Value::from_iter(table).to_string()).expect("write the table");
    bring(&table_file);
    bring(&clients::sources().join("Client.java"));
    bring(&world.authority());
    belljar.start_host();
    belljar.start_serve();
    arguments.push("try them".to_owned());
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    belljar.done(&words);

    let said = belljar.file("s", "said.json");
    assert!(!said.contains(KEY), "a client was told the key");
    let said: Value = serde_json::from_str(&said).expect("what they said");
    let (mut failed, mut worked) = (Vec::new(), 0);
    for client in CLIENTS.iter().chain([&COMPILED_IN]) {
        let words = said[client.name].as_str().unwrap_or_default();
        if words == LEFT_OUT {
            println!("| {} | left out: there is no {} here |", client.name, client.needs);
        } else if words.contains(client.says) {
            println!("| {} | works |", client.name);
            worked += 1;
        } else {
            println!("| {} | fails |\n{words}", client.name);
            failed.push(client.name);
        }
    }
    assert_eq!(failed, [""; 0]);
    assert!(worked >= 5, "only {worked} clients were there");
    assert!(clients::pushed(served.path()).exists(), "nothing was pushed");
    let events = belljar.done(&["events", "s", "--json"]) + &belljar.done(&["audit", "--limit", "1000", "--json"]);
    assert!(!events.contains(KEY));
    let said_why = said[COMPILED_IN.name] == LEFT_OUT || events.contains("handshake");
    assert!(
        said_why,
        "nothing says why a client with a list of its own fails: {events}"
    );
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
