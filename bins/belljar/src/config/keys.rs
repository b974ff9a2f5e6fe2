//! Every key there is, in one table: what is read, refused, suggested and documented comes from here.

/// A part of the configuration.
pub(crate) struct Section {
    /// The table's name; `models.*` stands for one table per model.
    pub(crate) name: &'static str,
    /// What it is about.
    pub(crate) about: &'static str,
    /// Its keys.
    pub(crate) keys: &'static [Key],
}

/// A key of a section.
pub(crate) struct Key {
    /// Its name; may go one level deeper (`price.input`).
    pub(crate) name: &'static str,
    /// What its value may be.
    pub(crate) kind: Kind,
    /// What holds where it is left out, as it would be written; nothing where there is no default.
    pub(crate) default: Option<&'static str>,
    /// How it could be written, where there is no default to show.
    pub(crate) example: &'static str,
    /// What it does.
    pub(crate) about: &'static str,
}

/// What a value may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number from one to the other.
    Whole(i64, i64),
    /// A decimal number that is not negative, to a thousandth.
    Decimal,
    /// An amount of dollars, to a billionth.
    Dollars,
    /// A price in dollars for a million tokens, to a thousandth.
    Price,
    /// A duration: a number and `ms`, `s`, `m`, `h` or `d`.
    Duration,
    /// A size: a number and `KiB`, `MiB` or `GiB`.
    Size,
    /// True or false.
    Flag,
    /// An address and a port.
    Listen,
    /// A path that begins with `/`.
    Path,
    /// A path, from the folder of the configuration where it does not begin with `/`.
    File,
    /// `env:NAME` or `file:/path`: where a secret is, never the secret.
    Reference,
    /// A table of names and texts.
    Texts,
    /// A list of names.
    Names,
}

impl Kind {
    /// The kind in words, for people.
    pub(crate) fn in_words(self) -> String {
        match self {
            Self::Text => "a text".into(),
            Self::Word(words) => format!("one of {}", quoted(words)),
            Self::Whole(least, most) if most == i64::MAX => format!("a whole number, {least} or more"),
            Self::Whole(least, most) => format!("a whole number from {least} to {most}"),
            Self::Decimal => "a decimal number, such as 0.5".into(),
            Self::Dollars => "an amount of dollars, such as 2.50".into(),
            Self::Price => "dollars for a million tokens, such as 3.00 or 0.075".into(),
            Self::Duration => "a duration, such as \"90s\", \"30m\" or \"1h\"".into(),
            Self::Size => "a size, such as \"512MiB\" or \"2GiB\"".into(),
            Self::Flag => "true or false".into(),
            Self::Listen => "an address and a port, such as \"127.0.0.1:7717\"".into(),
            Self::Path => "a path that begins with /".into(),
            Self::File => "a path, from this file's folder where it does not begin with /".into(),
            Self::Reference => "a reference, \"env:NAME\" or \"file:/path\"".into(),
            Self::Texts => "a table of texts, such as { \"x-team\" = \"data\" }".into(),
            Self::Names => "a list of names, such as [\"small\", \"local\"]".into(),
        }
    }
}

