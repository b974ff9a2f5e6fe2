//! A JSON Schema as a TypeScript type.

use serde_json::{Map, Value};

use crate::schema::DEFINITIONS;

/// The longest object that stands in one line.
const LINE: usize = 100;
/// The longest comment, in characters.
const COMMENT: usize = 300;

/// Prints types; the names of schemas are in a namespace.
pub(super) struct Printer {
    prefix: String,
}

/// How tightly a type holds together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Bond {
    Union,
    Intersection,
    Single,
}

impl Printer {
    /// `space` is where named types are looked up from; empty where that is where the text stands.
    pub(super) fn new(space: &str) -> Self {
        Self {
            prefix: if space.is_empty() {
                String::new()
            } else {
                format!("{space}.")
            },
        }
    }

    /// The type of a schema; `indent` is that of the line it stands in.
    pub(super) fn print(&self, schema: &Value, indent: usize) -> String {
        self.bound(schema, indent).0
    }

    fn bound(&self, schema: &Value, indent: usize) -> (String, Bond) {
        let Value::Object(map) = schema else {
            return single(if *schema == Value::Bool(false) {
                "never"
            } else {
                "unknown"
            });
        };
        let mut parts = Vec::new();
        if let Some(name) = map
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|text| text.strip_prefix(DEFINITIONS))
        {
            parts.push(single(&format!("{}{name}", self.prefix)));
        }
        if let Some(value) = map.get("const") {
            parts.push(literal(value));
        } else if let Some(Value::Array(values)) = map.get("enum") {
            parts.push(joined(values.iter().map(literal).collect(), Bond::Union));
        } else if let Some(part) = self.plain(map, indent) {
            parts.push(part);
        }
        for word in ["anyOf", "oneOf"] {
            if let Some(Value::Array(items)) = map.get(word) {
                parts.push(joined(
                    items.iter().map(|item| self.bound(item, indent)).collect(),
                    Bond::Union,
                ));
            }
        }
        if let Some(Value::Array(items)) = map.get("allOf") {
            parts.extend(items.iter().map(|item| self.bound(item, indent)));
        }
        parts.retain(|(text, _)| text != "unknown");
        if parts.is_empty() {
            single("unknown")
        } else {
            joined(parts, Bond::Intersection)
        }
    }

    /// What `type` and the words that belong to a type say.
    fn plain(&self, map: &Map<String, Value>, indent: usize) -> Option<(String, Bond)> {
        let words: Vec<&str> = match map.get("type") {
            Some(Value::String(word)) => vec![word],
            Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).collect(),
            _ if map.contains_key("properties") || map.contains_key("additionalProperties") => vec!["object"],
            _ if map.contains_key("items") || map.contains_key("prefixItems") => vec!["array"],
            _ => return None,
        };
        let parts = words.into_iter().map(|word| match word {
            "string" => single("string"),
            "integer" | "number" => single("number"),
            "boolean" => single("boolean"),
            "null" => single("null"),
            "array" => self.array(map, indent),
            "object" => single(&self.object(map, indent)),
            _ => single("unknown"),
        });
        Some(joined(parts.collect(), Bond::Union))
    }

    fn array(&self, map: &Map<String, Value>, indent: usize) -> (String, Bond) {
        let element = |schema: &Value| {
            let (text, bond) = self.bound(schema, indent);
            if bond == Bond::Single {
                text
            } else {
                format!("({text})")
            }
        };
        let Some(Value::Array(first)) = map.get("prefixItems") else {
            let items = map.get("items").map_or_else(|| "unknown".to_owned(), element);
            return single(&format!("{items}[]"));
        };
        let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let mut items: Vec<String> = (0u64..)
            .zip(first)
            .map(|(index, schema)| {
                if index < least {
                    self.print(schema, indent)
                } else {
                    format!("{}?", element(schema))
                }
            })
            .collect();
        match map.get("items") {
            Some(Value::Bool(false)) => {}
            Some(schema) => items.push(format!("...{}[]", element(schema))),
            None => items.push("...unknown[]".into()),
        }
        single(&format!("[{}]", items.join(", ")))
    }

    fn object(&self, map: &Map<String, Value>, indent: usize) -> String {
        let required: Vec<&str> = map
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let properties = map.get("properties").and_then(Value::as_object);
        let mut names: Vec<(&String, &Value)> = properties.into_iter().flatten().collect();
        names.sort_by_key(|(name, _)| !required.contains(&name.as_str()));
        let space = " ".repeat(indent + 2);
        let mut lines: Vec<(String, String)> = Vec::new();
        for (name, schema) in names {
            let mark = if required.contains(&name.as_str()) { "" } else { "?" };
            let kind = self.print(schema, indent + 2);
            lines.push((comment(schema, &space), format!("{}{mark}: {kind};", key(name))));
        }
        for name in required
            .iter()
            .filter(|name| properties.is_none_or(|map| !map.contains_key(**name)))
        {
            lines.push((String::new(), format!("{}: unknown;", key(name))));
        }
        let more = match map.get("additionalProperties") {
            Some(Value::Bool(false)) => None,
            Some(schema) if lines.is_empty() && !map.contains_key("patternProperties") => {
                Some(self.print(schema, indent + 2))
            }
            None if lines.is_empty() => Some("unknown".to_owned()),
            None => None,
            Some(_) => Some("unknown".to_owned()),
        };
        if let Some(more) = more {
            lines.push((String::new(), format!("[key: string]: {more};")));
        }
        if lines.is_empty() {
            return "{ [key: string]: never }".into();
        }
        let short: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
        let short = format!("{{ {} }}", short.join(" ").trim_end_matches(';'));
        if short.len() <= LINE && !short.contains('\n') && lines.iter().all(|(comment, _)| comment.is_empty()) {
            return short;
        }
        let lines: String = lines
            .iter()
            .map(|(comment, line)| format!("{comment}{space}{line}\n"))
            .collect();
        format!("{{\n{lines}{}}}", " ".repeat(indent))
    }
}

