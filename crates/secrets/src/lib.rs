//! Where secrets come from. [`Secrets`] is the control plane's one [`secret::Source`]; each kind of reference has a module.
//!
//! * [`Environment`]: `env:`, the variables that the program was started with, read once
//! * `file`: `file:`, read anew each time
//! * [`EncryptedStore`]: `store:`, a file of sealed secrets in the data directory, looked at each time
//! * [`Rotated`]: what services gave in place of configured secrets, sealed in a file beside that one
//! * [`Vault`]: `vault:`, HashiCorp Vault or OpenBao, asked again and again from behind
//!
//! So none of them hands out a secret that was changed or revoked more than a second ago, and nobody has to tell them of a
//! change. A source never logs or reports a value.

mod encrypted;
mod environment;
mod file;
mod local;
mod rotated;
mod vault;

use secret::{Reference, Secret, Source, Unresolved};

pub use encrypted::{Change, EncryptedStore, Entry, KeyFrom, KeyMade, StoreError, make_key};
pub use environment::Environment;
pub use local::Local;
pub use rotated::{Rotated, Rotation};
pub use vault::{Login, Vault, VaultConfig, VaultError};

/// All sources there are.
pub struct Secrets {
    local: Local,
    store: EncryptedStore,
    vault: Option<Vault>,
}

impl Secrets {
    /// Joins the sources; without a `vault`, references to one lead nowhere.
    #[must_use]
    pub fn new(local: Local, store: EncryptedStore, vault: Option<Vault>) -> Self {
        Self { local, store, vault }
    }

    /// Fetches what lies elsewhere, so that it is in memory when it is asked for. Takes as long as the vault's deadline at most.
    pub async fn fetch(&self, references: &[Reference]) {
        if let Some(vault) = &self.vault {
            vault.fetch(references).await;
        }
    }
}

impl Source for Secrets {
    fn secret(&self, reference: &Reference) -> Result<Secret, Unresolved> {
        match (reference, &self.vault) {
            (Reference::Environment(_) | Reference::File(_), _) => self.local.secret(reference),
            (Reference::Store(name), _) => self.store.secret(reference, name),
            (Reference::Vault { path, field }, Some(vault)) => vault.secret(reference, path, field),
            (Reference::Vault { .. }, None) => Err(Unresolved::unusable(
                reference,
                "no vault is configured",
                "write its address and how to log in under [vault] in belljar.toml",
            )),
        }
    }
}
