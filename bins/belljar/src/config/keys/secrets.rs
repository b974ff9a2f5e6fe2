//! The keys of sources of secrets.

use super::{Kind, Section, key, unset};

/// `[secrets]`
pub(super) const SECRETS: Section = Section {
    name: "secrets",
    whole: false,
    about: "The encrypted store, to which `store:NAME` refers and `belljar secret set NAME` writes. It is one file in the data directory, \
            and worth nothing without its key.",
    keys: &[
        key(
            "key_file",
            Kind::Path,
            "\"/etc/belljar/secrets.key\"",
            "The file with the store's key; made with the first secret. Keep a copy of it apart from the copies of the data directory.",
        ),
        unset(
            "passphrase",
            Kind::Reference,
            "\"file:/run/secrets/belljar-passphrase\"",
            "Where the store's passphrase is, of 12 bytes or more, in place of a key file. `env:` or `file:` only; `belljar secret` needs it too.",
        ),
    ],
};

/// `[vault]`
pub(super) const VAULT: Section = Section {
    name: "vault",
    whole: false,
    about: "A HashiCorp Vault or OpenBao, to which `vault:path#field` refers: KV of version 1 and 2, and engines that lease what they make. \
            Give it a `token`, or a `role_id` and a `secret_id` of an AppRole; each is a reference of `env:` or `file:`.",
    keys: &[
        unset(
            "address",
            Kind::Text,
            "\"https://vault.example:8200\"",
            "Where it is. Without it there is none.",
        ),
        unset("namespace", Kind::Text, "\"team\"", "The namespace, where it has some."),
        unset(
            "token",
            Kind::Reference,
            "\"file:/run/secrets/vault-token\"",
            "Its token, which is renewed as long as it can be.",
        ),
        unset("role_id", Kind::Reference, "\"env:VAULT_ROLE_ID\"", "The AppRole's id."),
        unset(
            "secret_id",
            Kind::Reference,
            "\"file:/run/secrets/vault-secret-id\"",
            "The AppRole's secret id.",
        ),
        key(
            "approle",
            Kind::Text,
            "\"approle\"",
            "Where the AppRole method is mounted.",
        ),
        key(
            "refresh",
            Kind::Duration,
            "\"500ms\"",
            "The time between two looks at each path: what is changed or revoked there counts after it. Each look is a line in the vault's own audit log.",
        ),
        key(
            "keep",
            Kind::Duration,
            "\"1m\"",
            "How long a secret without a lease may still be used when the vault does not answer.",
        ),
        key("deadline", Kind::Duration, "\"5s\"", "How long it may take to answer."),
        key(
            "plain_http",
            Kind::Flag,
            "false",
            "Lets `address` be plain HTTP to another machine.",
        ),
    ],
};
