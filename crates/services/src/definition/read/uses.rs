//! Whether the places of a request and the arguments of its method fit.

use std::collections::BTreeSet;

use serde_json::Value;
use spelling::{either, nearest};

use super::table::Table;
use crate::definition::template::parse::arguments;
use crate::definition::{Argument, Body, Piece, Request, Template};
use crate::schema::Schema;

/// Says of every place whether there is such an argument, and of every argument whether it goes anywhere.
pub(super) fn check(table: &Table<'_>, schema: &Schema, request: &Request, is_paged: bool) {
    let mut used = BTreeSet::new();
    for argument in arguments(&request.path.0) {
        used.insert(argument.0[0].clone());
        in_path(table, schema, argument);
    }
    for (_, template) in &request.headers {
        for argument in template.arguments() {
            used.insert(argument.0[0].clone());
            if let Some(found) = find(table, schema, "headers", argument)
                && !is_scalar(schema, found)
            {
                table.mistake(
                    "headers",
                    format!("the argument {argument} stands in a header and is no text or number"),
                    "write type = \"string\" for it",
                );
            }
        }
    }
    let mut rest = false;
    for (key, template) in elsewhere(request) {
        rest |= template.takes_rest();
        for argument in template.arguments() {
            used.insert(argument.0[0].clone());
            let found = find(table, schema, key, argument);
            let in_text = found.is_some_and(|found| !is_scalar(schema, found)) && stands_in_text(template, argument);
            if in_text {
                table.mistake(
                    key,
                    format!("the argument {argument} stands in a text and is no text or number"),
                    "let it stand alone: \"{name}\"",
                );
            }
        }
    }
    let properties = schema.value()["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str());
    let goes = |name: &str| rest || used.contains(name) || is_paged && name == "cursor";
    for name in properties.filter(|name| !goes(name)) {
        table.mistake(
            "arguments",
            format!("the argument {name} goes nowhere"),
            format!("name it as {{{name}}} in request, query, headers or the body, or take it away"),
        );
    }
}

fn elsewhere(request: &Request) -> Vec<(&'static str, &Template)> {
    let mut places: Vec<(&'static str, &Template)> =
        request.query.iter().map(|(_, template)| ("query", template)).collect();
    match &request.body {
        Body::None => {}
        Body::Json(template) => places.push(("json", template)),
        Body::Form(fields) => places.extend(fields.iter().map(|(_, template)| ("form", template))),
        Body::GraphQl { variables, .. } => places.extend(variables.iter().map(|(_, template)| ("variables", template))),
    }
    places
}

/// What stands in a path must always be there, and be a text or a number.
fn in_path(table: &Table<'_>, schema: &Schema, argument: &Argument) {
    let Some(found) = find(table, schema, "request", argument) else {
        return;
    };
    if !is_scalar(schema, found) {
        table.mistake(
            "request",
            format!("the argument {argument} stands in the path and is no text or number"),
            "write type = \"string\" for it",
        );
    }
    let required = schema.value()["required"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|name| *name == argument.0[0]);
    if !required || argument.0.len() > 1 {
        table.mistake(
            "request",
            format!("the argument {argument} stands in the path and may be left out"),
            format!("write required = [\"{}\"] in arguments", argument.0[0]),
        );
    }
}

/// The schema of an argument; a mistake where there is none.
fn find<'s>(table: &Table<'_>, schema: &'s Schema, key: &str, argument: &Argument) -> Option<&'s Value> {
    let mut part = schema.value();
    for name in &argument.0 {
        part = schema.followed(part);
        match part.get("properties").and_then(|properties| properties.get(name)) {
            Some(found) => part = found,
            None => {
                let open = part
                    .get("additionalProperties")
                    .is_some_and(|more| *more != Value::Bool(false));
                let unknown = part.get("properties").is_some() && !open;
                if unknown || std::ptr::eq(part, schema.value()) {
                    table.mistake(
                        key,
                        format!("{{{argument}}} is in no argument's schema"),
                        hint(schema, name),
                    );
                }
                return None;
            }
        }
    }
    Some(schema.followed(part))
}

fn hint(schema: &Schema, name: &str) -> String {
    let known = schema.value()["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str());
    match nearest(name, known) {
        Some(known) => format!("did you mean {{{known}}}?"),
        None => format!("write properties.{name} in arguments; {}", names(schema)),
    }
}

fn names(schema: &Schema) -> String {
    let known: Vec<&str> = schema.value()["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    if known.is_empty() {
        "there is no argument yet".into()
    } else {
        format!("the arguments are {}", either(known))
    }
}

fn is_scalar(schema: &Schema, part: &Value) -> bool {
    let part = schema.followed(part);
    let is_word = |word: &Value| {
        word.as_str()
            .is_some_and(|word| ["string", "integer", "number", "boolean"].contains(&word))
    };
    match part.get("type") {
        Some(Value::Array(words)) => words.iter().all(|word| is_word(word) || word == "null"),
        Some(word) => is_word(word),
        None => match part
            .get("const")
            .map(std::slice::from_ref)
            .or_else(|| part.get("enum")?.as_array().map(Vec::as_slice))
        {
            Some(values) => values.iter().all(|value| !value.is_object() && !value.is_array()),
            None => {
                let any = part
                    .get("anyOf")
                    .or_else(|| part.get("oneOf"))
                    .and_then(Value::as_array);
                any.is_some_and(|any| any.iter().all(|part| is_scalar(schema, part)))
            }
        },
    }
}

fn stands_in_text(template: &Template, argument: &Argument) -> bool {
    match template {
        Template::Text(pieces) => pieces.contains(&Piece::Argument(argument.clone())),
        Template::List(items) => items.iter().any(|item| stands_in_text(item, argument)),
        Template::Object(fields) => fields.iter().any(|(_, value)| stands_in_text(value, argument)),
        Template::Fixed(_) | Template::Argument(_) | Template::Rest(_) => false,
    }
}
