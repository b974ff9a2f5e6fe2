//! Patterns for names, methods and hosts.

use std::fmt;
use std::str::FromStr;

use crate::{Host, HostError, HostPattern};

/// The longest name or pattern, in bytes.
const LONGEST: usize = 200;

/// A pattern that cannot be meant. The words say what to write instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PatternError {
    /// Nothing, or more than a name can be.
    #[error("a pattern is 1 to {LONGEST} bytes long")]
    Length,
    /// A letter that no name has.
    #[error("{pattern:?} holds {letter:?}, which no name here has: write letters, digits, {others} and the star")]
    Letter {
        /// What was written.
        pattern: String,
        /// What is wrong in it.
        letter: char,
        /// What may stand in such a name beside letters and digits.
        others: &'static str,
    },
    /// A method pattern that is not a service, a dot and a method.
    #[error(
        "{pattern:?} matches nothing: a method is written service.method, neither of them with a dot (\"crm.search\", \"crm.*\", \"*.get*\"; \"**\" for all)"
    )]
    Segments {
        /// What was written.
        pattern: String,
    },
    /// A host that is none.
    #[error(
        "{pattern:?} is no host: write a name, \"*.example.com\" or an address, and a port behind a colon where it is not 80 or 443"
    )]
    Host {
        /// What was written.
        pattern: String,
        /// Why.
        #[source]
        source: HostError,
    },
    /// A star for names of different owners.
    #[error(
        "{pattern:?} would match names of different owners, since anybody may register one below {suffix}: name the hosts"
    )]
    PublicSuffix {
        /// What was written.
        pattern: String,
        /// Below which it reaches.
        suffix: String,
    },
    /// A port that is none.
    #[error("{pattern:?} ends in no port: write a number from 1 to 65535, or * for each")]
    Port {
        /// What was written.
        pattern: String,
    },
}

/// Whether a name is one: of a service, a method, a tool, a skill or a model. No dot, no star, nothing that a path or a
/// program could understand otherwise.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= LONGEST
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// A name with stars in it; each stands for any letters, also for none.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Glob(String);

impl Glob {
    fn parse(whole: &str, text: &str, others: &'static str) -> Result<Self, PatternError> {
        let plain = |letter: &char| {
            letter.is_ascii_alphanumeric() || *letter == '*' || (!letter.is_whitespace() && others.contains(*letter))
        };
        match text.chars().find(|letter| !plain(letter)) {
            Some(letter) => Err(PatternError::Letter {
                pattern: whole.to_owned(),
                letter,
                others,
            }),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// Whether a name fits; given a pattern, whether all that fits it fits this one: no letter but a star takes a star.
    fn takes(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut read) = (0, 0);
        let mut star = None;
        while read < name.len() {
            if pattern.get(at) == Some(&b'*') {
                star = Some((at, read));
                at += 1;
            } else if pattern.get(at) == Some(&name[read]) {
                at += 1;
                read += 1;
            } else if let Some((after, taken)) = star {
                star = Some((after, taken + 1));
                (at, read) = (after + 1, taken + 1);
            } else {
                return false;
            }
        }
        pattern[at..].iter().all(|byte| *byte == b'*')
    }
}

fn bounded(text: &str) -> Result<(), PatternError> {
    if text.is_empty() || text.len() > LONGEST {
        return Err(PatternError::Length);
    }
    Ok(())
}

/// A pattern for the name of a skill or a model: `data-*`, `*`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NamePattern(Glob);

impl NamePattern {
    /// Whether it matches a name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        is_name(name) && self.0.takes(name)
    }

    /// Whether it matches whatever `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.0.takes(&other.0.0)
    }
}

impl FromStr for NamePattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        bounded(text)?;
        Glob::parse(text, text, "-, _").map(Self)
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.0)
    }
}

/// A pattern for methods of services: `crm.search`, `crm.*`, `*.get*`. A star stays in its segment, and as no method's
/// name has a dot, `crm.*` is every method of crm. `**` is every method of every service.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MethodPattern {
    service: Glob,
    method: Glob,
}

impl MethodPattern {
    /// Whether it matches a method.
    #[must_use]
    pub fn matches(&self, service: &str, method: &str) -> bool {
        is_name(service) && is_name(method) && self.service.takes(service) && self.method.takes(method)
    }

    /// Whether it matches whatever `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.service.takes(&other.service.0) && self.method.takes(&other.method.0)
    }
}

impl FromStr for MethodPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        bounded(text)?;
        let parts = if text == "**" {
            Some(("*", "*"))
        } else {
            text.split_once('.')
                .filter(|(service, method)| !service.is_empty() && !method.is_empty() && !method.contains('.'))
        };
        let Some((service, method)) = parts else {
            return Err(PatternError::Segments {
                pattern: text.to_owned(),
            });
        };
        Ok(Self {
            service: Glob::parse(text, service, "-, _")?,
            method: Glob::parse(text, method, "-, _")?,
        })
    }
}

impl fmt::Display for MethodPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.service.0, self.method.0)
    }
}

/// Patterns are written as text.
macro_rules! written_as_text {
    ($($pattern:ty),+) => {$(
        impl serde::Serialize for $pattern {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $pattern {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}

written_as_text!(NamePattern, MethodPattern, HostPattern, Host);