/// `"a", "b" or "c"`.
fn quoted(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// A key that has a new name. The old one is understood, with a warning, for one release.
pub(crate) struct Renamed {
    /// The old name, whole.
    pub(crate) old: &'static str,
    /// The new one, whole.
    pub(crate) new: &'static str,
}

/// Keys that were renamed. There is none yet; the next release's go here.
pub(crate) const RENAMED: &[Renamed] = &[];

const fn key(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Key {
    Key {
        name,
        kind,
        default: Some(default),
        example: "",
        about,
    }
}

const fn unset(name: &'static str, kind: Kind, example: &'static str, about: &'static str) -> Key {
    Key {
        name,
        kind,
        default: None,
        example,
        about,
    }
}

/// The whole configuration.
pub(crate) const SECTIONS: &[Section] = &[
    Section {
        name: "server",
        about: "Where the control plane listens and keeps what it knows.",
        keys: &[
            key(
                "listen",
                Kind::Listen,
                "\"127.0.0.1:7717\"",
                "Address of the HTTP API. It speaks plain HTTP: put a proxy with TLS before it where others can reach it.",
            ),
            key(
                "data",
                Kind::Path,
                "\"/var/lib/belljar\"",
                "The data directory: the store, images, disks of sessions.",
            ),
            key(
                "user",
                Kind::Text,
                "\"belljar\"",
                "The ordinary user that `belljar up` runs the control plane as; made where it is missing.",
            ),
            key(
                "log",
                Kind::Word(&["plain", "json"]),
                "\"plain\"",
                "How logs are written to stderr.",
            ),
            key(
                "log_level",
                Kind::Text,
                "\"info\"",
                "What is logged: a level, or directives such as `info,control=debug`.",
            ),
            key(
                "drain",
                Kind::Duration,
                "\"10s\"",
                "How long a stop waits for requests under way.",
            ),
            key(
                "model",
                Kind::Text,
                "\"\"",
                "The model of sessions that name none. With one model, it is that.",
            ),
        ],
    },
    Section {
        name: "sandbox",
        about: "The sealed machines in which the agent works. Read by the host agent too.",
        keys: &[
            key(
                "runtime",
                Kind::Word(&["runc", "crun", "youki", "runsc"]),
                "\"runc\"",
                "The OCI runtime that creates sandboxes.",
            ),
            unset(
                "program",
                Kind::Path,
                "\"/usr/lib/belljar/belljar-runtime\"",
                "The program that is PID 1 in every sandbox; `belljar-runtime` beside `belljar` where left out.",
            ),
            key(
                "run",
                Kind::Path,
                "\"/run/belljar\"",
                "What need not survive a restart of the machine: the host agent's socket, links and records of living sandboxes.",
            ),
            key(
                "image",
                Kind::Text,
                "\"base\"",
                "The image that sandboxes start from: a recipe's name, or the 64 digits of an image's digest.",
            ),
            key(
                "placement",
                Kind::Word(&["sandbox", "control-plane"]),
                "\"sandbox\"",
                "Where the agent loop runs: in the sandbox with its tools, or here with only the tools in the sandbox.",
            ),
            key("cpu", Kind::Decimal, "2", "Processors that one sandbox may use."),
            key("memory", Kind::Size, "\"2GiB\"", "Memory of one sandbox."),
            key(
                "processes",
                Kind::Whole(16, 1_000_000),
                "1024",
                "Processes and threads in one sandbox.",
            ),
            key("disk", Kind::Size, "\"10GiB\"", "What one session may keep on disk."),
            key(
                "freeze_after",
                Kind::Duration,
                "\"1m\"",
                "An idle sandbox is frozen after this.",
            ),
            key(
                "remove_after",
                Kind::Duration,
                "\"30m\"",
                "An idle sandbox is removed after this; its files stay.",
            ),
        ],
    },
    Section {
        name: "run",
        about: "What one run may use up before it is stopped.",
        keys: &[
            key("steps", Kind::Whole(1, 100_000), "100", "Model calls."),
            key(
                "time",
                Kind::Duration,
                "\"1h\"",
                "Time from its start, waiting not counted.",
            ),
            key("tool_time", Kind::Duration, "\"5m\"", "Time of one tool call."),
            key(
                "output",
                Kind::Size,
                "\"30KiB\"",
                "What the model is shown of one tool's answer; the rest is cut from the middle.",
            ),
        ],
    },
    Section {
        name: "budget",
        about: "Caps in dollars. A cap that is left out does not exist; with any cap, a model without a price is refused.",
        keys: &[
            unset("run", Kind::Dollars, "2.00", "What one run may cost."),
            unset("session", Kind::Dollars, "20.00", "What one session may cost."),
            unset(
                "user",
                Kind::Dollars,
                "50.00",
                "What one user may spend in a day (UTC).",
            ),
            unset("day", Kind::Dollars, "200.00", "What all may spend in a day (UTC)."),
        ],
    },
    Section {
        name: "models.*",
        about: "A model, by the name that people call it: [models.large], [models.local] and so on.",
        keys: &[
            unset(
                "provider",
                Kind::Word(&["anthropic", "openai", "openai-chat", "scripted"]),
                "\"anthropic\"",
                "What its API speaks: Anthropic Messages, OpenAI Responses (`openai`), or Chat Completions and all that is like it. `scripted` plays a file and needs no key. Must be given.",
            ),
            unset(
                "model",
                Kind::Text,
                "\"claude-sonnet-4-5\"",
                "The provider's own name of the model; the table's name where left out.",
            ),
            unset(
                "base_url",
                Kind::Text,
                "\"http://127.0.0.1:11434/v1\"",
                "Where its API is; the provider's own address where left out.",
            ),
            unset("key", Kind::Reference, "\"env:ANTHROPIC_API_KEY\"", "Where its key is."),
            unset(
                "headers",
                Kind::Texts,
                "{ \"x-team\" = \"data\" }",
                "Headers that each request carries. No secrets here.",
            ),
            unset(
                "script",
                Kind::File,
                "\"/etc/belljar/demo.yaml\"",
                "The file that a `scripted` model plays.",
            ),
            unset(
                "window",
                Kind::Whole(1_000, 100_000_000),
                "200000",
                "Tokens that its window holds. Must be given, save for `scripted`.",
            ),
            unset(
                "max_output",
                Kind::Whole(16, 10_000_000),
                "32000",
                "Tokens that one answer may have. Must be given, save for `scripted`.",
            ),
            key(
                "thinking",
                Kind::Word(&["default", "off", "low", "medium", "high"]),
                "\"default\"",
                "How hard it thinks before it speaks; by default that is left to it. `off` for models of `openai` that cannot think.",
            ),
            key(
                "cache",
                Kind::Word(&["off", "five-minutes", "hour"]),
                "\"five-minutes\"",
                "How long the provider is asked to remember prompts (Anthropic).",
            ),
            unset(
                "family",
                Kind::Text,
                "\"claude\"",
                "Models of one family understand each other's thoughts; each is one of its own where left out.",
            ),
            key(
                "plain_http",
                Kind::Flag,
                "false",
                "Lets `base_url` be plain HTTP to another machine.",
            ),
            unset(
                "fallback",
                Kind::Names,
                "[\"local\"]",
                "Models that are asked, in this order, when this one cannot answer.",
            ),
            unset(
                "price.input",
                Kind::Price,
                "3.00",
                "Input that no cache knew. A price has `input` and `output` at least.",
            ),
            unset("price.output", Kind::Price, "15.00", "Output, thinking included."),
            unset(
                "price.cache_read",
                Kind::Price,
                "0.30",
                "Input read from a cache; the price of input where left out.",
            ),
            unset(
                "price.cache_write",
                Kind::Price,
                "3.75",
                "Input written to a cache for five minutes; where left out the price of input, and a quarter more for Anthropic.",
            ),
            unset(
                "price.cache_write_hour",
                Kind::Price,
                "6.00",
                "Input written to a cache for an hour; where left out the price of input, and twice that for Anthropic.",
            ),
        ],
    },
];

/// The whole name of a key, its section's wildcard included.
pub(crate) fn whole_name(section: &Section, key: &Key) -> String {
    format!("{}.{}", section.name, key.name)
}

/// The key that a path means; `models.large.window` is `models.*`'s `window`.
pub(crate) fn find(path: &[String]) -> Option<&'static Key> {
    SECTIONS
        .iter()
        .flat_map(|section| section.keys.iter().map(move |key| (section, key)))
        .find(|(section, key)| matches(&whole_name(section, key), path))
        .map(|(_, key)| key)
}

/// Whether some key lies below this path.
pub(crate) fn is_table(path: &[String]) -> bool {
    SECTIONS.iter().any(|section| {
        section.keys.iter().any(|key| {
            let whole = whole_name(section, key);
            let names: Vec<&str> = whole.split('.').collect();
            names.len() > path.len() && matches(&names[..path.len()].join("."), path)
        })
    })
}

fn matches(pattern: &str, path: &[String]) -> bool {
    let mut names = pattern.split('.');
    path.iter()
        .all(|given| names.next().is_some_and(|name| name == "*" || name == given))
        && names.next().is_none()
}
