//! What can be typed.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use domain::{Delivery, Door};

/// The commands that ask a running control plane.
#[derive(Clone, Debug, Subcommand)]
pub enum ClientCommand {
    /// Give the agent a job and watch it work.
    #[command(
        after_help = "Examples:\n  belljar run \"count the words in notes.txt\" --file notes.txt\n  belljar run --session report \"and now by month\" > months.md"
    )]
    Run(RunArguments),
    /// Talk with the agent, line by line.
    Chat {
        /// Go on with this session: its id, or a name of your choice.
        #[arg(long)]
        session: Option<String>,
        /// The model to ask.
        #[arg(long)]
        model: Option<String>,
        /// Narrow the session by the scope in this JSON file.
        #[arg(long, value_name = "FILE")]
        scope: Option<PathBuf>,
    },
    /// List sessions, those that were prompted last first.
    Sessions(ListArguments),
    /// Show what was said in a session, and a line about each thing that was done.
    #[command(after_help = "Example:\n  belljar show report --all | less")]
    Show {
        /// The session's id or name.
        session: String,
        /// What each tool was given too (code, commands), and the beginning of what it answered.
        #[arg(long)]
        all: bool,
    },
    /// Print a session's events.
    Events {
        /// The session's id or name.
        session: String,
        /// Only what came after this position (`number` or `number:offset`).
        #[arg(long)]
        after: Option<String>,
        /// Wait for more.
        #[arg(long, short)]
        follow: bool,
    },
    /// Stop what a session is doing.
    Cancel {
        /// The session's id or name.
        session: String,
    },
    /// Put a session away: a run under way is cancelled, its sandbox goes, its history and files stay, and a prompt opens it again.
    ///
    /// What is kept nowhere but on its disk goes with the disk: folders such as node_modules/ and .venv/, what .belljarignore leaves out, and
    /// everything that is not in /workspace.
    Archive {
        /// The session's id or name.
        session: String,
    },
    /// Make sessions that begin where another stands, with its files and what was said.
    Fork(ForkArguments),
    /// Keep a session as it is, and go back to it.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Copy a file into a session's workspace.
    Put(PutArguments),
    /// Copy a file out of a session's workspace.
    #[command(
        after_help = "Examples:\n  belljar get report report/monthly.csv .\n  belljar get report notes.txt - | head"
    )]
    Get(GetArguments),
    /// List a session's workspace.
    Files(FilesArguments),
    /// List the models that can be asked.
    Models,
    /// Look after sandboxes.
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// Look after the image that sandboxes are made of; among the commands about images, wherever they are done.
    #[command(skip)]
    Image(ImageCommand),
    /// Read the audit log, the newest first. With --json and no limit: every entry that is wanted, the oldest first.
    #[command(
        after_help = "Examples:\n  belljar audit --user ada --since 7d\n  belljar audit --session deploys --decision deny\n  belljar audit --json --since 2026-05-01 > may.jsonl"
    )]
    Audit(AuditArguments),
    /// Show what was spent.
    #[command(after_help = "Examples:\n  belljar usage --by user\n  belljar usage --session report")]
    Usage {
        /// In this session only.
        #[arg(long)]
        session: Option<String>,
        /// One line for each of what: a session's are summed up by model where it is left out, all by day.
        #[arg(long, value_enum)]
        by: Option<ByArgument>,
        /// One line for each call of a model, the oldest first.
        #[arg(long, conflicts_with = "by")]
        calls: bool,
    },
    /// List what the agent wants a person to approve, or show one of it whole.
    Approvals(ApprovalsArguments),
    /// Approve what the agent asked, once: it is shown, and asked about at a terminal.
    #[command(after_help = "Example:\n  belljar approve 0123456789ab")]
    Approve(ApproveArguments),
    /// Deny what the agent asked.
    Deny {
        /// The approval's id, or its last twelve digits, as they are listed.
        #[arg(value_parser = approval_name)]
        approval: String,
        /// Why; the agent is told.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Ask who may do what.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Look after users.
    #[command(subcommand)]
    User(UserCommand),
    /// Look after tokens.
    #[command(subcommand)]
    Token(TokenCommand),
}

/// What can be asked about the image that sandboxes are made of.
#[derive(Clone, Debug, Subcommand)]
pub enum ImageCommand {
    /// List what was built of the repositories in the image's recipe, the newest first, and why where nothing came of it.
    Generations,
    /// Fetch the repositories and build anew now, rather than when it is time.
    Refresh {
        /// The image's name; the one that sandboxes are made of where left out.
        image: Option<String>,
        /// Do not wait for its end.
        #[arg(long)]
        detach: bool,
    },
}

