//! Named schemas of a service, and schemas put together from them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};
use spelling::nearest;

use super::table::Mistakes;
use crate::definition::source::{Source, below, whole};
use crate::schema::{DEFINITIONS, Schema, compile, flaws};

/// The schemas of a service that have a name: `[schemas.NAME]`, or `schemas/NAME.json`.
pub(super) struct Schemas<'m> {
    named: BTreeMap<String, Value>,
    mistakes: &'m Mistakes,
}

impl<'m> Schemas<'m> {
    /// Reads all of them.
    pub(super) fn read(source: &Source, folder: &Path, mistakes: &'m Mistakes) -> Self {
        let mut schemas = Self {
            named: BTreeMap::new(),
            mistakes,
        };
        if let Some(Value::Object(map)) = source.value.get("schemas") {
            for (name, schema) in map {
                schemas.take(source, name, schema, &below("/schemas", name));
            }
        }
        for file in files(&folder.join("schemas")) {
            let Some(name) = file
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_suffix(".json"))
            else {
                mistakes.add(whole(
                    &file,
                    "this is no schema's file",
                    "call it NAME.json, or take it away",
                ));
                continue;
            };
            match Source::read(&file) {
                Ok(source) => schemas.take(&source, name, &source.value, ""),
                Err(wrong) => mistakes.extend(wrong),
            }
        }
        schemas
    }

    fn take(&mut self, source: &Source, name: &str, schema: &Value, pointer: &str) {
        if !name.starts_with(|letter: char| letter.is_ascii_uppercase())
            || !name
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        {
            let remedy = "begin it with a capital letter, then letters, digits and _, such as Contact";
            self.mistakes
                .add(source.mistake(pointer, format!("{name:?} can be no schema's name"), remedy));
        }
        self.check(source, schema, pointer);
        if self.named.insert(name.to_owned(), schema.clone()).is_some() {
            self.mistakes.add(source.mistake(
                pointer,
                format!("the schema {name} is there twice"),
                "keep one of the two",
            ));
        }
    }

    fn check(&self, source: &Source, schema: &Value, pointer: &str) -> bool {
        let flaws = flaws(schema);
        for flaw in &flaws {
            let at = format!("{pointer}{}", flaw.pointer);
            self.mistakes
                .add(source.mistake(&at, flaw.problem.clone(), flaw.remedy.clone()));
        }
        flaws.is_empty()
    }

    /// The schema that a method names or holds; `Contact[]` is a list of what `Contact` names.
    pub(super) fn schema(&self, source: &Source, pointer: &str) -> Option<Schema> {
        let value = match source.value.pointer(pointer)? {
            Value::String(name) => match name.strip_suffix("[]") {
                Some(name) => json!({ "type": "array", "items": { "$ref": format!("{DEFINITIONS}{name}") } }),
                None => json!({ "$ref": format!("{DEFINITIONS}{name}") }),
            },
            value @ Value::Object(_) if self.check(source, value, pointer) => value.clone(),
            Value::Object(_) => return None,
            _ => {
                let remedy = "write the name of a schema, such as \"Contact\", or the schema itself";
                self.mistakes.add(source.mistake(pointer, "this is no schema", remedy));
                return None;
            }
        };
        self.whole(source, pointer, value)
    }

    /// The arguments' schema of a method: an object that takes nothing but what is named, unless it says otherwise.
    pub(super) fn arguments(&self, source: &Source, pointer: &str) -> Option<Schema> {
        if source.value.pointer(pointer).is_none() {
            return Some(Schema::new(
                json!({ "type": "object", "additionalProperties": false, "properties": {} }),
            ));
        }
        let schema = self.schema(source, pointer)?;
        let Value::Object(mut map) = schema.followed(schema.value()).clone() else {
            self.mistakes
                .add(source.mistake(pointer, "arguments are no object", "write a schema with properties"));
            return None;
        };
        if let Some(named) = schema.value().get("$defs") {
            map.insert("$defs".into(), named.clone());
        }
        match map.get("type") {
            None => {
                map.insert("type".into(), json!("object"));
            }
            Some(kind) if *kind == json!("object") => {}
            Some(kind) => {
                self.mistakes.add(source.mistake(
                    pointer,
                    format!("arguments are of type {kind}"),
                    "write type = \"object\", or leave it out",
                ));
            }
        }
        map.entry("properties").or_insert_with(|| json!({}));
        map.entry("additionalProperties").or_insert_with(|| json!(false));
        Some(Schema::new(Value::Object(map)))
    }

    /// A schema with everything that it refers to.
    fn whole(&self, source: &Source, pointer: &str, value: Value) -> Option<Schema> {
        let mut needed = BTreeSet::new();
        let mut good = true;
        let mut open = references(&value);
        while let Some(name) = open.pop() {
            if needed.contains(&name) {
                continue;
            }
            match self.named.get(&name) {
                Some(schema) => open.extend(references(schema)),
                None => {
                    let remedy = match nearest(&name, self.named.keys().map(String::as_str)) {
                        Some(known) => format!("did you mean {known}?"),
                        None => format!("write it as [schemas.{name}] or in schemas/{name}.json"),
                    };
                    self.mistakes
                        .add(source.mistake(pointer, format!("there is no schema {name:?}"), remedy));
                    good = false;
                }
            }
            needed.insert(name);
        }
        let Value::Object(mut map) = value else { return None };
        if !good {
            return None;
        }
        if !needed.is_empty() {
            let named = needed
                .into_iter()
                .filter_map(|name| Some((name.clone(), self.named.get(&name)?.clone())));
            map.insert("$defs".into(), Value::Object(named.collect::<Map<_, _>>()));
        }
        let value = Value::Object(map);
        if let Err(flaw) = compile(&value) {
            self.mistakes.add(source.mistake(pointer, flaw.problem, flaw.remedy));
            return None;
        }
        Some(Schema::new(value))
    }
}

/// Every name that a schema refers to.
fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| match value {
                Value::String(text) if key == "$ref" => {
                    text.strip_prefix(DEFINITIONS).map(str::to_owned).into_iter().collect()
                }
                value => references(value),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

/// The files of a folder, in order; none where there is no folder.
pub(super) fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}
