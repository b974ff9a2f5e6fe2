//! What is done on this machine without the API, and how the API is found.

mod copies;
mod engine;
mod policy;
mod secret;
mod service;
mod unused;

use std::fs;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::secret::{Secret, Source};
use ::worker::{Dialect, FileQuery, Worker, WorkerError};
use anyhow::Context;
use cli::{Client, ClientCommand, ClientError, harmless};
use dial::{Dialer, SystemResolver};
use host::doctor::{Finding, Machine, Verdict, examine};
use images::{Generation, Progress, Rebuild, Recipe};
use lifecycle::Tasks;
use rustix::fs::{Mode, OFlags};
use serde_json::json;

use crate::arguments::{ImageCommand, SkillCommand};
use crate::config::{self, ConfigError, Containers, Loaded, Settings};
use crate::end::End;
use crate::{client, host_agent, owner, places, process, sources, wiring};

pub(crate) use copies::{backup, restore, verify_copy};
pub(crate) use secret::{prepare_key, secret};
pub(crate) use service::service;

/// Does a client's command: at BELLJAR_URL with BELLJAR_TOKEN, or at this machine's own control plane with the first admin's token.
pub(crate) async fn client(
    command: ClientCommand,
    loaded: Result<Loaded, ConfigError>,
    json: bool,
) -> anyhow::Result<End> {
    let (url, token) = match client::named() {
        (Some(url), Some(token)) => (url, token),
        (None, token) => {
            let settings = loaded?.settings;
            let token = token.map_or_else(|| own_token(&settings), Ok)?;
            (own_url(&settings), token)
        }
        (Some(url), None) => {
            let settings = loaded?.settings;
            if copies::elsewhere(&settings).is_some() {
                return Err(ClientError::NoTokenThere { url }.into());
            }
            let token = own_token(&settings)?;
            (url, token)
        }
    };
    Ok(End::Client(
        cli::execute(&Client::new(&url, token)?, command, json).await?,
    ))
}

fn own_url(settings: &Settings) -> String {
    format!("http://{}", settings.server.listen)
}

fn own_token(settings: &Settings) -> Result<Secret, ClientError> {
    let path = places::first_token(settings);
    match read_token(&path) {
        Ok(token) => Ok(Secret::new(token.trim())),
        Err(_) => Err(ClientError::NoToken { tried: path }),
    }
}

/// Reads the token, as root most likely, in a folder that is the control plane's. What stands there is sent to the control
/// plane: so it must be a file of its own, and no link that it made to a file which root alone may read.
fn read_token(path: &Path) -> std::io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let (about, folder) = (file.metadata()?, fs::metadata(path.parent().unwrap_or(path))?);
    if !about.is_file() || about.uid() != folder.uid() {
        return Err(std::io::Error::other("it is no file of whom the folder belongs to"));
    }
    let mut token = String::new();
    file.read_to_string(&mut token)?;
    Ok(token)
}

/// Prints the example of a configuration.
pub(crate) fn example() -> anyhow::Result<End> {
    cli::line(config::example().trim_end())?;
    Ok(End::Done)
}

/// Says whether the configuration can be used: its keys and values were checked when it was read, its secrets and models are here.
/// As root, as the control plane's own user sees them.
pub(crate) fn check(loaded: &Loaded, json: bool) -> anyhow::Result<End> {
    let settings = &loaded.settings;
    if let Some(owner) = owner::other_than_root(settings)? {
        let error = owner::again(loaded, owner, &["check".into()], json).exec();
        return Err(error).context("cannot go on as the control plane's user");
    }
    process::close_to_others();
    let looked_after = Tasks::new();
    let (unresolved, problems) = process::runtime()?.block_on(async {
        let secrets = sources::open(settings, sources::environment(settings), &looked_after)?;
        let unresolved = sources::unresolved(settings, &secrets).await;
        let secrets: Arc<dyn Source> = secrets;
        wiring::models(settings, &secrets)?;
        let dialer = Dialer::new(Arc::new(SystemResolver::default()), dial::Settings::default());
        let outward = wiring::services(settings, secrets, dialer, &looked_after, loaded.file.as_deref())?;
        let mut problems = outward.problems;
        let statements = outward.services.statements().await;
        problems.extend(
            statements
                .iter()
                .map(|problem| wiring::placed(problem, settings, loaded.file.as_deref())),
        );
        anyhow::Ok((unresolved, problems))
    })?;
    for (key, error) in &unresolved {
        if json {
            cli::line(json!({ "key": key, "reference": error.reference, "message": error.to_string() }))?;
        } else {
            cli::note(format_args!("belljar: {key}: {error}"));
        }
    }
    // Neither keeps the rest from working, here as in `belljar up`.
    for problem in &problems {
        if json {
            cli::line(json!({ "message": problem }))?;
        } else {
            cli::note(format_args!("warning: {}", harmless(problem)));
        }
    }
    if !unresolved.is_empty() {
        return Ok(End::Found);
    }
    let file = loaded
        .file
        .as_ref()
        .map_or("no file: defaults hold".to_owned(), |file| file.display().to_string());
    let models: Vec<&str> = loaded.settings.models.keys().map(String::as_str).collect();
    if models.is_empty() {
        cli::note(format_args!(
            "warning: there is no model, and `belljar up` does not start without one: add [models.NAME], as \
             `belljar check --example` shows"
        ));
    }
    let well = if models.is_empty() || !problems.is_empty() {
        "all else is well"
    } else {
        "all is well"
    };
    policy::tell(settings, json)?;
    if json {
        cli::line(json!({ "file": file, "models": models, "warnings": loaded.warnings.len() }))?;
    } else {
        cli::line(format_args!(
            "{file}\nmodels: {}\n{well}",
            if models.is_empty() {
                "none".into()
            } else {
                models.join(", ")
            }
        ))?;
    }
    Ok(End::Done)
}

