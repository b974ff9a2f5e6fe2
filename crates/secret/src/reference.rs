//! Where a secret is, which may be seen.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where a secret is: `env:NAME`, `file:/path`, `store:NAME` or `vault:path#field`. Holds no secret, so it may stand in
/// configurations, errors and logs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reference {
    /// A variable of the environment that the control plane was started with.
    Environment(String),
    /// A file that the control plane can read.
    File(PathBuf),
    /// An entry of the control plane's own encrypted store.
    Store(SecretName),
    /// A field of what a HashiCorp Vault or OpenBao keeps at a path.
    Vault {
        /// The path as `vault read` and `vault kv get` take it: the mount, then what is below it.
        path: String,
        /// The field's name.
        field: String,
    },
}

/// The name of a secret in the encrypted store: up to 100 letters, digits, `.`, `_` and `-`, of which the first is a letter or digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SecretName(String);

/// A text names no secret. What was written is not repeated: it may be a secret itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a secret's name has 1 to 100 letters, digits, \".\", \"_\" and \"-\", and begins with a letter or digit")]
pub struct NameError;

/// A text is no reference. What was written is not repeated: it may be the secret itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReferenceError {
    /// It begins with none of the four words.
    #[error("a reference is written env:NAME, file:/path, store:NAME or vault:path#field")]
    Kind,
    /// After `env:` stands no name of a variable.
    #[error("after env: stands the name of a variable: letters, digits and \"_\", no digit first")]
    Variable,
    /// After `file:` stands no whole path.
    #[error("after file: stands a path that begins with /")]
    Path,
    /// After `store:` stands no name.
    #[error("after store: stands the name that the secret was given by `belljar secret set`")]
    Store(#[source] NameError),
    /// After `vault:` stands no path with a field.
    #[error(
        "after vault: stand a path, # and a field, such as vault:secret/crm#token: letters, digits, \".\", \"_\", \"-\" and \"/\" between names"
    )]
    Vault,
}

impl SecretName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SecretName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.len() <= 100 && is_name(text) && text.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError)
        }
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        match text.split_once(':') {
            Some(("env", name)) if is_variable(name) => Ok(Self::Environment(name.to_owned())),
            Some(("env", _)) => Err(ReferenceError::Variable),
            Some(("file", path)) if Path::new(path).is_absolute() && !path.contains(char::is_control) => {
                Ok(Self::File(path.into()))
            }
            Some(("file", _)) => Err(ReferenceError::Path),
            Some(("store", name)) => name.parse().map(Self::Store).map_err(ReferenceError::Store),
            Some(("vault", place)) => match place.split_once('#') {
                Some((path, field)) if path.split('/').all(is_segment) && is_segment(field) => Ok(Self::Vault {
                    path: path.to_owned(),
                    field: field.to_owned(),
                }),
                _ => Err(ReferenceError::Vault),
            },
            _ => Err(ReferenceError::Kind),
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))
}

fn is_variable(text: &str) -> bool {
    is_name(text) && !text.contains(['.', '-']) && !text.starts_with(|first: char| first.is_ascii_digit())
}

/// What may stand between two slashes of a path that becomes part of an address.
fn is_segment(text: &str) -> bool {
    is_name(text) && text != "." && text != ".."
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => write!(formatter, "env:{name}"),
            Self::File(path) => write!(formatter, "file:{}", path.display()),
            Self::Store(name) => write!(formatter, "store:{name}"),
            Self::Vault { path, field } => write!(formatter, "vault:{path}#{field}"),
        }
    }
}

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_and_written_alike() {
        for text in [
            "env:CRM_KEY",
            "file:/run/secrets/crm key",
            "store:crm.key-2",
            "vault:secret/team/crm#api_key",
        ] {
            let reference: Reference = text.parse().expect(text);
            assert_eq!(reference.to_string(), text);
            let json = format!("{text:?}");
            assert_eq!(serde_json::to_string(&reference).expect("JSON"), json);
            assert_eq!(
                serde_json::from_str::<Reference>(&json).expect("a reference"),
                reference
            );
        }
    }

    #[test]
    fn what_is_no_reference_is_refused_and_never_repeated() {
        use ReferenceError::{Kind, Path, Store, Variable, Vault};
        let long = format!("store:{}", "x".repeat(101));
        for (text, expected) in [
            ("sk-ant-123", Kind),
            ("", Kind),
            ("ENV:KEY", Kind),
            ("https://vault#x", Kind),
            ("env:", Variable),
            ("env:sk-ant-123", Variable),
            ("env:1KEY", Variable),
            ("file:key", Path),
            ("file:", Path),
            ("file:/a\nb", Path),
            ("store:", Store(NameError)),
            ("store:a/b", Store(NameError)),
            ("store:-a", Store(NameError)),
            (&long, Store(NameError)),
            ("vault:secret/crm", Vault),
            ("vault:#field", Vault),
            ("vault:secret/crm#", Vault),
            ("vault:/secret/crm#a", Vault),
            ("vault:secret//crm#a", Vault),
            ("vault:secret/../sys#a", Vault),
            ("vault:secret/a?x=1#a", Vault),
            ("vault:secret/%2e%2e#a", Vault),
            ("vault:a#b#c", Vault),
        ] {
            assert_eq!(text.parse::<Reference>(), Err(expected), "{text:?}");
            assert!(!expected.to_string().contains("sk-ant-123"));
        }
    }
}
