//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use cli::ClientCommand;
use secret::SecretName;

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
    /// Parse what models and scripts wrote, for the control plane that starts this; nothing else is possible here.
    #[command(hide = true)]
    Worker(WorkerArguments),
    /// Print docs/commands.md.
    #[command(hide = true)]
    Page,
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
    /// Copy the store to a new file, while it is in use: that of BELLJAR_URL, or of this machine where it is left out.
    #[command(
        after_help = "Examples:\n  belljar backup store.db\n  BELLJAR_URL=https://belljar.example.com BELLJAR_TOKEN=… belljar backup store.db"
    )]
    Backup {
        /// The new file; - for the standard output.
        file: PathBuf,
    },
    /// Put a copy in the place of this machine's store. The control plane must not run.
    Restore {
        /// The copy; - for the standard input.
        file: PathBuf,
    },
    /// Build and look after images.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Keep keys in the encrypted store. Values go in and are used, and no command shows one.
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Make services of API descriptions and MCP servers, look at them and try them.
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Look at skills.
    #[command(subcommand)]
    Skill(SkillCommand),
    #[command(flatten)]
    Client(ClientCommand),
}

impl Command {
    /// What is asked of a control plane, wherever it is, if that is all.
    pub(crate) fn client(&self) -> Option<ClientCommand> {
        match self {
            Self::Client(command) => Some(command.clone()),
            Self::Image(ImageCommand::Client(command)) => Some(ClientCommand::Image(command.clone())),
            _ => None,
        }
    }
}

/// What a worker is there for.
#[derive(Debug, Args)]
pub(crate) struct WorkerArguments {
    /// Read this one file of SQLite, rather than parse.
    #[arg(long, hide = true)]
    pub(crate) database: Option<PathBuf>,
    /// The most seconds of processor time to use for it.
    #[arg(long, hide = true, default_value_t = 60)]
    pub(crate) seconds: u64,
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
    /// Take in an image that was made elsewhere: an OCI image layout, in a folder or a tar, or what `docker save` wrote. Needs root.
    #[command(after_help = "Example:\n  sudo belljar image import mine.tar --name mine")]
    Import {
        /// The folder or archive.
        from: PathBuf,
        /// What it is called here, as `sandbox.image` then says.
        #[arg(long)]
        name: String,
    },
    /// Write an image into an archive that `docker load` and registries' tools take.
    Export {
        /// The name, of which the newest is meant, or the digest, or as much of it as is listed.
        image: String,
        /// The archive, which must not be there yet.
        to: PathBuf,
    },
    /// List images, the newest first.
    List,
    /// Remove an image that nobody uses, the newest of its name too. Needs root.
    Rm {
        /// The name, of which all are meant, or the digest, or as much of it as is listed.
        image: String,
    },
    /// Remove images that are neither in use nor the newest of their name. Needs root.
    Gc,
    #[command(flatten)]
    Client(cli::ImageCommand),
}

/// What can be done about secrets.
#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Give a name a value, read from the standard input, or typed unseen at a terminal. Whatever refers to store:NAME uses it at once.
    #[command(after_help = "Example:\n  printf %s \"$HUBSPOT_TOKEN\" | sudo belljar secret set hubspot")]
    Set {
        /// The name.
        name: SecretName,
    },
    /// List names and dates.
    List,
    /// Remove a secret. Whatever refers to it fails from now on.
    Rm {
        /// The name.
        name: SecretName,
    },
}

impl SecretCommand {
    /// The words it is typed with.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = vec!["secret".into()];
        match self {
            Self::Set { name } => words.extend(["set".into(), name.as_str().into()]),
            Self::List => words.push("list".into()),
            Self::Rm { name } => words.extend(["rm".into(), name.as_str().into()]),
        }
        words
    }
}

/// What can be done about services. The folder of definitions is server.services where --folder is left out, or else services.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// List services.
    List {
        /// The folder of definitions.
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// Show a service's methods as a model sees them.
    Show {
        /// The service's name.
        service: String,
        /// The folder of definitions.
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// Make a service of an OpenAPI description (3.0 or 3.1, JSON or YAML), or of an MCP server's tools.
    #[command(
        after_help = "Examples:\n  belljar service import hubspot.json --name crm --only searchContacts,getContact\n  belljar service import --mcp https://mcp.example.com --name docs --auth bearer"
    )]
    Import(ImportArguments),
    /// Hold what an MCP server says of its tools now against what was approved, and approve it.
    Approve {
        /// The service's name.
        service: String,
        /// Approve everything that is shown. Without it nothing is changed.
        #[arg(long)]
        yes: bool,
        /// The folder of definitions.
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// Play the recorded exchanges of a service, or of all. Nothing leaves this machine.
    Test {
        /// The service's name.
        service: Option<String>,
        /// The folder of definitions.
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// Call a method from this machine, with the credential of the configuration. No scope is asked, and no audit written.
    #[command(after_help = "Example:\n  belljar service call crm.searchContacts '{\"query\": \"ada\"}'")]
    Call {
        /// The method: SERVICE.METHOD.
        method: String,
        /// Its arguments, as JSON.
        #[arg(default_value = "{}")]
        arguments: String,
        /// The folder of definitions.
        #[arg(long)]
        folder: Option<PathBuf>,
    },
}

/// What is imported.
#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    /// The description's file.
    #[arg(required_unless_present = "mcp", conflicts_with = "mcp")]
    pub(crate) description: Option<PathBuf>,
    /// An MCP server: its URL, or its program and arguments, split at spaces. It is asked for its tools.
    #[arg(long, value_name = "URL|COMMAND", requires = "name")]
    pub(crate) mcp: Option<String>,
    /// How the MCP server is authenticated to: bearer, header:NAME or environment:VARIABLE. The secret is the one that
    /// services.NAME.auth.token of belljar.toml refers to.
    #[arg(long, requires = "mcp")]
    pub(crate) auth: Option<String>,
    /// What the MCP server's program may read and execute besides the system's programs. May be repeated.
    #[arg(long, requires = "mcp", value_name = "PATH")]
    pub(crate) read: Vec<PathBuf>,
    /// A TCP port that the MCP server's program may connect to. May be repeated; without any it has no network.
    #[arg(long, requires = "mcp")]
    pub(crate) port: Vec<u16>,
    /// Only these: names of operations or tools, or paths; `*` stands for anything. May be repeated, or have commas.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// The service's name; made from the description's title where left out.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Where the API is, in place of what the description says.
    #[arg(long, value_name = "URL", conflicts_with = "mcp")]
    pub(crate) base_url: Option<String>,
    /// The folder of definitions.
    #[arg(long)]
    pub(crate) folder: Option<PathBuf>,
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
