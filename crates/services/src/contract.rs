//! The contract test of a definition: its recorded exchanges are played by a server on this machine, which checks each
//! request and gives the recorded answer, and what the caller gets is held against what was recorded.

mod credential;
mod database;
mod server;
#[cfg(test)]
mod tests;
mod tools;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use dial::{Dialer, Settings, SystemResolver};
use domain::{SessionId, UserId};
use lifecycle::Tasks;
use secret::{Reference, Secret};
use serde_json::Value;
use serde_json::value::to_raw_value;
use worker::Worker;

use self::credential::Demand;
pub use self::database::ExampleError;
use crate::definition::{Action, Auth, Fixture, Kind, Method, Recorded, Server, Service};
use crate::{Bound, Call, Catalogue, Failure, ServiceSettings, Services, Trust};

/// What came of one fixture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Played {
    /// The method.
    pub method: String,
    /// What the fixture shows; none where the method has no fixture at all.
    pub fixture: Option<String>,
    /// What was not as recorded; nothing where all was.
    pub wrong: Vec<String>,
}

/// The contract test could not be played.
#[derive(Debug, thiserror::Error)]
pub enum ContractError {
    /// There is no server.
    #[error("listen on 127.0.0.1 for the recorded answers")]
    Listen(#[source] std::io::Error),
    /// There is no database.
    #[error("make the database of the example from {0}")]
    Example(PathBuf, #[source] database::ExampleError),
    /// The service cannot be called.
    #[error("prepare the service {0} for its contract test")]
    Prepare(String, #[source] crate::ClientError),
    /// The service cannot be called as it is defined.
    #[error("prepare the service {0} for its contract test: {1}")]
    Problem(String, String),
}

/// Plays every fixture of a service, one after the other, in the order of the methods' names.
///
/// No packet leaves the machine, and no secret is read: the service's place is taken by a server on 127.0.0.1, and its
/// credential by a made-up text. A database's place is taken by one of SQLite, made of the package's `example.sql`; its
/// statements are read by `worker`.
///
/// # Errors
/// When there can be no server, or the service cannot be prepared.
pub async fn play(service: &Service, worker: &Worker) -> Result<Vec<Played>, ContractError> {
    let mut played = Vec::new();
    for method in service.methods.values() {
        if method.fixtures.is_empty() {
            played.push(Played {
                method: method.name.clone(),
                fixture: None,
                wrong: Vec::new(),
            });
        }
        for fixture in &method.fixtures {
            let wrong = one(service, method, fixture, worker).await?;
            played.push(Played {
                method: method.name.clone(),
                fixture: Some(fixture.name.clone()),
                wrong,
            });
        }
    }
    Ok(played)
}

/// Plays one fixture; what was not as recorded.
async fn one(
    service: &Service,
    method: &Method,
    fixture: &Fixture,
    worker: &Worker,
) -> Result<Vec<String>, ContractError> {
    let tasks = Tasks::new();
    let way = credential::way(service);
    let script = Arc::new(Mutex::new(Script {
        exchanges: fixture.exchanges.iter().cloned().collect(),
        demand: Demand::new(service, way.as_ref()),
        file: service.folder.join("fixtures").join(format!("{}.json", method.name)),
        wrong: Vec::new(),
    }));
    let base_url = server::listen(&tasks, Arc::clone(&script), approved(service))
        .await
        .map_err(ContractError::Listen)?;
    let mut settings = ServiceSettings {
        base_url: Some(base_url),
        addresses: "127.0.0.0/8".parse().into_iter().collect(),
        ..ServiceSettings::default()
    };
    // Removed with it.
    let _example = match &service.kind {
        Kind::Sql(_) => {
            let file = service.folder.join("example.sql");
            let example = database::Example::new(&file).map_err(|error| ContractError::Example(file, error))?;
            settings.database = Some(example.settings());
            Some(example)
        }
        _ => None,
    };
    let services = prepared(service, way, settings, &tasks, worker)?;
    let arguments = to_raw_value(&fixture.arguments).unwrap_or_default();
    let call = Call {
        session: SessionId::new(),
        user: UserId::new(),
        service: &service.name,
        method: &method.name,
        arguments: &arguments,
        idempotency_key: Some("contract"),
    };
    let outcome = match services.call(call).await {
        Ok(answer) => answer.whole().await,
        Err(failure) => Err(failure),
    };
    let mut script = script
        .lock()
        .map(|mut script| std::mem::take(&mut *script))
        .unwrap_or_default();
    for left in &script.exchanges {
        script.wrong.push(format!("the request {} was not made", left.request));
    }
    script.wrong.extend(differs(&outcome, &fixture.outcome));
    drop(services);
    tasks.shut_down(std::time::Duration::from_secs(1)).await;
    Ok(script.wrong)
}

/// The exchanges that are to come, and what went wrong with those that were.
#[derive(Default)]
struct Script {
    exchanges: VecDeque<crate::Exchange>,
    demand: Demand,
    /// Where the exchanges are recorded.
    file: PathBuf,
    wrong: Vec<String>,
}

impl Script {
    /// Holds the body of a request against the recorded one; null is none. Where it `must` be recorded, it is told.
    fn hold(&mut self, made: &str, recorded: Option<&Value>, sent: &Value, must: bool) {
        let expected = recorded.unwrap_or(&Value::Null);
        if recorded.is_none() && must {
            self.wrong.push(format!(
                "{}: the exchange {made} has no body recorded, and would take any: write \"body\": {sent}, which was sent, if that is right",
                self.file.display()
            ));
        } else if sent != expected {
            self.wrong
                .push(format!("the body of {made} was {sent}, recorded is {expected}"));
        }
    }
}

/// What the tools of an MCP server are, as they were approved.
fn approved(service: &Service) -> Option<Arc<[Value]>> {
    matches!(service.kind, Kind::Mcp(_)).then(|| {
        let tools = service.methods.values().filter_map(|method| match &method.action {
            Action::Mcp(tool) => Some(tool.approved.clone()),
            _ => None,
        });
        tools.collect()
    })
}

/// The service as it is, but for where it is and what it shows there.
fn prepared(
    service: &Service,
    way: Option<Auth>,
    settings: ServiceSettings,
    tasks: &Tasks,
    worker: &Worker,
) -> Result<Services, ContractError> {
    let mut service = service.clone();
    let place = settings.base_url.clone().unwrap_or_default();
    match &mut service.kind {
        // A program's place is taken by a server as well.
        Kind::Mcp(server @ Server::Command(_)) => {
            *server = Server::Url {
                url: place,
                headers: Vec::new(),
            };
        }
        // Each place of a script has its name before the path.
        Kind::Script(script) => {
            for (name, base_url) in &mut script.hosts {
                *base_url = format!("{place}{}", credential::other_place(name));
            }
        }
        _ => {}
    }
    service.auth = way.into_iter().collect();
    let (mut auth, mut secrets) = (BTreeMap::new(), BTreeMap::new());
    for slot in service
        .auth
        .iter()
        .flat_map(|way| [way.required(), way.optional()].concat())
    {
        if let Ok(reference) = format!("env:CONTRACT_TEST_{slot}").parse::<Reference>() {
            auth.insert(slot.to_owned(), Bound::Secret(reference.clone()));
            secrets.insert(reference, Secret::new(credential::made_up(slot)));
        }
    }
    let settings = ServiceSettings { auth, ..settings };
    let name = service.name.clone();
    let settings = BTreeMap::from([(name.clone(), settings)]);
    let catalogue = Catalogue::of([service]);
    let dialer = Dialer::new(Arc::new(SystemResolver::default()), Settings::default());
    let secrets: Arc<dyn secret::Source> = Arc::new(secrets);
    let trust = Trust::machine();
    let (services, problems) = Services::new(
        &catalogue,
        &settings,
        secrets,
        dialer,
        trust,
        tasks.clone(),
        worker.clone(),
    )
    .map_err(|error| ContractError::Prepare(name.clone(), error))?;
    match problems.first() {
        Some(problem) => Err(ContractError::Problem(name, problem.to_string())),
        None => Ok(services),
    }
}

/// How what the caller got differs from what was recorded.
fn differs(outcome: &Result<bytes::Bytes, Failure>, recorded: &Recorded) -> Option<String> {
    match (outcome, recorded) {
        (Ok(body), Recorded::Result(expected)) => {
            let got = serde_json::from_slice::<Value>(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into());
            (got != *expected).then(|| format!("the result is {got}, recorded is {expected}"))
        }
        (Err(failure), Recorded::Failure { code, words }) => {
            let same = failure.code.as_str() == code && failure.message.contains(words.as_str());
            (!same).then(|| {
                format!(
                    "it fails with {}: {failure}; recorded is {code} with the words {words:?}",
                    failure.code
                )
            })
        }
        (Ok(body), Recorded::Failure { code, .. }) => Some(format!(
            "the result is {}, recorded is a failure {code}",
            String::from_utf8_lossy(body)
        )),
        (Err(failure), Recorded::Result(_)) => Some(format!(
            "it fails with {}: {failure}; recorded is a result",
            failure.code
        )),
    }
}
