//! Schemas of tools, as the rest of a definition has them.

use serde_json::{Map, Value, json};

use crate::import::schemas::words;

/// How deep a schema may be nested; anything goes below.
const MAX_DEPTH: usize = 20;
/// The most parts of one schema, with everything that it refers to.
const MAX_PARTS: usize = 2_000;

/// The schema of a tool's arguments or result without references: each is replaced by what it refers to. Where one leads into
/// itself or out of the schema, anything goes; words that say nothing to us are left out. What is left is a part of what was
/// approved, word for word.
pub(crate) fn standing_alone(schema: &Value) -> Value {
    let mut taking = Taking { root: schema, parts: 0 };
    match taking.convert(schema, 0, &mut Vec::new()) {
        made @ Value::Object(_) => made,
        _ => json!({}),
    }
}

struct Taking<'s> {
    root: &'s Value,
    parts: usize,
}

impl<'s> Taking<'s> {
    /// `open` are the references that lead here.
    fn convert(&mut self, schema: &'s Value, depth: usize, open: &mut Vec<&'s str>) -> Value {
        self.parts += 1;
        let map = match schema {
            Value::Bool(flag) => return Value::Bool(*flag),
            Value::Object(map) if depth <= MAX_DEPTH && self.parts <= MAX_PARTS => map,
            _ => return json!({}),
        };
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            let found = reference
                .strip_prefix('#')
                .and_then(|pointer| self.root.pointer(pointer));
            return match found {
                Some(found) if !open.contains(&reference) => {
                    open.push(reference);
                    let made = self.convert(found, depth + 1, open);
                    open.pop();
                    described(made, map)
                }
                _ => json!({}),
            };
        }
        let (made, _) = words(map, |below| self.convert(below, depth + 1, open));
        Value::Object(made)
    }
}

/// What is said of the place counts before what is said of the schema that stands there.
fn described(mut made: Value, place: &Map<String, Value>) -> Value {
    if let (Some(made), Some(description)) = (made.as_object_mut(), place.get("description")) {
        made.insert("description".into(), description.clone());
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{compile, flaws};

    #[test]
    fn references_are_followed_and_circles_end() {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#", "title": "Args", "type": "object", "x-vendor": 1,
            "required": ["filter"],
            "properties": {
                "filter": { "$ref": "#/definitions/Filter", "description": "Which." },
                "tree": { "$ref": "#/$defs/Node" },
                "far": { "$ref": "https://example.com/x.json" },
                "bad": { "type": "string", "pattern": "(?=x)" },
            },
            "definitions": { "Filter": { "type": "object", "properties": { "tag": { "type": "string" } } } },
            "$defs": { "Node": { "type": "object", "properties": { "next": { "$ref": "#/$defs/Node" } } } },
        });
        let made = standing_alone(&schema);
        assert_eq!(
            made,
            json!({
                "title": "Args", "type": "object", "required": ["filter"],
                "properties": {
                    "filter": { "type": "object", "description": "Which.", "properties": { "tag": { "type": "string" } } },
                    "tree": { "type": "object", "properties": { "next": {} } },
                    "far": {},
                    "bad": { "type": "string" },
                },
            })
        );
        assert_eq!(flaws(&made), []);
        assert!(compile(&made).is_ok());
    }

    #[test]
    fn a_schema_that_multiplies_itself_stays_small() {
        // Each refers to the next twice: a million parts where everything is written out.
        let mut all = Map::new();
        for level in 0..20 {
            let next = json!({ "$ref": format!("#/$defs/L{}", level + 1) });
            all.insert(format!("L{level}"), json!({ "properties": { "a": next, "b": next } }));
        }
        all.insert("L20".into(), json!({ "type": "string" }));
        let made = standing_alone(&json!({ "properties": { "x": { "$ref": "#/$defs/L0" } }, "$defs": all }));
        assert!(made.to_string().len() < 200_000);
    }
}
