//! Lists of patterns that allow, ask and deny.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Outcome;

/// The most patterns that one list may hold.
const MOST: usize = 1_000;

/// Patterns of one key of a scope. Written as a list of what is allowed, or as `{ allow, ask, deny }`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules<P> {
    /// What is allowed, and nothing that is not named here or in `ask`. Left out: what is not named is left to the others.
    pub allow: Option<Vec<P>>,
    /// What needs a person's yes.
    pub ask: Vec<P>,
    /// What is denied, whatever the other two say.
    pub deny: Vec<P>,
}

/// What one layer has to say to a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nothing: it is left to the other layers.
    Silent,
    /// It has a list, and this is not on it.
    Unlisted,
    /// A pattern says so.
    Ruled(Outcome, String),
}

impl<P> Rules<P> {
    /// Rules that allow these and nothing else.
    #[must_use]
    pub const fn allowing(allow: Vec<P>) -> Self {
        Self {
            allow: Some(allow),
            ask: Vec::new(),
            deny: Vec::new(),
        }
    }

    /// Every pattern, with what it says.
    pub fn patterns(&self) -> impl Iterator<Item = (Outcome, &P)> {
        let deny = self.deny.iter().map(|pattern| (Outcome::Deny, pattern));
        let ask = self.ask.iter().map(|pattern| (Outcome::Ask, pattern));
        let allow = self.allow.iter().flatten().map(|pattern| (Outcome::Allow, pattern));
        deny.chain(ask).chain(allow)
    }
}

impl<P: fmt::Display> Rules<P> {
    /// The strongest of the patterns that match.
    pub(crate) fn verdict(&self, matches: impl Fn(Outcome, &P) -> bool) -> Verdict {
        match self.patterns().find(|(outcome, pattern)| matches(*outcome, pattern)) {
            Some((outcome, pattern)) => Verdict::Ruled(outcome, pattern.to_string()),
            None if self.allow.is_some() => Verdict::Unlisted,
            None => Verdict::Silent,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lists<P> {
    #[serde(default = "Option::default")]
    allow: Option<Vec<P>>,
    #[serde(default = "Vec::default")]
    ask: Vec<P>,
    #[serde(default = "Vec::default")]
    deny: Vec<P>,
}

struct ListOrTable<P>(PhantomData<P>);

impl<'de, P: Deserialize<'de>> Visitor<'de> for ListOrTable<P> {
    type Value = Rules<P>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of what is allowed, or a table of the lists allow, ask and deny")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut allow = Vec::new();
        while let Some(pattern) = items.next_element()? {
            if allow.len() == MOST {
                return Err(serde::de::Error::custom(TOO_MANY));
            }
            allow.push(pattern);
        }
        Ok(Rules::allowing(allow))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let Lists { allow, ask, deny } = Lists::deserialize(MapAccessDeserializer::new(map))?;
        if [allow.as_ref().map_or(0, Vec::len), ask.len(), deny.len()]
            .iter()
            .any(|length| *length > MOST)
        {
            return Err(serde::de::Error::custom(TOO_MANY));
        }
        Ok(Rules { allow, ask, deny })
    }
}

const TOO_MANY: &str = "a list holds at most 1000 patterns";

impl<'de, P: Deserialize<'de>> Deserialize<'de> for Rules<P> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListOrTable(PhantomData))
    }
}

impl<P: Serialize> Serialize for Rules<P> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.allow {
            Some(allow) if self.ask.is_empty() && self.deny.is_empty() => {
                let mut list = serializer.serialize_seq(Some(allow.len()))?;
                allow.iter().try_for_each(|pattern| list.serialize_element(pattern))?;
                list.end()
            }
            _ => Written {
                allow: self.allow.as_deref(),
                ask: &self.ask,
                deny: &self.deny,
            }
            .serialize(serializer),
        }
    }
}

#[derive(Serialize)]
struct Written<'a, P> {
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<&'a [P]>,
    #[serde(skip_serializing_if = "<[P]>::is_empty")]
    ask: &'a [P],
    #[serde(skip_serializing_if = "<[P]>::is_empty")]
    deny: &'a [P],
}
