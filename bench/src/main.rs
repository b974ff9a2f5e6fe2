//! Measures Belljar beside its peers, in one run, on one machine: `make bench`, or `make bench ONLY=S1,G2`.
//!
//! The peers get the same files, the same command, the same model and the same minute; the ratio is what counts. Everything that is
//! started here ends with it, and nothing leaves loopback.
//!
//! * [`sandboxes`], [`agent`], [`gateway`], [`program`]: the measures S, A, G and P
//! * [`installation`]: a Belljar of the bench's own, as real processes; [`inside`]: sandboxes that are only tasks, for the gateway
//! * [`models`]: the model of both sides; [`http`]: how programs are asked; [`processes`]: what the kernel knows of them
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

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use installation::Programs;
use peers::opencode;
use report::Measure;
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
    if arguments.next().is_some_and(|word| word == opencode::WORD) {
        let program = PathBuf::from(arguments.next().context("which OpenCode?")?);
        return runtime.block_on(opencode::talk(&program)).map(|()| true);
    }
    let wanted = Selection::parse(&std::env::args().nth(1).unwrap_or_default())?;
    let programs = Programs::built()?;
    let mut found: Vec<Measure> = Vec::new();
    let mut whole = true;
    let mut note = |part: &str, measured: anyhow::Result<()>| {
        if let Err(error) = measured {
            eprintln!("bench: {part} could not be measured: {error:#}");
            whole = false;
        }
    };
    note(
        "S",
        runtime.block_on(sandboxes::measure(&programs, &wanted, &mut found)),
    );
    note("A", runtime.block_on(agent::measure(&programs, &wanted, &mut found)));
    note("G", gateway::measure(&programs, &wanted, &mut found));
    note("P", runtime.block_on(program::measure(&programs, &wanted, &mut found)));
    report::print(&found);
    let file = std::env::args()
        .nth(2)
        .unwrap_or_else(|| "target/bench.json".to_owned());
    std::fs::write(&file, serde_json::to_vec_pretty(&found)?).with_context(|| format!("cannot write {file}"))?;
    Ok(whole)
}
