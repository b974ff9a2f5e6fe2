//! What an operator says of a service: where it is, what its secrets are, how much of it may be used.

use std::collections::BTreeMap;
use std::fmt;

use dial::Network;
use secret::{Reference, Secret};
use serde::{Deserialize, Deserializer};

use crate::sql::DatabaseSettings;

/// What an operator says of one service; the rest stands in its definition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceSettings {
    /// Where it is, in place of what the definition says.
    pub base_url: Option<String>,
    /// What the slots of its way to authenticate are bound to.
    pub auth: BTreeMap<String, Bound>,
    /// Addresses and networks that are not public, where it may be all the same.
    pub addresses: Vec<Network>,
    /// Requests under way at once, in place of what the definition says.
    pub concurrency: Option<u32>,
    /// Requests a minute of all sessions together, in place of what the definition says.
    pub per_minute: Option<u32>,
    /// Which database it is, of a service of kind `sql`.
    pub database: Option<DatabaseSettings>,
    /// Requests a minute of one session; 600 where it is left out.
    pub session_per_minute: Option<u32>,
}

/// What a slot is bound to.
#[derive(Clone, PartialEq, Eq)]
pub enum Bound {
    /// A secret.
    Secret(Reference),
    /// A text as it stands: for what is no secret, such as a user's name. It is kept like one, as somebody may have
    /// written one here.
    Text(Secret),
}

impl From<&str> for Bound {
    fn from(text: &str) -> Self {
        match text.parse() {
            Ok(reference) => Self::Secret(reference),
            Err(_) => Self::Text(Secret::new(text)),
        }
    }
}

impl<'de> Deserialize<'de> for Bound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::from(text.as_str()))
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(reference) => write!(formatter, "{reference}"),
            Self::Text(text) => write!(formatter, "{text}"),
        }
    }
}

impl ServiceSettings {
    /// Every reference that is named, by the slot that is bound to it.
    pub fn references(&self) -> impl Iterator<Item = (&str, &Reference)> {
        self.auth.iter().filter_map(|(slot, bound)| match bound {
            Bound::Secret(reference) => Some((slot.as_str(), reference)),
            Bound::Text(_) => None,
        })
    }
}
