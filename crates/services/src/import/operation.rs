//! Operations: which are chosen, and what method each becomes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::document::Document;
use super::schemas::Schemas;
use super::{LeftOut, paging, text, write};
use crate::definition::Nesting;

/// An operation of the description.
pub(super) struct Chosen<'d> {
    pub(super) verb: &'static str,
    pub(super) path: &'d str,
    pub(super) item: &'d Value,
    pub(super) operation: &'d Value,
    /// The method's name.
    pub(super) name: String,
}

/// A method as it is written.
pub(super) struct Made {
    pub(super) name: String,
    pub(super) summary: String,
    pub(super) is_write: bool,
    pub(super) is_idempotent: bool,
    pub(super) request: String,
    pub(super) arguments: Value,
    pub(super) result: Option<Value>,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: Vec<(String, String)>,
    /// The key (`json` or `form`) and the template.
    pub(super) body: Option<(&'static str, String)>,
    pub(super) answer: &'static str,
    pub(super) pages: Option<String>,
}

const VERBS: [(&str, &str); 5] = [
    ("get", "GET"),
    ("post", "POST"),
    ("put", "PUT"),
    ("patch", "PATCH"),
    ("delete", "DELETE"),
];

impl Chosen<'_> {
    /// For people.
    pub(super) fn what(&self) -> String {
        format!("{} {}", self.verb, self.path)
    }
}

fn all(document: &Document) -> impl Iterator<Item = (&'static str, &str, &Value, &Value)> {
    let paths = document.root["paths"].as_object().into_iter().flatten();
    paths.flat_map(|(path, item)| {
        VERBS
            .into_iter()
            .filter_map(move |(key, verb)| Some((verb, path.as_str(), item, item.get(key)?)))
    })
}

/// The operations that are asked for, each with a method's name that no other has.
pub(super) fn chosen<'d>(document: &'d Document, only: &[String], left_out: &mut Vec<LeftOut>) -> Vec<Chosen<'d>> {
    let mut taken = BTreeSet::new();
    let mut chosen = Vec::new();
    for (verb, path, item, operation) in all(document) {
        let id = text(operation, "operationId").unwrap_or_default();
        let base = if id.is_empty() {
            write::lower_name(&format!("{} {path}", verb.to_lowercase()))
        } else {
            write::lower_name(id)
        };
        let matching = |pattern: &String| matches(pattern, id) || matches(pattern, &base) || matches(pattern, path);
        if !only.is_empty() && !only.iter().any(matching) {
            continue;
        }
        let is_named = only.iter().any(|pattern| pattern == id || *pattern == base);
        if operation["deprecated"] == Value::Bool(true) && !is_named {
            left_out.push(LeftOut {
                what: format!("{verb} {path}"),
                why: "it is deprecated; name it in --only to have it all the same".into(),
            });
            continue;
        }
        let base = if crate::definition::read::is_identifier(&base) {
            base
        } else {
            format!("{base}Call")
        };
        let mut name = base.clone();
        let mut number = 2;
        while !taken.insert(name.clone()) {
            name = format!("{base}{number}");
            number += 1;
        }
        chosen.push(Chosen {
            verb,
            path,
            item,
            operation,
            name,
        });
    }
    chosen
}

/// Some parts of the API to choose from.
pub(super) fn parts(document: &Document) -> String {
    let mut parts: BTreeMap<String, usize> = BTreeMap::new();
    for (_, path, ..) in all(document) {
        let first = path.split('/').find(|part| !part.is_empty()).unwrap_or_default();
        *parts.entry(format!("/{first}*")).or_default() += 1;
    }
    let parts: Vec<String> = parts
        .iter()
        .take(40)
        .map(|(part, count)| format!("{part} ({count})"))
        .collect();
    parts.join(", ")
}

/// Whether a pattern is this text; `*` stands for anything.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == text;
    };
    text.strip_prefix(before).is_some_and(|rest| {
        rest.char_indices()
            .map(|(at, _)| at)
            .chain([rest.len()])
            .any(|at| matches(after, &rest[at..]))
    })
}

