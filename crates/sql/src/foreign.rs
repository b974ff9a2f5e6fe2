//! MySQL and MariaDB, Snowflake, SQLite: what one grammar for all of them understands whole.

mod names;

use std::sync::LazyLock;

use serde_json::{Map, Value};
use sqlparser::ast::Statement as Tree;
use sqlparser::dialect::{Dialect, MySqlDialect, SQLiteDialect, SnowflakeDialect};
use sqlparser::parser::{Parser, ParserError};

use crate::functions::{Functions, MYSQL, SNOWFLAKE, SQLITE};
use crate::lexical::{self, Text};
use crate::shapes::{Shapes, Unlisted};
use crate::{Refusal, Statement};

/// A dialect that has no parser of the server's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tongue {
    MySql,
    Snowflake,
    Sqlite,
}

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| Shapes::read(include_str!("../data/foreign-shapes.txt")));

/// How deep a statement may be nested.
const DEEPEST: usize = 30;

const REWRITE: &str = "Write one SELECT, plainly: what cannot be understood whole does not run";

impl Tongue {
    fn dialect(self) -> &'static dyn Dialect {
        match self {
            Self::MySql => &MySqlDialect {},
            Self::Snowflake => &SnowflakeDialect,
            Self::Sqlite => &SQLiteDialect {},
        }
    }

    fn functions(self) -> &'static Functions {
        match self {
            Self::MySql => &MYSQL,
            Self::Snowflake => &SNOWFLAKE,
            Self::Sqlite => &SQLITE,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::MySql => "MySQL and MariaDB",
            Self::Snowflake => "Snowflake",
            Self::Sqlite => "SQLite",
        }
    }
}

pub(crate) fn check(tongue: Tongue, text: &str) -> Result<Statement, Refusal> {
    lexical::check(tongue, text, Text::Written)?;
    let tree = parse(tongue, text)?;
    let shape = shape(&tree)?;
    SHAPES.hold(&shape).map_err(unlisted)?;
    let mut checked = names::read(tongue, &shape)?;
    checked.text = tree.to_string();
    lexical::check(tongue, &checked.text, Text::Ready)?;
    if parse(tongue, &checked.text).ok().as_ref() != Some(&tree) {
        return Err(Refusal::new(
            "it does not mean the same when it is written anew, so it may not have been understood",
            "Write it more simply",
        ));
    }
    Ok(checked)
}

fn parse(tongue: Tongue, text: &str) -> Result<Tree, Refusal> {
    let parsed = Parser::new(tongue.dialect())
        .with_recursion_limit(DEEPEST)
        .try_with_sql(text)
        .and_then(|mut parser| parser.parse_statements());
    let mut statements = parsed.map_err(|error| match error {
        ParserError::RecursionLimitExceeded => {
            Refusal::new("it is nested too deeply", "Split it into a WITH of several parts")
        }
        ParserError::TokenizerError(why) | ParserError::ParserError(why) => Refusal::new(
            format!("it is no SQL of {} that is understood here ({why})", tongue.name()),
            REWRITE,
        ),
    })?;
    match (statements.pop(), statements.len()) {
        (Some(statement), 0) => Ok(statement),
        (_, others) => Err(Refusal::new(
            format!("it is {} statements", if others == 0 { 0 } else { others + 1 }),
            "Send exactly one statement, each in a call of its own",
        )),
    }
}

/// The tree as JSON, without positions in the text.
fn shape(tree: &Tree) -> Result<Value, Refusal> {
    let whole = serde_json::to_value(tree).map_err(|_| Refusal::new("it cannot be looked at", REWRITE))?;
    Ok(without_places(whole))
}

fn without_places(tree: Value) -> Value {
    match tree {
        Value::Object(fields) => {
            let kept = fields
                .into_iter()
                .filter(|(field, _)| !(field == "span" || field == "token" || field.ends_with("_token")));
            Value::Object(
                kept.map(|(field, value)| (field, without_places(value)))
                    .collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => items.into_iter().map(without_places).collect(),
        other => other,
    }
}

fn unlisted(unlisted: Unlisted) -> Refusal {
    match unlisted {
        Unlisted::Kind(kind) => Refusal::new(format!("it has a {kind}, which is not among what only reads"), REWRITE),
        Unlisted::Field(kind, field) => Refusal::new(
            format!(
                "a {kind} has {}, which is not among what only reads",
                field.replace('_', " ")
            ),
            "Leave that part out",
        ),
    }
}
