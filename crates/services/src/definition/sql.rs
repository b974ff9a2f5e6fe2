//! What only services of kind `sql` have.

use serde::Deserialize;
use worker::Dialect;

/// A database behind a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sql {
    /// The engines that the definition is for; where there are several, belljar.toml says which one it is.
    pub engines: Vec<Engine>,
}

/// A kind of database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// PostgreSQL, 12 or later.
    Postgres,
    /// MySQL, 8 or later.
    MySql,
    /// MariaDB, 10.6 or later.
    MariaDb,
    /// A file of SQLite.
    Sqlite,
    /// Snowflake, by its SQL API.
    Snowflake,
}

/// What a method of a database does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Statement {
    /// It runs the caller's statement and gives rows.
    Query,
    /// It runs the caller's statement and gives a file.
    Export,
    /// It lists tables and views.
    Tables,
    /// It says what a table holds.
    Describe,
    /// It runs a statement of the definition's.
    Fixed {
        /// The statement.
        text: String,
        /// The arguments that are bound to its parameters, in order.
        parameters: Vec<String>,
    },
}

impl Engine {
    /// Every engine.
    pub const ALL: [Self; 5] = [
        Self::Postgres,
        Self::MySql,
        Self::MariaDb,
        Self::Sqlite,
        Self::Snowflake,
    ];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
            Self::Sqlite => "sqlite",
            Self::Snowflake => "snowflake",
        }
    }

    /// How its statements are read.
    pub(crate) const fn dialect(self) -> Dialect {
        match self {
            Self::Postgres => Dialect::Postgres,
            Self::MySql | Self::MariaDb => Dialect::MySql,
            Self::Sqlite => Dialect::Sqlite,
            Self::Snowflake => Dialect::Snowflake,
        }
    }

    /// How the first parameters of a statement are written.
    pub(crate) const fn placeholders(self) -> &'static str {
        match self {
            Self::Postgres => "$1, $2",
            _ => "?, ?",
        }
    }
}
