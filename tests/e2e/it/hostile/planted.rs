//! The secrets of the installation that is attacked, and where each is.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rand::distr::{Alphanumeric, SampleString};
use testkit::model_server::ModelServer;

use super::answers::ISSUED;
use super::kinds::{self, Kinds};
use crate::canaries::canary;
use crate::installation::Installation;
use crate::world::World;

/// Hosts that are given a key, and which way.
pub(super) const BOUND: [(&str, &str); 9] = [
    ("bearer.bound.test", "bearer"),
    ("basic.bound.test", "basic"),
    ("header.bound.test", "header"),
    ("query.bound.test", "query"),
    ("path.bound.test", "path"),
    ("body.bound.test", "body"),
    ("placeholder.bound.test", "placeholder"),
    ("git.bound.test", "git"),
    ("aws.bound.test", "aws"),
];

/// Services, and how each authenticates.
pub(super) const SERVICES: [(&str, &str); 7] = [
    // Only a program in the background calls it.
    ("later", "kind = \"bearer\""),
    ("mirror", "kind = \"bearer\""),
    ("basic", "kind = \"basic\""),
    ("header", "kind = \"header\"\nname = \"x-key\""),
    ("query", "kind = \"query\"\nname = \"key\""),
    (
        "client",
        "kind = \"client_credentials\"\ntoken_url = \"https://client.service.test/oauth/token\"",
    ),
    (
        "refresh",
        "kind = \"refresh_token\"\ntoken_url = \"https://refresh.service.test/oauth/token\"",
    ),
];

pub(super) const HOSTS: [&str; 12] = [
    "later.service.test",
    "routed.service.test",
    "script.service.test",
    "signed.service.test",
    "app.service.test",
    "pair.service.test",
    "mirror.service.test",
    "basic.service.test",
    "header.service.test",
    "query.service.test",
    "client.service.test",
    "refresh.service.test",
];

/// Secrets that the encrypted store holds, by name.
const STORED: [&str; 19] = [
    "bearer",
    "basic",
    "header",
    "query",
    "path",
    "body",
    "placeholder",
    "git",
    "aws",
    "proxy",
    "mirror",
    "s-header",
    "client",
    "refresh",
    "later",
    "routed",
    "script",
    "signed",
    "asked",
];

const RULES: &str = include_str!("rules.toml");

/// What the neighbour's secret is called.
pub(super) const NEIGHBOUR: &str = "what another session keeps";

/// What the tokens of sessions are called.
pub(super) const TOKEN: &str = "a session's token";

pub(super) struct Planted {
    /// In the encrypted store, by name.
    stored: Vec<(&'static str, String)>,
    /// In a variable of the control plane.
    variable: String,
    /// In a file that only root may read.
    file: String,
    /// In a file of the machine that everybody may read.
    host: String,
    /// Told by a socket of the machine without a file.
    told: String,
    /// In another session's workspace and prompt.
    pub(super) neighbour: String,
    /// The name of that socket.
    pub(super) socket: String,
    kinds: Kinds,
}

impl Planted {
    pub(super) fn new() -> Self {
        Self {
            stored: STORED.map(|name| (name, canary())).into(),
            variable: canary(),
            file: canary(),
            host: canary(),
            told: canary(),
            neighbour: canary(),
            socket: format!("belljar-test-{}", Alphanumeric.sample_string(&mut rand::rng(), 8)),
            kinds: Kinds::new(),
        }
    }