/// Builds, takes in, gives out, lists, removes images.
pub(crate) fn image(settings: &Settings, command: &ImageCommand, json: bool) -> anyhow::Result<End> {
    let images = wiring::images(settings);
    match command {
        ImageCommand::Build { recipe, always } => {
            let recipe = Recipe::read(recipe)?;
            owner::must_be_root("building an image makes files that belong to other users")?;
            let rebuild = if *always { Rebuild::Always } else { Rebuild::WhenChanged };
            let terminal = std::io::stderr().is_terminal();
            let built = images.build(&recipe, rebuild, &mut |progress| match progress {
                Progress::Stage(stage) if terminal => cli::note(format_args!("\r\x1b[K{}", harmless(stage))),
                Progress::Stage(stage) => cli::note(harmless(stage)),
                // What the programs say passes by in one line; where a build fails, their last lines stand in the error.
                Progress::Line(line) if terminal => {
                    let short: String = harmless(line).chars().take(76).collect();
                    passing(&format!("  {short}"));
                }
                Progress::Line(_) => {}
            })?;
            if terminal {
                passing("");
            }
            told(&built, json)?;
        }
        ImageCommand::Import { from, name } => {
            owner::must_be_root("an image's files belong to several users")?;
            told(&images.import(from, name)?, json)?;
        }
        ImageCommand::Export { image, to } => told(&images.export(image, to)?, json)?,
        ImageCommand::List => {
            cli::show_images(&json!(images.list()?), json)?;
            unused::tell_of_broken(&images, json)?;
        }
        ImageCommand::Rm { image } => {
            owner::must_be_root("images belong to root")?;
            unused::remove(settings, image, json)?;
        }
        ImageCommand::Gc => {
            owner::must_be_root("images belong to root")?;
            for image in images.collect(&unused::used_images(settings)?)? {
                unused::removed(&image, json)?;
            }
            // What was removed is told; what hindered it is no part of that.
            unused::tell_of_broken(&images, false)?;
        }
        ImageCommand::Client(_) => anyhow::bail!("generations are the control plane's: nothing is known of them here"),
    }
    Ok(End::Done)
}

/// A line at a terminal in whose place the next one stands. Nobody is hurt where it cannot be written.
fn passing(words: &str) {
    let mut notes = std::io::stderr();
    let _ = write!(notes, "\r\x1b[K{words}").and_then(|()| notes.flush());
}

/// Tells of an image.
fn told(image: &Generation, json: bool) -> Result<(), ClientError> {
    if json {
        return cli::line(json!(image));
    }
    let (digest, megabytes) = (image.digest.as_str(), image.bytes >> 20);
    cli::line(format_args!("{} {digest} ({megabytes} MiB)", image.name))
}

/// Lists or checks the skills of a folder.
pub(crate) fn skill(command: &SkillCommand, json: bool) -> anyhow::Result<End> {
    let (SkillCommand::List { folder } | SkillCommand::Check { folder }) = command;
    let (loaded, mut findings) = skills::load_folder(folder)?;
    if matches!(command, SkillCommand::List { .. }) {
        for skill in &loaded {
            if json {
                cli::line(json!({ "name": skill.name, "description": skill.description }))?;
            } else {
                cli::line(format_args!("{}: {}", skill.name, harmless(&skill.description)))?;
            }
        }
        return Ok(End::Done);
    }
    findings.extend(loaded.iter().flat_map(skills::check));
    for finding in &findings {
        let kind = if finding.is_error { "error" } else { "advice" };
        if json {
            cli::line(json!({ "skill": finding.skill, "kind": kind, "message": finding.message }))?;
        } else {
            cli::line(format_args!(
                "{}: {kind}: {}",
                finding.skill,
                harmless(&finding.message)
            ))?;
        }
    }
    if !json {
        cli::line(format_args!("{} skills", loaded.len()))?;
    }
    Ok(if findings.iter().any(|finding| finding.is_error) {
        End::Found
    } else {
        End::Done
    })
}