fn single(text: &str) -> (String, Bond) {
    (text.to_owned(), Bond::Single)
}

/// Several types as one; those that hold together less tightly are put in brackets.
fn joined(parts: Vec<(String, Bond)>, bond: Bond) -> (String, Bond) {
    let mut texts: Vec<(String, Bond)> = Vec::new();
    for part in parts {
        if !texts.iter().any(|(text, _)| *text == part.0) {
            texts.push(part);
        }
    }
    match texts.len() {
        0 => single("never"),
        1 => texts.remove(0),
        _ => {
            let sign = if bond == Bond::Union { " | " } else { " & " };
            let texts = texts
                .into_iter()
                .map(|(text, own)| if own < bond { format!("({text})") } else { text });
            (texts.collect::<Vec<_>>().join(sign), bond)
        }
    }
}

/// The type of exactly this value.
fn literal(value: &Value) -> (String, Bond) {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| literal(item).0).collect();
            single(&format!("[{}]", items.join(", ")))
        }
        Value::Object(map) => {
            let fields: Vec<String> = map
                .iter()
                .map(|(name, value)| format!("{}: {}", key(name), literal(value).0))
                .collect();
            single(&if fields.is_empty() {
                "{}".to_owned()
            } else {
                format!("{{ {} }}", fields.join("; "))
            })
        }
        plain => single(&quoted(&plain.to_string())),
    }
}

/// A property's name, quoted where it is no identifier.
pub(super) fn key(name: &str) -> String {
    let plain = name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_' || letter == '$')
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '$');
    if plain {
        name.to_owned()
    } else {
        quoted(&Value::from(name).to_string())
    }
}

/// JSON as TypeScript reads it: two line ends that JSON allows in texts are escaped.
fn quoted(json: &str) -> String {
    json.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// What a schema says of itself, as a comment of one line.
pub(super) fn comment(schema: &Value, indent: &str) -> String {
    let mut words = Vec::new();
    if let Some(text) = schema
        .get("description")
        .or_else(|| schema.get("title"))
        .and_then(Value::as_str)
    {
        words.push(text.trim().trim_end_matches('.').to_owned());
    }
    if let Some(format) = schema.get("format").and_then(Value::as_str) {
        words.push(format!("format {format}"));
    }
    for (word, said) in [
        ("minimum", "at least"),
        ("maximum", "at most"),
        ("maxItems", "at most"),
        ("maxLength", "at most"),
    ] {
        if let Some(bound) = schema.get(word).filter(|bound| bound.is_number()) {
            let of = match word {
                "maxItems" => " items",
                "maxLength" => " characters",
                _ => "",
            };
            words.push(format!("{said} {bound}{of}"));
        }
    }
    if let Some(default) = schema.get("default") {
        words.push(format!("default {default}"));
    }
    note(&words.join("; "), indent)
}

/// A comment of one line, whatever the text is; nothing for no text.
pub(super) fn note(text: &str, indent: &str) -> String {
    let text: String = text
        .chars()
        .map(|letter| {
            if letter.is_control() || letter.is_whitespace() {
                ' '
            } else {
                letter
            }
        })
        .collect();
    let text = text
        .split(' ')
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
        .replace("*/", "* /");
    if text.is_empty() {
        return String::new();
    }
    let short = match text.char_indices().nth(COMMENT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    };
    format!("{indent}/** {short} */\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_become_types() {
        let printer = Printer::new("Crm");
        for (schema, expected) in [
            (json!(true), "unknown"),
            (json!({ "type": ["string", "null"] }), "string | null"),
            (
                json!({ "type": "array", "items": { "type": ["integer", "null"] } }),
                "(number | null)[]",
            ),
            (json!({ "enum": ["a", 1, null, true] }), "\"a\" | 1 | null | true"),
            (json!({ "const": { "a b": [1] } }), "{ \"a b\": [1] }"),
            (json!({ "$ref": "#/$defs/Contact" }), "Crm.Contact"),
            (json!({ "type": "object" }), "{ [key: string]: unknown }"),
            (
                json!({ "type": "object", "additionalProperties": false }),
                "{ [key: string]: never }",
            ),
            (
                json!({ "additionalProperties": { "type": "number" } }),
                "{ [key: string]: number }",
            ),
            (
                json!({ "properties": { "b-c": { "type": "string" }, "a": {} }, "required": ["b-c", "z"] }),
                "{ \"b-c\": string; a?: unknown; z: unknown }",
            ),
            (
                json!({ "properties": { "a": { "type": "string" } }, "additionalProperties": { "type": "number" } }),
                "{ a?: string; [key: string]: unknown }",
            ),
            (
                json!({ "allOf": [{ "$ref": "#/$defs/A" }, { "anyOf": [{ "type": "string" }, { "type": "null" }] }] }),
                "Crm.A & (string | null)",
            ),
            (
                json!({ "prefixItems": [{ "type": "string" }, { "type": "number" }], "minItems": 1, "items": false }),
                "[string, number?]",
            ),
        ] {
            assert_eq!(printer.print(&schema, 0), expected, "{schema}");
        }
    }

    #[test]
    fn comments_cannot_be_left() {
        assert_eq!(note("a */ b\n\u{2028}c", "  "), "  /** a * / b c */\n");
        assert_eq!(note(" \n", ""), "");
        assert_eq!(
            comment(&json!({ "description": "How many.", "maximum": 5, "default": 2 }), ""),
            "/** How many; at most 5; default 2 */\n"
        );
    }
}
