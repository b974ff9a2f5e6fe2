//! The credential of a contract test, which is made up, and where a request shows it.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::request::Parts;
use url::form_urlencoded;

use crate::definition::{Auth, Kind, Part, Service};

/// What stands for the secret of a slot. Nothing is read from the environment.
pub(super) fn made_up(slot: &str) -> String {
    format!("contract-test-{slot}")
}

/// How a service authenticates in its contract test: by the first of its ways.
///
/// No other server is asked for a token, nothing is signed with a private key, and no program runs: what needs one of
/// those (OAuth 2.0, a GitHub App, a key pair, a variable of a program) is `Authorization: Bearer` here, and that is
/// what the server then wants.
pub(super) fn way(service: &Service) -> Option<Auth> {
    let plain = |auth: &mut Auth| {
        let is_made = matches!(
            auth,
            Auth::OAuth2 { .. } | Auth::GitHubApp | Auth::KeyPair | Auth::Environment { .. }
        );
        if is_made {
            *auth = Auth::Bearer;
        }
    };
    let mut way = service.auth.first().cloned()?;
    match &mut way {
        Auth::All(parts) => parts.iter_mut().for_each(|part| plain(&mut part.auth)),
        one => plain(one),
    }
    Some(way)
}

/// What the server wants to see of the credential.
#[derive(Default)]
pub(super) struct Demand {
    shown: Vec<Shown>,
    /// How the paths begin of the places that are not to see it.
    elsewhere: Vec<String>,
}

impl Demand {
    /// What a service that authenticates like this shows.
    pub(super) fn new(service: &Service, way: Option<&Auth>) -> Self {
        let shown = match way {
            None => Vec::new(),
            Some(Auth::All(parts)) => parts.iter().map(Shown::new).collect(),
            Some(one) => vec![Shown::new(&Part {
                auth: one.clone(),
                slot: None,
            })],
        };
        let elsewhere = match &service.kind {
            Kind::Script(script) => script.hosts.iter().map(|(name, _)| other_place(name)).collect(),
            _ => Vec::new(),
        };
        Self { shown, elsewhere }
    }

    /// What is wrong with how a request shows the credential.
    pub(super) fn objection(&self, head: &Parts) -> Option<String> {
        let is_elsewhere = |place: &String| head.uri.path().starts_with(place.as_str());
        if self.elsewhere.iter().any(is_elsewhere) {
            let told = self.shown.iter().find(|shown| !shown.found(head).is_empty())?;
            return Some(format!("shows the credential ({told}), which is for the API alone"));
        }
        let wrong = self.shown.iter().find(|shown| !shown.is_in(head))?;
        let found = wrong.found(head);
        let found = if found.is_empty() {
            "none".to_owned()
        } else {
            found.join(", ")
        };
        Some(format!(
            "does not show the credential: it wants {wrong}, and there is {found}"
        ))
    }

    /// Whether a parameter of a query is the credential, which is not recorded.
    pub(super) fn is_parameter(&self, name: &str) -> bool {
        let is_it = |shown: &Shown| matches!(shown, Shown::Parameter { name: known, .. } if known == name);
        self.shown.iter().any(is_it)
    }
}

/// How the path begins of what a script asks of another place than its API.
pub(super) fn other_place(name: &str) -> String {
    format!("/{name}:")
}

/// Where a request shows one credential.
enum Shown {
    Header {
        name: String,
        text: String,
    },
    Parameter {
        name: String,
        text: String,
    },
    /// AWS Signature Version 4, of which the time and the signature are left open.
    Signature {
        key: String,
        scope: String,
    },
}

impl Shown {
    fn new(part: &Part) -> Self {
        let token = made_up(part.slot("token"));
        let header = |name: &str, text| Self::Header {
            name: name.to_owned(),
            text,
        };
        match &part.auth {
            Auth::Basic => {
                let both = format!("{}:{}", made_up("user"), made_up("password"));
                header(AUTHORIZATION.as_str(), format!("Basic {}", STANDARD.encode(both)))
            }
            Auth::Header { name, prefix } => header(name, format!("{prefix}{token}")),
            Auth::Query { name } => Self::Parameter {
                name: name.clone(),
                text: token,
            },
            Auth::AwsSigV4 { region, service } => Self::Signature {
                key: format!("AWS4-HMAC-SHA256 Credential={}/", made_up("access_key_id")),
                scope: format!("/{region}/{service}/aws4_request, "),
            },
            // The others became it.
            _ => header(AUTHORIZATION.as_str(), format!("Bearer {token}")),
        }
    }

    /// What stands where the credential belongs.
    fn found(&self, head: &Parts) -> Vec<String> {
        let name = match self {
            Self::Parameter { name, .. } => {
                let pairs = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
                return pairs
                    .filter(|(known, _)| known == name)
                    .map(|(_, text)| text.into_owned())
                    .collect();
            }
            Self::Header { name, .. } => name.as_str(),
            Self::Signature { .. } => AUTHORIZATION.as_str(),
        };
        let values = head.headers.get_all(name).iter();
        values
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }

    fn is_in(&self, head: &Parts) -> bool {
        let found = self.found(head);
        let [found] = &found[..] else { return false };
        match self {
            Self::Header { text, .. } | Self::Parameter { text, .. } => found == text,
            Self::Signature { key, scope } => found.starts_with(key) && found.contains(scope),
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header { name, text } => write!(formatter, "the header {name}: {text}"),
            Self::Parameter { name, text } => write!(formatter, "the parameter {name}={text}"),
            Self::Signature { key, scope } => write!(formatter, "the header authorization: {key}…{scope}…"),
        }
    }
}