/// What a job is.
#[derive(Clone, Debug, Args)]
pub struct RunArguments {
    /// What to do; read from stdin where it is left out or `-`.
    pub prompt: Option<String>,
    /// Go on with this session: its id, or a name of your choice.
    #[arg(long)]
    pub session: Option<String>,
    /// The model to ask.
    #[arg(long)]
    pub model: Option<String>,
    /// Narrow the session by the scope in this JSON file: services, tools, skills, egress, models, limits.
    #[arg(long, value_name = "FILE")]
    pub scope: Option<PathBuf>,
    /// Copy this file into the workspace first; may be repeated.
    #[arg(long, value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// How the prompt meets work that is under way.
    #[arg(long, value_enum, default_value_t = DeliveryArgument::Restart)]
    pub delivery: DeliveryArgument,
    /// Do not wait: print the session's id and end.
    #[arg(long)]
    pub detach: bool,
}

/// How a prompt meets work that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DeliveryArgument {
    /// Interrupt it and begin anew.
    Restart,
    /// Join it before its next step.
    Steer,
    /// Wait until it has ended.
    Queue,
}

impl From<DeliveryArgument> for Delivery {
    fn from(delivery: DeliveryArgument) -> Self {
        match delivery {
            DeliveryArgument::Restart => Self::Restart,
            DeliveryArgument::Steer => Self::Steer,
            DeliveryArgument::Queue => Self::Queue,
        }
    }
}

/// Which sessions are listed.
#[derive(Clone, Debug, Args)]
pub struct ListArguments {
    /// At most this many.
    #[arg(long, default_value_t = 20)]
    pub limit: u32,
    /// The page after this one, as the last page said.
    #[arg(long)]
    pub after: Option<String>,
    /// Those that were put away instead of the others.
    #[arg(long)]
    pub archived: bool,
}

/// What sums are made by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ByArgument {
    /// Each session.
    Session,
    /// Each user.
    User,
    /// Each day (UTC).
    Day,
    /// Each model.
    Model,
    /// Each trigger: a door, and the name under which a prompt came by it, such as api:nightly.
    Trigger,
}

impl ByArgument {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::User => "user",
            Self::Day => "day",
            Self::Model => "model",
            Self::Trigger => "trigger",
        }
    }
}

/// Which entries of the audit log are shown.
#[derive(Clone, Debug, Args)]
pub struct AuditArguments {
    /// Of this session: its id or name.
    #[arg(long)]
    pub session: Option<String>,
    /// Of this user and their sessions: an id or a name.
    #[arg(long)]
    pub user: Option<String>,
    /// With this action, such as egress.denied; * stands for anything.
    #[arg(long, value_name = "GLOB")]
    pub action: Option<String>,
    /// Decided so.
    #[arg(long, value_enum)]
    pub decision: Option<DecisionArgument>,
    /// Calls of this service.
    #[arg(long)]
    pub service: Option<String>,
    /// What was to reach this host.
    #[arg(long)]
    pub host: Option<String>,
    /// From this moment on: a date, a date and time, or how long ago (90s, 30m, 2h, 7d).
    #[arg(long, value_name = "MOMENT")]
    pub since: Option<String>,
    /// Before this moment.
    #[arg(long, value_name = "MOMENT")]
    pub until: Option<String>,
    /// At most this many: 50, or 10 before those that follow.
    #[arg(long)]
    pub limit: Option<u32>,
    /// Wait for more.
    #[arg(long, short, conflicts_with = "until")]
    pub follow: bool,
    /// Follow the chain of hashes from end to end, and say where it breaks.
    #[arg(long, conflicts_with_all = ["session", "user", "action", "decision", "service", "host", "since", "until", "limit", "follow"])]
    pub verify: bool,
    /// Hold the log against an entry that was noted elsewhere: what --verify printed.
    #[arg(long, value_name = "NUMBER:HASH", requires = "verify")]
    pub noted: Option<Noted>,
    /// Verify a copy of the store that `belljar backup` made; nothing need run.
    #[arg(long, value_name = "COPY", requires = "verify")]
    pub file: Option<PathBuf>,
}

/// What was decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DecisionArgument {
    /// It may.
    Allow,
    /// A person is asked first.
    Ask,
    /// It may not.
    Deny,
}

impl DecisionArgument {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// An entry of the audit log that was noted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Noted {
    /// Its number.
    pub number: i64,
    /// Its hash, in hexadecimal digits.
    pub hash: String,
}

impl FromStr for Noted {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let noted = text.split_once(':').and_then(|(number, hash)| {
            let number = number.parse().ok().filter(|number| *number > 0)?;
            let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hash.then(|| Self {
                number,
                hash: hash.to_owned(),
            })
        });
        noted.ok_or("write a number, a colon and 64 hexadecimal digits, as `belljar audit --verify` prints them")
    }
}

