//! Where secrets come from, as the configuration says.

use std::sync::Arc;

use lifecycle::Tasks;
use secret::{Credential, Reference, Secret, Source, Unresolved};
use secrets::{EncryptedStore, Environment, KeyFrom, Local, Rotated, Secrets, Vault, VaultConfig};

use crate::config::{Login, Settings};
use crate::places;

/// The variables that hold secrets, as the configuration refers to them.
pub(crate) fn variables(settings: &Settings) -> Vec<String> {
    let openings = settings.openings().into_iter().map(|(_, reference)| reference);
    let all = settings.references().into_iter().map(|(_, reference)| reference);
    all.chain(openings)
        .filter_map(|reference| match reference {
            Reference::Environment(name) => Some(name),
            _ => None,
        })
        .collect()
}

/// The variables of this process that hold secrets.
pub(crate) fn environment(settings: &Settings) -> Environment {
    let names = variables(settings).into_iter();
    names
        .filter_map(|name| {
            let value = std::env::var(&name).ok()?;
            Some((name, Secret::new(value)))
        })
        .collect()
}

/// The encrypted store.
pub(crate) fn store(settings: &Settings, local: &Local) -> EncryptedStore {
    EncryptedStore::new(places::secrets(settings), key(settings, local))
}

/// What services gave in place of configured secrets.
pub(crate) fn rotated(settings: &Settings, local: &Local) -> Rotated {
    Rotated::new(places::rotated(settings), key(settings, local))
}

fn key(settings: &Settings, local: &Local) -> KeyFrom {
    match &settings.secrets.passphrase {
        Some(passphrase) => KeyFrom::Passphrase(opening(passphrase, local)),
        None => KeyFrom::File(settings.secrets.key_file.clone()),
    }
}

/// All sources; what looks after the vault ends with `tasks`.
pub(crate) fn open(settings: &Settings, environment: Environment, tasks: &Tasks) -> anyhow::Result<Arc<Secrets>> {
    let local = Local::new(environment);
    let vault = settings.vault.as_ref().map(|vault| {
        let config = VaultConfig {
            address: vault.address.clone(),
            plain_http: vault.plain_http,
            namespace: vault.namespace.clone(),
            login: match &vault.login {
                Login::Token(token) => secrets::Login::Token(opening(token, &local)),
                Login::AppRole { mount, role, secret } => secrets::Login::AppRole {
                    mount: mount.clone(),
                    role: opening(role, &local),
                    secret: opening(secret, &local),
                },
            },
            refresh: vault.refresh,
            keep: vault.keep,
            deadline: vault.deadline,
        };
        Vault::start(config, tasks)
    });
    let store = store(settings, &local);
    Ok(Arc::new(Secrets::new(local, store, vault.transpose()?)))
}

/// Fetches what lies elsewhere, and says which of the configuration's references lead nowhere, by the key that holds each.
pub(crate) async fn unresolved(settings: &Settings, secrets: &Secrets) -> Vec<(String, Unresolved)> {
    let references = settings.references();
    let all: Vec<Reference> = references.iter().map(|(_, reference)| reference.clone()).collect();
    secrets.fetch(&all).await;
    let openings = settings
        .openings()
        .into_iter()
        .map(|(key, reference)| (key.to_owned(), reference));
    openings
        .chain(references)
        .filter_map(|(key, reference)| Some((key, secrets.secret(&reference).err()?)))
        .collect()
}

fn opening(reference: &Reference, local: &Local) -> Credential {
    Credential::asked(reference.clone(), Arc::new(local.clone()))
}