/// The parameters of an operation, with those of its path.
fn parameters<'d>(document: &'d Document, one: &Chosen<'d>) -> Vec<&'d Value> {
    let lists = [&one.item["parameters"], &one.operation["parameters"]];
    let mut found: BTreeMap<(String, String), &Value> = BTreeMap::new();
    for parameter in lists.into_iter().filter_map(Value::as_array).flatten() {
        if let Some(parameter) = document.follow(parameter) {
            let key = (
                text(parameter, "in").unwrap_or_default().to_owned(),
                text(parameter, "name").unwrap_or_default().to_owned(),
            );
            found.insert(key, parameter);
        }
    }
    found.into_values().collect()
}

/// How most lists of the chosen operations stand in a query.
pub(super) fn lists(document: &Document, chosen: &[Chosen<'_>]) -> Nesting {
    let mut commas = 0usize;
    let mut repeats = 0usize;
    for parameter in chosen.iter().flat_map(|one| parameters(document, one)) {
        if text(parameter, "in") == Some("query") && is_list(document, parameter) {
            if parameter["explode"] == Value::Bool(false) {
                commas += 1;
            } else {
                repeats += 1;
            }
        }
    }
    if commas > repeats {
        Nesting::Comma
    } else {
        Nesting::Repeat
    }
}

fn is_list(document: &Document, parameter: &Value) -> bool {
    document
        .follow(&parameter["schema"])
        .is_some_and(|schema| schema["type"] == json!("array"))
}

/// The method that an operation becomes; or why it cannot be one.
pub(super) fn read<'d>(
    document: &'d Document,
    one: &Chosen<'d>,
    lists: Nesting,
    schemas: &mut Schemas<'d>,
) -> Result<Made, String> {
    let mut arguments = Arguments::default();
    let mut path = one.path.to_owned();
    let mut query = Vec::new();
    let mut headers = Vec::new();
    for parameter in parameters(document, one) {
        let (Some(place), Some(name)) = (text(parameter, "in"), text(parameter, "name")) else {
            continue;
        };
        let required = parameter["required"] == Value::Bool(true);
        if place == "cookie" {
            if required {
                return Err(format!("it needs the cookie {name}"));
            }
            continue;
        }
        if place == "header" && ["accept", "content-type", "authorization"].contains(&name.to_lowercase().as_str()) {
            continue;
        }
        let what = format!("{}, parameter {name}", one.what());
        let schema = parameter
            .get("schema")
            .or_else(|| parameter["content"].as_object()?.values().next()?.get("schema"));
        let mut schema = schema.map_or_else(|| json!({}), |schema| schemas.take(schema, &what));
        let differs = place == "query"
            && is_list(document, parameter)
            && (parameter["explode"] == Value::Bool(false)) != (lists == Nesting::Comma);
        if differs {
            let between = if lists == Nesting::Comma {
                "one value"
            } else {
                "with commas between several"
            };
            schema = json!({ "type": "string", "description": between });
        }
        if let (Some(text), Value::Object(map)) = (text(parameter, "description"), &mut schema) {
            map.insert("description".into(), json!(write::line(write::sentence(text))));
        }
        match place {
            "path" => {
                let argument = arguments.add(name, scalar(document, parameter, schema), true);
                path = path.replace(&format!("{{{name}}}"), &format!("{{{argument}}}"));
            }
            "query" => {
                let argument = arguments.add(name, schema, required);
                query.push((name.to_owned(), argument));
            }
            "header" => {
                let argument = arguments.add(name, scalar(document, parameter, schema), required);
                headers.push((name.to_owned(), argument));
            }
            _ => {}
        }
    }
    for name in undeclared(&path, &arguments) {
        let argument = arguments.add(&name, json!({ "type": "string" }), true);
        path = path.replace(&format!("{{{name}}}"), &format!("{{{argument}}}"));
    }
    if crate::definition::template::parse::path(&path).is_err() {
        return Err("its path is more than a path".into());
    }
    let body = body(document, one, &mut arguments, schemas)?;
    let (answer, result, written) = answer(document, one, schemas)?;
    let pages = written.and_then(|schema| paging::find(document, schema, &query, one.operation));
    let (pages, result) = match pages {
        Some(found) => {
            query.retain(|(name, _)| *name != found.parameter);
            arguments.remove(&found.parameter);
            let item = schemas.take(found.item, &one.what());
            (Some(found.pages), Some(item))
        }
        None => (None, result),
    };
    arguments.free_cursor(pages.is_some(), &mut query);
    let summary = ["summary", "description"]
        .into_iter()
        .find_map(|key| text(one.operation, key));
    Ok(Made {
        name: one.name.clone(),
        summary: write::line(summary.map_or(one.name.as_str(), write::sentence)),
        is_write: one.verb != "GET",
        is_idempotent: ["PUT", "DELETE"].contains(&one.verb),
        request: format!("{} {path}", one.verb),
        arguments: arguments.schema(),
        result,
        query,
        headers,
        body,
        answer,
        pages,
    })
}