/// What forks are made of.
#[derive(Clone, Debug, Args)]
pub struct ForkArguments {
    /// The session's id or name.
    pub session: String,
    /// How many, at most 16.
    #[arg(long, default_value_t = 1)]
    pub count: u32,
    /// Begin at this snapshot, by its id or name; else where the session stands.
    #[arg(long)]
    pub snapshot: Option<String>,
    /// Narrow the forks by the scope in this JSON file.
    #[arg(long, value_name = "FILE")]
    pub scope: Option<PathBuf>,
}

/// What can be done about snapshots.
#[derive(Clone, Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Keep a session's files as they are now.
    #[command(after_help = "Example:\n  belljar snapshot save report --name before-the-rewrite")]
    Save {
        /// The session's id or name.
        session: String,
        /// What the snapshot is called.
        #[arg(long)]
        name: Option<String>,
    },
    /// List a session's snapshots, the newest first.
    List {
        /// The session's id or name.
        session: String,
    },
    /// Take a session back to a snapshot: its files, and what was said.
    #[command(after_help = "Example:\n  belljar snapshot restore report before-the-rewrite")]
    Restore {
        /// The session's id or name.
        session: String,
        /// The snapshot's id or name.
        snapshot: String,
    },
    /// Name a snapshot. One that was made after a run is kept from then on.
    Name {
        /// The session's id or name.
        session: String,
        /// The snapshot's id or name.
        snapshot: String,
        /// What it is called.
        name: String,
    },
    /// Copy a session's workspace to a file, a tar compressed with zstd.
    Export {
        /// The session's id or name.
        session: String,
        /// The file, such as report.tar.zst.
        file: PathBuf,
        /// The workspace as this snapshot has it, by its id or name, instead of as it is now.
        #[arg(long)]
        snapshot: Option<String>,
        /// Also in the place of a file that is there.
        #[arg(long)]
        force: bool,
    },
    /// Put what is in such a file, or in any tar, in the place of a session's workspace: all of it, or nothing.
    Import {
        /// The session's id, or a name: a session is made where there is none.
        session: String,
        /// The file.
        file: PathBuf,
    },
    /// Remove a snapshot.
    Rm {
        /// The session's id or name.
        session: String,
        /// The snapshot's id or name.
        snapshot: String,
    },
}

/// A file to copy in.
#[derive(Clone, Debug, Args)]
pub struct PutArguments {
    /// The session's id or name.
    pub session: String,
    /// The file.
    pub file: PathBuf,
    /// Where it goes in the workspace; its own name where left out.
    pub path: Option<String>,
}

/// A file to copy out.
#[derive(Clone, Debug, Args)]
pub struct GetArguments {
    /// The session's id or name.
    pub session: String,
    /// The file in the workspace.
    pub path: String,
    /// Where it goes: a file, a folder, or `-` for stdout. Its own name in the current folder where left out.
    pub file: Option<PathBuf>,
    /// Also in the place of a file that is there.
    #[arg(long)]
    pub force: bool,
}

/// A folder to list.
#[derive(Clone, Debug, Args)]
pub struct FilesArguments {
    /// The session's id or name.
    pub session: String,
    /// The folder in the workspace; all of it where left out.
    #[arg(default_value = "")]
    pub path: String,
}

/// What can be done about sandboxes.
#[derive(Clone, Debug, Subcommand)]
pub enum SandboxCommand {
    /// List sandboxes.
    List,
    /// List sandboxes with the memory, processor time and room on disk that each takes.
    Stats,
    /// Run one program that only looks (ls, cat, git log…) in a session's sandbox, which is made or woken for it.
    #[command(after_help = "Example:\n  belljar sandbox exec report ls -la")]
    Exec {
        /// The session's id or name.
        session: String,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Show what a sandbox's runtime said last.
    Logs {
        /// The sandbox's id, or its last twelve digits, as they are listed.
        #[arg(value_parser = sandbox_name)]
        sandbox: String,
    },
    /// Remove a sandbox, or all. What runs in it ends; its session and its files stay, and a run goes on in another.
    ///
    /// After --all none is made before somebody needs one: not ahead, and not to build an image in. A build that was under way is tried
    /// again then.
    #[command(
        after_help = "Examples:\n  belljar sandbox rm 0123456789ab\n  belljar sandbox rm --all --yes",
        group = ArgGroup::new("which").args(["sandbox", "all"]).required(true)
    )]
    Rm {
        /// The sandbox's id, or its last twelve digits, as they are listed.
        #[arg(value_parser = sandbox_name)]
        sandbox: Option<String>,
        /// Every sandbox: running, frozen, made ahead, and those in which images are built.
        #[arg(long)]
        all: bool,
        /// Do not ask.
        #[arg(long, short, requires = "all")]
        yes: bool,
    },
}

