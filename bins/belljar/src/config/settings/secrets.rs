//! Sources of secrets, as the programs use them.

use std::path::PathBuf;
use std::time::Duration;

use secret::Reference;

use super::super::values::Reader;

/// The encrypted store's key.
#[derive(Clone, Debug)]
pub(crate) struct Secrets {
    pub(crate) key_file: PathBuf,
    pub(crate) passphrase: Option<Reference>,
}

/// A vault.
#[derive(Clone, Debug)]
pub(crate) struct Vault {
    pub(crate) address: String,
    pub(crate) namespace: Option<String>,
    pub(crate) login: Login,
    pub(crate) refresh: Duration,
    pub(crate) keep: Duration,
    pub(crate) deadline: Duration,
    pub(crate) plain_http: bool,
}

/// How to log in to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Login {
    Token(Reference),
    AppRole {
        mount: String,
        role: Reference,
        secret: Reference,
    },
}

pub(super) fn secrets(reader: &mut Reader) -> Option<Secrets> {
    let key_file = reader.path("secrets.key_file");
    let passphrase = opening(reader, "secrets.passphrase");
    if passphrase.is_some() && reader.has("secrets.key_file") {
        reader.mistake(
            "secrets.passphrase",
            "secrets.passphrase and secrets.key_file are both given: the store has one key, leave one of them out",
        );
    }
    Some(Secrets {
        key_file: key_file?,
        passphrase,
    })
}

pub(super) fn vault(reader: &mut Reader) -> Option<Vault> {
    let address = reader.text("vault.address");
    let namespace = reader.text("vault.namespace");
    let token = opening(reader, "vault.token");
    let role = opening(reader, "vault.role_id");
    let secret = opening(reader, "vault.secret_id");
    let mount = reader.text("vault.approle");
    let refresh = reader.duration("vault.refresh");
    let keep = reader.duration("vault.keep");
    let deadline = reader.duration("vault.deadline");
    let plain_http = reader.flag("vault.plain_http");
    for (key, least, duration) in [
        ("vault.refresh", Duration::from_millis(50), refresh),
        ("vault.deadline", Duration::from_millis(100), deadline),
    ] {
        if duration.is_some_and(|duration| duration < least) {
            let text = format!("{key} is too short: write \"{}ms\" or more", least.as_millis());
            reader.mistake(key, text);
        }
    }
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_/".contains(letter);
    let mount = mount.filter(|mount| !mount.is_empty() && mount.chars().all(plain));
    if mount.is_none() {
        reader.mistake(
            "vault.approle",
            "vault.approle is no mount: write one such as \"approle\"",
        );
    }
    address.as_ref()?;
    let login = match (token, role, secret) {
        (Some(token), None, None) => Some(Login::Token(token)),
        (None, Some(role), Some(secret)) => Some(Login::AppRole {
            mount: mount?,
            role,
            secret,
        }),
        _ => {
            reader.mistake(
                "vault.address",
                "vault.address is given without one way to log in: write vault.token, or vault.role_id and vault.secret_id",
            );
            None
        }
    };
    Some(Vault {
        address: address?,
        namespace,
        login: login?,
        refresh: refresh?,
        keep: keep?,
        deadline: deadline?,
        plain_http: plain_http?,
    })
}

/// A reference to what opens another source: it cannot lie in one itself.
fn opening(reader: &mut Reader, key: &str) -> Option<Reference> {
    let reference = reader.reference(key)?;
    if matches!(reference, Reference::Store(_) | Reference::Vault { .. }) {
        let text = format!("{key} cannot lie in a store or a vault: write \"env:NAME\" or \"file:/path\"");
        reader.mistake(key, text);
    }
    Some(reference)
}
