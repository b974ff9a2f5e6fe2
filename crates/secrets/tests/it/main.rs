//! Secrets where they lie: variables, files, the encrypted store, and a vault that speaks Vault's own API.

#![allow(clippy::unwrap_used, reason = "a test ends where something is amiss")]

mod encrypted;
mod local;
mod rotated;
mod vault;
mod vault_server;

use secret::{Reference, Secret, Source, Unresolved};

fn reference(text: &str) -> Reference {
    text.parse().unwrap()
}

/// What a source gives, as text.
fn ask(source: &dyn Source, text: &str) -> Result<String, Unresolved> {
    source.secret(&reference(text)).map(|secret| secret.expose().to_owned())
}

fn secret(text: &str) -> Secret {
    Secret::new(text)
}