/// What stands in a path or a header is a text or a number.
fn scalar(document: &Document, parameter: &Value, schema: Value) -> Value {
    let written = document.follow(&parameter["schema"]).unwrap_or(&Value::Null);
    let is_scalar = written["type"]
        .as_str()
        .is_some_and(|kind| ["string", "integer", "number", "boolean"].contains(&kind));
    if is_scalar { schema } else { json!({ "type": "string" }) }
}

/// Names in the path that no parameter declares.
fn undeclared(path: &str, arguments: &Arguments) -> Vec<String> {
    let names = path
        .split('{')
        .skip(1)
        .filter_map(|part| part.split_once('}').map(|(name, _)| name));
    names.filter(|name| !arguments.has(name)).map(str::to_owned).collect()
}

fn body<'d>(
    document: &'d Document,
    one: &Chosen<'d>,
    arguments: &mut Arguments,
    schemas: &mut Schemas<'d>,
) -> Result<Option<(&'static str, String)>, String> {
    let Some(body) = one.operation.get("requestBody").and_then(|body| document.follow(body)) else {
        return Ok(None);
    };
    let Some(content) = body["content"].as_object().filter(|content| !content.is_empty()) else {
        return Ok(None);
    };
    let required = body["required"] == Value::Bool(true);
    let kind = |wanted: fn(&str) -> bool| content.iter().find(|(kind, _)| wanted(kind));
    let (key, media) = if let Some((_, media)) = kind(is_json) {
        ("json", media)
    } else if let Some((_, media)) = kind(|kind| kind.starts_with("application/x-www-form-urlencoded")) {
        ("form", media)
    } else if required {
        let kinds: Vec<&str> = content.keys().map(String::as_str).collect();
        return Err(format!(
            "its body is neither JSON nor a form but {}",
            kinds.join(" or ")
        ));
    } else {
        return Ok(None);
    };
    if one.verb == "GET" {
        return Err("it is a GET with a body".into());
    }
    let what = format!("{}, body", one.what());
    let schema = media.get("schema").unwrap_or(&Value::Bool(true));
    let followed = document.follow(schema).unwrap_or(&Value::Null);
    let flat = followed["properties"].as_object().filter(|properties| {
        let plain = ["allOf", "anyOf", "oneOf"]
            .iter()
            .all(|word| followed.get(word).is_none());
        let closed = followed
            .get("additionalProperties")
            .is_none_or(|more| *more == Value::Bool(false));
        plain
            && closed
            && properties
                .keys()
                .all(|name| !arguments.has(name) && write::is_argument(name) && name != "cursor")
    });
    let Some(properties) = flat else {
        if key == "form" {
            return Err("its form is no plain list of fields".into());
        }
        let schema = schemas.take(schema, &what);
        let argument = arguments.add("body", schema, required);
        return Ok(Some((key, format!("{{{argument}}}"))));
    };
    let names = followed["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let names: BTreeSet<&str> = names.filter(|_| required).collect();
    for (name, schema) in properties
        .iter()
        .filter(|(_, schema)| schema["readOnly"] != Value::Bool(true))
    {
        let taken = schemas.take(schema, &what);
        arguments.add(name, taken, names.contains(name.as_str()));
    }
    Ok(Some((key, "{*}".into())))
}

fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind == "application/json" || kind.ends_with("+json") || kind == "*/*"
}

