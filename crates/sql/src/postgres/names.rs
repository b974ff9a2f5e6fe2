//! What a tree of Postgres names, and what it may not say although its shape is allowed.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::functions::{POSTGRES, POSTGRES_REFUSED, POSTGRES_REFUSED_OTHERS, POSTGRES_TYPES};
use crate::shapes::is_kind;
use crate::{Name, Refusal, Statement};

/// The server's own schema.
const OWN: &str = "pg_catalog";

/// How a call is written where it is written as one; others have words in place of a name (`EXTRACT`, `AT TIME ZONE`).
const EXPLICIT_CALL: i64 = 1;

/// What EXPLAIN may be told. ANALYZE would run the statement.
const EXPLAIN: [&str; 4] = ["verbose", "costs", "format", "settings"];

/// What SHOW may show.
const SHOW: [&str; 14] = [
    "client_encoding",
    "datestyle",
    "default_transaction_read_only",
    "intervalstyle",
    "lc_collate",
    "lc_ctype",
    "search_path",
    "server_encoding",
    "server_version",
    "server_version_num",
    "statement_timeout",
    "timezone",
    "transaction_isolation",
    "transaction_read_only",
];

/// What the grammar has words for and servers before PostgreSQL 16 and 17 call somebody's function by.
const JSON: [(&str, &[&str]); 10] = [
    ("JsonFuncExpr", &["json_exists", "json_query", "json_value"]),
    ("JsonTable", &["json_table"]),
    ("JsonObjectConstructor", &["json_object"]),
    ("JsonArrayConstructor", &["json_array"]),
    ("JsonArrayQueryConstructor", &["json_array"]),
    ("JsonObjectAgg", &["json_objectagg"]),
    ("JsonArrayAgg", &["json_arrayagg"]),
    ("JsonParseExpr", &["json"]),
    ("JsonScalarExpr", &["json_scalar"]),
    ("JsonSerializeExpr", &["json_serialize"]),
];

/// What a tree names.
pub(super) struct Names {
    /// All but the text.
    pub(super) statement: Statement,
    /// Where calls of the server's own functions stand in the text, in order.
    pub(super) own: BTreeSet<usize>,
}

type Fields = Map<String, Value>;

impl Names {
    pub(super) fn of(tree: &Value) -> Result<Self, Refusal> {
        let mut reader = Reader {
            names: Self {
                statement: Statement::default(),
                own: BTreeSet::new(),
            },
            relations: BTreeSet::new(),
            functions: BTreeSet::new(),
            operators: BTreeSet::new(),
            types: BTreeSet::new(),
            scopes: Vec::new(),
        };
        let kind = tree["node"].as_object().and_then(|node| node.keys().next());
        if !matches!(
            kind.map(String::as_str),
            Some("SelectStmt" | "ExplainStmt" | "VariableShowStmt")
        ) {
            return Err(Refusal::new("it is no query", super::REWRITE));
        }
        reader.value(tree)?;
        let mut names = reader.names;
        names.statement.relations = reader.relations.into_iter().collect();
        names.statement.functions = reader.functions.into_iter().collect();
        names.statement.operators = reader.operators.into_iter().collect();
        names.statement.types = reader.types.into_iter().collect();
        Ok(names)
    }
}

/// The tree as it is once the server's schema stands before its own functions.
pub(super) fn qualified(mut tree: Value) -> Value {
    match &mut tree {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                let mut inner = qualified(value.take());
                if key == "FuncCall"
                    && inner.as_object().is_some_and(is_own_call)
                    && let Some(parts) = inner["funcname"].as_array_mut()
                {
                    parts.insert(0, json!({ "node": { "String": { "sval": OWN } } }));
                }
                *value = inner;
            }
        }
        Value::Array(items) => {
            for item in items.iter_mut() {
                *item = qualified(item.take());
            }
        }
        _ => {}
    }
    tree
}

/// Whether a call names no schema and means a function of the server's that is harmless.
fn is_own_call(call: &Fields) -> bool {
    let written = call.get("funcformat").and_then(Value::as_i64) == Some(EXPLICIT_CALL);
    written && matches!(strings(call.get("funcname")).as_slice(), [name] if POSTGRES.has(name))
}

/// The parts of a name.
fn strings(parts: Option<&Value>) -> Vec<&str> {
    let parts = parts.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    parts
        .iter()
        .filter_map(|part| part["node"]["String"]["sval"].as_str())
        .collect()
}

fn list<'a>(fields: &'a Fields, field: &str) -> Option<&'a [Value]> {
    fields.get(field).and_then(Value::as_array).map(Vec::as_slice)
}

fn unknown(function: &str) -> Refusal {
    Refusal::new(
        format!("the function {function} does more than read rows, or is not known not to"),
        "Leave it out; functions of text, numbers, dates, JSON, arrays, windows and aggregates may be used",
    )
}

fn text<'a>(fields: &'a Fields, field: &str) -> &'a str {
    fields.get(field).and_then(Value::as_str).unwrap_or_default()
}

