//! A part of a JSON text, found without reading the rest into memory.

use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// The deepest nesting of an answer: deeper ones break their readers.
const DEEPEST: usize = 100;

/// Why a text is no JSON that is passed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Malformed {
    /// It is no JSON.
    #[error("it is no JSON")]
    Syntax(#[source] serde_json::Error),
    /// It is no text.
    #[error("it is no UTF-8 text")]
    NotText(#[source] std::str::Utf8Error),
    /// It is nested too deeply.
    #[error("it is nested more than {DEEPEST} deep")]
    Deep,
}

/// A whole JSON text that was checked.
#[derive(Clone, Copy)]
pub(crate) struct Json<'a>(&'a str);

impl<'a> Json<'a> {
    /// Checks a text, whole. An empty one is null.
    pub(crate) fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(bytes).map_err(Malformed::NotText)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.trim_ascii().is_empty() {
            return Ok(Self("null"));
        }
        if depth(text) > DEEPEST {
            return Err(Malformed::Deep);
        }
        let raw: &RawValue = serde_json::from_str(text).map_err(Malformed::Syntax)?;
        Ok(Self(raw.get()))
    }

    /// The text.
    pub(crate) fn text(self) -> &'a str {
        self.0
    }

    /// The same text as a part of the bytes that it stands in. Nothing is copied.
    pub(crate) fn of(self, whole: &Bytes) -> Bytes {
        let begins = whole.as_ptr() as usize;
        let at = (self.0.as_ptr() as usize).wrapping_sub(begins);
        match whole.get(at..at.saturating_add(self.0.len())) {
            Some(part) if part.as_ptr() == self.0.as_ptr() => whole.slice(at..at + self.0.len()),
            // The null of an empty text stands elsewhere.
            _ => Bytes::copy_from_slice(self.0.as_bytes()),
        }
    }

    /// The part at a JSON pointer (RFC 6901); of names that come twice in an object, the last.
    pub(crate) fn at(self, pointer: &str) -> Option<Self> {
        let names: Vec<String> = match pointer.strip_prefix('/') {
            None => Vec::new(),
            Some(names) => names
                .split('/')
                .map(|name| name.replace("~1", "/").replace("~0", "~"))
                .collect(),
        };
        let mut reader = serde_json::Deserializer::from_str(self.0);
        Step(&names).deserialize(&mut reader).ok().flatten().map(Self)
    }

    /// The elements of a list.
    pub(crate) fn list(self) -> Option<Vec<Self>> {
        let list: Vec<&RawValue> = serde_json::from_str(self.0).ok()?;
        Some(list.into_iter().map(|element| Self(element.get())).collect())
    }

    /// The part at a pointer, read.
    pub(crate) fn value_at(self, pointer: &str) -> Option<Value> {
        serde_json::from_str(self.at(pointer)?.0).ok()
    }
}

/// How deep the brackets of a text go.
fn depth(text: &str) -> usize {
    let (mut deepest, mut now, mut quoted, mut escaped) = (0, 0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' | b'[' => {
                now += 1;
                deepest = deepest.max(now);
            }
            b'}' | b']' => now = now.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The names that are still ahead.
struct Step<'p>(&'p [String]);

impl<'de> DeserializeSeed<'de> for Step<'_> {
    type Value = Option<&'de str>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            return <&RawValue>::deserialize(reader).map(|found| Some(found.get()));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<&'de str>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if name == self.0[0] {
                found = map.next_value_seed(Step(&self.0[1..]))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
        let wanted: Option<usize> = self.0[0].parse().ok();
        let (mut found, mut place) = (None, 0);
        loop {
            let more = if Some(place) == wanted {
                let element = list.next_element_seed(Step(&self.0[1..]))?;
                let more = element.is_some();
                found = element.flatten();
                more
            } else {
                list.next_element::<IgnoredAny>()?.is_some()
            };
            if !more {
                return Ok(found);
            }
            place += 1;
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<'a>(text: &'a str, pointer: &str) -> Option<&'a str> {
        Json::check(text.as_bytes()).unwrap().at(pointer).map(Json::text)
    }

    #[test]
    fn a_part_is_found_as_it_was_written() {
        let text = r#" {"a": {"b/c": [1, {"d": 1.50}]}, "e": null, "a~": "x", "\u0066": 7} "#;
        for (pointer, expected) in [
            ("", Some(text.trim())),
            ("/a/b~1c/1/d", Some("1.50")),
            ("/a/b~1c/0", Some("1")),
            ("/a/b~1c/2", None),
            ("/a/b~1c/x", None),
            ("/e", Some("null")),
            ("/e/x", None),
            ("/a~0", Some("\"x\"")),
            ("/f", Some("7")),
            ("/missing", None),
        ] {
            assert_eq!(at(text, pointer), expected, "{pointer}");
        }
        assert_eq!(at(r#"{"a":1,"a":2}"#, "/a"), Some("2"));
        assert_eq!(at("", ""), Some("null"));
    }

    #[test]
    fn what_is_no_json_is_said() {
        for bad in ["{", "nul", "{\"a\":1} x", "<html>", "[1,]"] {
            assert!(
                matches!(Json::check(bad.as_bytes()), Err(Malformed::Syntax(_))),
                "{bad}"
            );
        }
        assert!(matches!(Json::check(b"\"\xff\""), Err(Malformed::NotText(_))));
        let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
        assert!(matches!(Json::check(deep.as_bytes()), Err(Malformed::Deep)));
        let quoted = format!("\"{}\"", "[\\\"".repeat(500));
        assert!(Json::check(quoted.as_bytes()).is_ok());
    }
}