    /// An installation that holds all of them.
    pub(super) fn install(&self, world: &World, model: &ModelServer) -> Installation {
        // What it is configured with knows where the folder is, which is known only then.
        let mut belljar = Installation::prepare("steps: [{ text: hello }]", "");
        let secret_file = belljar.path("file-secret");
        kinds::write(&secret_file, &self.file);
        let (key_file, base_url) = (belljar.path("secrets.key"), model.base_url());
        let bindings = [
            ("later", "token = \"store:later\"".to_owned()),
            ("mirror", "token = \"store:mirror\"".to_owned()),
            (
                "basic",
                format!("user = \"belljar\"\npassword = \"file:{}\"", secret_file.display()),
            ),
            ("header", "token = \"store:s-header\"".to_owned()),
            ("query", "token = \"env:QUERY_KEY\"".to_owned()),
            (
                "client",
                "client_id = \"belljar\"\nclient_secret = \"store:client\"".to_owned(),
            ),
            (
                "refresh",
                "client_id = \"belljar\"\nclient_secret = \"store:client\"\nrefresh_token = \"store:refresh\""
                    .to_owned(),
            ),
        ];
        let services: String = bindings.iter().map(|(name, slots)| bound(name, slots)).collect();
        let kinds = self.kinds.configure(&belljar, world);
        belljar.configure(&format!(
            "{RULES}\n[models.large]\nprovider = \"anthropic\"\nbase_url = {base_url:?}\nkey = \"env:MODEL_KEY\"\nwindow = 400000\nmax_output = 8000\n\
             price = {{ input = 3.00, output = 15.00 }}\n[models.routed]\nprovider = \"openai-chat\"\nbase_url = \"https://routed.service.test/v1\"\nkey = \"store:routed\"\nwindow = 100000\nmax_output = 1000\n\
             price = {{ input = 3.00, output = 15.00 }}\n[secrets]\nkey_file = {key_file:?}\n{services}{kinds}"
        ));
        for (name, auth) in SERVICES {
            let folder = belljar.path("services").join(name);
            fs::create_dir_all(&folder).expect("make a folder");
            fs::write(folder.join("service.toml"), definition(name, auth)).expect("write a definition");
        }
        belljar.live_in(
            world,
            &[
                ("MODEL_KEY", model.key()),
                ("QUERY_KEY", &self.variable),
                ("ACCESS_KEY", "AKIDBELLJAR"),
            ],
        );
        for (name, value) in &self.stored {
            belljar.locally(&["secret", "set", name], value);
        }
        fs::write(belljar.path("host-secret"), &self.host).expect("write a secret");
        Kinds::approve(&belljar);
        belljar.start_host();
        belljar.start_serve();
        belljar
    }

    /// Tells one secret to whoever calls an abstract socket of the machine.
    pub(super) fn listen_outside(&self) -> std::thread::JoinHandle<()> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let address = SocketAddr::from_abstract_name(&self.socket).expect("an abstract name");
        let listener = UnixListener::bind_addr(&address).expect("listen");
        let told = self.told.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let _ = std::io::Write::write_all(&mut { caller }, told.as_bytes());
            }
        })
    }

    /// Paths of the machine that hold a secret.
    pub(super) fn paths(&self, belljar: &Installation) -> Vec<PathBuf> {
        let names = [
            "host-secret",
            "file-secret",
            "secrets.key",
            "belljar.toml",
            "data/control/admin-token",
            "data/control/secrets",
            "data/control/store.db",
            "theirs.txt",
        ];
        let names = names.into_iter().chain(Kinds::FILES);
        names.map(|name| belljar.path(name)).collect()
    }

    /// Where the installation keeps them itself, and the disks of both sessions: nobody looks there.
    pub(super) fn own_places(&self, belljar: &Installation) -> Vec<PathBuf> {
        let names = [
            "host-secret",
            "file-secret",
            "secrets.key",
            "theirs.txt",
            "data/control/admin-token",
            "data/control/secrets",
            "data/control/egress",
            "data/images",
            "data/pool",
            "data/pool.btrfs",
            "data/disks",
            "run",
        ];
        let names = names.into_iter().chain(Kinds::FILES);
        names.map(|name| belljar.path(name)).collect()
    }

    /// Everything that must be found nowhere.
    pub(super) fn secrets(&self, belljar: &Installation, model: &ModelServer) -> Vec<(String, Vec<u8>)> {
        let mut secrets: Vec<(String, Vec<u8>)> = self
            .stored
            .iter()
            .map(|(name, value)| (format!("store:{name}"), value.clone().into_bytes()))
            .collect();
        for (name, value) in [
            ("the variable", &self.variable),
            ("the file", &self.file),
            ("the machine's file", &self.host),
            ("the machine's socket", &self.told),
            (NEIGHBOUR, &self.neighbour),
            ("the issued token", &*ISSUED),
            ("the model's key", &model.key().to_owned()),
        ] {
            secrets.push((name.to_owned(), value.clone().into_bytes()));
        }
        let kinds = self.kinds.secrets(belljar).into_iter();
        secrets.extend(kinds.map(|(name, value)| (name, value.into_bytes())));
        let read = |name: &str| fs::read(belljar.path(name)).unwrap_or_else(|error| panic!("read {name}: {error}"));
        secrets.push((
            "the admin's token".to_owned(),
            read("data/control/admin-token").trim_ascii().to_vec(),
        ));
        secrets.push(("the store's key".to_owned(), read("secrets.key").trim_ascii().to_vec()));
        for entry in fs::read_dir(belljar.path("data/control/egress"))
            .expect("the authority's folder")
            .flatten()
        {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            secrets.extend(private_number(&text).map(|number| ("the authority's key".to_owned(), number)));
        }
        let tokens: Vec<String> = belljar.first_processes().into_iter().flat_map(session_tokens).collect();
        assert!(!tokens.is_empty(), "no session's token is in the memory of a runtime");
        secrets.extend(tokens.into_iter().map(|token| (TOKEN.to_owned(), token.into_bytes())));
        assert!(
            secrets.iter().any(|(name, _)| name == "the authority's key"),
            "no key of an authority"
        );
        secrets
    }

    /// The attempts were real: every host was told its key, every service too, and the scripts came to each kind of attempt.
    pub(super) fn assert_reached(&self, belljar: &Installation, world: &World, report: &Path) {
        let outcomes = fs::read_to_string(report.join("outcomes")).expect("the report");
        let told = |server: usize| -> Vec<String> {
            let arrived = world.servers[server].arrived();
            arrived
                .iter()
                .map(|request| request.host.clone() + &request.text())
                .collect()
        };
        let (bound, services) = (told(0), told(3));
        for name in ["bearer", "header", "query", "path", "body", "placeholder"] {
            let (_, value) = self
                .stored
                .iter()
                .find(|(stored, _)| *stored == name)
                .expect("a secret");
            assert!(
                bound.iter().any(|text| text.contains(value)),
                "no host was told store:{name}"
            );
        }
        for host in ["basic.bound.test", "git.bound.test", "aws.bound.test"] {
            assert!(
                bound.iter().any(|text| text.starts_with(host)),
                "{host} was not reached"
            );
        }
        for host in HOSTS {
            assert!(
                services.iter().any(|text| text.starts_with(host)),
                "{host} was not reached"
            );
        }
        for attempt in [
            "every_file",
            "all_processes",
            "system_calls",
            "smuggled",
            "names ",
            "websocket",
            "socks",
            "service mirror",
            "question 16",
            "again-",
            "route /v1/chat/completions",
            "tool mirror-say",
            "access ",
            "later service",
        ] {
            assert!(outcomes.contains(attempt), "{attempt} was not tried");
        }
        self.kinds.assert_reached(belljar, &outcomes, report);
    }
}