/// The last digits of an id, which are its own; those before say when it was made.
pub(crate) const SHORT_ID: usize = 12;

/// What may name a sandbox.
fn sandbox_name(text: &str) -> Result<String, String> {
    digits(text, "a sandbox", "belljar sandbox list")
}

/// What may name an approval.
fn approval_name(text: &str) -> Result<String, String> {
    digits(text, "an approval", "belljar approvals")
}

/// An id, or enough of its end.
fn digits(text: &str, what: &str, list: &str) -> Result<String, String> {
    let is_digit = |letter: char| letter.is_ascii_hexdigit() || letter == '-';
    if text.len() >= SHORT_ID && text.chars().all(is_digit) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{what} is named by its id, or by the last {SHORT_ID} digits of it, as `{list}` shows them"
    ))
}

/// Which approvals are shown.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ApprovalsArguments {
    /// Only one.
    #[command(subcommand)]
    pub command: Option<ApprovalsCommand>,
    /// In this session only.
    #[arg(long)]
    pub session: Option<String>,
}

/// What else can be asked of approvals.
#[derive(Clone, Debug, Subcommand)]
pub enum ApprovalsCommand {
    /// Show one with all that is asked for, and the hash of that.
    Show {
        /// The approval's id, or its last twelve digits, as they are listed.
        #[arg(value_parser = approval_name)]
        approval: String,
    },
}

/// The fewest digits of a hash that stand for what was seen.
const SHORT_HASH: usize = 12;

/// The beginning of a request's SHA-256.
fn hash(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    let length = text.len();
    if (SHORT_HASH..=64).contains(&length) && text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Ok(text);
    }
    Err(format!(
        "a hash is written with at least {SHORT_HASH} of its digits, as `belljar approvals show` shows them"
    ))
}

/// What is approved.
#[derive(Clone, Debug, Args)]
pub struct ApproveArguments {
    /// The approval's id, or its last twelve digits, as they are listed.
    #[arg(value_parser = approval_name)]
    pub approval: String,
    /// Whenever this session asks for the same method, tool or host.
    #[arg(long)]
    pub always: bool,
    /// The beginning of the hash of what was shown, in place of the question at a terminal.
    #[arg(long, value_name = "DIGITS", value_parser = hash)]
    pub hash: Option<String>,
    /// Why.
    #[arg(long)]
    pub reason: Option<String>,
}

/// What can be asked of policies.
#[derive(Clone, Debug, Subcommand)]
pub enum PolicyCommand {
    /// Say whether something may be done, what each layer says to it, and which of them decides.
    #[command(
        after_help = "Examples:\n  belljar policy explain crm.deleteContact --user ada\n  belljar policy explain egress:api.example.com:443"
    )]
    Explain(ExplainArguments),
}

/// What is to be explained.
#[derive(Clone, Debug, Args)]
pub struct ExplainArguments {
    /// `service.method`, `tool:NAME`, `skill:NAME`, `model:NAME` or `egress:HOST:PORT`.
    pub question: String,
    /// The name of whose request it is; yours where left out.
    #[arg(long)]
    pub user: Option<String>,
    /// The door by which it comes.
    #[arg(long, default_value = "cli", value_parser = PossibleValuesParser::new(Door::ALL.map(Door::as_str)))]
    pub door: String,
    /// The session for which it is: its id or name.
    #[arg(long)]
    pub session: Option<String>,
}

/// What can be done about users.
#[derive(Clone, Debug, Subcommand)]
pub enum UserCommand {
    /// List users.
    List,
    /// Add a user.
    Add {
        /// The user's name.
        name: String,
        /// May do everything.
        #[arg(long)]
        admin: bool,
    },
    /// Remove a user. Their tokens open nothing from then on, their runs are cancelled; their sessions stay and take no prompt.
    Rm {
        /// The user's name or id.
        user: String,
    },
}

/// What can be done about tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// List tokens, the newest first; none is shown, only what each is for.
    List {
        /// This user's, by name or id; yours where left out. Admins only.
        #[arg(long)]
        user: Option<String>,
    },
    /// Make a token. It is shown once.
    #[command(after_help = "Example:\n  belljar token add laptop --user ada")]
    Add {
        /// What it is for.
        label: String,
        /// The user it stands for, by name or id; you, where left out.
        #[arg(long)]
        user: Option<String>,
    },
    /// Take a token back: it opens nothing from now on.
    #[command(after_help = "Example:\n  belljar token revoke laptop --user ada")]
    Revoke {
        /// What the token is for, or its id, or the last twelve digits of it, as they are listed.
        token: String,
        /// The user it stands for, by name or id; you, where left out.
        #[arg(long)]
        user: Option<String>,
    },
}
