//! What may be called.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Names of functions, in small letters; one that ends in a star stands for all that begin so.
#[derive(Debug)]
pub(crate) struct Functions {
    names: HashSet<&'static str>,
    beginnings: Vec<&'static str>,
}

impl Functions {
    fn read(table: &'static str) -> Self {
        let words = table
            .lines()
            .filter_map(|line| line.split('#').next())
            .flat_map(str::split_whitespace);
        let (mut names, mut beginnings) = (HashSet::new(), Vec::new());
        for word in words {
            match word.strip_suffix('*') {
                Some(beginning) => beginnings.push(beginning),
                None => {
                    names.insert(word);
                }
            }
        }
        Self { names, beginnings }
    }

    /// Whether a name is listed; how it is written counts.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains(name) || self.beginnings.iter().any(|beginning| name.starts_with(beginning))
    }
}

macro_rules! lists {
    ($($(#[$about:meta])* $name:ident = $file:literal;)*) => {
        $(
            $(#[$about])*
            pub(crate) static $name: LazyLock<Functions> =
                LazyLock::new(|| Functions::read(include_str!(concat!("../data/", $file))));
        )*
    };
}

lists! {
    /// Of Postgres's own, those that are harmless.
    POSTGRES = "postgres-functions.txt";
    /// Of Postgres's own, those that nobody may call.
    POSTGRES_REFUSED = "postgres-refused.txt";
    /// Of what is installed beside them, those that nobody may call.
    POSTGRES_REFUSED_OTHERS = "postgres-refused-others.txt";
    /// Types of Postgres's own that have no keyword of theirs.
    POSTGRES_TYPES = "postgres-types.txt";
    /// What MySQL or MariaDB has and is harmless.
    MYSQL = "mysql-functions.txt";
    /// What Snowflake has and is harmless.
    SNOWFLAKE = "snowflake-functions.txt";
    /// What SQLite has and is harmless.
    SQLITE = "sqlite-functions.txt";
}
