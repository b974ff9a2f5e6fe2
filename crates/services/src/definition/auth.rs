//! Ways to authenticate.

/// A way to authenticate. What it needs are *slots*, which `belljar.toml` binds, service by service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Auth {
    /// `Authorization: Bearer …`. Slot: `token`.
    Bearer,
    /// `Authorization: Basic …`. Slots: `user`, `password` (may be left out).
    Basic,
    /// A header. Slot: `token`.
    Header {
        /// Its name, in lower case.
        name: String,
        /// What stands before the token.
        prefix: String,
    },
    /// A parameter of the query. Slot: `token`.
    Query {
        /// Its name.
        name: String,
    },
    /// OAuth 2.0. Slots: `client_id`, `client_secret` (may be left out with a refresh token), and `refresh_token` where that is the grant.
    OAuth2 {
        /// Where tokens are asked for.
        token_url: String,
        /// What is shown for one.
        grant: Grant,
        /// What the token is for.
        scopes: Vec<String>,
        /// More parameters of the request, such as `audience`.
        parameters: Vec<(String, String)>,
        /// Where the client shows who it is.
        client_in: ClientPlace,
    },
    /// An installation token of a GitHub App. Slots: `app_id`, `installation_id`, `private_key` (PEM).
    GitHubApp,
    /// AWS Signature Version 4. Slots: `access_key_id`, `secret_access_key`, `session_token` (may be left out).
    AwsSigV4 {
        /// The region.
        region: String,
        /// AWS's name of the service.
        service: String,
    },
    /// A token signed with a private key, as Snowflake takes it. Slots: `account`, `user`, `private_key` (PEM).
    KeyPair,
    /// A variable in the environment of a server's program. Slot: `token`.
    Environment {
        /// Its name.
        name: String,
    },
    /// Several at once, in a request that carries all of them. Slots: those of its parts.
    All(Vec<Part>),
}

/// One of several credentials of the same request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// How it is shown: no [`Auth::All`], and nothing that is signed or given to a program.
    pub auth: Auth,
    /// The slot in place of `token`, for what has that one.
    pub slot: Option<String>,
}

impl Part {
    /// The slot that stands for one of its way's own.
    #[must_use]
    pub fn slot<'s>(&'s self, own: &'s str) -> &'s str {
        match &self.slot {
            Some(slot) if own == TOKEN => slot,
            _ => own,
        }
    }

    fn own(&self, of: fn(&Auth) -> &'static [&'static str]) -> impl Iterator<Item = &str> {
        of(&self.auth).iter().map(|own| self.slot(own))
    }
}

/// The slot of what is shown as it is.
const TOKEN: &str = "token";

/// What is shown for a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// The client alone.
    ClientCredentials,
    /// A refresh token.
    RefreshToken,
}

/// Where an OAuth client shows who it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClientPlace {
    /// In the `Authorization` header.
    #[default]
    Basic,
    /// In the body.
    Body,
}

impl Auth {
    /// The kind, as it is written.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bearer => "bearer",
            Self::Basic => "basic",
            Self::Header { .. } => "header",
            Self::Query { .. } => "query",
            Self::OAuth2 { grant, .. } => match grant {
                Grant::ClientCredentials => "client_credentials",
                Grant::RefreshToken => "refresh_token",
            },
            Self::GitHubApp => "github_app",
            Self::AwsSigV4 { .. } => "aws_sigv4",
            Self::KeyPair => "key_pair",
            Self::Environment { .. } => "environment",
            Self::All(_) => "all",
        }
    }

    /// The slots that must be bound.
    #[must_use]
    pub fn required(&self) -> Vec<&str> {
        match self {
            Self::All(parts) => {
                let slots = |part| Part::own(part, Self::own_required);
                parts.iter().flat_map(slots).collect()
            }
            one => one.own_required().to_vec(),
        }
    }

    /// The slots that may be bound besides.
    #[must_use]
    pub fn optional(&self) -> Vec<&str> {
        match self {
            Self::All(parts) => {
                let slots = |part| Part::own(part, Self::own_optional);
                parts.iter().flat_map(slots).collect()
            }
            one => one.own_optional().to_vec(),
        }
    }

    /// The slots that must be bound, of one credential.
    pub(crate) fn own_required(&self) -> &'static [&'static str] {
        match self {
            Self::Bearer | Self::Header { .. } | Self::Query { .. } | Self::Environment { .. } => &[TOKEN],
            Self::Basic => &["user"],
            Self::OAuth2 { grant, .. } => match grant {
                Grant::ClientCredentials => &["client_id", "client_secret"],
                Grant::RefreshToken => &["client_id", "refresh_token"],
            },
            Self::GitHubApp => &["app_id", "installation_id", "private_key"],
            Self::AwsSigV4 { .. } => &["access_key_id", "secret_access_key"],
            Self::KeyPair => &["account", "user", "private_key"],
            Self::All(_) => &[],
        }
    }

    /// The slots that may be bound besides, of one credential.
    pub(crate) fn own_optional(&self) -> &'static [&'static str] {
        match self {
            Self::Basic => &["password"],
            Self::OAuth2 {
                grant: Grant::RefreshToken,
                ..
            } => &["client_secret"],
            Self::AwsSigV4 { .. } => &["session_token"],
            _ => &[],
        }
    }
}
