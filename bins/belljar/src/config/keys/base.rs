//! The keys of the control plane, its sandboxes, runs and caps.

use super::{Kind, Section, key, unset};

/// `[server]`
pub(super) const SERVER: Section = Section {
    name: "server",
    whole: false,
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
        unset(
            "services",
            Kind::File,
            "\"services\"",
            "The folder with definitions of services, a folder for each; `services` beside this file where left out.",
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
            "history",
            Kind::Size,
            "\"1GiB\"",
            "What the messages and events of one session may take in the store. A prompt beyond it is refused, and a run ends.",
        ),
        key(
            "model",
            Kind::Text,
            "\"\"",
            "The model of sessions that name none. With one model, it is that.",
        ),
    ],
};

/// `[sandbox]`
pub(super) const SANDBOX: Section = Section {
    name: "sandbox",
    whole: false,
    about: "The sealed machines in which the agent works. Read by the host agent too.",
    keys: &[
        key(
            "provider",
            Kind::Word(&["oci", "docker"]),
            "\"oci\"",
            "What makes sandboxes: an OCI runtime's command, by root (`oci`), or Docker's engine on this machine (`docker`).",
        ),
        key(
            "docker_socket",
            Kind::Path,
            "\"/var/run/docker.sock\"",
            "Where Docker's engine listens, with `provider = \"docker\"`. Only the host agent opens it.",
        ),
        unset(
            "docker_volume",
            Kind::Text,
            "\"belljar\"",
            "The engine's volume that is mounted as `server.data`, where Belljar itself is in a container, as with Docker Desktop; `run` is in it too (docs/providers.md).",
        ),
        key(
            "runtime",
            Kind::Word(&["runc", "crun", "youki", "runsc"]),
            "\"runc\"",
            "The OCI runtime that creates sandboxes, with `provider = \"oci\"`.",
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
        key(
            "disk",
            Kind::Size,
            "\"10GiB\"",
            "What one session may keep on disk; of a pool of btrfs at most half. A change counts for a session when its sandbox is started again; a disk never gets less than it holds, and one of ext4 is never made smaller.",
        ),
        key(
            "freeze_after",
            Kind::Duration,
            "\"1m\"",
            "An idle sandbox is frozen after this.",
        ),
        key(
            "hibernate_after",
            Kind::Duration,
            "\"30m\"",
            "The processes of an idle sandbox are ended after this, or kept on the disk where its runtime can (`runsc`); its files stay.",
        ),
        key(
            "archive_after",
            Kind::Duration,
            "\"7d\"",
            "The disk of a session of which nothing was heard for so long is removed, once all of its files are kept outside of it (`[objects]`); the next prompt or request brings them back. One whose workspace has a `.belljarignore` keeps its disk. \"0s\": never.",
        ),
        key(
            "background_time",
            Kind::Duration,
            "\"4h\"",
            "How long a program that is started in the background may go on, and keep its sandbox awake. \"0s\": none may be started.",
        ),
        key(
            "run_snapshots",
            Kind::Whole(0, 1_000),
            "10",
            "Snapshots of each session that are made when its runs end, the newest of which are kept: so it can go back. Only where the disk pool shares what they hold (btrfs); 0: none.",
        ),
        key(
            "per_user",
            Kind::Whole(1, 100_000),
            "64",
            "Sandboxes of one user at the same time. For one more, the one of theirs that was unused the longest is removed and its files stay (after a restart first one that sleeps since before); where all are in use, it is refused.",
        ),
    ],
};

/// `[sandbox.warm]`
pub(super) const WARM: Section = Section {
    name: "sandbox.warm",
    whole: false,
    about: "Sandboxes that are made ahead, so that a new session waits for none. Each idles in some megabytes of memory.",
    keys: &[
        key("least", Kind::Whole(0, 1_000), "1", "So many are always ready."),
        key(
            "most",
            Kind::Whole(0, 1_000),
            "4",
            "So many are ready at most; 0: none are made ahead.",
        ),
        key(
            "remember",
            Kind::Duration,
            "\"10m\"",
            "Between the two, as many are ready as sessions needed a new one within this time.",
        ),
    ],
};

/// `[run]`
pub(super) const RUN: Section = Section {
    name: "run",
    whole: false,
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
};

/// `[budget]`
pub(super) const BUDGET: Section = Section {
    name: "budget",
    whole: false,
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
        unset(
            "triggers",
            Kind::Amounts,
            "{ cli = 20.00, \"webhook:*\" = 5.00, \"api:nightly\" = 1.00 }",
            "What runs may cost together in a day (UTC), by what caused them: a door (`api`, `cli`, `slack`, `webhook`, `schedule`), or a door and the name under which a prompt came by it, a token's label for one. `*` stands for anything; whatever means a run counts. Whoever comes over HTTP says themselves whether they are `api` or `cli`: what is said of one means both. A token that another one made counts under the name of that one, unless an admin made it.",
        ),
    ],
};

/// `[approvals]`
pub(super) const APPROVALS: Section = Section {
    name: "approvals",
    whole: false,
    about: "What people are asked, where a scope says `ask`.",
    keys: &[key(
        "expire",
        Kind::Duration,
        "\"24h\"",
        "How long a question waits for its answer, and what was approved once to be done.",
    )],
};

/// `[telemetry]`
pub(super) const TELEMETRY: Section = Section {
    name: "telemetry",
    whole: false,
    about: "Who is told how long what took.",
    keys: &[unset(
        "otlp",
        Kind::Text,
        "\"http://127.0.0.1:4318\"",
        "A collector that takes traces by OTLP over HTTP, as JSON: `/v1/traces` is added. None is told where it is left out.",
    )],
};
