//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use cli::ClientCommand;

/// One general agent for everybody, in sealed sandboxes.
#[derive(Debug, Parser)]
#[command(
    name = "belljar",
    version,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 denied, 4 over budget."
)]
pub(crate) struct Arguments {
    /// The configuration; belljar.toml here or in /etc/belljar where left out.
    #[arg(long, global = true, env = "BELLJAR_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON, one value a line.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Commands of this machine, and those that ask a control plane wherever it is.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start everything: the host agent as root, the control plane as an ordinary user.
    Up,
    /// Run the control plane.
    Serve,
    /// Run the host agent, which makes sandboxes. Needs root, holds no key.
    Host,
    /// Try the agent in this process: no server, no sandbox, history in memory, tools in the current folder.
    Dev(DevArguments),
    /// Check the configuration; every mistake is reported.
    Check {
        /// Print an example with every key instead.
        #[arg(long)]
        example: bool,
    },
    /// Try everything that sandboxes need of this machine, and say what is missing.
    Doctor,
    /// Copy the store to a new file, while it is in use.
    Backup {
        /// The new file.
        file: PathBuf,
    },
    /// Put a copy in the store's place. The control plane must not run.
    Restore {
        /// The copy.
        file: PathBuf,
    },
    /// Build and look after images.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Look at skills.
    #[command(subcommand)]
    Skill(SkillCommand),
    #[command(flatten)]
    Client(ClientCommand),
}

/// How `dev` works.
#[derive(Debug, Args)]
pub(crate) struct DevArguments {
    /// What to do; a conversation where left out.
    pub(crate) prompt: Option<String>,
    /// The model to ask.
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// The folder with skills.
    #[arg(long, default_value = "skills")]
    pub(crate) skills: PathBuf,
    /// Let tools touch this machine: without it they run in a bubblewrap jail that sees the current folder and programs only.
    #[arg(long)]
    pub(crate) no_jail: bool,
}

/// What can be done about images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build an image from a recipe. Needs root.
    Build {
        /// The recipe's folder, such as images/base.
        #[arg(default_value = "images/base")]
        recipe: PathBuf,
        /// Also where the recipe has not changed: packages may have.
        #[arg(long)]
        always: bool,
    },
    /// List images, the newest first.
    List,
    /// Remove images that are neither in use nor the newest of their name. Needs root.
    Gc,
}

/// What can be done about skills.
#[derive(Debug, Subcommand)]
pub(crate) enum SkillCommand {
    /// List the skills of a folder.
    List {
        /// The folder that holds them.
        #[arg(default_value = "skills")]
        folder: PathBuf,
    },
    /// Check the skills of a folder: what breaks the format, what would serve a model badly.
    Check {
        /// The folder that holds them.
        #[arg(default_value = "skills")]
        folder: PathBuf,
    },
}
