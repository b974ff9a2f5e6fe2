//! The plan of the house: which crate stands in which row, and which crates it may use.
//!
//! Only an edge that is written here may exist. A new edge is a decision: it gets a commit of its own.

/// A row of the house; a crate uses crates of lower rows, or of its own where the plan says so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Row {
    /// Owners of tasks, secrets, system calls: what everything may stand on.
    Base,
    /// Data and functions; no IO, no async runtime.
    Pure,
    /// Traits for what is truly open.
    Seam,
    /// One outside thing each. They do not know each other.
    Adapter,
    /// What happens next.
    App,
    /// Translate, authenticate, call the app.
    Door,
    /// Wiring.
    Binary,
    /// Only for tests and chores.
    Development,
}

/// One crate of the plan.
pub(crate) struct Planned {
    /// The package's name.
    pub(crate) name: &'static str,
    /// Where it stands.
    pub(crate) row: Row,
    /// The crates of this workspace that it may use outside its tests.
    pub(crate) uses: &'static [&'static str],
}

const fn planned(row: Row, name: &'static str, uses: &'static [&'static str]) -> Planned {
    Planned { name, row, uses }
}

/// Every crate there is.
pub(crate) const PLAN: &[Planned] = &[
    planned(Row::Base, "calls", &[]),
    planned(Row::Base, "causes", &[]),
    planned(Row::Base, "channel", &[]),
    planned(Row::Base, "dial", &["secret"]),
    planned(Row::Base, "lifecycle", &[]),
    planned(Row::Base, "redirect", &[]),
    planned(Row::Base, "scrub", &["secret"]),
    planned(Row::Base, "secret", &[]),
    planned(Row::Base, "signing", &["secret"]),
    planned(Row::Base, "skills", &["causes"]),
    planned(Row::Base, "spelling", &[]),
    planned(Row::Base, "sys", &[]),
    planned(Row::Base, "telemetry", &["causes", "lifecycle"]),
    planned(Row::Base, "worker", &["causes"]),
    planned(Row::Pure, "domain", &[]),
    // What connections may be for is said as in scopes.
    planned(Row::Pure, "knowledge", &["policy"]),
    planned(Row::Pure, "llm", &["domain", "protocol"]),
    planned(Row::Pure, "pictures", &[]),
    planned(Row::Pure, "policy", &["domain"]),
    planned(Row::Pure, "protocol", &["domain", "secret"]),
    planned(Row::Pure, "script", &[]),
    planned(Row::Pure, "sql", &[]),
    planned(Row::Seam, "agent", &["domain", "protocol"]),
    // What providers of containers have in common; they do not know each other.
    planned(Row::Seam, "containers", &["calls", "domain", "sandbox", "sys"]),
    planned(Row::Seam, "sandbox", &["domain", "lifecycle"]),
    planned(
        Row::Adapter,
        "egress",
        &[
            "causes",
            "dial",
            "domain",
            "lifecycle",
            "policy",
            "protocol",
            "scrub",
            "secret",
            "signing",
        ],
    ),
    planned(
        Row::Adapter,
        "host",
        &[
            "causes",
            "channel",
            // The doctor tries what sandboxes are made with, and the list of system calls that they have.
            "containers",
            "domain",
            "lifecycle",
            "redirect",
            "sandbox",
            "sys",
        ],
    ),
    // A recipe names hosts, as scopes do.
    planned(
        Row::Adapter,
        "images",
        &[
            "containers",
            "domain",
            "knowledge",
            "policy",
            "sandbox",
            "spelling",
            // Trees that strangers made are removed as everywhere.
            "sys",
        ],
    ),
    planned(
        Row::Adapter,
        "link",
        &["causes", "domain", "lifecycle", "protocol", "secret"],
    ),
    planned(Row::Adapter, "objects", &["domain", "secret", "signing"]),
    planned(Row::Adapter, "providers", &["causes", "domain", "llm", "secret"]),
    planned(
        Row::Adapter,
        "runtime",
        &[
            "agent",
            // Where nobody could give the sandbox its list of system calls, the runtime does.
            "calls",
            "causes",
            "channel",
            "domain",
            "lifecycle",
            "link",
            "protocol",
            // Where a provider cannot lead the network from outside, the runtime does it at its start.
            "redirect",
            "sandbox",
            "sync",
            // It looks whether the list of system calls holds before it begins.
            "sys",
            "tools",
        ],
    ),
    planned(Row::Adapter, "sandbox-docker", &["containers", "domain", "sandbox"]),
    planned(
        Row::Adapter,
        "sandbox-oci",
        &["containers", "domain", "redirect", "sandbox", "sys"],
    ),
    planned(Row::Adapter, "secrets", &["causes", "domain", "lifecycle", "secret"]),
    planned(
        Row::Adapter,
        "services",
        &[
            "causes",
            "dial",
            "domain",
            "lifecycle",
            "scrub",
            "secret",
            "signing",
            "spelling",
            // Programs of MCP servers are held together from before their first instruction.
            "sys",
            "worker",
        ],
    ),
    // Only the program links it, for its worker: who holds secrets opens no file of a service.
    planned(Row::Adapter, "sqlite", &["worker"]),
    planned(Row::Adapter, "store", &["domain", "lifecycle", "sandbox", "secret"]),
    planned(Row::Adapter, "sync", &["domain", "protocol"]),
    planned(
        Row::Adapter,
        "tools",
        &["causes", "domain", "lifecycle", "pictures", "protocol", "skills"],
    ),
    planned(
        Row::App,
        "control",
        &[
            "agent",
            "causes",
            "domain",
            "egress",
            "knowledge",
            "lifecycle",
            "link",
            "llm",
            "objects",
            "pictures",
            "protocol",
            "policy",
            "providers",
            "sandbox",
            // What no model is told, and none says.
            "scrub",
            "secret",
            "services",
            "skills",
            "store",
            "telemetry",
        ],
    ),
    planned(Row::Door, "cli", &["domain", "secret"]),
    planned(
        Row::Door,
        "http-api",
        &["causes", "control", "domain", "lifecycle", "policy", "secret", "store"],
    ),
    planned(
        Row::Binary,
        "belljar",
        &[
            "agent",
            "causes",
            "cli",
            "containers",
            "control",
            "dial",
            "domain",
            "egress",
            "host",
            "http-api",
            "images",
            "lifecycle",
            "llm",
            "objects",
            "policy",
            "protocol",
            "providers",
            "sandbox",
            "sandbox-docker",
            "sandbox-oci",
            "script",
            "secret",
            "secrets",
            "services",
            "skills",
            "spelling",
            "sql",
            "sqlite",
            "store",
            "sys",
            "telemetry",
            "tools",
            "worker",
        ],
    ),
    planned(Row::Binary, "belljar-runtime", &["runtime"]),
    planned(Row::Development, "testkit", &["domain", "lifecycle"]),
    planned(
        Row::Development,
        "bench",
        &[
            "domain",
            "host",
            "lifecycle",
            "link",
            "llm",
            "protocol",
            "providers",
            "sandbox",
            "secret",
            "store",
            "testkit",
        ],
    ),
    planned(Row::Development, "e2e", &[]),
    planned(
        Row::Development,
        "providers-of-containers",
        &["calls", "redirect", "sandbox", "sys"],
    ),
    planned(Row::Development, "xtask", &[]),
];

/// An adapter that may use another, and why.
pub(crate) const BETWEEN_ADAPTERS: &[(&str, &str, &str)] = &[
    ("runtime", "link", "the runtime is the link's inner end"),
    (
        "runtime",
        "sync",
        "files are kept by the runtime's own file, run as another user",
    ),
    (
        "runtime",
        "tools",
        "the hands are the runtime's own file, run as another user",
    ),
];

/// What no crate of a row may link, directly or through others.
pub(crate) const BANNED: &[(&str, &[&str])] = &[
    ("domain", &["tokio", "rusqlite", "reqwest"]),
    ("llm", &["tokio", "rusqlite", "reqwest"]),
    ("protocol", &["tokio", "rusqlite", "reqwest"]),
    ("policy", &["tokio", "rusqlite", "reqwest"]),
    ("script", &["tokio", "rusqlite", "reqwest"]),
    ("sql", &["tokio", "rusqlite", "reqwest"]),
    ("agent", &["tokio", "rusqlite", "reqwest"]),
    // What parses what strangers wrote is linked by the program alone, and runs in its worker.
    ("control", &["sql", "script", "sqlite"]),
    ("http-api", &["sql", "script", "sqlite"]),
    ("runtime", &["store", "control", "rusqlite", "reqwest"]),
    ("belljar-runtime", &["store", "control", "rusqlite", "reqwest"]),
    (
        "host",
        &["store", "control", "rusqlite", "providers", "reqwest", "secret"],
    ),
    (
        "sandbox-docker",
        &["store", "control", "rusqlite", "providers", "reqwest", "secret"],
    ),
    (
        "sandbox-oci",
        &["store", "control", "rusqlite", "providers", "reqwest", "secret"],
    ),
];

/// What the program links of this workspace on other systems than Linux: the client commands, and nothing besides.
pub(crate) const ELSEWHERE: &[&str] = &["belljar", "cli", "domain", "secret"];

/// What is of Linux, and why the program can link it nowhere else. What only some systems have and leave out by themselves, as
/// tokio its io_uring, does not stand here.
pub(crate) const OF_LINUX: &[(&str, &str)] = &[
    ("bollard", "speaks to an engine on the machine where sandboxes are"),
    ("landlock", "what keeps a process of Linux from files"),
    ("linux-raw-sys", "Linux's own numbers and structures"),
    ("pg_query", "C code, which is read in the worker alone"),
    ("rquickjs", "C code, which runs in the worker alone"),
    ("rusqlite", "C code of the store and of the worker"),
    ("russh", "how the egress broker ends SSH"),
    ("seccompiler", "filters of Linux's system calls"),
];
