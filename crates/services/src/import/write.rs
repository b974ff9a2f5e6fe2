//! The definition as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::operation::Made;
use super::security::Way;
use crate::definition::Nesting;
use crate::schema::DEFINITIONS;

/// The longest line of words.
const LINE: usize = 200;

/// What is written.
pub(super) struct Parts<'p> {
    pub(super) name: &'p str,
    pub(super) summary: &'p str,
    pub(super) base_url: &'p str,
    pub(super) lists: Nesting,
    pub(super) auth: &'p [Way],
    pub(super) methods: &'p [Made],
    pub(super) schemas: &'p BTreeMap<String, Value>,
}

/// Every file of the service.
pub(super) fn files(parts: &Parts<'_>) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut toml = String::new();
    let _ = writeln!(
        toml,
        "name = {}\nsummary = {}\nkind = \"http\"\nbase_url = {}",
        quoted(parts.name),
        quoted(parts.summary),
        quoted(parts.base_url)
    );
    if parts.lists == Nesting::Comma {
        toml.push_str("lists = \"comma\"\n");
    }
    for way in parts.auth {
        auth(&mut toml, way);
    }
    toml.push_str("\n[failure]\ncode = [\"/code\", \"/error/code\", \"/error/type\"]\nmessage = [\"/message\", \"/error/message\", \"/error_description\", \"/detail\", \"/title\"]\n");
    for one in parts.methods {
        method(&mut toml, one, &mut files);
    }
    files.push((PathBuf::from("service.toml"), toml));
    for (name, schema) in parts.schemas {
        files.push((PathBuf::from(format!("schemas/{name}.json")), pretty(schema)));
    }
    files
}

fn auth(toml: &mut String, way: &Way) {
    toml.push_str("\n[[auth]]\n");
    for (key, value) in keys(way).as_object().into_iter().flatten() {
        let _ = writeln!(toml, "{key} = {}", inline(value));
    }
}

/// The keys of a way.
fn keys(way: &Way) -> Value {
    match way {
        Way::Bearer => json!({ "kind": "bearer" }),
        Way::Basic => json!({ "kind": "basic" }),
        Way::Header(name) => json!({ "kind": "header", "name": name }),
        Way::Query(name) => json!({ "kind": "query", "name": name }),
        Way::ClientCredentials { token_url, scopes } => {
            json!({ "kind": "client_credentials", "token_url": token_url, "scopes": scopes })
        }
        Way::All(parts) => {
            let parts = parts.iter().map(|(way, slot)| {
                let mut part = keys(way);
                if let Some(slot) = slot {
                    part["slot"] = slot.as_str().into();
                }
                part
            });
            json!({ "kind": "all", "parts": parts.collect::<Vec<_>>() })
        }
    }
}

fn method(toml: &mut String, one: &Made, files: &mut Vec<(PathBuf, String)>) {
    let mut line = |text: String| {
        toml.push_str(&text);
        toml.push('\n');
    };
    line(format!("\n[methods.{}]", one.name));
    line(format!("summary = {}", quoted(&one.summary)));
    line(format!("access = \"{}\"", if one.is_write { "write" } else { "read" }));
    if one.is_idempotent && one.is_write {
        line("idempotent = true".into());
    }
    line(format!("request = {}", quoted(&one.request)));
    if !one.query.is_empty() {
        line(format!("query = {}", places(&one.query)));
    }
    if !one.headers.is_empty() {
        line(format!("headers = {}", table(&one.headers)));
    }
    if let Some((key, template)) = &one.body {
        line(format!("{key} = {}", quoted(template)));
    }
    if one.answer != "json" {
        line(format!("answer = \"{}\"", one.answer));
    }
    if let Some(result) = &one.result {
        line(format!(
            "result = {}",
            schema(result, &format!("{}Result", upper_name(&one.name)), files)
        ));
    }
    if let Some(pages) = &one.pages {
        line(format!("pages = {pages}"));
    }
    let properties = one.arguments["properties"].as_object();
    if properties.is_none_or(serde_json::Map::is_empty) {
        return;
    }
    if has_null(&one.arguments) {
        let name = format!("{}Arguments", upper_name(&one.name));
        line(format!("arguments = {}", schema(&one.arguments, &name, files)));
        return;
    }
    line(format!("\n[methods.{}.arguments]", one.name));
    if let Some(required) = one.arguments.get("required") {
        line(format!("required = {}", inline(required)));
    }
    for (name, property) in properties.into_iter().flatten() {
        line(format!("properties.{} = {}", key(name), inline(property)));
    }
}

