//! `[methods.NAME]`

use std::path::Path;

use serde_json::{Value, json};

use super::http::header_name;
use super::mcp::{self, Tools};
use super::schemas::Schemas;
use super::service::limits;
use super::table::Table;
use super::{pages, script, sql, uses};
use crate::definition::template::parse::{Malformed, path};
use crate::definition::{Access, Action, Answer, Body, Limits, Method, PathTemplate, Pointer, Request, Template};
use crate::graphql;
use crate::schema::Schema;

/// Reads a method of a service of this kind.
pub(super) fn read(
    table: Table<'_>,
    kind: &'static str,
    name: &str,
    folder: &Path,
    schemas: &Schemas<'_>,
    tools: &Tools,
) -> Option<Method> {
    match kind {
        "http" => http(table, name, folder, schemas),
        "mcp" => mcp::method(table, name, tools, schemas),
        "sql" => sql::method(table, name, schemas),
        _ => script::method(table, name, folder, schemas),
    }
}

/// What methods of every kind have.
pub(super) struct Common {
    pub(super) summary: Option<String>,
    pub(super) access: Option<Access>,
    pub(super) arguments: Option<Schema>,
    pub(super) result: Option<Schema>,
    pub(super) limits: Limits,
}

pub(super) fn common(table: &Table<'_>, schemas: &Schemas<'_>) -> Common {
    if !table.has("access") {
        table.required("access", "\"read\" where it changes nothing, \"write\" otherwise");
    }
    let summary = table
        .required("summary", "\"one line on what it does\"")
        .map(str::to_owned);
    let access = match table.word("access", &["read", "write"]) {
        Some("read") => Some(Access::Read),
        Some(_) => Some(Access::Write),
        None => None,
    };
    let arguments = if table.has("arguments") {
        schemas.arguments(table.source, &table.pointer("arguments"))
    } else {
        schemas.arguments(table.source, "/no such place")
    };
    let result = table
        .has("result")
        .then(|| schemas.schema(table.source, &table.pointer("result")))
        .flatten();
    Common {
        summary,
        access,
        arguments,
        result,
        limits: table.table("limits").map(limits).unwrap_or_default(),
    }
}

fn http(table: Table<'_>, name: &str, folder: &Path, schemas: &Schemas<'_>) -> Option<Method> {
    let Common {
        summary,
        access,
        arguments,
        result,
        limits,
    } = common(&table, schemas);
    let (verb, path) = target(&table);
    let target = verb.clone().zip(path);
    let pages = table.table("pages").and_then(pages::read);
    let idempotent = idempotent(&table, access, verb.as_ref());
    let query = fields(&table, "query");
    let headers = headers(&table);
    let body = body(&table, folder, access, target.as_ref(), &query, &headers);
    let answer = match table.word("answer", &["json", "text", "binary"]) {
        Some("text") => Answer::Text,
        Some("binary") => Answer::Binary,
        _ => Answer::Json,
    };
    let select = if table.has("select") {
        pages::pointer(&table, "select")
    } else {
        Some(Pointer::default())
    };
    let idempotency_header = table
        .text("idempotency_header")
        .and_then(|name| header_name(&table, "idempotency_header", name));
    if answer != Answer::Json && (pages.is_some() || table.has("select")) {
        table.mistake(
            "answer",
            "only JSON has parts and pages",
            "take answer away, or pages and select",
        );
    }
    if pages.is_some() && table.has("select") {
        table.mistake(
            "select",
            "of a paged method, pages.items says which part is the result",
            "take select away",
        );
    }
    let (verb, path) = target?;
    let mut arguments = arguments?;
    let request = Request {
        verb,
        path,
        query,
        headers,
        body: body?,
    };
    if pages.is_some() {
        arguments = with_cursor(&table, &arguments);
    }
    uses::check(&table, &arguments, &request, pages.is_some());
    table.finish();
    Some(Method {
        name: name.to_owned(),
        summary: summary?,
        access: access?,
        idempotent,
        arguments,
        result,
        action: Action::Http(request),
        answer,
        select: select?,
        pages,
        idempotency_header,
        limits,
        fixtures: Vec::new(),
    })
}