/// Has the worker do two jobs, each of which it does only where it could give up its rights.
async fn try_worker() -> [Finding; 2] {
    let worker = Worker::new(::worker::Config::default());
    let query = FileQuery {
        text: "SELECT 1".to_owned(),
        parameters: Vec::new(),
        ours: true,
        time: Duration::from_secs(5),
    };
    let statement = worker.check_sql(Dialect::Postgres, "SELECT 1").await.map(drop);
    // To SQLite an empty file is an empty database.
    let file = async { worker.read_file(Path::new("/dev/null"), query).await?.next().await };
    [
        finding(
            "worker",
            statement,
            "statements and scripts are read by a process that has given up every right",
            "no statement is checked and no script is run",
            "run a kernel with filters of system calls (CONFIG_SECCOMP_FILTER); without them services of kind sql and script do nothing",
        ),
        finding(
            "SQLite",
            file.await.map(drop),
            "files of SQLite are read by a process that can open nothing else (Landlock)",
            "no file of SQLite is read; where that is for want of Landlock, no program of an MCP server runs either, and safebash refuses \
             what is not safe without it",
            "run a kernel with Landlock (CONFIG_SECURITY_LANDLOCK, Linux 5.13 and newer); everything else does without",
        ),
    ]
}

fn finding(what: &'static str, tried: Result<(), WorkerError>, fine: &str, broken: &str, mend: &str) -> Finding {
    let (verdict, says, mend) = match tried {
        Ok(()) => (Verdict::Fine, fine.to_owned(), None),
        Err(error) => {
            let says = format!("{broken}: {}", causes::with_causes(&error));
            (Verdict::Warning, says, Some(mend.to_owned()))
        }
    };
    Finding {
        what,
        verdict,
        says,
        mend,
    }
}

/// Tries everything that sandboxes need of this machine, and the worker.
pub(crate) fn doctor(settings: &Settings, json: bool) -> anyhow::Result<End> {
    if !rustix::process::geteuid().is_root() {
        anyhow::bail!("the doctor tries what only root may do: run it with sudo");
    }
    let image = wiring::image(settings).ok();
    let mut findings = examine(&Machine {
        data: settings.server.data.clone(),
        user: (settings.server.user != "root").then(|| settings.server.user.clone()),
        command: (settings.sandbox.provider == Containers::Oci).then(|| settings.sandbox.runtime.clone().into()),
        runtime: host_agent::places(settings)?,
        image: image
            .as_ref()
            .map(|digest| wiring::images_folder(settings).join(digest.as_str())),
        ports: vec![settings.server.listen],
        path: std::env::var_os("PATH").unwrap_or_default(),
    });
    if let Containers::Docker { socket, volume } = &settings.sandbox.provider {
        if let Some(volume) = volume {
            // What is mounted here is not seen there, so the disks that were tried are not the ones that are used.
            findings.retain(|finding| finding.what != "disk");
            findings.push(engine::disks_in(volume, &settings.server.data));
        }
        findings.push(engine::try_engine(socket, volume.as_deref(), image.as_ref(), settings));
    }
    findings.extend(process::runtime()?.block_on(try_worker()));
    for finding in &findings {
        if json {
            cli::line(json!(finding))?;
            continue;
        }
        let mark = match finding.verdict {
            Verdict::Fine => "✓",
            Verdict::Warning => "!",
            Verdict::Lacking => "✗",
        };
        cli::line(format_args!("{mark} {}: {}", finding.what, harmless(&finding.says)))?;
        if let Some(mend) = &finding.mend {
            cli::line(format_args!("    to mend it: {}", harmless(mend)))?;
        }
    }
    let lacking = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Lacking)
        .count();
    if !json {
        match lacking {
            0 => cli::line("sandboxes can run on this machine")?,
            1 => cli::line("sandboxes cannot run on this machine: 1 thing is missing")?,
            lacking => cli::line(format_args!(
                "sandboxes cannot run on this machine: {lacking} things are missing"
            ))?,
        }
    }
    Ok(if lacking == 0 { End::Done } else { End::Found })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn a_link_in_the_place_of_the_token_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let (secret, token) = (folder.path().join("secret"), folder.path().join("control/admin-token"));
        fs::create_dir(folder.path().join("control")).expect("a folder in it");
        fs::write(&secret, "root's own").expect("a file");
        symlink(&secret, &token).expect("a link");
        assert!(read_token(&token).is_err());
        fs::remove_file(&token).expect("no link");
        fs::hard_link(&secret, &token).expect("a second name");
        let other = Some(12_345);
        lchown(folder.path().join("control"), other, other).expect("the folder of somebody else");
        assert!(read_token(&token).is_err());
        fs::remove_file(&token).expect("no second name");
        fs::write(&token, "the token\n").expect("a token");
        lchown(&token, other, other).expect("a token of theirs");
        assert_eq!(read_token(&token).expect("readable"), "the token\n");
    }
}
