//! `belljar service`: definitions of services are made, looked at and tried here, without a control plane.

mod mcp;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use cli::{ClientError, harmless};
use dial::{Dialer, SystemResolver};
use domain::{SessionId, UserId};
use lifecycle::Tasks;
use secret::Custody;
use secrets::Local;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use services::import::{Imported, Options, import};
use services::{Call, Catalogue, Service, Services, Trust, contract};
use worker::Worker;

use crate::arguments::{ImportArguments, ServiceCommand};
use crate::config::{Loaded, Settings};
use crate::end::End;
use crate::{owner, process, sources};

/// Where definitions are, where nothing says otherwise.
const FOLDER: &str = "services";

/// Does what is asked.
pub(crate) fn service(loaded: &Loaded, command: &ServiceCommand, json: bool) -> anyhow::Result<End> {
    let settings = &loaded.settings;
    match command {
        ServiceCommand::List { folder } => list(&read(settings, folder.as_deref())?, settings, json),
        ServiceCommand::Show { service, folder } => show(&read(settings, folder.as_deref())?, service, json),
        ServiceCommand::Import(arguments) => match &arguments.mcp {
            Some(server) => {
                process::close_to_others();
                process::log_programs();
                process::runtime()?.block_on(mcp::import(settings, arguments, server, json))
            }
            None => take(settings, arguments, json),
        },
        ServiceCommand::Approve { service, yes, folder } => {
            process::close_to_others();
            process::log_programs();
            let catalogue = read(settings, folder.as_deref())?;
            process::runtime()?.block_on(mcp::approve(settings, &catalogue, service, *yes, json))
        }
        ServiceCommand::Test { service, folder } => {
            let catalogue = read(settings, folder.as_deref())?;
            process::runtime()?.block_on(test(&catalogue, service.as_deref(), json))
        }
        ServiceCommand::Call {
            method,
            arguments,
            folder,
        } => {
            if let Some(owner) = owner::other_than_root(settings)? {
                let mut words = vec![
                    "service".into(),
                    "call".into(),
                    method.into(),
                    arguments.into(),
                    "--folder".into(),
                ];
                words.push(std::path::absolute(place(settings, folder.as_deref()))?.into());
                let error = owner::again(loaded, owner, &words, json).exec();
                return Err(error).context("cannot go on as the owner of the control plane's folder");
            }
            process::close_to_others();
            process::log_programs();
            let catalogue = read(settings, folder.as_deref())?;
            process::runtime()?.block_on(call(settings, &catalogue, method, arguments))
        }
    }
}

fn place(settings: &Settings, folder: Option<&Path>) -> PathBuf {
    folder
        .or(settings.server.services.as_deref())
        .unwrap_or(Path::new(FOLDER))
        .to_owned()
}

/// The definitions; their mistakes are told, and the others can be used.
fn read(settings: &Settings, folder: Option<&Path>) -> anyhow::Result<Read> {
    let folder = place(settings, folder);
    let (catalogue, mistakes) = Catalogue::load(&[&folder]);
    for mistake in &mistakes {
        cli::note(harmless(&mistake.to_string()));
    }
    if catalogue.services().next().is_none() && mistakes.is_empty() {
        bail!(
            "there is no service in {}: `belljar service import` makes one, --folder names another folder",
            folder.display()
        );
    }
    Ok(Read {
        catalogue,
        has_mistakes: !mistakes.is_empty(),
    })
}

/// The definitions that were read.
struct Read {
    catalogue: Catalogue,
    has_mistakes: bool,
}

impl Read {
    fn end(&self) -> End {
        if self.has_mistakes { End::Found } else { End::Done }
    }

    fn service(&self, name: &str) -> anyhow::Result<&Service> {
        match self.catalogue.service(name) {
            Some(service) => Ok(service),
            None => {
                let known: Vec<&str> = self.catalogue.services().map(|service| service.name.as_str()).collect();
                bail!("there is no service {name:?}: there are {}", known.join(", "))
            }
        }
    }
}

