//! `belljar dev`: the loop alone, in this process. It calls the model itself, keeps the history in memory, and uses tools in the current
//! folder, whose programs run in a bubblewrap jail.

mod gateway;
mod hands;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use agent::{GatewayError, LoopEnd, run_loop};
use anyhow::{Context, bail};
use cli::{Outcome, Screen};
use domain::{Epoch, RunId};
use lifecycle::Tasks;
use protocol::{Grants, RefusalCode, Start};
use secret::Source;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::arguments::DevArguments;
use crate::config::Settings;
use crate::end::End;
use crate::process::EndSignals;
use crate::{process, sources, wiring};

use gateway::DirectGateway;
use hands::LocalHands;

/// The word by which this program becomes the supervisor of a tool's processes.
pub(crate) const SUPERVISE: &str = "supervise";

/// Talks with the agent, or has it do one job.
pub(crate) fn dev(settings: &Settings, arguments: &DevArguments, json: bool) -> anyhow::Result<End> {
    process::close_to_others();
    let runtime = process::runtime()?;
    let end = runtime.block_on(run(settings, arguments, json));
    // A line that was waited for may never come.
    runtime.shutdown_background();
    end
}

async fn run(settings: &Settings, arguments: &DevArguments, json: bool) -> anyhow::Result<End> {
    let looked_after = Tasks::new();
    let secrets = sources::open(settings, sources::environment(settings), &looked_after)?;
    for (key, unresolved) in sources::unresolved(settings, &secrets).await {
        cli::note(format_args!("warning: {key}: {unresolved}"));
    }
    let providers = wiring::providers(settings, &(secrets as Arc<dyn Source>))?;
    let model = arguments
        .model
        .clone()
        .or_else(|| settings.server.model.clone())
        .unwrap_or_default();
    let models = providers.chain(&model)?;
    if let Some(model) = models
        .iter()
        .find(|model| settings.budget.run.is_some() && model.price.is_none())
    {
        bail!(
            "budget.run cannot be kept with model {:?}, which has no price: write one, or leave budget.run out",
            model.name
        );
    }
    let workspace = std::env::current_dir().context("cannot find the current folder")?;
    let catalogue = if arguments.skills.is_dir() {
        skills::catalogue(&skills::load_folder(&arguments.skills)?.0)
    } else {
        String::new()
    };
    let supervisor = supervisor(&workspace, &arguments.skills, arguments.no_jail)?;
    let screen = Mutex::new(Screen::standard(json));
    let hands = LocalHands::new(&workspace, &arguments.skills, supervisor, &screen).await?;
    let gateway = DirectGateway::new(
        providers,
        models,
        agent::system_prompt(agent::definitions(), &catalogue, &[]),
        settings.budget.run,
        &screen,
    );

    let limits = settings.run;
    let mut signals = EndSignals::listen()?;
    let job = async |prompt: &str, signals: &mut EndSignals| {
        let began = Instant::now();
        gateway.prompt(prompt);
        let tools = agent::definitions().iter().map(|tool| tool.name.clone()).collect();
        let start = Start {
            run: RunId::new(),
            epoch: Epoch(1),
            turn: 1,
            tools,
            limits,
            grants: Grants::default(),
            traced: false,
        };
        let cancel = async {
            tokio::select! {
                () = signals.told() => {}
                () = tokio::time::sleep(limits.wall()) => {}
            }
        };
        let end = run_loop(&gateway, &hands, &start, cancel).await;
        let mut screen = gateway::held(&screen);
        if let Some(failure) = end.failure() {
            screen.note(&failure).map_err(cli::output)?;
        }
        screen.bill(began.elapsed()).map_err(cli::output)?;
        Ok::<_, anyhow::Error>(match end {
            LoopEnd::Finished => End::Done,
            LoopEnd::Failed(GatewayError::Refused(refusal)) if refusal.code == RefusalCode::BudgetExhausted => {
                End::Client(Outcome::OverBudget)
            }
            LoopEnd::StepLimit | LoopEnd::Cancelled | LoopEnd::Failed(_) => End::Found,
        })
    };
    if let Some(prompt) = &arguments.prompt {
        return job(prompt, &mut signals).await;
    }
    let person = std::io::stdin().is_terminal();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        if person {
            let mut notes = std::io::stderr();
            write!(notes, "› ").and_then(|()| notes.flush()).map_err(cli::output)?;
        }
        let line = tokio::select! {
            line = lines.next_line() => line.context("cannot read the standard input")?,
            () = signals.told() => return Ok(End::Done),
        };
        match line {
            Some(line) if !line.trim().is_empty() => job(&line, &mut signals).await.map(|_| ())?,
            Some(_) => {}
            None => return Ok(End::Done),
        }
    }
}

/// The command that starts a tool's program: in a jail without network that sees programs, skills and the current folder.
fn supervisor(workspace: &Path, skills: &Path, no_jail: bool) -> anyhow::Result<Vec<OsString>> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    if no_jail {
        return Ok(vec![own.into(), SUPERVISE.into()]);
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    // Found here: what is started in the jail has no environment.
    let mut places = std::env::split_paths(&folders).map(|folder| folder.join("bwrap"));
    let Some(bwrap) = places.find(|place| place.is_file()) else {
        bail!(
            "there is no bwrap for the jail that tools run in: apt-get install bubblewrap, or --no-jail to let them touch this machine"
        );
    };
    let inside = "/run/belljar-supervisor";
    let mut words: Vec<OsString> = vec![bwrap.into()];
    let jail = [
        "--die-with-parent",
        "--unshare-all",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
    ];
    words.extend(jail.map(OsString::from));
    // Where people and programs keep what is nobody's business.
    for hidden in [
        "/home", "/root", "/run", "/tmp", "/var", "/srv", "/mnt", "/media", "/opt",
    ] {
        if Path::new(hidden).is_dir() {
            words.extend(["--tmpfs".into(), hidden.into()]);
        }
    }
    words.extend(["--ro-bind".into(), own.into(), inside.into()]);
    if let Ok(skills) = skills.canonicalize() {
        words.extend(["--ro-bind".into(), skills.clone().into(), skills.into()]);
    }
    words.extend([
        "--bind".into(),
        workspace.into(),
        workspace.into(),
        "--chdir".into(),
        workspace.into(),
    ]);
    words.extend(["--".into(), inside.into(), SUPERVISE.into()]);
    Ok(words)
}
