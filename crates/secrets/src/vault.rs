//! HashiCorp Vault or OpenBao: its KV engines of both versions, and any engine that leases what it makes.
//!
//! Nobody who asks for a secret waits for the vault. One task per path reads it again and again (`refresh`), or looks after its
//! lease: so a change counts within one `refresh`, a thousand requests cost the vault one, and what the vault no longer
//! gives is gone. When it does not answer, the last good value stays as long as its lease, or for `keep` where it has none.

mod client;
mod failure;
mod lease;
mod read;
mod session;
mod wire;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lifecycle::Tasks;
use secret::{Credential, Reference, Secret, Unresolved};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use client::Client;
pub use failure::VaultError;
use failure::{Failure, LOOK};
use read::{Fetched, Reader};
use session::Sessions;

/// Paths that wait for their task; more are asked for again by whoever needs them.
const WAITING: usize = 256;

/// Where the vault is, and how long what it said holds.
#[derive(Clone, Debug)]
pub struct VaultConfig {
    /// Its address, such as `https://vault.example:8200`.
    pub address: String,
    /// Lets the address be plain HTTP to another machine.
    pub plain_http: bool,
    /// The namespace, where there are some.
    pub namespace: Option<String>,
    /// How to log in.
    pub login: Login,
    /// The time between two looks at a secret.
    pub refresh: Duration,
    /// How long the last good value of a secret without a lease may be used while the vault does not answer.
    pub keep: Duration,
    /// How long the vault may take to answer.
    pub deadline: Duration,
}

/// How to log in.
#[derive(Clone, Debug)]
pub enum Login {
    /// With a token, renewed as long as it can be.
    Token(Credential),
    /// As an AppRole, again and again.
    AppRole {
        /// Where the method is mounted, usually `approle`.
        mount: String,
        /// The role's id.
        role: Credential,
        /// Its secret id.
        secret: Credential,
    },
}

/// A vault whose secrets are kept in memory, and up to date.
#[derive(Clone)]
pub struct Vault {
    table: Arc<Table>,
    wanted: mpsc::Sender<String>,
    deadline: Duration,
}

/// What is known of each path.
#[derive(Default)]
struct Table {
    paths: Mutex<HashMap<String, Known>>,
    changed: Notify,
}

enum Known {
    /// Nobody has answered yet.
    Fetching,
    /// The fields, good until then.
    Fields {
        fields: BTreeMap<String, Secret>,
        until: Instant,
    },
    /// There is nothing, or nobody knows.
    Nothing(Failure),
}

impl Vault {
    /// Prepares a client; its tasks end with `tasks`. Asks nothing yet.
    ///
    /// # Errors
    /// The address cannot be used, or TLS cannot be set up.
    pub fn start(config: VaultConfig, tasks: &Tasks) -> Result<Self, VaultError> {
        let table = Arc::new(Table::default());
        let reader = Arc::new(Reader::new(
            Client::new(&config)?,
            Sessions::new(config.login),
            config.keep,
        ));
        let (wanted, mut waiting) = mpsc::channel::<String>(WAITING);
        let (refresh, watchers) = (config.refresh, tasks.child());
        let watched = Arc::clone(&table);
        tasks.spawn_until_stopped(async move {
            while let Some(path) = waiting.recv().await {
                let (reader, table) = (Arc::clone(&reader), Arc::clone(&watched));
                watchers.spawn_until_stopped(async move { watch(&reader, &table, &path, refresh).await });
            }
        });
        Ok(Self {
            table,
            wanted,
            deadline: config.deadline,
        })
    }

    /// Reads the paths of these references, and returns when each was answered for, or the deadline has passed.
    pub(crate) async fn fetch(&self, references: &[Reference]) {
        let paths: BTreeSet<&str> = references
            .iter()
            .filter_map(|reference| match reference {
                Reference::Vault { path, .. } => Some(path.as_str()),
                _ => None,
            })
            .collect();
        for path in &paths {
            self.want(path);
        }
        let all = async {
            loop {
                let changed = self.table.changed.notified();
                if !self.table.is_fetching(&paths) {
                    return;
                }
                changed.await;
            }
        };
        // What is not there in time is told by whoever asks for it.
        let _ = tokio::time::timeout(self.deadline, all).await;
    }