fn list(read: &Read, settings: &Settings, json: bool) -> anyhow::Result<End> {
    for service in read.catalogue.services() {
        let bound = bound(service, settings);
        if json {
            cli::line(
                json!({ "name": service.name, "summary": service.summary, "methods": service.methods.len(), "bound": bound }),
            )?;
        } else {
            let unbound = if bound { "" } else { "  (its credential is not bound)" };
            cli::line(format_args!(
                "{}: {} ({} methods){unbound}",
                service.name,
                harmless(&service.summary),
                service.methods.len()
            ))?;
        }
    }
    Ok(read.end())
}

/// Whether one of its ways to authenticate has all it needs.
fn bound(service: &Service, settings: &Settings) -> bool {
    let slots = settings.services.get(&service.name).map(|service| &service.auth);
    let has = |slot: &&str| slots.is_some_and(|slots| slots.contains_key(*slot));
    service.auth.is_empty() || service.auth.iter().any(|auth| auth.required().iter().all(has))
}

fn show(read: &Read, name: &str, json: bool) -> anyhow::Result<End> {
    let service = read.service(name)?;
    let types = service.types(|_| true).unwrap_or_default();
    let ways = service
        .auth
        .iter()
        .map(|auth| json!({ "kind": auth.kind(), "slots": auth.required() }));
    let ways: Vec<Value> = ways.collect();
    if json {
        cli::line(
            json!({ "name": service.name, "summary": service.summary, "base_url": service.place(), "auth": ways, "types": types }),
        )?;
        return Ok(read.end());
    }
    cli::line(format_args!(
        "// {}, at {}",
        service.folder.display(),
        harmless(service.place())
    ))?;
    for auth in &service.auth {
        cli::line(format_args!(
            "// authenticates as {}, with {}",
            auth.kind(),
            auth.required().join(", ")
        ))?;
    }
    cli::line(harmless(types.trim_end()))?;
    Ok(read.end())
}

fn take(settings: &Settings, arguments: &ImportArguments, json: bool) -> anyhow::Result<End> {
    let description = arguments.description.as_deref().unwrap_or(Path::new(""));
    let text =
        std::fs::read_to_string(description).with_context(|| format!("cannot read {}", description.display()))?;
    let options = Options {
        name: arguments.name.clone(),
        only: arguments.only.clone(),
        base_url: arguments.base_url.clone(),
    };
    let imported = import(&text, &options)?;
    let folder = imported.write(&place(settings, arguments.folder.as_deref()))?;
    made(&imported, &folder, json)?;
    if !json {
        next(&imported)?;
    }
    Ok(End::Done)
}

/// Says what was made.
fn made(imported: &Imported, folder: &Path, json: bool) -> Result<(), ClientError> {
    if json {
        let left_out = imported
            .left_out
            .iter()
            .map(|left| json!({ "what": left.what, "why": left.why }));
        cli::line(
            json!({ "name": imported.name, "folder": folder, "methods": imported.methods, "left_out": left_out.collect::<Vec<_>>() }),
        )?;
        return Ok(());
    }
    cli::line(format_args!(
        "{} has {} methods: {}",
        folder.display(),
        imported.methods.len(),
        imported.methods.join(", ")
    ))?;
    for left in &imported.left_out {
        cli::line(format_args!(
            "left out: {}: {}",
            harmless(&left.what),
            harmless(&left.why)
        ))?;
    }
    Ok(())
}

/// What is left to do.
fn next(imported: &Imported) -> Result<(), ClientError> {
    if imported.slots.is_empty() {
        return Ok(());
    }
    cli::line(format_args!(
        "\nIt needs a credential. In belljar.toml:\n\n[services.{}.auth]",
        imported.name
    ))?;
    for slot in &imported.slots {
        cli::line(format_args!(
            "{slot} = \"store:{}-{}\"",
            imported.name.to_lowercase(),
            slot.replace('_', "-")
        ))?;
    }
    Ok(())
}

