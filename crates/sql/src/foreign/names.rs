//! What a tree names, and what it may not say although its shape is allowed.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::Tongue;
use crate::shapes::is_kind;
use crate::{Name, Refusal, Statement};

/// What may stand between two expressions, and before one.
const OPERATORS: [&str; 29] = [
    "Plus",
    "Minus",
    "Multiply",
    "Divide",
    "Modulo",
    "StringConcat",
    "Gt",
    "Lt",
    "GtEq",
    "LtEq",
    "Spaceship",
    "Eq",
    "NotEq",
    "And",
    "Or",
    "Xor",
    "BitwiseOr",
    "BitwiseAnd",
    "BitwiseXor",
    "BitwiseNot",
    "MyIntegerDivide",
    "Regexp",
    "Glob",
    "Not",
    "Match",
    "Arrow",
    "LongArrow",
    "PGBitwiseShiftLeft",
    "PGBitwiseShiftRight",
];

/// How results of queries are put together.
const SETS: [&str; 4] = ["Union", "Except", "Intersect", "Minus"];

/// Words that the parser takes for names here and there, and a server never does.
const RESERVED: [&str; 22] = [
    "analyze",
    "call",
    "create",
    "delete",
    "do",
    "drop",
    "dumpfile",
    "execute",
    "explain",
    "for",
    "grant",
    "handler",
    "into",
    "load",
    "lock",
    "merge",
    "outfile",
    "procedure",
    "returning",
    "set",
    "update",
    "with",
];

type Fields = Map<String, Value>;

pub(super) fn read(tongue: Tongue, tree: &Value) -> Result<Statement, Refusal> {
    let mut reader = Reader {
        tongue,
        parameters: 0,
        relations: BTreeSet::new(),
        scopes: Vec::new(),
    };
    statement(tongue, tree)?;
    reader.value("", tree)?;
    Ok(Statement {
        parameters: reader.parameters,
        relations: reader.relations.into_iter().collect(),
        ..Statement::default()
    })
}

/// What kind of statement it is, which the table of shapes does not tell.
fn statement(tongue: Tongue, tree: &Value) -> Result<(), Refusal> {
    let kind = tree.as_object().and_then(|tree| tree.iter().next());
    let (kind, fields) = kind.map_or(("", &Value::Null), |(kind, fields)| (kind.as_str(), fields));
    let allowed = match kind {
        "Query" => true,
        "Explain" => {
            fields["statement"]["Query"].is_object() && (tongue != Tongue::Sqlite || fields["query_plan"] == true)
        }
        "ShowCreate" => tongue == Tongue::MySql && (fields["obj_type"] == "Table" || fields["obj_type"] == "View"),
        "ShowTables" | "ShowColumns" | "ShowDatabases" | "ShowSchemas" | "ShowViews" | "ExplainTable" => {
            tongue != Tongue::Sqlite
        }
        _ => false,
    };
    if allowed {
        return Ok(());
    }
    Err(Refusal::new("it is no query", super::REWRITE))
}

struct Reader {
    tongue: Tongue,
    parameters: u32,
    relations: BTreeSet<Name>,
    /// The names that WITH defines, as far as they can be seen from here; the innermost last.
    scopes: Vec<Vec<Value>>,
}

