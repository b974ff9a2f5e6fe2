//! Ways to authenticate.

use std::collections::BTreeSet;

use serde_json::Value;

use super::document::Document;
use super::{LeftOut, text};

/// A way to authenticate, as it is written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Bearer,
    Basic,
    Header(String),
    Query(String),
    ClientCredentials { token_url: String, scopes: Vec<String> },
}

impl Way {
    /// The slots that it needs.
    pub(super) fn slots(&self) -> Vec<String> {
        let slots: &[&str] = match self {
            Self::Bearer | Self::Header(_) | Self::Query(_) => &["token"],
            Self::Basic => &["user", "password"],
            Self::ClientCredentials { .. } => &["client_id", "client_secret"],
        };
        slots.iter().map(|slot| (*slot).to_owned()).collect()
    }
}

/// The ways that the description asks for, in its order.
pub(super) fn read(document: &Document, left_out: &mut Vec<LeftOut>) -> Vec<Way> {
    let asked: BTreeSet<&str> = document.root["security"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .flat_map(|alternative| alternative.keys().map(String::as_str))
        .collect();
    let schemes = document.root["components"]["securitySchemes"].as_object();
    let mut ways = Vec::new();
    for (name, scheme) in schemes
        .into_iter()
        .flatten()
        .filter(|(name, _)| asked.is_empty() || asked.contains(name.as_str()))
    {
        let Some(scheme) = document.follow(scheme) else {
            continue;
        };
        match way(scheme) {
            Ok(way) if !ways.contains(&way) => ways.push(way),
            Ok(_) => {}
            Err(why) => left_out.push(LeftOut {
                what: format!("security scheme {name}"),
                why,
            }),
        }
    }
    ways
}

fn way(scheme: &Value) -> Result<Way, String> {
    let named = || text(scheme, "name").unwrap_or_default().to_owned();
    match (
        text(scheme, "type"),
        text(scheme, "in"),
        text(scheme, "scheme").map(str::to_lowercase).as_deref(),
    ) {
        (Some("http"), _, Some("bearer")) => Ok(Way::Bearer),
        (Some("http"), _, Some("basic")) => Ok(Way::Basic),
        (Some("apiKey"), Some("header"), _) => Ok(Way::Header(named())),
        (Some("apiKey"), Some("query"), _) => Ok(Way::Query(named())),
        (Some("oauth2"), ..) => {
            let flow = &scheme["flows"]["clientCredentials"];
            let token_url =
                text(flow, "tokenUrl").filter(|url| url.starts_with("https://") && !url.contains(['?', '#', '{']));
            let scopes = flow["scopes"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(scope, _)| scope.clone())
                .collect();
            // Whoever has a token from another flow shows it as a bearer does.
            Ok(token_url.map_or(Way::Bearer, |url| Way::ClientCredentials {
                token_url: url.to_owned(),
                scopes,
            }))
        }
        (Some("openIdConnect"), ..) => Ok(Way::Bearer),
        (kind, place, _) => Err(format!(
            "there is no such way here ({} {})",
            kind.unwrap_or("no type"),
            place.unwrap_or_default()
        )),
    }
}
