//! What is told of a call's arguments: to the audit their names and sizes, and the values that a definition wants there; to the
//! person who approves the call everything but what is secret.
//!
//! A property that says `"x-audit": true` is written with its value, where that is a short text, a number, true, false or null.
//! One that says `"x-redact": true`, that is `writeOnly`, or whose `format` is `password` or `secret`, never is, whatever else it says.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::Schema;

/// Arguments that are told of; of more, only how many they are.
const MOST: usize = 32;
/// Parts of a schema that are looked at for one value.
const ALTERNATIVES: usize = 256;
/// Characters of a value, and of a name that the definition does not have.
const LONGEST: usize = 100;

impl Schema {
    /// What of these arguments, an object, may stand in an audit log.
    #[must_use]
    pub fn audited(&self, arguments: &Value) -> Value {
        let Value::Object(arguments) = arguments else {
            return Value::Null;
        };
        let mut told = Map::new();
        for (name, value) in arguments.iter().take(MOST) {
            let property = self
                .value()
                .get("properties")
                .and_then(|properties| properties.get(name));
            let mut name = match property {
                Some(_) => name.clone(),
                None => cut(name),
            };
            // What was cut may look like another, and is told of all the same.
            while told.contains_key(&name) {
                name.push('…');
            }
            told.insert(name, self.told_of(property, value));
        }
        if arguments.len() > MOST {
            told.insert("…".to_owned(), json!({ "more": arguments.len() - MOST }));
        }
        told.into()
    }

    /// These arguments as a person is shown them, and as they are kept while that person is asked: what is secret, however deep
    /// it lies, is its size and its SHA-256, so that the whole stands for these very arguments.
    #[must_use]
    pub fn shown(&self, arguments: &Value) -> Value {
        self.shown_of(&[self.value()], arguments)
    }

    fn shown_of(&self, schemas: &[&Value], value: &Value) -> Value {
        let schemas: Vec<&Value> = schemas.iter().flat_map(|schema| self.alternatives(schema)).collect();
        if is_secret(&schemas) {
            let text = value.to_string();
            return json!({
                "redacted": true, "bytes": text.len(), "sha256": hex::encode(Sha256::digest(&text)),
            });
        }
        match value {
            Value::Object(members) => {
                let of = |name: &str| {
                    let named = schemas.iter().filter_map(|schema| schema.get("properties")?.get(name));
                    let others = schemas.iter().filter_map(|schema| schema.get("additionalProperties"));
                    let patterns = schemas
                        .iter()
                        .filter_map(|schema| schema.get("patternProperties")?.as_object());
                    named
                        .chain(others)
                        .chain(patterns.flat_map(Map::values))
                        .collect::<Vec<_>>()
                };
                let shown = |(name, value): (&String, &Value)| (name.clone(), self.shown_of(&of(name), value));
                Value::Object(members.iter().map(shown).collect())
            }
            Value::Array(items) => {
                let all = schemas.iter().filter_map(|schema| schema.get("items"));
                let first = schemas
                    .iter()
                    .filter_map(|schema| schema.get("prefixItems")?.as_array())
                    .flatten();
                let of: Vec<&Value> = all.chain(first).collect();
                items.iter().map(|item| self.shown_of(&of, item)).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        }
    }

    /// A part of this schema, and all that may be said of the same value elsewhere. Where that is more than can be looked at, the
    /// value counts as secret.
    fn alternatives<'s>(&'s self, part: &'s Value) -> Vec<&'s Value> {
        static SECRET: LazyLock<Value> = LazyLock::new(|| json!({ "x-redact": true }));
        let mut found = vec![part];
        let mut next = 0;
        while let Some(part) = found.get(next).copied() {
            if found.len() > ALTERNATIVES {
                found.push(&SECRET);
                break;
            }
            next += 1;
            let followed = self.followed(part);
            if !std::ptr::eq(followed, part) {
                found.push(followed);
            }
            for word in ["allOf", "anyOf", "oneOf"] {
                found.extend(part.get(word).and_then(Value::as_array).into_iter().flatten());
            }
            found.extend(["then", "else"].iter().filter_map(|word| part.get(word)));
        }
        found
    }

    fn told_of(&self, property: Option<&Value>, value: &Value) -> Value {
        let written: Vec<&Value> = property.map(|property| self.alternatives(property)).unwrap_or_default();
        let says = |word: &str| written.iter().any(|schema| schema[word] == true);
        if is_secret(&written) {
            return json!({ "redacted": true });
        }
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) if says("x-audit") => json!({ "value": value }),
            Value::String(text) if says("x-audit") => json!({ "value": cut(text) }),
            other => json!({ "bytes": other.to_string().len() }),
        }
    }
}

