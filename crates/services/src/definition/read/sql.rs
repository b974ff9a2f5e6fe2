//! What only services of kind `sql` have.

use serde_json::{Value, json};

use super::method::{Common, common};
use super::schemas::Schemas;
use super::table::Table;
use crate::definition::{Access, Action, Answer, Auth, Engine, Kind, Method, Pointer, Sql, Statement};
use crate::schema::Schema;

/// What a request of a method may be.
const REQUESTS: [&str; 4] = ["query", "export", "tables", "columns"];

/// Reads what `service.toml` says of the database.
pub(super) fn read(table: &Table<'_>) -> Option<Kind> {
    let known: Vec<&str> = Engine::ALL.iter().map(|engine| engine.as_str()).collect();
    let written = table.texts("engines");
    let engines: Vec<Engine> = written
        .iter()
        .filter_map(|word| Engine::ALL.into_iter().find(|engine| engine.as_str() == *word))
        .collect();
    if engines.is_empty() || engines.len() < written.len() {
        table.mistake(
            "engines",
            "it is not said which databases the definition is for",
            format!("write engines = [\"postgres\"], of {}", known.join(", ")),
        );
        return None;
    }
    Some(Kind::Sql(Sql { engines }))
}

/// How one shows who one is, by engine.
pub(super) fn auth(kind: Option<&Kind>) -> Vec<Auth> {
    let Some(Kind::Sql(Sql { engines })) = kind else {
        return Vec::new();
    };
    // Whoever reads a file shows nothing.
    if engines.contains(&Engine::Sqlite) && engines.len() == 1 {
        return Vec::new();
    }
    let mut ways = Vec::new();
    if engines
        .iter()
        .any(|engine| !matches!(engine, Engine::Sqlite | Engine::Snowflake))
    {
        ways.push(Auth::Basic);
    }
    if engines.contains(&Engine::Snowflake) {
        ways.push(Auth::KeyPair);
    }
    ways
}

/// Reads a method.
pub(super) fn method(table: Table<'_>, name: &str, schemas: &Schemas<'_>) -> Option<Method> {
    let (given, statement) = if table.has("sql") {
        fixed(&table, schemas)?
    } else {
        given(&table)?
    };
    if given.access == Some(Access::Write) {
        table.mistake(
            "access",
            "services of kind sql only read",
            "take access away, or write access = \"read\"",
        );
    }
    table.finish();
    Some(Method {
        name: name.to_owned(),
        summary: given.summary?,
        access: Access::Read,
        idempotent: true,
        arguments: given.arguments?,
        result: given.result,
        answer: if statement == Statement::Export {
            Answer::Binary
        } else {
            Answer::Json
        },
        action: Action::Sql(statement),
        select: Pointer::default(),
        pages: None,
        idempotency_header: None,
        limits: given.limits,
        fixtures: Vec::new(),
    })
}

