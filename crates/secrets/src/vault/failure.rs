//! Why the vault gives nothing.

use secret::{Reference, Unresolved};

/// What to do about a vault that does not answer.
pub(super) const LOOK: &str = "look at the vault's state and at vault.address in belljar.toml";

/// The vault cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The address is none.
    #[error(
        "vault.address is no address: write one such as https://vault.example:8200, without user, path, query or fragment"
    )]
    Address,
    /// The address is plain HTTP to another machine.
    #[error(
        "vault.address is plain HTTP to another machine, where everybody on the way reads what the vault says: use https, or set vault.plain_http = true"
    )]
    PlainHttp,
    /// The namespace has letters that no header has.
    #[error("vault.namespace has letters that cannot be sent: write its plain name")]
    Namespace,
    /// TLS could not be set up.
    #[error("set up TLS for the vault")]
    Tls(#[source] rustls::Error),
    /// The HTTP client could not be set up.
    #[error("set up the HTTP client for the vault")]
    Http(#[source] reqwest::Error),
}

/// Why a question to the vault came to nothing. Kept in the table, so it holds words and not errors.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("the vault does not answer ({0})")]
    Unreachable(&'static str),
    #[error("the vault is not ready (status {status}{said})")]
    NotReady { status: u16, said: String },
    #[error("the vault's answer cannot be understood")]
    Malformed,
    #[error("the vault has nothing there")]
    Missing,
    #[error("the vault refuses it (status {status}{said})")]
    Refused { status: u16, said: String },
    #[error("nobody can log in to the vault: {0}")]
    NoLogin(Box<Unresolved>),
    #[error("the vault refuses the login (status {status}{said})")]
    LoginRefused { status: u16, said: String },
}

impl Failure {
    /// Whether it says nothing of the secret itself.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::NotReady { .. } | Self::Malformed)
    }

    pub(super) fn unresolved(&self, reference: &Reference) -> Unresolved {
        let why = self.to_string();
        match self {
            Self::Unreachable(_) | Self::NotReady { .. } | Self::Malformed => {
                Unresolved::unavailable(reference, why, LOOK)
            }
            Self::Missing => Unresolved::absent(reference, why, "write it there, or correct the path"),
            Self::Refused { .. } => Unresolved::absent(
                reference,
                why,
                "let the policy of Belljar's token or role read this path",
            ),
            Self::NoLogin(_) | Self::LoginRefused { .. } => Unresolved::unusable(
                reference,
                why,
                "correct vault.token, or vault.role_id and vault.secret_id",
            ),
        }
    }
}
