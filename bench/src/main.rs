//! Measures Belljar beside its peers, in one run, on one machine: `make bench`, or `make bench ONLY=S1,G2`.
//!
//! The peers get the same files, the same command, the same model and the same minute; the ratio is what counts. Everything that is
//! started here ends with it, and nothing leaves loopback.
//!
//! * [`sandboxes`], [`agent`], [`gateway`], [`program`]: the measures S, A, G and P
//! * [`installation`]: a Belljar of the bench's own, as real processes; [`inside`]: sandboxes that are only tasks, for the gateway
//! * [`upstream`]: the outside world of both sides, and [`visitor`], who asks it; [`models`]: their model; [`http`]: how programs are asked; [`processes`]: what the kernel knows of them
//! * [`peers`]: the other programs
//! * [`sample`], [`selection`], [`report`]: figures

mod agent;
mod gateway;
mod http;
mod inside;
mod installation;
mod models;
mod peers;
mod processes;
mod program;
mod report;
mod sample;
mod sandboxes;
mod selection;
mod upstream;
mod visitor;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use installation::Programs;
use peers::{litellm, opencode, runc};
use report::Findings;
use selection::Selection;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Measures; false where something could not be measured.
fn run() -> anyhow::Result<bool> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    if first == opencode::WORD {
        let program = PathBuf::from(arguments.next().context("which OpenCode?")?);
        return runtime.block_on(opencode::talk(&program)).map(|()| true);
    }
    if first == runc::WORD {
        let program = arguments.next().context("which runtime?")?;
        let rootfs = PathBuf::from(arguments.next().context("which root file system?")?);
        return runc::time_here(&program.to_string_lossy(), &rootfs).map(|()| true);
    }
    if first == litellm::WORD {
        let program = PathBuf::from(arguments.next().context("which LiteLLM?")?);
        let body = PathBuf::from(arguments.next().context("which request?")?);
        return gateway::talk_with_litellm(&program, &body).map(|()| true);
    }
    if first == visitor::WORD {
        let wanted = arguments.next().context("what is there to be done?")?;
        return runtime
            .block_on(visitor::visit(&wanted.to_string_lossy()))
            .map(|()| true);
    }
    let wanted = Selection::parse(&first.to_string_lossy())?;
    let programs = Programs::built()?;
    raise_descriptors()?;
    let mut found = Findings::default();
    let all = async {
        sandboxes::measure(&programs, &wanted, &mut found).await;
        agent::measure(&programs, &wanted, &mut found).await;
        gateway::measure(&programs, &wanted, &mut found).await;
        program::measure(&programs, &wanted, &mut found).await;
    };
    // What was started ends with what is dropped here.
    let done = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            () = all => Ok::<_, std::io::Error>(true),
            _ = tokio::signal::ctrl_c() => Ok(false),
            _ = terminate.recv() => Ok(false),
        }
    })?;
    drop(runtime);
    if !done {
        bail!("told to end; what was measured so far is not kept");
    }
    report::print(&found.measures);
    let file = arguments
        .next()
        .map_or_else(|| PathBuf::from("target/bench.json"), PathBuf::from);
    let json = serde_json::to_vec_pretty(&found.measures)?;
    std::fs::write(&file, json).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(!found.incomplete)
}

/// A thousand watchers are a thousand connections, and as many on the other side.
fn raise_descriptors() -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("the limit of open files could not be raised")
}
