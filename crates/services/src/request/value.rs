//! Values with places for arguments, filled.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::definition::{Piece, Template, Unfit};

/// The value of a template; none where an argument of it was not given.
pub(crate) fn fill(template: &Template, arguments: &Value) -> Result<Option<Value>, Unfit> {
    Ok(match template {
        Template::Fixed(value) => Some(value.clone()),
        Template::Argument(argument) => argument.of(arguments).cloned(),
        Template::Rest(named) => {
            let rest: Map<String, Value> = arguments
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(name, _)| !named.contains(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            (!rest.is_empty()).then_some(Value::Object(rest))
        }
        Template::Text(pieces) => text(pieces, arguments)?.map(Value::String),
        Template::List(elements) => {
            let mut list = Vec::with_capacity(elements.len());
            for element in elements {
                list.extend(fill(element, arguments)?);
            }
            Some(Value::Array(list))
        }
        Template::Object(fields) => {
            let mut object = Map::new();
            for (name, field) in fields {
                if let Some(value) = fill(field, arguments)? {
                    object.insert(name.clone(), value);
                }
            }
            (fields.is_empty() || !object.is_empty()).then_some(Value::Object(object))
        }
    })
}

fn text(pieces: &[Piece], arguments: &Value) -> Result<Option<String>, Unfit> {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Literal(literal) => text.push_str(literal),
            Piece::Argument(argument) | Piece::Segments(argument) => {
                let Some(value) = argument.of(arguments) else {
                    return Ok(None);
                };
                let value = scalar(value).ok_or_else(|| Unfit {
                    argument: argument.to_string(),
                    reason: "stands in a text, so it must be a string, a number or a boolean",
                })?;
                text.push_str(&value);
            }
        }
    }
    Ok(Some(text))
}

/// The text of a string, number or boolean.
pub(crate) fn scalar(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
