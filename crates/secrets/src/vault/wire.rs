//! What the vault's HTTP API says, as far as it is needed.

use std::collections::BTreeMap;
use std::fmt;

use secret::Secret;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// Seconds that a time is cut to: ten years.
const LONGEST: u64 = 315_360_000;

/// `GET sys/internal/ui/mounts/<path>`
#[derive(Deserialize)]
pub(super) struct Mounted {
    pub(super) data: Mount,
}

#[derive(Clone, Deserialize)]
pub(super) struct Mount {
    /// Where it is mounted, with a slash at its end.
    pub(super) path: String,
    #[serde(rename = "type")]
    pub(super) engine: String,
    #[serde(default)]
    options: Option<BTreeMap<String, String>>,
}

impl Mount {
    /// Whether it is a KV engine of version 2, whose secrets lie below `data/`.
    pub(super) fn is_versioned(&self) -> bool {
        let version = self.options.as_ref().and_then(|options| options.get("version"));
        self.engine == "kv" && version.is_some_and(|version| version == "2")
    }
}

/// An answer to a read of anything but KV version 2.
#[derive(Deserialize)]
pub(super) struct Plain {
    pub(super) data: BTreeMap<String, Field>,
    #[serde(default)]
    pub(super) lease_id: String,
    #[serde(default)]
    pub(super) lease_duration: Seconds,
    #[serde(default)]
    pub(super) renewable: bool,
}

/// An answer to a read of KV version 2.
#[derive(Deserialize)]
pub(super) struct Versioned {
    pub(super) data: Version,
}

#[derive(Deserialize)]
pub(super) struct Version {
    /// Nothing where the newest version was deleted.
    pub(super) data: Option<BTreeMap<String, Field>>,
}

/// `sys/leases/renew`
#[derive(Deserialize)]
pub(super) struct Renewed {
    #[serde(default)]
    pub(super) lease_duration: Seconds,
    #[serde(default)]
    pub(super) renewable: bool,
}

/// A login, or the renewal of a token.
#[derive(Deserialize)]
pub(super) struct LoggedIn {
    pub(super) auth: Auth,
}

#[derive(Deserialize)]
pub(super) struct Auth {
    pub(super) client_token: Secret,
    #[serde(default)]
    pub(super) lease_duration: Seconds,
    #[serde(default)]
    pub(super) renewable: bool,
}

/// `auth/token/lookup-self`
#[derive(Deserialize)]
pub(super) struct LookedUp {
    pub(super) data: TokenFacts,
}

#[derive(Deserialize)]
pub(super) struct TokenFacts {
    #[serde(default)]
    pub(super) ttl: Seconds,
    #[serde(default)]
    pub(super) renewable: bool,
}

/// Anything, where only the status counts.
#[derive(Deserialize)]
pub(super) struct Ignored {}

/// What an error says.
#[derive(Default, Deserialize)]
pub(super) struct Errors {
    #[serde(default)]
    pub(super) errors: Vec<String>,
}

/// A time in seconds; none where it is 0.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Seconds(u64);

impl Seconds {
    pub(super) fn duration(self) -> Option<std::time::Duration> {
        (self.0 > 0).then(|| std::time::Duration::from_secs(self.0.min(LONGEST)))
    }
}

/// A field's value where it is one text or number. Others cannot be a key.
pub(super) struct Field(pub(super) Option<Secret>);

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor)
    }
}

struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Field;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value of JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<Field, E> {
        Ok(Field(Some(Secret::new(text))))
    }

    fn visit_string<E>(self, text: String) -> Result<Field, E> {
        Ok(Field(Some(Secret::new(text))))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Field, E> {
        Ok(Field(Some(Secret::new(number.to_string()))))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Field, E> {
        Ok(Field(Some(Secret::new(number.to_string()))))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Field, E> {
        Ok(Field(Some(Secret::new(number.to_string()))))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Field, E> {
        Ok(Field(None))
    }

    fn visit_unit<E>(self) -> Result<Field, E> {
        Ok(Field(None))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Field, A::Error> {
        while items.next_element::<de::IgnoredAny>()?.is_some() {}
        Ok(Field(None))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut entries: A) -> Result<Field, A::Error> {
        while entries.next_entry::<de::IgnoredAny, de::IgnoredAny>()?.is_some() {}
        Ok(Field(None))
    }
}