/// How the answer is read, its schema as the loader takes it, and as it was written.
fn answer<'d>(
    document: &'d Document,
    one: &Chosen<'d>,
    schemas: &mut Schemas<'d>,
) -> Result<(&'static str, Option<Value>, Option<&'d Value>), String> {
    let responses = one.operation["responses"].as_object();
    let good = responses
        .into_iter()
        .flatten()
        .find(|(status, _)| status.starts_with('2'));
    let Some((_, response)) = good else {
        return Ok(("json", None, None));
    };
    let Some(response) = document.follow(response) else {
        return Err("its answer leads out of the description".into());
    };
    let Some(content) = response["content"].as_object().filter(|content| !content.is_empty()) else {
        return Ok(("json", None, None));
    };
    if let Some((_, media)) = content.iter().find(|(kind, _)| is_json(kind)) {
        let schema = media.get("schema");
        return Ok((
            "json",
            schema.map(|schema| schemas.take(schema, &format!("{}, answer", one.what()))),
            schema,
        ));
    }
    if content.keys().any(|kind| kind.starts_with("text/event-stream")) {
        return Err("its answer is a stream of events".into());
    }
    let is_text = content
        .keys()
        .any(|kind| kind.starts_with("text/") || kind.ends_with("xml"));
    Ok((if is_text { "text" } else { "binary" }, None, None))
}

/// The arguments of a method while they are put together.
#[derive(Default)]
struct Arguments {
    properties: Map<String, Value>,
    required: BTreeSet<String>,
    /// What each is called in the description.
    written: BTreeMap<String, String>,
}

impl Arguments {
    fn has(&self, name: &str) -> bool {
        self.properties.contains_key(&write::argument(name))
    }

    /// Adds an argument; its name.
    fn add(&mut self, name: &str, schema: Value, required: bool) -> String {
        let base = write::argument(name);
        let mut argument = base.clone();
        let mut number = 2;
        while self.properties.contains_key(&argument) {
            argument = format!("{base}{number}");
            number += 1;
        }
        self.properties.insert(argument.clone(), schema);
        self.written.insert(argument.clone(), name.to_owned());
        if required {
            self.required.insert(argument.clone());
        }
        argument
    }

    /// Takes away the argument that the description calls this.
    fn remove(&mut self, name: &str) {
        let found: Vec<String> = self
            .written
            .iter()
            .filter(|(_, written)| *written == name)
            .map(|(argument, _)| argument.clone())
            .collect();
        for argument in found {
            self.properties.remove(&argument);
            self.required.remove(&argument);
        }
    }

    /// In a paged method `cursor` is ours: another argument of that name is called otherwise.
    fn free_cursor(&mut self, is_paged: bool, query: &mut [(String, String)]) {
        if is_paged && let Some(schema) = self.properties.remove("cursor") {
            let argument = self.add("cursorArgument", schema, self.required.contains("cursor"));
            self.required.remove("cursor");
            for (_, place) in query.iter_mut().filter(|(_, place)| place == "cursor") {
                place.clone_from(&argument);
            }
        }
    }

    fn schema(self) -> Value {
        let mut schema = Map::new();
        if !self.required.is_empty() {
            schema.insert("required".into(), json!(self.required));
        }
        schema.insert("properties".into(), Value::Object(self.properties));
        Value::Object(schema)
    }
}
