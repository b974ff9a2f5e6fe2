//! Schemas of a description, as JSON Schema 2020-12 that the loader takes.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::document::Document;
use super::{LeftOut, write};
use crate::schema::{DEFINITIONS, compile, flaws};

/// The most named schemas of one service.
const MAX_NAMED: usize = 300;
/// How deep an unnamed schema may be nested.
const MAX_DEPTH: usize = 24;
/// The most parts of one schema.
const MAX_PARTS: usize = 5_000;

/// The schemas that the chosen operations need.
pub(super) struct Schemas<'d> {
    document: &'d Document,
    /// The name of each schema of the description that was met, by its pointer.
    names: BTreeMap<String, String>,
    /// Those that are not converted yet.
    open: Vec<(String, &'d Value)>,
    notes: Vec<LeftOut>,
    /// Of the schema that is being converted.
    parts: usize,
}

impl<'d> Schemas<'d> {
    pub(super) fn new(document: &'d Document) -> Self {
        Self {
            document,
            names: BTreeMap::new(),
            open: Vec::new(),
            notes: Vec::new(),
            parts: 0,
        }
    }

    /// A schema as the loader takes it; `what` is where it stands, for people.
    pub(super) fn take(&mut self, schema: &'d Value, what: &str) -> Value {
        self.parts = 0;
        let taken = self.convert(schema, what, 0);
        self.checked(taken, what)
    }

    /// The reference's place in the definition: a schema with a name.
    fn name(&mut self, reference: &str, what: &str) -> Value {
        if let Some(name) = self.names.get(reference) {
            return json!({ "$ref": format!("{DEFINITIONS}{name}") });
        }
        let found = reference
            .strip_prefix('#')
            .and_then(|pointer| self.document.root.pointer(pointer));
        let Some(found) = found else {
            self.note(
                what,
                format!("the reference {reference} leads out of the description; anything goes there"),
            );
            return json!({});
        };
        if self.names.len() >= MAX_NAMED {
            self.note(
                what,
                format!("there are more than {MAX_NAMED} schemas; anything goes at {reference}"),
            );
            return json!({});
        }
        let last = reference
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .replace("~1", "/")
            .replace("~0", "~");
        let base = write::upper_name(&last);
        let mut name = base.clone();
        let mut number = 2;
        while self.names.values().any(|taken| taken.eq_ignore_ascii_case(&name)) {
            name = format!("{base}{number}");
            number += 1;
        }
        self.names.insert(reference.to_owned(), name.clone());
        self.open.push((name.clone(), found));
        json!({ "$ref": format!("{DEFINITIONS}{name}") })
    }

    fn convert(&mut self, schema: &'d Value, what: &str, depth: usize) -> Value {
        self.parts += 1;
        let map = match schema {
            Value::Bool(flag) => return Value::Bool(*flag),
            Value::Object(map) => map,
            _ => return json!({}),
        };
        if depth > MAX_DEPTH || self.parts > MAX_PARTS {
            self.note(
                what,
                "the schema is too deep or too long; anything goes below".to_owned(),
            );
            return json!({});
        }
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            let named = self.name(reference, what);
            return if map.get("nullable") == Some(&Value::Bool(true)) {
                json!({ "anyOf": [named, { "type": "null" }] })
            } else {
                named
            };
        }
        let (mut made, unusable) = words(map, |below| self.convert(below, what, depth + 1));
        for pattern in unusable {
            self.note(what, format!("the pattern {pattern:?} needs look-around or is none"));
        }
        if self.document.is_old {
            older(&mut made, map);
        }
        Value::Object(made)
    }

    /// A schema that the loader would not take is replaced by one that takes anything.
    fn checked(&mut self, schema: Value, what: &str) -> Value {
        match flaws(&schema).first() {
            None => schema,
            Some(flaw) => {
                self.note(
                    what,
                    format!("its schema is no JSON Schema ({}); anything goes there", flaw.problem),
                );
                json!({})
            }
        }
    }

    fn note(&mut self, what: &str, why: String) {
        self.notes.push(LeftOut {
            what: what.to_owned(),
            why,
        });
    }

    /// Every schema with a name.
    pub(super) fn finish(mut self, left_out: &mut Vec<LeftOut>) -> BTreeMap<String, Value> {
        let mut named = BTreeMap::new();
        while let Some((name, schema)) = self.open.pop() {
            let what = format!("schema {name}");
            let taken = match self.take(schema, &what) {
                Value::Object(map) => Value::Object(map),
                Value::Bool(false) => json!({ "not": {} }),
                _ => json!({}),
            };
            named.insert(name, taken);
        }
        left_out.append(&mut self.notes);
        named
    }
}

