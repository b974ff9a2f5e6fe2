//! What a tree may be made of.
//!
//! Both parsers give a tree of JSON in which a key with a capital is the kind of what is in it, and other keys are fields. A
//! table says which kinds there may be and which of their fields may hold something, so that a kind or a field that a later
//! version of a parser brings is refused until somebody has looked at it.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// Kinds, and their fields that may hold something.
#[derive(Debug)]
pub(crate) struct Shapes(HashMap<&'static str, HashSet<&'static str>>);

/// What is not in the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unlisted {
    /// A kind.
    Kind(String),
    /// A field of a kind.
    Field(String, String),
}

impl Shapes {
    /// Reads lines such as `Kind: field field`; what follows a `#` is a comment.
    pub(crate) fn read(table: &'static str) -> Self {
        let mut shapes: HashMap<_, HashSet<_>> = HashMap::new();
        for line in table.lines() {
            if let Some((kind, fields)) = line.split('#').next().and_then(|line| line.split_once(':')) {
                shapes.entry(kind).or_default().extend(fields.split_whitespace());
            }
        }
        Self(shapes)
    }

    /// Whether all of a tree is listed.
    pub(crate) fn hold(&self, tree: &Value) -> Result<(), Unlisted> {
        self.within("", tree)
    }

    fn within(&self, kind: &str, value: &Value) -> Result<(), Unlisted> {
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.within(kind, item)),
            Value::Object(fields) => fields.iter().try_for_each(|(key, value)| {
                if is_kind(key) {
                    if !self.0.contains_key(key.as_str()) {
                        return Err(Unlisted::Kind(key.clone()));
                    }
                    return self.within(key, value);
                }
                // One of the parsers wraps each node in a field of that name, which says nothing.
                if key != "node" && !is_empty(value) && !self.has(kind, key) {
                    return Err(Unlisted::Field(kind.to_owned(), key.clone()));
                }
                self.within(kind, value)
            }),
            _ => Ok(()),
        }
    }

    fn has(&self, kind: &str, field: &str) -> bool {
        self.0.get(kind).is_some_and(|fields| fields.contains(field))
    }
}

/// Whether a key says what kind of thing its value is.
pub(crate) fn is_kind(key: &str) -> bool {
    key.starts_with(|first: char| first.is_ascii_uppercase())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is) => !is,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => false,
    }
}
