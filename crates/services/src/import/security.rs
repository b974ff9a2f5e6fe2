//! Ways to authenticate.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::document::Document;
use super::operation::Chosen;
use super::{LeftOut, text, write};

/// A way to authenticate, as it is written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Bearer,
    Basic,
    Header(String),
    Query(String),
    ClientCredentials {
        token_url: String,
        scopes: Vec<String>,
    },
    /// All of these at once, each with the slot in place of `token`, where another has that.
    All(Vec<(Way, Option<String>)>),
}

impl Way {
    /// The slots that it needs.
    pub(super) fn slots(&self) -> Vec<String> {
        let slots: &[&str] = match self {
            Self::All(parts) => {
                let slots = parts.iter().flat_map(|(way, slot)| match slot {
                    Some(slot) => vec![slot.clone()],
                    None => way.slots(),
                });
                return slots.collect();
            }
            Self::Bearer | Self::Header(_) | Self::Query(_) => &["token"],
            Self::Basic => &["user", "password"],
            Self::ClientCredentials { .. } => &["client_id", "client_secret"],
        };
        slots.iter().map(|slot| (*slot).to_owned()).collect()
    }

    /// Where it stands in a request.
    fn place(&self) -> String {
        match self {
            Self::Header(name) => format!("header {}", name.to_lowercase()),
            Self::Query(name) => format!("query {name}"),
            Self::Bearer | Self::Basic | Self::ClientCredentials { .. } | Self::All(_) => "header authorization".into(),
        }
    }
}

/// The ways that the chosen operations ask for, the first that is written first. One that asks for others than most is left out of
/// `chosen`, and that is said: no call of it would get through.
pub(super) fn read(document: &Document, chosen: &mut Vec<Chosen<'_>>, left_out: &mut Vec<LeftOut>) -> Vec<Way> {
    let schemes = Schemes::read(document, left_out);
    let asked = |one: &Chosen<'_>| schemes.asked(one.operation.get("security").unwrap_or(&document.root["security"]));
    let mut counts: BTreeMap<Vec<Way>, usize> = BTreeMap::new();
    for one in chosen.iter() {
        if let Asked::Some(ways) = asked(one) {
            *counts.entry(ways).or_default() += 1;
        }
    }
    let most = counts.iter().max_by_key(|(_, count)| **count);
    let ways: Vec<Way> = match most {
        Some((ways, _)) => ways.clone(),
        // Nobody says what is asked for: one of those that there are.
        None if chosen.iter().all(|one| matches!(asked(one), Asked::Nothing)) => schemes.all(),
        None => Vec::new(),
    };
    chosen.retain(|one| {
        let why = match asked(one) {
            Asked::Nothing => return true,
            Asked::Unknown(why) => why,
            // Whichever of the service's ways is bound, it is one of the operation's.
            Asked::Some(own) if ways.iter().all(|way| own.contains(way)) => return true,
            Asked::Some(_) => {
                "it asks for another credential than most: import it by itself, with --only and --name".into()
            }
        };
        left_out.push(LeftOut { what: one.what(), why });
        false
    });
    ways
}

/// What an operation asks for.
enum Asked {
    /// No credential, or nobody says.
    Nothing,
    /// One of these ways.
    Some(Vec<Way>),
    /// What there is no way for here.
    Unknown(String),
}

/// The schemes of a description, by name: each a way, or why it is none.
struct Schemes<'d>(Vec<(&'d str, Result<Way, String>)>);

impl<'d> Schemes<'d> {
    fn read(document: &'d Document, left_out: &mut Vec<LeftOut>) -> Self {
        let schemes = document.root["components"]["securitySchemes"].as_object();
        let read = |(name, scheme): (&'d String, &'d Value)| {
            let followed = document.follow(scheme);
            let way = followed.map_or_else(|| Err("it leads out of the description".to_owned()), way);
            if let Err(why) = &way {
                left_out.push(LeftOut {
                    what: format!("security scheme {name}"),
                    why: why.clone(),
                });
            }
            (name.as_str(), way)
        };
        Self(schemes.into_iter().flatten().map(read).collect())
    }

    fn all(&self) -> Vec<Way> {
        let mut ways = Vec::new();
        for (_, way) in &self.0 {
            if let Ok(way) = way
                && !ways.contains(way)
            {
                ways.push(way.clone());
            }
        }
        ways
    }

    /// The ways of a list of requirements, of which any is enough.
    fn asked(&self, security: &Value) -> Asked {
        let alternatives: Vec<_> = security
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_object)
            .collect();
        if alternatives.iter().all(|names| names.is_empty()) {
            return Asked::Nothing;
        }
        let mut ways = Vec::new();
        let mut unknown = String::new();
        for names in alternatives.into_iter().filter(|names| !names.is_empty()) {
            match self.together(names.keys().map(String::as_str)) {
                Ok(way) if !ways.contains(&way) => ways.push(way),
                Ok(_) => {}
                Err(why) => unknown = why,
            }
        }
        if ways.is_empty() {
            Asked::Unknown(unknown)
        } else {
            Asked::Some(ways)
        }
    }

    /// The way that shows all of these.
    fn together<'n>(&self, names: impl Iterator<Item = &'n str>) -> Result<Way, String> {
        let mut parts = Vec::new();
        for name in names {
            let known = self.0.iter().find(|(known, _)| *known == name);
            match known {
                Some((_, Ok(way))) => parts.push((name, way.clone())),
                _ => return Err(format!("it asks for {name}, for which there is no way here")),
            }
        }
        if let [(_, way)] = &parts[..] {
            return Ok(way.clone());
        }
        let places: BTreeSet<_> = parts.iter().map(|(_, way)| way.place()).collect();
        if places.len() < parts.len() {
            return Err("it asks for two credentials at the same place of a request".into());
        }
        let tokens = parts.iter().filter(|(_, way)| way.slots() == ["token"]).count();
        let parts = parts.into_iter().map(|(name, way)| {
            let slot = (tokens > 1 && way.slots() == ["token"]).then(|| slot(name));
            (way, slot)
        });
        Ok(Way::All(parts.collect()))
    }
}

/// A slot's name of a scheme's.
fn slot(name: &str) -> String {
    let slot = write::lower_name(name);
    if crate::definition::read::is_identifier(&slot) {
        slot
    } else {
        format!("{slot}Key")
    }
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
