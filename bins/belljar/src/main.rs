//! Belljar, the program: reads the configuration, puts the parts together, and speaks with the person at the terminal.
//!
//! * `arguments`: what can be typed
//! * `config`: one file, checked whole
//! * `sources`: where secrets come from
//! * `wiring`: settings as the parts want them
//! * `serve`, `host`, `up`, `worker`: the processes
//! * `dev`: the loop alone, in this process
//! * `local`: what is done on this machine, without the API
//! * `owner`: who does what root must not do itself
//! * `end`: how a command ends

mod arguments;
mod config;
mod dev;
mod end;
mod host_agent;
mod listening;
mod local;
mod owner;
mod places;
mod process;
mod serve;
mod sources;
mod system_user;
mod up;
mod wiring;
mod worker;

use std::process::ExitCode;

use clap::Parser;
use cli::ClientCommand;

use arguments::{Arguments, Command, ImageCommand};
use end::End;

fn main() -> ExitCode {
    // The supervisor of a tool's processes is this same file; it is no command for people.
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == dev::SUPERVISE) {
        return tools::supervise(words);
    }
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(end) => end.into(),
        Err(error) => end::tell(&error, arguments.json),
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<End> {
    if let Command::Host = &arguments.command {
        // Before any thread is there, and before anything is read.
        process::clear_environment()?;
    }
    if let Command::Worker(worker) = &arguments.command {
        // It reads no configuration: it may open nothing, or one file.
        return worker::worker(worker);
    }
    if let Command::Check { example: true } = &arguments.command {
        return Ok(local::example());
    }
    if let Command::Client(ClientCommand::Audit(audit)) = &arguments.command
        && let Some(copy) = &audit.file
    {
        return local::verify_copy(copy, audit.noted.as_ref(), arguments.json);
    }
    let loaded = config::load(arguments.config.as_deref());
    let client = match &arguments.command {
        Command::Client(command) => Some(command.clone()),
        Command::Image(ImageCommand::Client(command)) => Some(ClientCommand::Image(command.clone())),
        _ => None,
    };
    if let Some(command) = client {
        // A client elsewhere needs no configuration, and its machine may have none.
        return process::runtime()?.block_on(local::client(command, loaded, arguments.json));
    }
    let loaded = loaded?;
    for warning in &loaded.warnings {
        eprintln!("warning: {warning}");
    }
    match &arguments.command {
        Command::Up => up::up(&loaded),
        Command::Serve => serve::serve(&loaded),
        Command::Host => host_agent::host(&loaded),
        Command::Dev(dev) => dev::dev(&loaded.settings, dev, arguments.json),
        Command::Check { .. } => local::check(&loaded, arguments.json),
        Command::Doctor => local::doctor(&loaded.settings, arguments.json),
        Command::Backup { file } => local::backup(&loaded, file, arguments.json),
        Command::Restore { file } => local::restore(&loaded, file, arguments.json),
        Command::Image(command) => local::image(&loaded.settings, command, arguments.json),
        Command::Secret(command) => local::secret(&loaded, command, arguments.json),
        Command::Service(command) => local::service(&loaded, command, arguments.json),
        Command::Skill(command) => local::skill(command, arguments.json),
        Command::Client(_) | Command::Worker(_) => Ok(End::Done),
    }
}