/// `request = "GET /contacts/{id}"`
fn target(table: &Table<'_>) -> (Option<http::Method>, Option<PathTemplate>) {
    let Some(text) = table.required("request", "\"GET /contacts/{id}\"") else {
        return (None, None);
    };
    let (verb, target) = text.split_once(' ').unwrap_or(("", text));
    let verb = match verb {
        "GET" => Some(http::Method::GET),
        "POST" => Some(http::Method::POST),
        "PUT" => Some(http::Method::PUT),
        "PATCH" => Some(http::Method::PATCH),
        "DELETE" => Some(http::Method::DELETE),
        _ => {
            table.mistake(
                "request",
                format!("{text:?} begins with no verb"),
                "write GET, POST, PUT, PATCH or DELETE, a space, and the path",
            );
            None
        }
    };
    let target = path(target.trim_start())
        .map_err(|(problem, remedy)| table.mistake("request", problem, remedy))
        .ok();
    (verb, target)
}

fn idempotent(table: &Table<'_>, access: Option<Access>, verb: Option<&http::Method>) -> bool {
    let said = table.flag("idempotent");
    let changes =
        verb.is_some_and(|verb| [http::Method::PUT, http::Method::PATCH, http::Method::DELETE].contains(verb));
    if access == Some(Access::Read) {
        if changes {
            table.mistake(
                "access",
                "a method that only reads has a verb that changes something",
                "write access = \"write\"",
            );
        }
        if said == Some(false) {
            table.mistake(
                "idempotent",
                "a method that only reads is repeated without harm",
                "take idempotent away, or write access = \"write\"",
            );
        }
        return true;
    }
    said.unwrap_or(false)
}

/// `query = ["limit", "after"]`, or `query = { limit = "{limit}", archived = "false" }`
fn fields(table: &Table<'_>, key: &'static str) -> Vec<(String, Template)> {
    let value = match table.value(key) {
        None => return Vec::new(),
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
            let names = names.iter().filter_map(Value::as_str);
            Value::Object(
                names
                    .map(|name| (name.to_owned(), json!(format!("{{{name}}}"))))
                    .collect(),
            )
        }
        Some(value @ Value::Object(_)) => value.clone(),
        Some(_) => {
            table.mistake(
                key,
                format!("{key} is no table"),
                "write { name = \"{argument}\" }, or a list of arguments that keep their names",
            );
            return Vec::new();
        }
    };
    let map = value.as_object().into_iter().flatten();
    map.filter_map(|(name, value)| Some((name.clone(), template(table, key, value, &[])?)))
        .collect()
}

fn template(table: &Table<'_>, key: &'static str, value: &Value, taken: &[String]) -> Option<Template> {
    Template::parse(value, "", taken)
        .map_err(
            |Malformed {
                 pointer,
                 problem,
                 remedy,
             }| {
                let at = format!("{}{pointer}", table.pointer(key));
                table.mistakes.add(table.source.mistake(&at, problem, remedy));
            },
        )
        .ok()
}

fn headers(table: &Table<'_>) -> Vec<(String, Template)> {
    let pairs = table.pairs("headers").into_iter();
    pairs
        .filter_map(|(name, text)| {
            if name.eq_ignore_ascii_case("authorization") || name.eq_ignore_ascii_case("cookie") {
                table.mistake(
                    "headers",
                    format!("the header {name} carries credentials"),
                    "write it as [auth] of the service",
                );
                return None;
            }
            Some((
                header_name(table, "headers", name)?,
                template(table, "headers", &json!(text), &[])?,
            ))
        })
        .collect()
}