/// What belljar.toml says of a service.
pub(super) fn bound(name: &str, slots: &str) -> String {
    format!(
        "\n[services.{name}]\naddresses = [\"127.0.0.0/8\"]\nper_minute = 1000000\nsession_per_minute = 1000000\n[services.{name}.auth]\n{slots}\n"
    )
}

pub(super) fn definition(name: &str, auth: &str) -> String {
    format!(
        r#"name = "{name}"
summary = "Says what it was told"
kind = "http"
base_url = "https://{name}.service.test/v1"
[auth]
{auth}
[limits]
timeout = "5s"
[methods.say]
summary = "Say it"
access = "read"
request = "GET /echo/{{how}}"
query = {{ text = "{{text}}" }}
answer = "text"
arguments = {{ required = ["how"], properties = {{ how = {{ type = "string" }}, text = {{ type = "string" }} }} }}
[methods.fail]
summary = "Say no"
access = "read"
request = "GET /status/{{status}}"
answer = "text"
arguments = {{ required = ["status"], properties = {{ status = {{ type = "string" }} }} }}
[methods.hidden]
summary = "Nobody may"
access = "read"
request = "GET /echo/raw"
answer = "text"
"#
    )
}

/// The private number of a key on a curve of 256 bits, in PEM form; the rest of the file is public (RFC 5915, RFC 5958).
fn private_number(pem: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    let (_, body) = pem.split_once("PRIVATE KEY-----")?;
    let (body, _) = body.split_once("-----END")?;
    let body: String = body.split_whitespace().collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(body).ok()?;
    let before = [2, 1, 1, 4, 32];
    let at = bytes.windows(before.len()).position(|window| window == before)? + before.len();
    bytes.get(at..at + 32).map(<[u8]>::to_vec)
}

/// The tokens that a runtime's memory holds; only root of the machine reads it.
fn session_tokens(id: u32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).unwrap_or_default();
    let mut memory = File::open(format!("/proc/{id}/mem")).expect("open a runtime's memory");
    let mut tokens = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let Some((begin, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) else {
            continue;
        };
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or_default();
        let (begin, end) = (number(begin), number(end));
        let mut bytes = vec![0; usize::try_from(end - begin).unwrap_or_default()];
        if memory.seek(SeekFrom::Start(begin)).is_err() || memory.read_exact(&mut bytes).is_err() {
            continue;
        }
        let text = String::from_utf8_lossy(&bytes);
        let found = text.split("bljs_").skip(1).map(|rest| {
            let token: String = rest
                .chars()
                .take_while(|letter| letter.is_ascii_alphanumeric() || "-_".contains(*letter))
                .collect();
            token
        });
        tokens.extend(found.filter(|token| token.len() >= 20));
    }
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}
