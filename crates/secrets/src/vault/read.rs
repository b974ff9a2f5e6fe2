//! Reading what lies at a path, whichever engine keeps it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::Method;
use secret::Secret;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::client::Client;
use super::failure::Failure;
use super::lease::Lease;
use super::session::Sessions;
use super::wire::{Field, Mount, Mounted, Plain, Versioned};

/// Asks the vault as whom it is logged in.
pub(super) struct Reader {
    client: Client,
    sessions: Sessions,
    keep: Duration,
    /// The engine of each path, as long as it answers.
    mounts: Mutex<HashMap<String, Mount>>,
}

/// What lies at a path.
pub(super) struct Fetched {
    pub(super) fields: BTreeMap<String, Secret>,
    /// How long it may be used where the vault does not answer.
    pub(super) until: Instant,
    pub(super) lease: Option<Lease>,
}

impl Reader {
    pub(super) fn new(client: Client, sessions: Sessions, keep: Duration) -> Self {
        Self {
            client,
            sessions,
            keep,
            mounts: Mutex::default(),
        }
    }

    /// Reads a path.
    pub(super) async fn read(&self, path: &str) -> Result<Fetched, Failure> {
        let read = self.read_mounted(path).await;
        if read.as_ref().is_err_and(|failure| !failure.is_passing()) {
            // The engine may have been moved, or changed its version.
            self.mounts().remove(path);
        }
        read
    }

    async fn read_mounted(&self, path: &str) -> Result<Fetched, Failure> {
        let mount = self.mount(path).await?;
        // The vault's clock starts when it answers, ours before: never later than it.
        let asked = Instant::now();
        if mount.is_versioned() {
            let below = path.strip_prefix(&mount.path).ok_or(Failure::Missing)?;
            let address = format!("{}data/{below}", mount.path);
            let Versioned { data } = self.ask(Method::GET, &address, None).await?;
            return Ok(Fetched {
                fields: texts(data.data.ok_or(Failure::Missing)?),
                until: asked + self.keep,
                lease: None,
            });
        }
        let plain: Plain = self.ask(Method::GET, path, None).await?;
        let lease = Lease::of(plain.lease_id, plain.lease_duration, plain.renewable, asked);
        let hint = plain.lease_duration.duration().unwrap_or(self.keep);
        Ok(Fetched {
            fields: texts(plain.data),
            until: lease.as_ref().map_or(asked + self.keep.min(hint), Lease::ends),
            lease,
        })
    }

    async fn mount(&self, path: &str) -> Result<Mount, Failure> {
        if let Some(mount) = self.mounts().get(path) {
            return Ok(mount.clone());
        }
        let address = format!("sys/internal/ui/mounts/{path}");
        let Mounted { data } = self.ask(Method::GET, &address, None).await?;
        self.mounts().insert(path.to_owned(), data.clone());
        Ok(data)
    }

    /// Asks; once more with a new token where the old one had died.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Failure> {
        let token = self.sessions.token(&self.client).await?;
        let answer = self.client.ask(method.clone(), path, Some(&token), body).await;
        if matches!(answer, Err(Failure::Refused { status: 403, .. }))
            && self.sessions.refused(&self.client, &token).await
        {
            let token = self.sessions.token(&self.client).await?;
            return self.client.ask(method, path, Some(&token), body).await;
        }
        answer
    }

    fn mounts(&self) -> std::sync::MutexGuard<'_, HashMap<String, Mount>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn texts(fields: BTreeMap<String, Field>) -> BTreeMap<String, Secret> {
    let fields = fields.into_iter();
    fields.filter_map(|(name, Field(value))| Some((name, value?))).collect()
}