fn body(
    table: &Table<'_>,
    folder: &Path,
    access: Option<Access>,
    target: Option<&(http::Method, PathTemplate)>,
    query: &[(String, Template)],
    headers: &[(String, Template)],
) -> Option<Body> {
    let given = ["json", "form", "graphql"]
        .into_iter()
        .filter(|key| table.has(key))
        .count();
    if given > 1 {
        table.mistake("", "the request has two bodies", "write one of json, form and graphql");
        return None;
    }
    if given > 0 && target.is_some_and(|(verb, _)| *verb == http::Method::GET) {
        table.mistake(
            "request",
            "a GET has no body",
            "write POST, or send the arguments in query",
        );
    }
    if table.has("variables") && !table.has("graphql") {
        table.mistake(
            "variables",
            "there is no document for the variables",
            "write graphql = \"\"\"query …\"\"\"",
        );
    }
    let taken = taken(target.map(|(_, path)| path), query, headers);
    if let Some(value) = table.value("json") {
        return template(table, "json", value, &taken).map(Body::Json);
    }
    if let Some(value) = table.value("form") {
        return match (value, template(table, "form", value, &taken)?) {
            (_, Template::Rest(except)) => Some(Body::Form(vec![(String::new(), Template::Rest(except))])),
            (Value::Object(_), _) => Some(Body::Form(fields(table, "form"))),
            _ => {
                table.mistake(
                    "form",
                    "form is no table",
                    "write { name = \"{argument}\" }, or \"{*}\" for all other arguments",
                );
                None
            }
        };
    }
    if table.has("graphql") {
        return graphql(table, folder, access);
    }
    Some(Body::None)
}

/// The arguments that stand in the path, the query and the headers: `{*}` leaves them out of the body.
fn taken(path: Option<&PathTemplate>, query: &[(String, Template)], headers: &[(String, Template)]) -> Vec<String> {
    let path = path
        .into_iter()
        .flat_map(|path| crate::definition::template::parse::arguments(&path.0));
    let query = query
        .iter()
        .chain(headers)
        .flat_map(|(_, template)| template.arguments());
    let mut taken: Vec<String> = path
        .chain(query)
        .filter_map(|argument| argument.0.first().cloned())
        .collect();
    taken.push("cursor".into());
    taken.sort();
    taken.dedup();
    taken
}

/// `graphql = "issues.graphql"`, or the document itself.
fn graphql(table: &Table<'_>, folder: &Path, access: Option<Access>) -> Option<Body> {
    let text = table.text("graphql")?;
    let document = match text.strip_suffix(".graphql") {
        Some(name) if !name.contains(['/', '\\', '{']) => {
            let file = folder.join("graphql").join(text);
            match std::fs::read_to_string(&file) {
                Ok(document) => document,
                Err(error) => {
                    table.mistake(
                        "graphql",
                        format!("the document {} cannot be read ({error})", file.display()),
                        "write the document there, or here between \"\"\" and \"\"\"",
                    );
                    return None;
                }
            }
        }
        _ => text.to_owned(),
    };
    match graphql::operation(&document) {
        Err(error) => {
            table.mistake(
                "graphql",
                format!("the document is no GraphQL with one operation: {error}"),
                "write one query or one mutation",
            );
            return None;
        }
        Ok(graphql::Operation::Query) => {}
        Ok(_) if access == Some(Access::Read) => {
            table.mistake(
                "graphql",
                "the document is no query, and the method only reads",
                "write access = \"write\"",
            );
        }
        Ok(_) => {}
    }
    Some(Body::GraphQl {
        document,
        variables: fields(table, "variables"),
    })
}

/// The arguments of a paged method, with the cursor.
fn with_cursor(table: &Table<'_>, arguments: &Schema) -> Schema {
    let mut value = arguments.value().clone();
    if let Some(properties) = value["properties"].as_object_mut() {
        if properties.contains_key("cursor") {
            table.mistake(
                "arguments",
                "a paged method has the argument cursor by itself",
                "take cursor away from arguments",
            );
        }
        properties.insert("cursor".into(), json!({ "type": "string" }));
    }
    Schema::new(value)
}
