//! JSON that two readers cannot read in two ways.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::ForeignError;

/// The most values in one request. Each becomes many times its size while it is read.
const PARTS: usize = 500_000;

/// The fields of an object, in their order. No object within it has a key twice: a provider might read the other one.
pub(super) fn fields(body: &[u8]) -> Result<Vec<(String, &RawValue)>, ForeignError> {
    let malformed = |error: serde_json::Error| ForeignError::Malformed(error.to_string());
    let parts = Cell::new(0);
    let mut whole = serde_json::Deserializer::from_slice(body);
    Walk(&parts).deserialize(&mut whole).map_err(malformed)?;
    whole.end().map_err(malformed)?;
    serde_json::Deserializer::from_slice(body)
        .deserialize_map(Fields)
        .map_err(malformed)
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(fields)
    }
}

/// Goes through every value, counts them, and looks at the keys of objects.
struct Walk<'a>(&'a Cell<usize>);

impl Walk<'_> {
    fn count<E: Error>(&self) -> Result<(), E> {
        self.0.set(self.0.get() + 1);
        if self.0.get() > PARTS {
            return Err(E::custom(format_args!("it has more than {PARTS} parts")));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.count()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.count()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.count()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.count()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.count()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.count()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.count()?;
        while items.next_element_seed(Walk(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.count()?;
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(Walk(self.0))?;
            if let Some(twice) = keys.replace(key) {
                let shown: String = twice.chars().take(40).collect();
                return Err(A::Error::custom(format_args!("an object has {shown:?} twice")));
            }
        }
        Ok(())
    }
}
