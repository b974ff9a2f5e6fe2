//! JSON Schemas, as far as a definition needs them: checked when they are read, and kept as they were written.

use serde_json::{Map, Value};
use spelling::nearest;

/// A JSON Schema (2020-12) that stands alone: its references are `#/$defs/NAME`, and every NAME is in its `$defs`.
#[derive(Clone, PartialEq, Debug)]
pub struct Schema(Value);

/// Something that is wrong with a schema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Flaw {
    /// Where: a JSON pointer into the schema.
    pub(crate) pointer: String,
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

/// What a reference begins with.
pub(crate) const DEFINITIONS: &str = "#/$defs/";

/// Words of JSON Schema that hold schemas, by name.
const TABLES: [&str; 4] = ["$defs", "dependentSchemas", "patternProperties", "properties"];
/// Words that hold a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Words that hold one schema.
const SINGLE: [&str; 10] = [
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// All other words.
const PLAIN: [&str; 29] = [
    "$comment",
    "$ref",
    "$schema",
    "const",
    "contentEncoding",
    "contentMediaType",
    "default",
    "dependentRequired",
    "deprecated",
    "description",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "readOnly",
    "required",
];
const MORE: [&str; 4] = ["title", "type", "uniqueItems", "writeOnly"];
/// Our own: what the audit is told of a value. True or false.
const OURS: [&str; 2] = ["x-audit", "x-redact"];

impl Schema {
    /// Takes a schema that was found to be good.
    pub(crate) fn new(value: Value) -> Self {
        Self(value)
    }

    /// The schema as it was written.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The schema that a reference of this one names.
    pub(crate) fn named(&self, reference: &str) -> Option<&Value> {
        self.0.get("$defs")?.get(reference.strip_prefix(DEFINITIONS)?)
    }

    /// A part of this schema, its references followed.
    pub(crate) fn followed<'s>(&'s self, mut part: &'s Value) -> &'s Value {
        for _ in 0..32 {
            match part
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|reference| self.named(reference))
            {
                Some(named) => part = named,
                None => break,
            }
        }
        part
    }

    /// What a value lacks to be as this schema wants it, in words; at most five.
    pub(crate) fn violations(&self, value: &Value) -> Vec<String> {
        let patterns = jsonschema::PatternOptions::regex();
        match jsonschema::options()
            .with_pattern_options(patterns)
            .offline()
            .build(&self.0)
        {
            Ok(validator) => {
                let errors = validator.iter_errors(value).take(5);
                errors
                    .map(|error| format!("{} {}", error.instance_path(), error.masked()))
                    .collect()
            }
            Err(error) => vec![error.to_string()],
        }
    }
}

/// Everything that is wrong with a schema by itself: words that JSON Schema does not have, values that they cannot have.
pub(crate) fn flaws(schema: &Value) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    words(schema, "", 0, &mut flaws);
    if flaws.is_empty() {
        let errors = jsonschema::draft202012::meta::validator();
        flaws.extend(errors.iter_errors(schema).take(10).map(|error| Flaw {
            pointer: error.instance_path().to_string(),
            problem: format!("no JSON Schema has such a value: {}", error.masked()),
            remedy: "write it as JSON Schema 2020-12 has it".into(),
        }));
    }
    flaws
}

/// What only shows when a whole schema is put together: patterns that are none, or that need backtracking.
pub(crate) fn compile(schema: &Value) -> Result<(), Flaw> {
    let patterns = jsonschema::PatternOptions::regex();
    match jsonschema::options()
        .with_pattern_options(patterns)
        .offline()
        .build(schema)
    {
        Ok(_) => Ok(()),
        Err(error) => Err(Flaw {
            pointer: error.instance_path().to_string(),
            problem: format!("the schema cannot be used: {error}"),
            remedy: "write patterns without look-around and back-references".into(),
        }),
    }
}

fn words(schema: &Value, pointer: &str, depth: usize, flaws: &mut Vec<Flaw>) {
    let Value::Object(map) = schema else {
        if !schema.is_boolean() {
            flaws.push(flaw(
                pointer,
                "this is no schema",
                "write a table such as { type = \"string\" }",
            ));
        }
        return;
    };
    if depth > 40 {
        flaws.push(flaw(
            pointer,
            "the schema is nested too deep",
            "give the inner part a name and write $ref",
        ));
        return;
    }
    for (word, value) in map {
        let here = crate::definition::below(pointer, word);
        if TABLES.contains(&word.as_str()) {
            table(value, &here, depth, flaws);
        } else if LISTS.contains(&word.as_str()) {
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                words(item, &format!("{here}/{index}"), depth + 1, flaws);
            }
        } else if SINGLE.contains(&word.as_str()) {
            words(value, &here, depth + 1, flaws);
        } else if word == "$ref" {
            let name = value.as_str().and_then(|text| text.strip_prefix(DEFINITIONS));
            if name.is_none_or(|name| name.contains('/')) {
                let remedy = "write #/$defs/NAME, and the schema as [schemas.NAME] or in schemas/NAME.json";
                flaws.push(flaw(&here, &format!("the reference {value} leads elsewhere"), remedy));
            }
        } else if OURS.contains(&word.as_str()) {
            if !value.is_boolean() {
                flaws.push(flaw(&here, &format!("{word} is {value}"), "write true or false"));
            }
        } else if !PLAIN.contains(&word.as_str()) && !MORE.contains(&word.as_str()) {
            let known = TABLES
                .iter()
                .chain(&LISTS)
                .chain(&SINGLE)
                .chain(&PLAIN)
                .chain(&MORE)
                .chain(&OURS)
                .copied();
            let remedy = match nearest(word, known) {
                Some(known) => format!("did you mean {known}?"),
                None => "take it away, or put it into a description".into(),
            };
            flaws.push(flaw(&here, &format!("JSON Schema has no word {word:?}"), &remedy));
        }
    }
}

fn table(value: &Value, pointer: &str, depth: usize, flaws: &mut Vec<Flaw>) {
    let empty = Map::new();
    for (name, schema) in value.as_object().unwrap_or(&empty) {
        words(schema, &crate::definition::below(pointer, name), depth + 1, flaws);
    }
}

fn flaw(pointer: &str, problem: &str, remedy: &str) -> Flaw {
    Flaw {
        pointer: pointer.to_owned(),
        problem: problem.to_owned(),
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mistakes_of_a_schema_are_found_with_their_place() {
        for (schema, pointer, words) in [
            (json!({ "type": "object", "propertys": {} }), "/propertys", "no word"),
            (
                json!({ "properties": { "a": { "type": "text" } } }),
                "/properties/a/type",
                "such a value",
            ),
            (
                json!({ "items": { "$ref": "https://example.com/x.json" } }),
                "/items/$ref",
                "leads elsewhere",
            ),
            (json!({ "anyOf": [{ "type": "string" }, 5] }), "/anyOf/1", "no schema"),
            (
                json!({ "type": "string", "x-redact": "yes" }),
                "/x-redact",
                "x-redact is \"yes\"",
            ),
            (json!({ "type": "string", "x-redac": true }), "/x-redac", "no word"),
        ] {
            let found = flaws(&schema);
            assert!(
                found
                    .iter()
                    .any(|flaw| flaw.pointer == pointer && flaw.problem.contains(words)),
                "{schema}: {found:?}"
            );
        }
        assert_eq!(
            flaws(&json!({ "type": ["string", "null"], "enum": ["a", null], "default": "a" })),
            []
        );
        assert!(compile(&json!({ "type": "string", "pattern": "(?=a)b" })).is_err());
    }
}