impl Reader {
    fn value(&mut self, kind: &str, value: &Value) -> Result<(), Refusal> {
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.value(kind, item)),
            Value::Object(fields) if fields.contains_key("with") && fields.contains_key("body") => {
                self.query(kind, fields)
            }
            Value::Object(fields) => self.fields(kind, fields),
            _ => Ok(()),
        }
    }

    fn fields(&mut self, kind: &str, fields: &Fields) -> Result<(), Refusal> {
        if let (Some(name), true) = (fields.get("value"), fields.contains_key("quote_style")) {
            identifier(name, &fields["quote_style"])?;
        }
        fields.iter().try_for_each(|(key, value)| {
            self.entry(key, value)?;
            self.value(if is_kind(key) { key } else { kind }, value)
        })
    }

    fn entry(&mut self, key: &str, value: &Value) -> Result<(), Refusal> {
        match (key, value) {
            ("Function", Value::Object(call)) => self.call(&call["name"]),
            ("Table", Value::Object(table)) if table.get("args").is_some_and(|args| !args.is_null()) => {
                self.call(&table["name"])
            }
            ("Table", Value::Object(table)) => self.relation(table.get("name")),
            ("table_name" | "obj_name", name) => self.relation(Some(name)),
            ("ShowTables" | "ShowViews" | "ShowColumns", Value::Object(show)) => {
                self.shown(key, &show["show_options"]["show_in"])
            }
            ("TableFunction", function) if !function["expr"]["Function"].is_object() => Err(Refusal::new(
                "it reads a table whose name is computed",
                "Write the name itself",
            )),
            ("Placeholder", Value::String(mark)) if mark == "?" => {
                self.parameters = self.parameters.saturating_add(1);
                Ok(())
            }
            ("Placeholder", _) => Err(Refusal::new(
                "it has a parameter that is not written ?",
                "Write parameters as ?",
            )),
            ("op" | "compare_op", Value::String(operator)) => self.operator(operator),
            _ => Ok(()),
        }
    }

    fn operator(&self, operator: &str) -> Result<(), Refusal> {
        if operator == "StringConcat" && self.tongue == Tongue::MySql {
            return Err(Refusal::new(
                "|| is OR or joins texts, as the server is set",
                "Write OR, or CONCAT(…)",
            ));
        }
        // Snowflake has statements that one arrow joins.
        let arrow = operator.ends_with("Arrow") && self.tongue == Tongue::Snowflake;
        if !arrow && (OPERATORS.contains(&operator) || SETS.contains(&operator)) {
            return Ok(());
        }
        Err(Refusal::new(
            format!("the operator {operator} is not among those that only read"),
            super::REWRITE,
        ))
    }

    /// A query, whose WITH is seen by itself and by what is in it.
    fn query(&mut self, kind: &str, fields: &Fields) -> Result<(), Refusal> {
        self.scopes.push(Vec::new());
        let with = &fields["with"];
        let tables = with["cte_tables"].as_array().map(Vec::as_slice).unwrap_or_default();
        let name = |table: &Value| table["alias"]["name"].clone();
        let recursive = with["recursive"] == true;
        // MySQL sees the earlier ones and itself, so that the name of a later one may be a table's. Others see all of them.
        if recursive && self.tongue != Tongue::MySql {
            self.define(tables.iter().map(name));
        }
        for table in tables {
            if recursive && self.tongue == Tongue::MySql {
                self.define([name(table)]);
            }
            self.value(kind, table)?;
            self.define([name(table)]);
        }
        for (key, value) in fields.iter().filter(|(key, _)| *key != "with") {
            self.value(kind, value)?;
            self.entry(key, value)?;
        }
        self.scopes.pop();
        Ok(())
    }

    fn define(&mut self, names: impl IntoIterator<Item = Value>) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.extend(names);
        }
    }

    fn relation(&mut self, name: Option<&Value>) -> Result<(), Refusal> {
        let parts = parts(name)?;
        // A name in quotes is another than one without.
        let defined = matches!(parts.as_slice(), [one] if self.scopes.iter().flatten().any(|defined| defined == *one));
        if !defined && let Some((last, schema)) = parts.split_last() {
            let schema: Vec<String> = schema.iter().map(|part| self.spelled(part)).collect();
            self.relations.insert(Name {
                schema: Some(schema.join(".")).filter(|schema| !schema.is_empty()),
                name: self.spelled(last),
            });
        }
        Ok(())
    }

    /// What is listed, and is read as much as a table: the columns of one, or the names of all in a schema.
    fn shown(&mut self, kind: &str, place: &Value) -> Result<(), Refusal> {
        let (named, within) = (&place["parent_name"], place["parent_type"].as_str().unwrap_or_default());
        if place.is_null() {
            return Ok(());
        }
        if named.is_null() {
            return Err(Refusal::new(
                "it lists what is in every schema",
                "Name one schema, or none",
            ));
        }
        if kind == "ShowColumns" && matches!(within, "" | "Table" | "View") {
            return self.relation(Some(named));
        }
        let mut schema: Vec<String> = parts(Some(named))?.iter().map(|part| self.spelled(part)).collect();
        // All schemas of a database are none that is listed.
        if within == "Database" && self.tongue == Tongue::Snowflake {
            schema.push("*".to_owned());
        }
        self.relations.insert(Name {
            schema: Some(schema.join(".")),
            name: "*".to_owned(),
        });
        Ok(())
    }

    /// A name as the server spells it.
    fn spelled(&self, part: &Value) -> String {
        let name = part["value"].as_str().unwrap_or_default();
        if self.tongue == Tongue::Snowflake && part["quote_style"].is_null() {
            return name.to_uppercase();
        }
        name.to_owned()
    }

    fn call(&self, name: &Value) -> Result<(), Refusal> {
        let parts = parts(Some(name))?;
        let written: Vec<&str> = parts.iter().filter_map(|part| part["value"].as_str()).collect();
        let known = match (parts.as_slice(), written.as_slice()) {
            ([part], [name]) => {
                part["quote_style"].is_null() && self.tongue.functions().has(&name.to_ascii_lowercase())
            }
            _ => false,
        };
        if known {
            return Ok(());
        }
        Err(Refusal::new(
            format!(
                "the function {} does more than read rows, or is not known not to",
                written.join(".")
            ),
            "Leave it out; the server's own functions of text, numbers, dates, JSON, windows and aggregates may be used",
        ))
    }
}

/// The parts of a name, each a plain identifier.
fn parts(name: Option<&Value>) -> Result<Vec<&Value>, Refusal> {
    let parts = name.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    // In '…' a name may be that of a file.
    let plain = parts
        .iter()
        .map(|part| &part["Identifier"])
        .filter(|part| part.is_object() && part["quote_style"] != "'");
    let plain: Vec<&Value> = plain.collect();
    if plain.is_empty() || plain.len() != parts.len() {
        return Err(Refusal::new("it has a name that is computed", "Write the name itself"));
    }
    Ok(plain)
}

/// Only what every server reads as one name.
fn identifier(name: &Value, quote: &Value) -> Result<(), Refusal> {
    let name = name.as_str().unwrap_or_default();
    if name.eq_ignore_ascii_case("nextval") {
        return Err(Refusal::new("nextval moves a sequence on", "Leave it out"));
    }
    if quote.is_null() && RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
        return Err(Refusal::new(
            format!("{name} stands where a name should"),
            "Write names that are words of SQL in quotes",
        ));
    }
    let plain = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$';
    let good = match quote.as_str() {
        None => name.starts_with(|first: char| first.is_alphabetic() || first == '_') && name.chars().all(plain),
        Some(_) => !name.is_empty() && !name.contains(['"', '`', '[', ']', '\\', '\'']),
    };
    if good {
        return Ok(());
    }
    Err(Refusal::new(
        format!("{name} is no name that everybody reads alike"),
        "Use names of letters, digits and _",
    ))
}