struct Reader {
    names: Names,
    relations: BTreeSet<Name>,
    functions: BTreeSet<Name>,
    operators: BTreeSet<Name>,
    types: BTreeSet<Name>,
    /// The names that WITH defines, as far as they can be seen from here; the innermost last.
    scopes: Vec<Vec<String>>,
}

impl Reader {
    fn value(&mut self, value: &Value) -> Result<(), Refusal> {
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.value(item)),
            Value::Object(fields) => fields.iter().try_for_each(|(key, value)| match value.as_object() {
                Some(inner) if is_kind(key) => self.node(key, inner),
                // Both sides of a UNION are queries without a node around them.
                Some(inner) if inner.contains_key("target_list") => self.select(inner),
                Some(inner) if key == "type_name" => self.type_name(inner),
                _ => self.value(value),
            }),
            _ => Ok(()),
        }
    }

    fn fields(&mut self, fields: &Fields) -> Result<(), Refusal> {
        fields.iter().try_for_each(|(key, value)| match value.as_object() {
            Some(inner) if inner.contains_key("target_list") => self.select(inner),
            Some(inner) if key == "type_name" => self.type_name(inner),
            _ => self.value(value),
        })
    }

    fn node(&mut self, kind: &str, fields: &Fields) -> Result<(), Refusal> {
        match kind {
            "SelectStmt" => return self.select(fields),
            "TypeName" => return self.type_name(fields),
            "RangeVar" => self.relation(fields)?,
            "RangeTableSample" => sample(fields)?,
            "FuncCall" => self.call(fields)?,
            "ColumnRef" => {
                if let Some([_, .., last]) = list(fields, "fields") {
                    self.attribute(last)?;
                }
            }
            "AIndirection" => {
                for part in list(fields, "indirection").unwrap_or_default() {
                    self.attribute(part)?;
                }
            }
            _ if kind.starts_with("Json") => {
                let names = JSON
                    .iter()
                    .filter(|(listed, _)| *listed == kind)
                    .flat_map(|(_, names)| *names);
                self.functions.extend(names.map(|name| named("", name)));
            }
            "AExpr" => self.operator(fields.get("name")),
            "SubLink" => {
                self.operator(fields.get("oper_name"));
                // IN of a query has words in place of an operator.
                if strings(fields.get("oper_name")).is_empty() && fields.get("testexpr").is_some_and(|of| !of.is_null())
                {
                    self.used("", "=");
                }
            }
            "CaseExpr" if fields.get("arg").is_some_and(|of| !of.is_null()) => self.used("", "="),
            "JoinExpr"
                if fields.get("is_natural").and_then(Value::as_bool).unwrap_or_default()
                    || list(fields, "using_clause").is_some_and(|columns| !columns.is_empty()) =>
            {
                self.used("", "=");
            }
            "SortBy" => self.operator(fields.get("use_op")),
            "ParamRef" => self.parameter(fields)?,
            "ExplainStmt" => explain(fields)?,
            "VariableShowStmt" => show(fields)?,
            _ => {}
        }
        self.fields(fields)
    }

    /// A query, whose WITH is seen by itself and by what is in it.
    fn select(&mut self, fields: &Fields) -> Result<(), Refusal> {
        self.scopes.push(Vec::new());
        if let Some(with) = fields.get("with_clause").and_then(Value::as_object) {
            let tables = with
                .get("ctes")
                .and_then(Value::as_array)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let recursive = with.get("recursive").and_then(Value::as_bool).unwrap_or_default();
            let names = tables
                .iter()
                .map(|table| table["node"]["CommonTableExpr"]["ctename"].as_str());
            let names: Vec<&str> = names.map(Option::unwrap_or_default).collect();
            if recursive {
                self.define(&names);
            }
            for (table, name) in tables.iter().zip(names) {
                self.value(table)?;
                self.define(&[name]);
            }
        }
        for (key, value) in fields.iter().filter(|(key, _)| *key != "with_clause") {
            match value.as_object() {
                Some(side) if key == "larg" || key == "rarg" => self.select(side)?,
                _ => self.value(value)?,
            }
        }
        self.scopes.pop();
        Ok(())
    }

    fn define(&mut self, names: &[&str]) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.extend(names.iter().map(|name| (*name).to_owned()));
        }
    }

    fn relation(&mut self, fields: &Fields) -> Result<(), Refusal> {
        let (schema, name) = (text(fields, "schemaname"), text(fields, "relname"));
        if text(fields, "relpersistence") != "p" {
            return Err(Refusal::new(
                format!("{name} is asked for as a temporary table"),
                super::REWRITE,
            ));
        }
        let defined = self.scopes.iter().flatten().any(|defined| defined == name);
        if !(schema.is_empty() && defined) {
            self.relations.insert(named(schema, name));
        }
        Ok(())
    }

    fn call(&mut self, fields: &Fields) -> Result<(), Refusal> {
        let parts = strings(fields.get("funcname"));
        let (schema, name) = match parts.as_slice() {
            [name] => ("", *name),
            [schema, name] => (*schema, *name),
            _ => {
                return Err(Refusal::new(
                    "it calls a function of another database",
                    "Name it by its schema",
                ));
            }
        };
        let harmless = POSTGRES.has(name) && matches!(schema, "" | OWN);
        if !harmless && (schema == OWN || POSTGRES_REFUSED.has(name) || POSTGRES_REFUSED_OTHERS.has(name)) {
            return Err(unknown(name));
        }
        if !harmless {
            self.functions.insert(named(schema, name));
        } else if is_own_call(fields) {
            let place = fields.get("location").and_then(Value::as_u64);
            self.names
                .own
                .extend(place.and_then(|place| usize::try_from(place).ok()));
        }
        Ok(())
    }

    /// A column, or what the server makes of a name after a dot when there is no such column: a call of the function of that
    /// name with what stands before the dot.
    fn attribute(&mut self, name: &Value) -> Result<(), Refusal> {
        let Some(name) = name["node"]["String"]["sval"].as_str() else {
            return Ok(());
        };
        if POSTGRES.has(name) || POSTGRES_TYPES.has(name) {
            return Ok(());
        }
        if POSTGRES_REFUSED.has(name) {
            return Err(unknown(name));
        }
        self.functions.insert(named("", name));
        Ok(())
    }

    fn operator(&mut self, parts: Option<&Value>) {
        let (schema, operators): (_, &[&str]) = match strings(parts).as_slice() {
            // Words that the grammar makes comparisons of.
            [name] if name.starts_with("NOT BETWEEN") => ("", &["<", ">"]),
            [name] if name.contains("BETWEEN") => ("", &["<=", ">="]),
            [name] => return self.used("", name),
            [schema, name] => return self.used(schema, name),
            _ => return,
        };
        for operator in operators {
            self.used(schema, operator);
        }
    }

    fn used(&mut self, schema: &str, operator: &str) {
        if schema != OWN {
            self.operators.insert(named(schema, operator));
        }
    }

    fn type_name(&mut self, fields: &Fields) -> Result<(), Refusal> {
        match strings(fields.get("names")).as_slice() {
            [name] | [OWN, name] if POSTGRES_TYPES.has(name) => {}
            [OWN, name] => {
                return Err(Refusal::new(
                    format!("the type {name} is not among those that values may be converted to"),
                    "Convert to text, a number, a date, JSON or a type of the database's own",
                ));
            }
            [name] => {
                self.types.insert(named("", name));
            }
            [schema, name] => {
                self.types.insert(named(schema, name));
            }
            _ => {
                return Err(Refusal::new(
                    "it names a type of another database",
                    "Name it by its schema",
                ));
            }
        }
        self.fields(fields)
    }

    fn parameter(&mut self, fields: &Fields) -> Result<(), Refusal> {
        let number = fields.get("number").and_then(Value::as_u64);
        let number = number.and_then(|number| u32::try_from(number).ok());
        let Some(number) = number.filter(|number| (1..=1_000).contains(number)) else {
            return Err(Refusal::new(
                "it has a parameter without a number",
                "Write parameters as $1, $2 and so on",
            ));
        };
        self.names.statement.parameters = self.names.statement.parameters.max(number);
        Ok(())
    }
}