/// A schema as it is written in TOML, which has no null: then it gets a file of its own.
fn schema(schema: &Value, name: &str, files: &mut Vec<(PathBuf, String)>) -> String {
    let reference = |schema: &Value| {
        schema["$ref"]
            .as_str()
            .and_then(|text| text.strip_prefix(DEFINITIONS))
            .map(str::to_owned)
    };
    if let Some(named) = reference(schema) {
        return quoted(&named);
    }
    if schema["type"] == "array"
        && schema
            .as_object()
            .is_some_and(|map| map.keys().all(|key| key == "type" || key == "items"))
        && let Some(named) = reference(&schema["items"])
    {
        return quoted(&format!("{named}[]"));
    }
    if has_null(schema) || !schema.is_object() || schema.to_string().len() > 400 {
        let object = if schema.is_object() { schema.clone() } else { json!({}) };
        files.push((PathBuf::from(format!("schemas/{name}.json")), pretty(&object)));
        return quoted(name);
    }
    inline(schema)
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(map) => map.values().any(has_null),
        _ => false,
    }
}

fn places(pairs: &[(String, String)]) -> String {
    if pairs.iter().all(|(name, argument)| name == argument) {
        return inline(&json!(pairs.iter().map(|(name, _)| name).collect::<Vec<_>>()));
    }
    table(pairs)
}

fn table(pairs: &[(String, String)]) -> String {
    let pairs = pairs
        .iter()
        .map(|(name, argument)| format!("{} = {}", key(name), quoted(&format!("{{{argument}}}"))));
    format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
}

/// A value in TOML, in one line.
pub(super) fn inline(value: &Value) -> String {
    match value {
        Value::Object(map) if map.is_empty() => "{}".into(),
        Value::Object(map) => {
            let fields: Vec<String> = map
                .iter()
                .map(|(name, value)| format!("{} = {}", key(name), inline(value)))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::String(text) => quoted(text),
        Value::Number(number) if number.is_u64() && number.as_i64().is_none() => i64::MAX.to_string(),
        Value::Number(number) if number.is_f64() => {
            let text = number.to_string();
            if text.contains(['.', 'e']) {
                text
            } else {
                format!("{text}.0")
            }
        }
        plain => plain.to_string(),
    }
}

fn key(name: &str) -> String {
    let plain = !name.is_empty()
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-');
    if plain { name.to_owned() } else { quoted(name) }
}

pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(
        text.chars()
            .map(|letter| {
                if letter.is_control() && letter != '\n' {
                    ' '
                } else {
                    letter
                }
            })
            .collect(),
    )
    .to_string()
}

pub(super) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// The first sentence of a text.
pub(super) fn sentence(text: &str) -> &str {
    let text = text.trim();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.split_once(". ").map_or(first, |(sentence, _)| sentence)
}

/// A text in one line, not too long.
pub(super) fn line(text: impl AsRef<str>) -> String {
    let words: Vec<&str> = text.as_ref().split_whitespace().collect();
    let text: String = words.join(" ").chars().filter(|letter| !letter.is_control()).collect();
    match text.char_indices().nth(LINE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = vec![String::new()];
    let mut before = ' ';
    for letter in text.chars() {
        if !letter.is_ascii_alphanumeric() {
            words.push(String::new());
        } else {
            if letter.is_ascii_uppercase() && before.is_ascii_lowercase() {
                words.push(String::new());
            }
            if let Some(word) = words.last_mut() {
                word.push(letter);
            }
        }
        before = letter;
    }
    words.retain(|word| !word.is_empty());
    words
}

fn joined(text: &str) -> String {
    let parts = words(text);
    let parts = parts.iter().map(|word| {
        let mut letters = word.chars();
        letters
            .next()
            .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
    });
    parts.collect::<String>().chars().take(56).collect()
}

/// `listPets` of `list_pets` or `List pets`.
pub(super) fn lower_name(text: &str) -> String {
    let joined = joined(text);
    let first = words(text).first().map_or(0, |word| {
        if word.chars().all(|letter| letter.is_ascii_uppercase()) {
            word.len()
        } else {
            1
        }
    });
    let (head, tail) = joined.split_at(first.min(joined.len()));
    let name = format!("{}{tail}", head.to_lowercase());
    if name.starts_with(|letter: char| letter.is_ascii_digit()) {
        format!("n{name}")
    } else {
        name
    }
}

/// `PetList` of `pet-list`.
pub(super) fn upper_name(text: &str) -> String {
    let name = joined(text);
    if name.starts_with(|letter: char| letter.is_ascii_uppercase()) {
        name
    } else {
        format!("Schema{name}")
    }
}

/// Whether a name can be an argument's as it is.
pub(super) fn is_argument(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "_-$@".contains(letter))
}

/// What a parameter's argument is called.
pub(super) fn argument(name: &str) -> String {
    if is_argument(name) {
        name.to_owned()
    } else {
        lower_name(name)
    }
}
