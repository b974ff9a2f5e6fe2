//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use domain::Delivery;

/// The commands that ask a running control plane.
#[derive(Clone, Debug, Subcommand)]
pub enum ClientCommand {
    /// Give the agent a job and watch it work.
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
    /// List sessions, the newest first.
    Sessions(ListArguments),
    /// Show what was said and done in a session.
    Show {
        /// The session's id or name.
        session: String,
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
    /// Close a session; its history stays readable.
    Archive {
        /// The session's id or name.
        session: String,
    },
    /// Copy a file into a session's workspace.
    Put(PutArguments),
    /// Copy a file out of a session's workspace.
    Get(GetArguments),
    /// List a session's workspace.
    Files(FilesArguments),
    /// List the models that can be asked.
    Models,
    /// Look after sandboxes.
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// Read the audit log, the newest first.
    Audit {
        /// At most this many entries.
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Show what was spent.
    Usage {
        /// In this session only.
        #[arg(long)]
        session: Option<String>,
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
    /// Remove one. Its session goes on in another; its files stay.
    Rm {
        /// The sandbox's id.
        sandbox: domain::SandboxId,
    },
}

/// What can be asked of policies.
#[derive(Clone, Debug, Subcommand)]
pub enum PolicyCommand {
    /// Say whether something may be done, what each layer says to it, and which of them decides.
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
    /// The door by which it comes: api, cli, slack, webhook or schedule.
    #[arg(long, default_value = "cli")]
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
    /// Remove a user. Their tokens open nothing from then on; their sessions stay.
    Rm {
        /// The user's id.
        user: String,
    },
}

/// What can be done about tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// List tokens; none is shown, only what each is for.
    List,
    /// Make a token. It is shown once.
    Add {
        /// What it is for.
        label: String,
        /// The user it stands for; you, where left out.
        #[arg(long)]
        user: Option<String>,
    },
    /// Take a token back.
    Revoke {
        /// The token's id.
        token: String,
    },
}
