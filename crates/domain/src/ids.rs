//! Every identity is its own type, so that one cannot be taken for another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text that should name something and is not an id.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not the id of {kind}: an id looks like 0192f0c1-2d3e-7abc-8def-0123456789ab")]
pub struct ParseIdError {
    kind: &'static str,
    text: String,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(value_type = String, format = "uuid"))]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new one, larger than every one made before in this process (UUID version 7).
            #[must_use]
            #[allow(clippy::new_without_default, reason = "a default identity would be a lie")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// Its 128 bits.
            #[must_use]
            pub const fn bits(self) -> u128 {
                self.0.as_u128()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(formatter)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                Uuid::try_parse(text)
                    .map(Self)
                    .map_err(|_| ParseIdError { kind: $kind, text: text.chars().take(80).collect() })
            }
        }
    };
}

id!(
    /// A conversation with its workspace, scope, budget and at most one sandbox.
    SessionId, "a session"
);
id!(
    /// The agent working on a session until it stops.
    RunId, "a run"
);
id!(
    /// One call of a model within a run.
    TurnId, "a turn"
);
id!(
    /// An entry of a session's history.
    MessageId, "a message"
);
id!(
    /// One isolated machine of a session.
    SandboxId, "a sandbox"
);
id!(
    /// The saved files of one session.
    SnapshotId, "a snapshot"
);
id!(
    /// One dated build of an image.
    GenerationId, "a generation"
);
id!(
    /// One store, and the control planes that share it.
    InstallationId, "an installation"
);
id!(
    /// A process of the control plane, from its start to its end.
    ProcessId, "process"
);
id!(
    /// A person, or a program that acts as one.
    UserId, "a user"
);
id!(
    /// The public half of a token: names it, opens nothing.
    TokenId, "a token"
);
id!(
    /// A question to a person, and what came of it.
    ApprovalId, "an approval"
);

/// The name that a model gave to one of its tool calls; unique within a session.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(value_type = String))]
#[serde(transparent)]
pub struct ToolCallId(pub String);

impl fmt::Display for ToolCallId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_text_and_json() {
        let id = SessionId::new();
        assert_eq!(id.to_string().parse::<SessionId>().unwrap(), id);
        assert_eq!(
            serde_json::from_str::<SessionId>(&serde_json::to_string(&id).unwrap()).unwrap(),
            id
        );
    }

    #[test]
    fn what_is_no_id_is_refused_in_words() {
        let error = "../../etc/passwd".parse::<SandboxId>().unwrap_err();
        assert!(error.to_string().contains("is not the id of a sandbox"), "{error}");
    }

    #[test]
    fn later_ids_sort_later() {
        let first = RunId::new();
        assert!(first < RunId::new());
    }
}
