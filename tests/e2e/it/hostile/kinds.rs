//! What has a secret in another way than a token in a request: services that are programs, scripts and files, keys that only sign,
//! an SSH key, a model that programs ask themselves.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::canaries::canary;
use crate::installation::Installation;
use crate::ssh::Forge;
use crate::world::World;

/// The host that is reached by SSH.
pub(super) const FORGE: &str = "forge.keyed.test";

/// The host that a rule names with a key, and no scope: it can be asked for.
pub(super) const ASKED: &str = "asked.kept.test";

/// Services of kind `http` whose key signs and is never sent: their names, how they authenticate, and where their keys are.
const SIGNING: [(&str, &str); 3] = [
    (
        "signed",
        "kind = \"aws_sigv4\"\nregion = \"eu-west-1\"\nservice = \"execute-api\"",
    ),
    ("app", "kind = \"github_app\""),
    ("pair", "kind = \"key_pair\""),
];

/// Asks its host in each spelling, and says all that a script can see of itself.
const SCRIPT: &str = r#"
const seen = () => JSON.stringify(Object.getOwnPropertyNames(globalThis)) + String(fetch) + new Error("here").stack;
export async function say({ how, text }) {
  const answer = await fetch(`/echo/${encodeURIComponent(how)}?text=${encodeURIComponent(text ?? "")}`);
  return { said: await answer.text(), headers: String(answer.headers.get("x-told")), seen: seen() };
}
export async function fail({ status }) {
  const answer = await fetch(`/status/${encodeURIComponent(status)}`);
  throw new Error(`${answer.code} ${answer.message} ${await answer.text()} ${seen()}`);
}
"#;

/// Says what it was given, in each spelling, as a result and as an error.
const PROGRAM: &str = r#"
import base64, json, os, sys
def spelled(how, text):
    data = text.encode()
    return {"base64": base64.b64encode(data).decode(), "hex": data.hex(), "json": json.dumps(text),
            "percent": "".join(f"%{byte:02x}" for byte in data), "chunks": " ".join(text)}.get(how, text)