/// Whether any of these says that a value is secret.
fn is_secret(schemas: &[&Value]) -> bool {
    schemas.iter().any(|schema| {
        let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
        schema["x-redact"] == true || schema["writeOnly"] == true || ["password", "secret"].contains(&format)
    })
}

/// A text as an untrusted party wrote it, made fit to be shown.
fn cut(text: &str) -> String {
    let mut letters = text.chars();
    let mut shown: String = letters
        .by_ref()
        .take(LONGEST)
        .map(|letter| if letter.is_control() { '\u{fffd}' } else { letter })
        .collect();
    if letters.next().is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        Schema::new(json!({
            "type": "object",
            "properties": {
                "id": { "type": "string", "x-audit": true },
                "limit": { "$ref": "#/$defs/limit" },
                "all": { "type": "boolean", "x-audit": true },
                "text": { "type": "string" },
                "list": { "type": "array", "x-audit": true },
                "pin": { "type": "string", "x-audit": true, "x-redact": true },
                "password": { "type": "string", "x-audit": true, "format": "password" },
                "key": { "$ref": "#/$defs/key", "x-audit": true },
                "once": { "type": "string", "x-audit": true, "writeOnly": true },
            },
            "$defs": {
                "limit": { "type": "integer", "x-audit": true },
                "key": { "type": "string", "format": "secret" },
            },
        }))
    }

    #[test]
    fn values_are_told_only_where_the_definition_says_so() {
        let told = schema().audited(&json!({
            "id": "12", "limit": 5, "all": false, "text": "my salary", "list": ["a"],
        }));
        assert_eq!(
            told,
            json!({
                "id": { "value": "12" },
                "limit": { "value": 5 },
                "all": { "value": false },
                "text": { "bytes": 11 },
                "list": { "bytes": 5 },
            })
        );
        assert_eq!(schema().audited(&Value::Null), Value::Null);
    }

    #[test]
    fn what_is_secret_is_never_told_not_even_its_length() {
        let arguments = json!({ "pin": "1234", "password": "hunter2", "key": "sk-canary", "once": "x" });
        let told = schema().audited(&arguments);
        for name in ["pin", "password", "key", "once"] {
            assert_eq!(told[name], json!({ "redacted": true }), "{name}");
        }
    }

    #[test]
    fn a_person_is_shown_everything_but_what_is_secret_however_deep_it_lies() {
        let schema = Schema::new(json!({
            "type": "object",
            "properties": {
                "name": { "type": "string" },
                "pin": { "type": "string", "x-redact": true },
                "people": { "type": "array", "items": { "$ref": "#/$defs/person" } },
                "either": { "anyOf": [{ "type": "null" }, { "type": "string", "format": "password" }] },
            },
            "additionalProperties": { "properties": { "key": { "writeOnly": true } } },
            "$defs": { "person": { "properties": { "key": { "type": "string", "format": "secret" } } } },
        }));
        let arguments = json!({
            "name": "ada", "pin": "canary-1", "people": [{ "name": "eve", "key": "canary-2" }], "either": "canary-3",
            "other": { "key": "canary-4", "open": 1 },
        });
        let shown = schema.shown(&arguments);
        assert!(!shown.to_string().contains("canary"), "{shown}");
        assert_eq!(shown["name"], "ada");
        assert_eq!(
            (&shown["people"][0]["name"], &shown["other"]["open"]),
            (&json!("eve"), &json!(1))
        );
        assert_eq!(
            (&shown["pin"]["redacted"], &shown["pin"]["bytes"]),
            (&json!(true), &json!(10))
        );
        // Other arguments are shown otherwise, the same ones the same.
        let mut others = arguments.clone();
        others["people"][0]["key"] = json!("canary-5");
        assert_ne!(schema.shown(&others), shown);
        assert_eq!(schema.shown(&arguments), shown);
    }

    #[test]
    fn what_is_long_is_cut_and_what_is_many_is_counted() {
        let long = "é".repeat(1_000);
        let told = schema().audited(&json!({ "id": long, "a\nname": 1 }));
        assert_eq!(
            told["id"]["value"].as_str().map(|value| value.chars().count()),
            Some(LONGEST + 1)
        );
        assert_eq!(told["a\u{fffd}name"], json!({ "bytes": 1 }));
        let many: Map<String, Value> = (0..1_000)
            .map(|number| (number.to_string().repeat(99), 1.into()))
            .collect();
        let told = schema().audited(&many.into());
        assert_eq!(told.as_object().map(Map::len), Some(MOST + 1));
        assert_eq!(told["…"], json!({ "more": 1_000 - MOST }));
        assert!(told.to_string().len() < 8_192, "{}", told.to_string().len());
    }
}
