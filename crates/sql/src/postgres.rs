//! Postgres, by the server's own grammar.

mod names;

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::shapes::{Shapes, Unlisted};
use crate::{Refusal, Statement};
use names::Names;

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| Shapes::read(include_str!("../data/postgres-shapes.txt")));

/// What to do about a statement that does not parse.
const REWRITE: &str = "Write one SELECT (or VALUES, WITH … SELECT, EXPLAIN of one) in the SQL of PostgreSQL";

/// What a function that is not quoted is called by, once it is known to be the server's own.
const CATALOGUE: &str = "pg_catalog.";

pub(crate) fn check(text: &str) -> Result<Statement, Refusal> {
    let first = Parsed::of(text)?;
    SHAPES.hold(&first.tree).map_err(unlisted)?;
    let Names {
        statement: mut checked, ..
    } = Names::of(&first.tree)?;

    let differs = || {
        Refusal::new(
            "it does not mean the same when it is written anew, so it may not have been understood",
            "Write it more simply",
        )
    };
    let again = Parsed::of(&first.written()?)?;
    if again.tree != first.tree {
        return Err(differs());
    }
    // Calls of the server's own functions get its schema written before them, so that no other can stand in their place.
    let Names { own, .. } = Names::of(&again.placed)?;
    let mut qualified = again.text.clone();
    for place in own.iter().rev() {
        if !qualified.is_char_boundary(*place) {
            return Err(differs());
        }
        qualified.insert_str(*place, CATALOGUE);
    }
    let last = Parsed::of(&qualified)?;
    if last.tree != names::qualified(again.tree) {
        return Err(differs());
    }
    checked.text = qualified;
    Ok(checked)
}

/// One statement and its tree.
struct Parsed {
    text: String,
    result: pg_query::protobuf::ParseResult,
    /// The tree as it is.
    placed: Value,
    /// The tree without positions in the text.
    tree: Value,
}

impl Parsed {
    fn of(text: &str) -> Result<Self, Refusal> {
        let parsed = pg_query::parse(text, 0).map_err(|error| match error {
            pg_query::Error::Parse(why) => {
                Refusal::new(format!("it is no SQL that PostgreSQL understands ({why})"), REWRITE)
            }
            pg_query::Error::Decode(_) => {
                Refusal::new("it is nested too deeply", "Split it into a WITH of several parts")
            }
            _ => Refusal::new("it holds a zero byte", "Leave it out"),
        })?;
        let mut result = parsed.protobuf;
        let [statement] = result.stmts.as_mut_slice() else {
            return Err(Refusal::new(
                format!("it is {} statements", result.stmts.len()),
                "Send exactly one statement, each in a call of its own",
            ));
        };
        // Where the text had white space or a semicolon is no part of what it means.
        (statement.stmt_location, statement.stmt_len) = (0, 0);
        let statement = statement.stmt.as_ref();
        let placed = serde_json::to_value(statement)
            .map_err(|_| Refusal::new("it cannot be looked at", "Write it more simply"))?;
        let tree = without_places(placed.clone());
        Ok(Self {
            text: text.to_owned(),
            result,
            placed,
            tree,
        })
    }

    fn written(&self) -> Result<String, Refusal> {
        let written = pg_query::deparse(&self.result, pg_query::DeparseOptions::default());
        written.map_err(|_| Refusal::new("it cannot be written anew", "Write it more simply"))
    }
}

/// Whether a field says where in the text something stood.
fn is_place(field: &str) -> bool {
    field == "location" || field.ends_with("_location") || field.ends_with("list_start") || field.ends_with("list_end")
}

fn without_places(tree: Value) -> Value {
    match tree {
        Value::Object(fields) => {
            let kept: Map<_, _> = fields.into_iter().filter(|(field, _)| !is_place(field)).collect();
            Value::Object(
                kept.into_iter()
                    .map(|(field, value)| (field, without_places(value)))
                    .collect(),
            )
        }
        Value::Array(items) => items.into_iter().map(without_places).collect(),
        other => other,
    }
}

fn unlisted(unlisted: Unlisted) -> Refusal {
    let kind = match &unlisted {
        Unlisted::Kind(kind) | Unlisted::Field(kind, _) => kind.as_str(),
    };
    let (field, only) = match &unlisted {
        Unlisted::Field(_, field) => (field.as_str(), "Leave that part out"),
        Unlisted::Kind(_) => (
            "",
            "Only SELECT, VALUES, WITH … SELECT, EXPLAIN without ANALYZE, and SHOW may run",
        ),
    };
    let why = match (kind, field) {
        ("InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt", _) => "it changes rows".to_owned(),
        ("TransactionStmt", _) => "it begins or ends a transaction".to_owned(),
        ("VariableSetStmt", _) => "it changes a setting".to_owned(),
        ("CopyStmt", _) => "it copies to or from a file or a program".to_owned(),
        ("SelectStmt", "into_clause" | "rel") => "SELECT … INTO makes a table".to_owned(),
        ("SelectStmt", "locking_clause") => "FOR UPDATE and FOR SHARE lock rows".to_owned(),
        (kind, "") => format!("it has a {}, which is not among what only reads", words(kind)),
        (kind, field) => format!(
            "a {} has {}, which is not among what only reads",
            words(kind),
            field.replace('_', " ")
        ),
    };
    Refusal::new(why, only)
}

/// `CreateTableAsStmt` as people read it.
fn words(kind: &str) -> String {
    let kind = kind
        .strip_suffix("Stmt")
        .map_or(kind.to_owned(), |kind| format!("{kind}Statement"));
    let mut words = String::new();
    for letter in kind.chars() {
        if letter.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}
