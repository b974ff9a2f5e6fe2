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
}

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
        }
    }

    /// The slots that must be bound.
    #[must_use]
    pub fn required(&self) -> &'static [&'static str] {
        match self {
            Self::Bearer | Self::Header { .. } | Self::Query { .. } | Self::Environment { .. } => &["token"],
            Self::Basic => &["user"],
            Self::OAuth2 { grant, .. } => match grant {
                Grant::ClientCredentials => &["client_id", "client_secret"],
                Grant::RefreshToken => &["client_id", "refresh_token"],
            },
            Self::GitHubApp => &["app_id", "installation_id", "private_key"],
            Self::AwsSigV4 { .. } => &["access_key_id", "secret_access_key"],
            Self::KeyPair => &["account", "user", "private_key"],
        }
    }

    /// The slots that may be bound besides.
    #[must_use]
    pub fn optional(&self) -> &'static [&'static str] {
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
