//! Which SQL only reads, as far as its text can tell.
//!
//! A statement is parsed, and refused unless everything in the tree of it is known to do no more than read: what is not on
//! a list is refused, whatever it is. Then it is written anew from the tree, and the new text is parsed again: only where both
//! trees are the same was it understood, and only the new text is to run. So comments, spellings and whatever a server might
//! read in another way than the parser did not get through.
//!
//! * `shapes`: what a tree may be made of
//! * `functions`: what may be called
//! * `postgres`: by the server's own grammar
//! * `foreign`: MySQL and MariaDB, Snowflake, SQLite, by a grammar that knows all three
//! * `lexical`: what their texts may not hold, whatever a parser makes of it
//!
//! This is the first of several fences: names are looked up in the catalogue by whoever runs a statement, and the server
//! itself holds the connection to reading.

mod foreign;
mod functions;
mod lexical;
mod postgres;
mod shapes;

use std::fmt;

/// Whose SQL it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    /// Snowflake.
    Snowflake,
    /// SQLite.
    Sqlite,
}

/// A statement that reads, and what it names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statement {
    /// The statement written anew: this is what runs.
    pub text: String,
    /// How many values must be bound.
    pub parameters: u32,
    /// Tables and views, without what the statement defines itself; each once, in order.
    pub relations: Vec<Name>,
    /// Functions that are not known to be harmless, and names after a dot: to Postgres those are functions too, where there is no
    /// such column.
    pub functions: Vec<Name>,
    /// Operators, save those of a schema that was written out as the server's own. Postgres only.
    pub operators: Vec<Name>,
    /// Types that are not the server's own. Postgres only.
    pub types: Vec<Name>,
}

/// A name, and what stands before it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name {
    /// The schema, where one is written.
    pub schema: Option<String>,
    /// The name itself.
    pub name: String,
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(formatter, "{schema}.{}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}

/// Why a statement may not run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What in it is not allowed, or not understood.
    pub why: String,
    /// What to write instead; a sentence.
    pub remedy: &'static str,
}

impl Refusal {
    fn new(why: impl Into<String>, remedy: &'static str) -> Self {
        Self {
            why: why.into(),
            remedy,
        }
    }
}

/// Says what a statement names, if all it does is read.
///
/// # Errors
/// [`Refusal`]: it does more, or it is not understood whole.
pub fn check(dialect: Dialect, text: &str) -> Result<Statement, Refusal> {
    match dialect {
        Dialect::Postgres => postgres::check(text),
        Dialect::MySql => foreign::check(foreign::Tongue::MySql, text),
        Dialect::Snowflake => foreign::check(foreign::Tongue::Snowflake, text),
        Dialect::Sqlite => foreign::check(foreign::Tongue::Sqlite, text),
    }
}
