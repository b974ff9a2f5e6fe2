//! What may be asked.

use std::fmt;
use std::str::FromStr;

use crate::{Destination, HostError};

/// Something that a session wants to do.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Question {
    /// Call a method of a service.
    Method {
        /// The service.
        service: String,
        /// The method.
        method: String,
    },
    /// Have a tool.
    Tool(String),
    /// Load a skill.
    Skill(String),
    /// Ask a model.
    Model(String),
    /// Connect to a host, or know its address where no port is known yet.
    Egress {
        /// Where to.
        destination: Destination,
        /// The port.
        port: Option<u16>,
    },
}

impl Question {
    /// A question about a method.
    #[must_use]
    pub fn method(service: &str, method: &str) -> Self {
        Self::Method {
            service: service.to_owned(),
            method: method.to_owned(),
        }
    }

    /// The key of a scope that answers it.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Method { .. } => "services",
            Self::Tool(_) => "tools",
            Self::Skill(_) => "skills",
            Self::Model(_) => "models",
            Self::Egress { .. } => "egress",
        }
    }

    /// It in words: `the method crm.search`.
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Method { service, method } => format!("the method {service}.{method}"),
            Self::Tool(name) => format!("the tool {name}"),
            Self::Skill(name) => format!("the skill {name}"),
            Self::Model(name) => format!("the model {name}"),
            Self::Egress {
                destination,
                port: Some(port),
            } => format!("connections to {destination}:{port}"),
            Self::Egress {
                destination,
                port: None,
            } => format!("connections to {destination}"),
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method { service, method } => write!(formatter, "{service}.{method}"),
            Self::Tool(name) => write!(formatter, "tool:{name}"),
            Self::Skill(name) => write!(formatter, "skill:{name}"),
            Self::Model(name) => write!(formatter, "model:{name}"),
            Self::Egress {
                destination,
                port: Some(port),
            } => write!(formatter, "egress:{destination}:{port}"),
            Self::Egress {
                destination,
                port: None,
            } => write!(formatter, "egress:{destination}"),
        }
    }
}

/// A text that asks nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QuestionError {
    /// It has none of the forms.
    #[error("{0:?} is no question: write service.method, tool:NAME, skill:NAME, model:NAME or egress:HOST:PORT")]
    Form(String),
    /// It asks for a host that is none.
    #[error("{text:?} names no host")]
    Host {
        /// What was written.
        text: String,
        /// Why.
        #[source]
        source: HostError,
    },
}

impl FromStr for Question {
    type Err = QuestionError;

    fn from_str(text: &str) -> Result<Self, QuestionError> {
        let form = || QuestionError::Form(text.to_owned());
        let Some((kind, rest)) = text.split_once(':') else {
            let (service, method) = text.split_once('.').ok_or_else(form)?;
            return Ok(Self::method(service, method));
        };
        match kind {
            "service" => rest.parse(),
            "tool" => Ok(Self::Tool(rest.to_owned())),
            "skill" => Ok(Self::Skill(rest.to_owned())),
            "model" => Ok(Self::Model(rest.to_owned())),
            "egress" => {
                let (host, port) = match rest.rsplit_once(':') {
                    Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                        (host, Some(port.parse().map_err(|_| form())?))
                    }
                    _ => (rest, None),
                };
                let destination = Destination::parse(host).map_err(|source| QuestionError::Host {
                    text: text.to_owned(),
                    source,
                })?;
                Ok(Self::Egress { destination, port })
            }
            _ => Err(form()),
        }
    }
}