    /// The field as the vault last gave it.
    pub(crate) fn secret(&self, reference: &Reference, path: &str, field: &str) -> Result<Secret, Unresolved> {
        let paths = self.table.paths();
        match paths.get(path) {
            None => {
                drop(paths);
                self.want(path);
                Err(being_fetched(reference))
            }
            Some(Known::Fetching) => Err(being_fetched(reference)),
            Some(Known::Fields { until, .. }) if *until <= Instant::now() => Err(Unresolved::unavailable(
                reference,
                "the vault has not answered for so long that the last value may not be used any more",
                LOOK,
            )),
            Some(Known::Fields { fields, .. }) => fields.get(field).cloned().ok_or_else(|| {
                let known: Vec<&str> = fields.keys().map(String::as_str).collect();
                Unresolved::absent(
                    reference,
                    format!("the vault has no field {field} there"),
                    format!("name one of its fields: {}", known.join(", ")),
                )
            }),
            Some(Known::Nothing(failure)) => Err(failure.unresolved(reference)),
        }
    }

    /// Has a path looked after from now on, where it is not yet.
    fn want(&self, path: &str) {
        let mut paths = self.table.paths();
        if !paths.contains_key(path) && self.wanted.try_send(path.to_owned()).is_ok() {
            paths.insert(path.to_owned(), Known::Fetching);
        }
    }
}

impl Table {
    fn paths(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_fetching(&self, wanted: &BTreeSet<&str>) -> bool {
        let paths = self.paths();
        wanted
            .iter()
            .any(|path| matches!(paths.get(*path), None | Some(Known::Fetching)))
    }

    fn put(&self, path: &str, known: Known) {
        self.paths().insert(path.to_owned(), known);
        self.changed.notify_waiters();
    }

    /// Notes that nobody answered: the last good value stays for its time.
    fn missed(&self, path: &str, failure: Failure) {
        let mut paths = self.paths();
        let holds = matches!(paths.get(path), Some(Known::Fields { until, .. }) if *until > Instant::now());
        if !holds {
            paths.insert(path.to_owned(), Known::Nothing(failure));
        }
        drop(paths);
        self.changed.notify_waiters();
    }
}

fn being_fetched(reference: &Reference) -> Unresolved {
    Unresolved::unavailable(reference, "it is being fetched from the vault", "ask again in a moment")
}

/// Looks after one path as long as the program runs.
async fn watch(reader: &Reader, table: &Table, path: &str, refresh: Duration) {
    let mut lease = None;
    let mut told = None;
    loop {
        let kept = match lease.take() {
            Some(held) => reader.look_after(held).await,
            None => Ok(lease::Kept::Read),
        };
        let outcome = match kept {
            Ok(lease::Kept::Held(held, until)) => {
                lease = Some(held);
                if let Some(Known::Fields { until: known, .. }) = table.paths().get_mut(path) {
                    *known = until;
                }
                Ok(())
            }
            Ok(kept) => {
                if matches!(kept, lease::Kept::Gone) {
                    table.put(path, Known::Fetching);
                }
                reader.read(path).await.map(
                    |Fetched {
                         fields,
                         until,
                         lease: new,
                     }| {
                        lease = new;
                        table.put(path, Known::Fields { fields, until });
                    },
                )
            }
            Err((held, failure)) => {
                lease = Some(held);
                Err(failure)
            }
        };
        match outcome {
            Ok(()) => told = None,
            Err(failure) => {
                // Once per outage, not once per look.
                if told.as_ref() != Some(&failure) {
                    tracing::warn!(path, "{failure}");
                    told = Some(failure.clone());
                }
                if failure.is_passing() {
                    table.missed(path, failure);
                } else {
                    lease = None;
                    table.put(path, Known::Nothing(failure));
                }
            }
        }
        tokio::time::sleep(refresh).await;
    }
}
