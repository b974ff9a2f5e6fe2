//! The configuration as the programs use it.

mod egress;
mod models;
mod objects;
mod roles;
mod secrets;
mod services;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ::services::ServiceSettings;
use domain::{Door, Money, Placement, RunLimits};
use policy::Policies;
use secret::Reference;

use super::raw::{Mistake, Raw};
use super::values::Reader;

pub(crate) use egress::Egress;
pub(crate) use models::{Model, Prices, Provider};
pub(crate) use objects::{ObjectPlace, Objects};
pub(crate) use secrets::{Login, Secrets, Vault};

/// The last words of keys whose values say who somebody is, and do not prove it.
const NAMES: [&str; 8] = [
    "access_key",
    "access_key_id",
    "account",
    "app_id",
    "client_id",
    "installation_id",
    "role_id",
    "user",
];

/// Everything that can be set. Holds no secret: only where secrets are.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) server: Server,
    pub(crate) sandbox: Sandbox,
    pub(crate) run: RunLimits,
    pub(crate) budget: Budget,
    /// How long a question to a person waits for its answer.
    pub(crate) approvals_expire: Duration,
    /// The collector that traces are told to.
    pub(crate) otlp: Option<String>,
    pub(crate) models: BTreeMap<String, Model>,
    /// Where files of workspaces are kept.
    pub(crate) objects: Objects,
    pub(crate) secrets: Secrets,
    /// The vault, where there is one.
    pub(crate) vault: Option<Vault>,
    /// Who may do what.
    pub(crate) policies: Policies,
    /// What services need, by name.
    pub(crate) services: BTreeMap<String, ServiceSettings>,
    /// What leaves sandboxes.
    pub(crate) egress: Egress,
}

impl Settings {
    /// Every reference to a secret, by the key that holds it.
    pub(crate) fn references(&self) -> Vec<(String, Reference)> {
        let models = self.models.iter();
        let models = models.filter_map(|(name, model)| Some((format!("models.{name}.key"), model.key.clone()?)));
        let services = self.services.iter().flat_map(|(name, service)| {
            let references = service.references();
            references.map(move |(slot, reference)| (format!("services.{name}.auth.{slot}"), reference.clone()))
        });
        let rules = self.egress.rules.iter().flat_map(|rule| {
            let key = format!("egress.rules.{}", rule.name);
            rule.references().map(move |reference| (key.clone(), reference.clone()))
        });
        let objects = self.objects.references();
        models.chain(services).chain(rules).chain(objects).collect()
    }

    /// The references to what no model is told, the keys of models apart: all but those that only say who somebody is, which
    /// stands in many a text.
    pub(crate) fn withheld(&self) -> Vec<Reference> {
        let openings = self
            .openings()
            .into_iter()
            .map(|(key, reference)| (key.to_owned(), reference));
        let is_left_out =
            |key: &str| key.starts_with("models.") || NAMES.contains(&key.rsplit('.').next().unwrap_or_default());
        let mut references: Vec<Reference> = self
            .references()
            .into_iter()
            .chain(openings)
            .filter(|(key, _)| !is_left_out(key))
            .map(|(_, reference)| reference)
            .collect();
        references.sort_unstable();
        references.dedup();
        references
    }

    /// What opens the encrypted store and the vault, by the key that holds it: `env:` and `file:` only.
    pub(crate) fn openings(&self) -> Vec<(&'static str, Reference)> {
        let mut openings = Vec::new();
        openings.extend(
            self.secrets
                .passphrase
                .clone()
                .map(|passphrase| ("secrets.passphrase", passphrase)),
        );
        match self.vault.as_ref().map(|vault| vault.login.clone()) {
            Some(Login::Token(token)) => openings.push(("vault.token", token)),
            Some(Login::AppRole { role, secret, .. }) => {
                openings.extend([("vault.role_id", role), ("vault.secret_id", secret)]);
            }
            None => {}
        }
        openings
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) listen: SocketAddr,
    pub(crate) data: PathBuf,
    /// The folder with definitions of services.
    pub(crate) services: Option<PathBuf>,
    pub(crate) user: String,
    pub(crate) log_json: bool,
    pub(crate) log_level: String,
    pub(crate) drain: Duration,
    /// The most bytes of one session in the store.
    pub(crate) history: u64,
    /// The model of sessions that name none.
    pub(crate) model: Option<String>,
}

