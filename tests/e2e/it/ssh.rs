//! SSH out of a real sandbox: commands and git reach a host by a key that no sandbox has, and what the rule does not name does not run.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::upstream::answered;

use crate::installation::Installation;
use crate::world::World;

const HOST: &str = "forge.ssh.test";
const SSHD: &str = "/usr/sbin/sshd";

/// Runs each command in a shell of its own, and writes down what came of it.
const RUN: &str = r#"
const { spawnSync } = require("node:child_process");
const fs = require("node:fs");
const said = {};
for (const [name, script] of JSON.parse(fs.readFileSync("table.json", "utf8"))) {
  const { status, stdout, stderr } = spawnSync("sh", ["-c", script], { encoding: "utf8", timeout: 120000 });
  said[name] = { status, stdout, stderr };
}
await writeToFile("said.json", JSON.stringify(said));
return Object.keys(said).length;
"#;

/// OpenSSH's own server, and a repository behind it.
pub(crate) struct Forge {
    folder: TempDir,
    server: Mutex<Option<Child>>,
}

impl Forge {
    pub(crate) fn new() -> Self {
        assert!(
            Path::new(SSHD).exists(),
            "{SSHD} is not here: `scripts/prepare tests` installs it (openssh-server)"
        );
        let folder = tempfile::tempdir().expect("make a folder");
        let at = |program: &str, arguments: &[&str]| {
            testkit::run(Command::new(program).args(arguments).current_dir(folder.path()));
        };
        for key in ["host", "client"] {
            at("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key]);
        }
        at("git", &["init", "-q", "--bare", "-b", "main", "app.git"]);
        Self {
            folder,
            server: Mutex::default(),
        }
    }

    /// A file of it: `client` is the key to it, `host.pub` what it shows.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).expect("read a file")
    }

    /// Listens where SSH does, at an address of its own.
    pub(crate) fn listen(&self, address: Ipv4Addr) {
        let at = self.folder.path().display();
        let configuration = format!(
            "ListenAddress {address}:22\nHostKey {at}/host\nAuthorizedKeysFile {at}/client.pub\nStrictModes no\nPidFile none\n\
             UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        );
        let file = self.folder.path().join("sshd_config");
        fs::write(&file, configuration).expect("write a file");
        // Where it puts itself away without rights; Debian makes it when the service starts.
        let _ = fs::create_dir_all("/run/sshd");
        let mut command = Command::new(SSHD);
        command.args(["-D", "-e", "-f"]).arg(&file).stdin(Stdio::null());
        command.stderr(fs::File::create(self.folder.path().join("log")).expect("make a file"));
        *self.server.lock().expect("no test panicked here") = Some(command.spawn().expect("start sshd"));
        testkit::eventually("sshd to listen", || std::net::TcpStream::connect((address, 22)).ok());
    }
}

impl Drop for Forge {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.get_mut().ok().and_then(Option::take) {
            let _ = (server.kill(), server.wait());
        }
        if std::thread::panicking() {
            eprintln!("sshd said:\n{}", self.read("log"));
        }
    }
}

#[test]
fn threat_015_a_sandbox_reaches_a_host_by_ssh_and_only_as_its_rule_says() {
    let world = World::new(vec![(&[HOST], Box::new(|_| answered(404, &[], "")))]);
    let forge = Forge::new();
    forge.listen(world.servers[0].address());
    let at = forge.folder.path().display().to_string();
    let host_key = forge.read("host.pub");
    let sections = format!(
        "[egress.rules.forge]\nhosts = [\"{HOST}:22\"]\nschemes = [\"ssh\"]\nnetworks = [\"127.0.0.0/8\"]\n\
         [egress.rules.forge.ssh]\nuser = \"root\"\nsecret = \"env:DEPLOY_KEY\"\nhost_keys = [\"{}\"]\n\
         commands = [\"echo *\", \"git-upload-pack {at}/*\", \"git-receive-pack {at}/*\"]\n\
         [roles.everybody]\negress = [\"{HOST}:22\"]\n",
        host_key.trim()
    );
    let step = json!({ "steps": [
        { "when": { "turn": 1 }, "tools": [{ "name": "exec", "input": { "code": RUN } }] },
        { "when": { "turn": 2 }, "text": "It said {{ result.0.text }}" },
    ] });
    let mut belljar = Installation::prepare(&step.to_string(), &sections);
    let key = forge.read("client");
    belljar.live_in(&world, &[("DEPLOY_KEY", &key)]);
    let from = format!("anybody@{HOST}:{at}/app.git");
    let table = json!([
        ["runs", format!("ssh anybody@{HOST} echo hello")],
        ["refused", format!("ssh anybody@{HOST} touch {at}/marker")],
        ["shell", format!("ssh anybody@{HOST} </dev/null")],
        [
            "pushed",
            format!(
                "git clone -q {from} one && cd one && echo hello > a && git add a && \
                 git -c user.name=me -c user.email=me@x.test commit -qm first && git push -q origin HEAD:main"
            )
        ],
        ["cloned", format!("git clone -q {from} two && cat two/a")],
    ]);
    let file = belljar.path("table.json");
    fs::write(&file, table.to_string()).expect("write the table");
    belljar.start_host();
    belljar.start_serve();
    belljar.done(&["run", "--session", "s", "--file", &file.to_string_lossy(), "try them"]);

    let said: Value = serde_json::from_str(&belljar.file("s", "said.json")).expect("what they said");
    for (name, status, out, words) in [
        ("runs", 0, "hello\n", ""),
        ("refused", 255, "", "`commands`"),
        ("shell", 255, "", "gives no shell"),
        ("pushed", 0, "", ""),
        ("cloned", 0, "hello\n", ""),
    ] {
        let came = &said[name];
        assert!(came["status"] == status && came["stdout"] == out, "{name}: {came}");
        assert!(
            came["stderr"].as_str().is_some_and(|said| said.contains(words)),
            "{name}: {came}"
        );
    }
    assert!(!forge.folder.path().join("marker").exists());
    let audit = belljar.done(&["audit", "--limit", "1000", "--json"]);
    let told = |command: &str, decision: &str| {
        audit.lines().any(|line| {
            let entry: Value = serde_json::from_str(line).expect("an entry");
            entry["host"] == HOST && entry["decision"] == decision && entry["detail"].to_string().contains(command)
        })
    };
    for (command, decision) in [
        ("echo hello", "allow"),
        ("touch", "deny"),
        ("git-receive-pack", "allow"),
        ("git-upload-pack", "allow"),
    ] {
        assert!(told(command, decision), "{decision} {command}: {audit}");
    }
    let secret = key.lines().nth(1).expect("a key has lines");
    assert!(!(audit + &said.to_string() + &belljar.done(&["events", "s", "--json"])).contains(secret));
}
