//! What is known of an SQL statement that may run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whose SQL it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// PostgreSQL, by its own grammar.
    Postgres,
    /// MySQL and MariaDB, in their default SQL mode.
    #[serde(rename = "mysql")]
    MySql,
    /// Snowflake.
    Snowflake,
    /// SQLite.
    Sqlite,
}

/// One statement that reads and does nothing else, as far as its text tells.
///
/// What the text cannot tell is what its names stand for: whoever runs it looks them up in the catalogue, and lets the
/// server hold it to reading besides.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Checked {
    /// The statement as it was understood, written anew. This is what runs, never what was handed in.
    pub text: String,
    /// How many values must be bound: the greatest of `$1`, `$2` …, or the number of `?`.
    pub parameters: u32,
    /// Tables and views that it reads, without names that the statement defines itself.
    pub relations: Vec<Named>,
    /// Functions that are not known to be harmless and are therefore to be looked up. Those of the server that are known to be
    /// are not listed; for Postgres the text calls them by `pg_catalog.NAME`, so that nothing can stand in their place. In the other
    /// dialects a function that is not known is refused.
    ///
    /// Names after a dot are among them: where there is no such column, Postgres calls the function of that name with what stands
    /// before the dot, be it a row, `('/etc/passwd'::text).pg_read_file`, or a function's value.
    pub functions: Vec<Named>,
    /// Operators that it uses, as they are not always the server's own: somebody may have made `+` a function. Postgres only.
    pub operators: Vec<Named>,
    /// Types that it converts to and that are not the server's own: a conversion may be somebody's function. Postgres only.
    pub types: Vec<Named>,
}

/// A name as the statement has it, in the spelling that the server gives it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Named {
    /// What stands before the name: a schema, in some dialects `database.schema`.
    pub schema: Option<String>,
    /// The name.
    pub name: String,
}

impl Named {
    /// A name with or without what stands before it.
    #[must_use]
    pub fn new(schema: Option<&str>, name: &str) -> Self {
        Self {
            schema: schema.map(str::to_owned),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(formatter, "{schema}.{}", self.name),
            None => formatter.write_str(&self.name),
        }
    }
}