async fn test(read: &Read, name: Option<&str>, json: bool) -> anyhow::Result<End> {
    let services: Vec<&Service> = match name {
        Some(name) => vec![read.service(name)?],
        None => read.catalogue.services().map(AsRef::as_ref).collect(),
    };
    let worker = Worker::new(worker::Config::default());
    let mut wrong = read.has_mistakes;
    for service in services {
        for played in contract::play(service, &worker).await? {
            wrong |= !played.wrong.is_empty();
            if json {
                cli::line(
                    json!({ "service": service.name, "method": played.method, "fixture": played.fixture, "wrong": played.wrong }),
                )?;
                continue;
            }
            let fixture = played.fixture.as_deref().map_or("has no fixture", |name| name);
            let mark = if !played.wrong.is_empty() {
                "✗"
            } else if played.fixture.is_some() {
                "✓"
            } else {
                "-"
            };
            cli::line(format_args!(
                "{mark} {}.{}: {}",
                service.name,
                played.method,
                harmless(fixture)
            ))?;
            for wrong in &played.wrong {
                cli::line(format_args!("    {}", harmless(wrong)))?;
            }
        }
    }
    Ok(if wrong { End::Found } else { End::Done })
}

async fn call(settings: &Settings, read: &Read, method: &str, arguments: &str) -> anyhow::Result<End> {
    let Some((service, method)) = method.split_once('.') else {
        bail!("{method:?} names no method: write SERVICE.METHOD, such as crm.listOwners");
    };
    let arguments: Box<RawValue> =
        serde_json::from_str(arguments).with_context(|| format!("the arguments are no JSON: {arguments:?}"))?;
    read.service(service)?;
    let tasks = Tasks::new();
    let services = ready(settings, &read.catalogue, service, &tasks)?;
    let call = Call {
        session: SessionId::new(),
        user: UserId::new(),
        service,
        method,
        arguments: &arguments,
        idempotency_key: None,
    };
    let end = answer(&services, call).await?;
    tasks.shut_down(std::time::Duration::from_secs(2)).await;
    Ok(end)
}

/// The services of a catalogue, with the credentials of the configuration; what is wrong with one of them is told.
fn ready(settings: &Settings, catalogue: &Catalogue, service: &str, tasks: &Tasks) -> anyhow::Result<Services> {
    let environment = sources::environment(settings);
    let rotated = sources::rotated(settings, &Local::new(environment.clone()));
    let secrets = Custody {
        source: sources::open(settings, environment, tasks)?,
        successors: Some(Arc::new(rotated)),
    };
    let dialer = Dialer::new(Arc::new(SystemResolver::default()), dial::Settings::default());
    let (services, problems) = Services::new(
        catalogue,
        &settings.services,
        secrets,
        dialer,
        Trust::machine(),
        tasks.clone(),
        Worker::new(worker::Config::default()),
    )?;
    for problem in problems
        .iter()
        .filter(|problem| problem.place.split('.').nth(1) == Some(service))
    {
        cli::note(harmless(&problem.to_string()));
    }
    Ok(services)
}

/// Prints what a call gives, while it comes: to a terminal nothing that would command it.
async fn answer(services: &Services, call: Call<'_>) -> anyhow::Result<End> {
    use std::io::{IsTerminal, Write};
    let mut out = std::io::stdout();
    let is_terminal = out.is_terminal();
    let end = async {
        let mut answer = services.call(call).await?;
        if let services::Media::Bytes(kind) = answer.media()
            && is_terminal
        {
            cli::note(format_args!(
                "the answer is {}, which is not for a terminal: send it to a file",
                harmless(kind)
            ));
            return Ok(End::Found);
        }
        let is_json = *answer.media() == services::Media::Json;
        while let Some(piece) = answer.piece().await? {
            let written = if is_json && is_terminal {
                // JSON comes in one piece.
                out.write_all(harmless(&String::from_utf8_lossy(&piece)).as_bytes())
            } else {
                out.write_all(&piece)
            };
            // Who reads no further wants no more.
            if written.is_err() {
                return Ok(End::Done);
            }
        }
        if is_json {
            let _no_more = cli::line("");
        }
        Ok::<_, services::Failure>(End::Done)
    };
    Ok(end.await.unwrap_or_else(|failure| {
        cli::note(harmless(&json!({ "error": failure }).to_string()));
        End::Found
    }))
}