/// The words of a schema that the loader takes; `below` converts the schemas in it. Besides, the patterns that cannot be used.
pub(crate) fn words<'v>(
    map: &'v Map<String, Value>,
    mut below: impl FnMut(&'v Value) -> Value,
) -> (Map<String, Value>, Vec<String>) {
    let (mut made, mut unusable) = (Map::new(), Vec::new());
    for (word, value) in map {
        match (word.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                let properties = properties.iter().map(|(name, schema)| (name.clone(), below(schema)));
                made.insert(word.clone(), Value::Object(properties.collect()));
            }
            ("items" | "additionalProperties" | "not" | "propertyNames" | "contains", value)
                if value.is_object() || value.is_boolean() =>
            {
                made.insert(word.clone(), below(value));
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(items)) if !items.is_empty() => {
                let items = items.iter().map(&mut below);
                made.insert(word.clone(), Value::Array(items.collect()));
            }
            ("required", Value::Array(names)) if !names.is_empty() && names.iter().all(Value::is_string) => {
                let mut names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
                names.sort_unstable();
                names.dedup();
                made.insert(word.clone(), json!(names));
            }
            ("enum", Value::Array(values)) if !values.is_empty() => {
                let mut unique: Vec<&Value> = Vec::new();
                values.iter().for_each(|value| {
                    if !unique.contains(&value) {
                        unique.push(value);
                    }
                });
                made.insert(word.clone(), json!(unique));
            }
            ("type", Value::String(kind))
                if ["string", "integer", "number", "boolean", "object", "array", "null"].contains(&kind.as_str()) =>
            {
                made.insert(word.clone(), value.clone());
            }
            ("type", Value::Array(kinds)) if !kinds.is_empty() && kinds.iter().all(Value::is_string) => {
                made.insert(word.clone(), value.clone());
            }
            ("description" | "title", Value::String(text)) => {
                made.insert(word.clone(), Value::String(write::line(write::sentence(text))));
            }
            ("format", Value::String(_))
            | ("const" | "default", _)
            | ("uniqueItems" | "deprecated" | "readOnly" | "writeOnly", Value::Bool(_)) => {
                made.insert(word.clone(), value.clone());
            }
            ("minimum" | "maximum" | "multipleOf", Value::Number(_))
            | ("exclusiveMinimum" | "exclusiveMaximum", Value::Number(_)) => {
                made.insert(word.clone(), value.clone());
            }
            (
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties",
                Value::Number(number),
            ) if number.is_u64() => {
                made.insert(word.clone(), value.clone());
            }
            ("pattern", Value::String(pattern)) => {
                if compile(&json!({ "pattern": pattern })).is_ok() {
                    made.insert(word.clone(), value.clone());
                } else {
                    unusable.push(pattern.clone());
                }
            }
            _ => {}
        }
    }
    (made, unusable)
}

/// What version 3.0 says in other words.
fn older(made: &mut Map<String, Value>, written: &Map<String, Value>) {
    for (flag, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        if written.get(flag) == Some(&Value::Bool(true))
            && let Some(bound) = made.remove(bound)
        {
            made.insert(flag.into(), bound);
        }
    }
    if written.get("nullable") == Some(&Value::Bool(true)) {
        if let Some(Value::String(kind)) = made.get("type") {
            let kinds = json!([kind, "null"]);
            made.insert("type".into(), kinds);
        }
        if let Some(Value::Array(values)) = made.get_mut("enum")
            && !values.contains(&Value::Null)
        {
            values.push(Value::Null);
        }
        for word in ["anyOf", "oneOf"] {
            if let Some(Value::Array(items)) = made.get_mut(word) {
                items.push(json!({ "type": "null" }));
            }
        }
        if let Some(all) = made.remove("allOf") {
            made.insert("anyOf".into(), json!([{ "allOf": all }, { "type": "null" }]));
        }
    }
}