def tool(name, wants):
    schema = {"type": "object", "properties": {"how": {"type": "string"}, "text": {"type": "string"}, "status": {"type": "string"}}, "required": wants}
    return {"name": name, "description": "Say it", "inputSchema": schema}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    told, answer = json.dumps(dict(os.environ)) + repr(sys.argv), None
    print(told, file=sys.stderr, flush=True)
    if message["method"] == "initialize":
        answer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "tool", "version": "1"}}
    elif message["method"] == "tools/list":
        answer = {"tools": [tool("say", ["how"]), tool("fail", ["status"])]}
    elif message["method"] == "tools/call":
        arguments = message["params"]["arguments"]
        said = spelled(arguments.get("how"), told)
        # Letter by letter it is no secret any more that anybody could mask: that is the program's own doing, which somebody approved.
        said = "it does not say" if arguments.get("how") == "chunks" else said
        answer = {"content": [{"type": "text", "text": said}], "isError": message["params"]["name"] == "fail"}
    reply = {"result": answer} if answer else {"error": {"code": -32601, "message": told}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
"#;

/// A file of SQLite, and another one beside it which no statement may reach.
const FILES: &str = "import sqlite3, sys
for path, row in zip(sys.argv[1:3], ['nothing', sys.argv[3]]):
    with sqlite3.connect(path) as base:
        base.execute('CREATE TABLE kept (row TEXT)')
        base.execute('INSERT INTO kept VALUES (?)', (row,))";

pub(super) struct Kinds {
    /// What the file beside the database holds.
    beside: String,
    /// What the program is given.
    program: String,
    forge: Forge,
}

impl Kinds {
    pub(super) fn new() -> Self {
        Self {
            beside: canary(),
            program: canary(),
            forge: Forge::new(),
        }
    }

    /// Names of these services.
    pub(super) fn services() -> Vec<&'static str> {
        let names = SIGNING.iter().map(|(name, _)| *name);
        names.chain(["script", "tool", "data"]).collect()
    }

    /// Everything of them that stands in belljar.toml; their files are written.
    pub(super) fn configure(&self, belljar: &Installation, world: &World) -> String {
        let at = |name: &str| belljar.path(name);
        for key in ["app", "pair"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "rsa", "-b", "2048", "-m", "PKCS8", "-N", "", "-C", "", "-f"]);
            testkit::run(command.arg(at(key)));
        }
        write(&at("program-secret"), &self.program);
        let mut files = Command::new("python3");
        files
            .args(["-c", FILES])
            .args([at("main.db"), at("beside.db")])
            .arg(&self.beside);
        testkit::run(&mut files);
        let mut sections = String::new();
        for (name, auth) in SIGNING {
            define(belljar, name, &super::planted::definition(name, auth));
            let slots = match name {
                "signed" => "access_key_id = \"env:ACCESS_KEY\"\nsecret_access_key = \"store:signed\"".to_owned(),
                "app" => format!(
                    "app_id = \"1\"\ninstallation_id = \"2\"\nprivate_key = \"file:{}\"",
                    at("app").display()
                ),
                _ => format!(
                    "account = \"myorg-acc\"\nuser = \"belljar\"\nprivate_key = \"file:{}\"",
                    at("pair").display()
                ),
            };
            sections += &super::planted::bound(name, &slots);
        }
        define(
            belljar,
            "script",
            "name = \"script\"\nsummary = \"Says what it was told\"\nkind = \"script\"\nbase_url = \"https://script.service.test/v1\"\n\
             [auth]\nkind = \"bearer\"\n\
             [methods.say]\nsummary = \"Say it\"\naccess = \"read\"\narguments = { required = [\"how\"], properties = { how = { type = \"string\" }, text = { type = \"string\" } } }\n\
             [methods.fail]\nsummary = \"Say no\"\naccess = \"read\"\narguments = { required = [\"status\"], properties = { status = { type = \"string\" } } }\n",
        );
        fs::write(at("services/script/script.js"), SCRIPT).expect("write a script");
        sections += &super::planted::bound("script", "token = \"store:script\"");
        define(
            belljar,
            "data",
            "name = \"data\"\nsummary = \"Rows\"\nkind = \"sql\"\nengines = [\"sqlite\"]\n\
             [methods.tables]\nsummary = \"List the tables\"\nrequest = \"tables\"\n\
             [methods.query]\nsummary = \"Run one SELECT\"\nrequest = \"query\"\n",
        );
        sections += &format!(
            "[services.data.database]\nengine = \"sqlite\"\nfile = {:?}\n",
            at("main.db")
        );
        fs::write(at("program.py"), PROGRAM).expect("write a program");
        sections += &format!(
            "[services.tool.auth]\ntoken = \"file:{}\"\n",
            at("program-secret").display()
        );
        write(&at("ssh-secret"), &self.forge.read("client"));
        self.forge.listen(world.servers[super::FORGE_SERVER].address());
        sections += &format!(
            "[egress.rules.forge]\nhosts = [\"{FORGE}:22\"]\nschemes = [\"ssh\"]\nnetworks = [\"127.0.0.0/8\"]\n\
             ssh = {{ user = \"root\", secret = \"file:{}\", host_keys = [{:?}], commands = [\"echo *\", \"cat\"] }}\n",
            at("ssh-secret").display(),
            self.forge.read("host.pub").trim()
        );
        sections
    }

    /// What takes the configuration to be made: the tools of the program are approved, as they are.
    pub(super) fn approve(belljar: &Installation) {
        let program = belljar.path("program.py");
        let (command, read) = (
            format!("/usr/bin/python3 {}", program.display()),
            program.display().to_string(),
        );
        belljar.locally(
            &[
                "service",
                "import",
                "--mcp",
                &command,
                "--read",
                &read,
                "--name",
                "tool",
                "--auth",
                "environment:TOOL_KEY",
            ],
            "",
        );
    }

    /// Files of the machine that hold a secret.
    pub(super) const FILES: [&str; 8] = [
        "app",
        "app.pub",
        "pair",
        "pair.pub",
        "program-secret",
        "ssh-secret",
        "beside.db",
        "main.db",
    ];

    /// The secrets, by name.
    pub(super) fn secrets(&self, belljar: &Installation) -> Vec<(String, String)> {
        // A line out of the middle of a key is in no other key.
        let line = |path: PathBuf| {
            let text = fs::read_to_string(path).expect("read a key");
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len() / 2].to_owned()
        };
        vec![
            ("the file beside the database".to_owned(), self.beside.clone()),
            ("the program's secret".to_owned(), self.program.clone()),
            ("the app's key".to_owned(), line(belljar.path("app"))),
            ("the pair's key".to_owned(), line(belljar.path("pair"))),
            ("the SSH key".to_owned(), line(belljar.path("ssh-secret"))),
        ]
    }

    /// The attempts were real.
    pub(super) fn assert_reached(&self, belljar: &Installation, outcomes: &str, report: &Path) {
        let audit = belljar.done(&["audit", "--limit", "1000", "--action", "egress.allowed", "--json"]);
        assert!(audit.contains(FORGE), "nothing reached {FORGE}: {audit}");
        for attempt in [
            "ssh ",
            "data ",
            "service tool",
            "service script",
            "service signed",
            "service app",
            "service pair",
        ] {
            assert!(outcomes.contains(attempt), "{attempt} was not tried");
        }
        // What may be had was had.
        for (name, had) in [
            ("data_SELECT_row_FROM_kept", "nothing"),
            ("service_tool_raw", "TOOL_KEY"),
        ] {
            let answer = fs::read_to_string(report.join(name)).unwrap_or_default();
            assert!(answer.contains(had), "{name}: {answer}");
        }
    }
}

fn define(belljar: &Installation, name: &str, definition: &str) {
    let folder = belljar.path("services").join(name);
    fs::create_dir_all(&folder).expect("make a folder");
    fs::write(folder.join("service.toml"), definition).expect("write a definition");
}

/// Writes a secret that only root may read.
pub(super) fn write(path: &Path, secret: &str) {
    fs::write(path, secret).expect("write a secret");
    fs::set_permissions(path, PermissionsExt::from_mode(0o400)).expect("close a secret to others");
}
