//! Belljar, the program: reads the configuration, puts the parts together, and speaks with the person at the terminal.
//!
//! * `arguments`: what can be typed
//! * `config`: one file, checked whole
//! * `sources`: where secrets come from
//! * `rotations`: where those go that come in their place
//! * `wiring`: settings as the parts want them
//! * `serve`, `host`, `up`, `worker`: the processes
//! * `dev`: the loop alone, in this process
//! * `local`: what is done on this machine, without the API
//! * `owner`: who does what root must not do itself
//! * `client`: which control plane is asked
//! * `elsewhere`: all of it on a system that is not Linux, where only a control plane can be asked
//! * `end`: how a command ends
//! * `page`: all commands, as a page

#[cfg_attr(
    any(not(target_os = "linux"), client_alone),
    allow(dead_code, reason = "what is done on Linux can be typed everywhere")
)]
mod arguments;
mod client;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod config;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod dev;
#[cfg(any(test, not(target_os = "linux"), client_alone))]
mod elsewhere;
#[cfg_attr(
    any(not(target_os = "linux"), client_alone),
    allow(dead_code, reason = "a control plane that is asked ends a command in fewer ways")
)]
mod end;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod host_agent;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod listening;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod local;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod owner;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod page;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod places;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod process;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod rotations;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod serve;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod sources;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod system_user;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod up;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod wiring;
#[cfg(all(target_os = "linux", not(client_alone)))]
mod worker;

use std::process::ExitCode;

use clap::Parser;
#[cfg(all(target_os = "linux", not(client_alone)))]
use cli::ClientCommand;

use arguments::Arguments;
#[cfg(all(target_os = "linux", not(client_alone)))]
use arguments::Command;
#[cfg(any(not(target_os = "linux"), client_alone))]
use elsewhere::run;
#[cfg(all(target_os = "linux", not(client_alone)))]
use end::End;

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", not(client_alone)))]
    {
        // The supervisor of a tool's processes is this same file; it is no command for people.
        if std::env::args_os().nth(1).is_some_and(|word| word == dev::SUPERVISE) {
            return tools::supervise();
        }
    }
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(end) => end.into(),
        Err(error) => end::tell(&error, arguments.json),
    }
}

#[cfg(all(target_os = "linux", not(client_alone)))]
fn run(arguments: &Arguments) -> anyhow::Result<End> {
    if let Command::Host = &arguments.command {
        // Before any thread is there, and before anything is read.
        process::clear_environment()?;
    }
    if let Command::Worker(worker) = &arguments.command {
        // It reads no configuration: it may open nothing, or one file.
        return worker::worker(worker);
    }
    if let Command::Page = &arguments.command {
        cli::line(page::page().trim_end())?;
        return Ok(End::Done);
    }
    if let Command::Check { example: true } = &arguments.command {
        return local::example();
    }
    if let Command::Client(ClientCommand::Audit(audit)) = &arguments.command
        && let Some(copy) = &audit.file
    {
        return local::verify_copy(copy, audit.noted.as_ref(), arguments.json);
    }
    let loaded = config::load(arguments.config.as_deref());
    if let Some(command) = arguments.command.client() {
        // A client elsewhere needs no configuration, and its machine may have none.
        return process::runtime()?.block_on(local::client(command, loaded, arguments.json));
    }
    let loaded = loaded?;
    for warning in &loaded.warnings {
        cli::note(format_args!("warning: {warning}"));
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
        Command::Client(_) | Command::Worker(_) | Command::Page => Ok(End::Done),
    }
}