/// What makes the containers that sandboxes are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Containers {
    /// An OCI runtime's command.
    Oci,
    /// Docker's engine.
    Docker {
        /// Where it listens.
        socket: PathBuf,
        /// The volume that is mounted as the data directory, where the host agent is in a container.
        volume: Option<String>,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    pub(crate) provider: Containers,
    /// The OCI runtime's command.
    pub(crate) runtime: String,
    /// The program that is PID 1.
    pub(crate) program: Option<PathBuf>,
    pub(crate) run: PathBuf,
    pub(crate) image: String,
    pub(crate) placement: Placement,
    pub(crate) cpu_millis: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) processes: u32,
    pub(crate) disk_bytes: u64,
    pub(crate) freeze_after: Duration,
    pub(crate) hibernate_after: Duration,
    pub(crate) archive_after: Duration,
    pub(crate) background_time: Duration,
    pub(crate) run_snapshots: u32,
    pub(crate) per_user: usize,
    /// Those that are made ahead.
    pub(crate) warm_least: usize,
    pub(crate) warm_most: usize,
    pub(crate) warm_remember: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) run: Option<Money>,
    pub(crate) session: Option<Money>,
    pub(crate) user: Option<Money>,
    pub(crate) day: Option<Money>,
    /// By patterns of triggers.
    pub(crate) triggers: BTreeMap<String, Money>,
}

/// What a configuration came to: settings where nothing is wrong, else every mistake; and warnings in any case.
pub(crate) struct Checked {
    pub(crate) settings: Result<Settings, Vec<Mistake>>,
    pub(crate) warnings: Vec<Mistake>,
}

/// Checks what was written.
pub(crate) fn check(raw: Raw) -> Checked {
    let mut reader = Reader::new(raw);
    let settings = settings(&mut reader);
    let (mistakes, warnings) = reader.finish();
    let settings = match settings {
        Some(settings) if mistakes.is_empty() => Ok(settings),
        _ => Err(mistakes),
    };
    Checked { settings, warnings }
}

/// All settings. Every part is read even where one before it was wrong, so that all mistakes are found at once.
fn settings(reader: &mut Reader) -> Option<Settings> {
    let server = server(reader);
    let sandbox = sandbox(reader);
    let run = run(reader);
    let budget = Budget {
        run: reader.dollars("budget.run"),
        session: reader.dollars("budget.session"),
        user: reader.dollars("budget.user"),
        day: reader.dollars("budget.day"),
        triggers: triggers(reader),
    };
    let capped = !budget.triggers.is_empty()
        || [budget.run, budget.session, budget.user, budget.day]
            .iter()
            .any(Option::is_some);
    let approvals_expire = reader.duration("approvals.expire");
    let otlp = otlp(reader);
    let models = models::models(reader, capped);
    let objects = objects::objects(reader);
    let secrets = secrets::secrets(reader);
    let vault = secrets::vault(reader);
    let services = services::services(reader);
    let egress = egress::egress(reader);
    let policies = roles::policies(reader);
    let mut settings = Settings {
        server: server?,
        sandbox: sandbox?,
        run: run?,
        budget,
        approvals_expire: approvals_expire?,
        otlp,
        models,
        objects: objects?,
        secrets: secrets?,
        vault,
        policies,
        services,
        egress: egress?,
    };
    models::choose_default_model(reader, &mut settings);
    Some(settings)
}

fn otlp(reader: &mut Reader) -> Option<String> {
    let otlp = reader.text("telemetry.otlp")?;
    if let Err(error) = telemetry::Traces::check(&otlp) {
        reader.mistake("telemetry.otlp", format!("telemetry.otlp: {error}"));
    }
    Some(otlp)
}

/// Caps by triggers. A pattern that could never mean one is a mistake.
fn triggers(reader: &mut Reader) -> BTreeMap<String, Money> {
    let triggers = reader.amounts("budget.triggers").unwrap_or_default();
    for pattern in triggers.keys() {
        let door = pattern.split(':').next().unwrap_or_default();
        let known = Door::ALL.map(Door::as_str);
        if !door.contains('*') && !known.contains(&door) {
            reader.mistake(
                "budget.triggers",
                format!(
                    "budget.triggers has {pattern:?}, and there is no door {door:?}: write one of {}, with a name after a colon where only that is meant, such as \"webhook:*\"",
                    known.join(", ")
                ),
            );
        }
    }
    triggers
}