/// A statement that stands in the definition.
fn fixed(table: &Table<'_>, schemas: &Schemas<'_>) -> Option<(Common, Statement)> {
    let text = table.text("sql").map(str::trim).unwrap_or_default().to_owned();
    let parameters: Vec<String> = table.texts("parameters").into_iter().map(str::to_owned).collect();
    let mut given = common(table, schemas);
    let arguments = given.arguments.as_ref()?.value();
    for parameter in &parameters {
        if arguments["properties"].get(parameter).is_none() {
            table.mistake(
                "parameters",
                format!("{parameter} is no argument"),
                format!("write properties.{parameter} in arguments"),
            );
        }
    }
    for argument in arguments["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name)
    {
        if !parameters.contains(argument) {
            table.mistake(
                "arguments",
                format!("the argument {argument} goes nowhere"),
                "name it in parameters, in the order of the statement's placeholders, or take it away",
            );
        }
    }
    let row = given
        .result
        .take()
        .map_or_else(|| json!({ "type": "object" }), |schema| schema.value().clone());
    given.result = Some(Schema::new(rows(row)));
    Some((given, Statement::Fixed { text, parameters }))
}

/// A method whose statement is the caller's, or ours.
fn given(table: &Table<'_>) -> Option<(Common, Statement)> {
    if !table.has("request") {
        table.required(
            "request",
            "one of \"query\", \"export\", \"tables\" and \"columns\", or sql = \"SELECT …\"",
        );
    }
    let (statement, arguments, result) = match table.word("request", &REQUESTS)? {
        "query" => (Statement::Query, query(), Some(rows(json!({ "type": "object" })))),
        "export" => (Statement::Export, export(), None),
        "tables" => (Statement::Tables, tables(), Some(listed())),
        _ => (Statement::Describe, describe(), Some(described())),
    };
    let summary = table
        .required("summary", "\"one line on what it does\"")
        .map(str::to_owned);
    let given = Common {
        summary,
        access: table
            .has("access")
            .then(|| table.word("access", &["read", "write"]))
            .flatten()
            .map(|word| if word == "read" { Access::Read } else { Access::Write }),
        arguments: Some(Schema::new(arguments)),
        result: result.map(Schema::new),
        limits: table.table("limits").map(super::service::limits).unwrap_or_default(),
    };
    Some((given, statement))
}

fn statement() -> Value {
    json!({ "type": "string", "minLength": 1, "description": "One statement that only reads. Values go into parameters, never into the text." })
}

fn parameters() -> Value {
    json!({ "type": "array", "items": {}, "maxItems": 1000, "description": "What the placeholders stand for, in order." })
}

fn object(properties: Value, required: Value) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn query() -> Value {
    let limit = json!({ "type": "integer", "minimum": 1, "maximum": 10_000, "description": "The most rows; 1000 where it is left out." });
    object(
        json!({ "sql": statement(), "parameters": parameters(), "limit": limit }),
        json!(["sql"]),
    )
}

fn export() -> Value {
    let format = json!({ "enum": ["jsonl", "csv"], "description": "A row is a line; jsonl where it is left out." });
    object(
        json!({ "sql": statement(), "parameters": parameters(), "format": format }),
        json!(["sql"]),
    )
}

fn tables() -> Value {
    let schema = json!({ "type": "string", "description": "Only those of this schema." });
    object(json!({ "schema": schema }), json!([]))
}

fn describe() -> Value {
    let table = json!({ "type": "string", "description": "schema.table, as tables() gives it." });
    object(json!({ "table": table }), json!(["table"]))
}

fn heads() -> Value {
    json!({ "type": "array", "items": object(json!({ "name": { "type": "string" }, "type": { "type": "string" } }), json!(["name", "type"])) })
}

/// What a query gives: rows of this kind.
fn rows(row: Value) -> Value {
    object(
        json!({
            "columns": heads(),
            "rows": { "type": "array", "items": row },
            "truncated": { "type": "boolean", "description": "Whether there were more rows than the limit, or than fit." },
        }),
        json!(["columns", "rows", "truncated"]),
    )
}

fn listed() -> Value {
    let text = json!({ "type": ["string", "null"] });
    let table = object(
        json!({
            "schema": text, "name": { "type": "string" }, "kind": { "type": "string" },
            "rows": { "type": ["integer", "string", "null"], "description": "About how many." }, "comment": text,
        }),
        json!(["schema", "name", "kind", "rows", "comment"]),
    );
    object(
        json!({
            "engine": { "type": "string" },
            "placeholders": { "type": "string", "description": "How parameters are written in a statement." },
            "tables": { "type": "array", "items": table },
            "truncated": { "type": "boolean" },
        }),
        json!(["engine", "placeholders", "tables", "truncated"]),
    )
}

fn described() -> Value {
    let column = object(
        json!({
            "name": { "type": "string" }, "type": { "type": "string" }, "nullable": { "type": "boolean" },
            "key": { "type": "boolean", "description": "Whether it is part of the primary key." },
            "comment": { "type": ["string", "null"] },
        }),
        json!(["name", "type", "nullable", "key", "comment"]),
    );
    object(
        json!({ "table": { "type": "string" }, "columns": { "type": "array", "items": column }, "truncated": { "type": "boolean" } }),
        json!(["table", "columns", "truncated"]),
    )
}