fn named(schema: &str, name: &str) -> Name {
    Name {
        schema: Some(schema.to_owned()).filter(|schema| !schema.is_empty()),
        name: name.to_owned(),
    }
}

fn sample(fields: &Fields) -> Result<(), Refusal> {
    match strings(fields.get("method")).as_slice() {
        ["bernoulli" | "system"] => Ok(()),
        _ => Err(Refusal::new(
            "its method of sampling is somebody's function",
            "Use BERNOULLI or SYSTEM",
        )),
    }
}

fn explain(fields: &Fields) -> Result<(), Refusal> {
    let options = fields
        .get("options")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    for option in options {
        let name = option["node"]["DefElem"]["defname"].as_str().unwrap_or_default();
        if !EXPLAIN.contains(&name) {
            return Err(Refusal::new(
                format!("EXPLAIN with {} may run the statement", name.to_uppercase()),
                "Use EXPLAIN alone, or with VERBOSE, COSTS or FORMAT",
            ));
        }
    }
    let node = fields.get("query").map(|query| &query["node"]["SelectStmt"]);
    match node {
        Some(Value::Object(_)) => Ok(()),
        _ => Err(Refusal::new("it explains what is no query", super::REWRITE)),
    }
}

fn show(fields: &Fields) -> Result<(), Refusal> {
    let name = text(fields, "name").to_lowercase();
    if SHOW.contains(&name.as_str()) {
        return Ok(());
    }
    Err(Refusal::new(
        format!("SHOW {name} shows what a query need not know"),
        "SHOW server_version, search_path, timezone and their like may run",
    ))
}