fn server(reader: &mut Reader) -> Option<Server> {
    let listen = reader.listen("server.listen");
    let data = reader.path("server.data");
    let services = reader.path("server.services");
    let user = reader.text("server.user");
    let log = reader.text("server.log");
    let log_level = reader.text("server.log_level");
    if let Some(level) = &log_level
        && level.parse::<tracing_subscriber::filter::EnvFilter>().is_err()
    {
        reader.mistake(
            "server.log_level",
            format!("server.log_level is {level:?}: write a level such as \"info\" or \"debug\""),
        );
    }
    let drain = reader.duration("server.drain");
    let history = reader.size("server.history");
    let model = reader.text("server.model");
    Some(Server {
        listen: listen?,
        data: data?,
        services,
        user: user?,
        log_json: log? == "json",
        log_level: log_level?,
        drain: drain?,
        history: history?,
        model: model.filter(|model| !model.is_empty()),
    })
}

fn sandbox(reader: &mut Reader) -> Option<Sandbox> {
    let provider = reader.text("sandbox.provider");
    let docker_socket = reader.path("sandbox.docker_socket");
    let docker_volume = reader.text("sandbox.docker_volume");
    let runtime = reader.text("sandbox.runtime");
    let program = reader.path("sandbox.program");
    let run = reader.path("sandbox.run");
    let image = reader.text("sandbox.image");
    let placement = reader.text("sandbox.placement");
    let cpu = reader.thousandths("sandbox.cpu");
    if cpu.is_some_and(|cpu| !(10..=1_000_000).contains(&cpu)) {
        reader.mistake(
            "sandbox.cpu",
            "sandbox.cpu is out of range: write a number from 0.01 to 1000",
        );
    }
    let memory = reader.size("sandbox.memory");
    if memory.is_some_and(|memory| memory < 32 << 20) {
        reader.mistake(
            "sandbox.memory",
            "sandbox.memory is too little to start anything: write \"32MiB\" or more",
        );
    }
    let processes = reader.number("sandbox.processes");
    let disk = reader.size("sandbox.disk");
    let freeze_after = reader.duration("sandbox.freeze_after");
    let hibernate_after = reader.duration("sandbox.hibernate_after");
    let archive_after = reader.duration("sandbox.archive_after");
    let background_time = reader.duration("sandbox.background_time");
    let run_snapshots = reader.number("sandbox.run_snapshots");
    let per_user = reader.number("sandbox.per_user");
    let warm_least = reader.number("sandbox.warm.least");
    let warm_most = reader.number("sandbox.warm.most");
    let warm_remember = reader.duration("sandbox.warm.remember");
    if warm_most.is_some_and(|most| most > 0) && warm_least > warm_most {
        reader.mistake(
            "sandbox.warm.least",
            "sandbox.warm.least is more than sandbox.warm.most: make it less",
        );
    }
    if freeze_after > hibernate_after {
        reader.mistake(
            "sandbox.freeze_after",
            "sandbox.freeze_after is longer than sandbox.hibernate_after: make it shorter",
        );
    }
    Some(Sandbox {
        provider: if provider? == "oci" {
            Containers::Oci
        } else {
            Containers::Docker {
                socket: docker_socket?,
                volume: docker_volume.filter(|volume| !volume.is_empty()),
            }
        },
        runtime: runtime?,
        program,
        run: run?,
        image: image?,
        placement: if placement? == "sandbox" {
            Placement::Sandbox
        } else {
            Placement::ControlPlane
        },
        cpu_millis: u32::try_from(cpu?).ok()?,
        memory_bytes: memory?,
        processes: u32::try_from(processes?).ok()?,
        disk_bytes: disk?,
        freeze_after: freeze_after?,
        hibernate_after: hibernate_after?,
        archive_after: archive_after?,
        background_time: background_time?,
        run_snapshots: u32::try_from(run_snapshots?).ok()?,
        per_user: usize::try_from(per_user?).ok()?,
        warm_least: usize::try_from(warm_least?).ok()?,
        warm_most: usize::try_from(warm_most?).ok()?,
        warm_remember: warm_remember?,
    })
}

fn run(reader: &mut Reader) -> Option<RunLimits> {
    let steps = reader.number("run.steps");
    let time = reader.duration("run.time");
    let tool_time = reader.duration("run.tool_time");
    let output = reader.size("run.output");
    Some(RunLimits {
        steps: u32::try_from(steps?).ok()?,
        wall_seconds: time?.as_secs(),
        tool_seconds: tool_time?.as_secs(),
        output_bytes: usize::try_from(output?).ok()?,
    })
}
