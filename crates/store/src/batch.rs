//! SQL that is sent together. Each trip to a connection's thread costs more than most statements, so a job collects its
//! writes and makes one trip.

use std::sync::Arc;

use futures::stream::BoxStream;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Executor};

/// A value for a placeholder; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Bind {
    Null,
    Integer(i64),
    Text(Arc<str>),
    Blob(Arc<Vec<u8>>),
}

impl From<i64> for Bind {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<bool> for Bind {
    fn from(value: bool) -> Self {
        Self::Integer(i64::from(value))
    }
}

impl From<&str> for Bind {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}

impl From<String> for Bind {
    fn from(value: String) -> Self {
        Self::Text(value.into())
    }
}

impl From<Vec<u8>> for Bind {
    fn from(value: Vec<u8>) -> Self {
        Self::Blob(Arc::new(value))
    }
}

impl From<crate::Hash> for Bind {
    fn from(value: crate::Hash) -> Self {
        Self::Blob(Arc::new(value.0.to_vec()))
    }
}

impl From<domain::Timestamp> for Bind {
    fn from(value: domain::Timestamp) -> Self {
        Self::Integer(value.0)
    }
}

impl<T: Into<Self>> From<Option<T>> for Bind {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

macro_rules! bind_id {
    ($($id:ident),*) => {
        $(impl From<domain::$id> for Bind {
            fn from(value: domain::$id) -> Self {
                Self::Text(value.to_string().into())
            }
        })*
    };
}

bind_id!(SessionId, RunId, TurnId, MessageId, SandboxId, UserId, TokenId);

/// The values for a statement's placeholders, `$1` first.
macro_rules! binds {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::batch::Bind::from($value)),*]
    };
}

pub(crate) use binds;

/// Statements that are sent together.
#[derive(Default, Debug)]
pub(crate) struct Batch {
    sql: String,
    binds: Vec<Bind>,
}

impl Batch {
    /// Adds a statement; its `$1` is the first of `binds`.
    pub(crate) fn add(&mut self, sql: &str, binds: Vec<Bind>) {
        let before = self.binds.len();
        let mut rest = sql;
        while let Some(dollar) = rest.find('$') {
            let (head, tail) = rest.split_at(dollar + 1);
            self.sql.push_str(head);
            let digits = tail.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = tail.split_at(digits);
            if let Ok(number) = number.parse::<usize>() {
                self.sql.push_str(&(before + number).to_string());
            }
            rest = tail;
        }
        self.sql.push_str(rest);
        self.sql.push_str(";\n");
        self.binds.extend(binds);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sql.is_empty()
    }

    /// Runs everything that was added, between a statement before and one after.
    pub(crate) async fn execute(
        &self,
        connection: &mut SqliteConnection,
        before: &str,
        after: &str,
    ) -> Result<(), sqlx::Error> {
        execute(connection, format!("{before}{}{after}", self.sql), self.binds.clone()).await
    }
}

fn arguments(binds: Vec<Bind>) -> Result<SqliteArguments, sqlx::Error> {
    let mut arguments = SqliteArguments::default();
    for bind in binds {
        match bind {
            Bind::Null => arguments.add(None::<i64>),
            Bind::Integer(value) => arguments.add(value),
            Bind::Text(value) => arguments.add(value),
            Bind::Blob(value) => arguments.add(value),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

/// Runs statements, of which the connection keeps the prepared form.
pub(crate) async fn execute(
    connection: &mut SqliteConnection,
    sql: String,
    binds: Vec<Bind>,
) -> Result<(), sqlx::Error> {
    let query = sqlx::query_with(AssertSqlSafe(sql), arguments(binds)?);
    connection.execute(query).await.map(|_| ())
}

/// Every row that a statement gives.
pub(crate) async fn rows(
    connection: &mut SqliteConnection,
    sql: impl Into<String>,
    binds: Vec<Bind>,
) -> Result<Vec<SqliteRow>, sqlx::Error> {
    let query = sqlx::query_with(AssertSqlSafe(sql.into()), arguments(binds)?);
    connection.fetch_all(query).await
}

/// Every row that a statement gives, one after the other.
pub(crate) fn stream<'c>(
    connection: &'c mut SqliteConnection,
    sql: &'static str,
    binds: Vec<Bind>,
) -> Result<BoxStream<'c, Result<SqliteRow, sqlx::Error>>, sqlx::Error> {
    Ok(connection.fetch(sqlx::query_with(sql, arguments(binds)?)))
}

/// The first row that a statement gives, if it gives any.
pub(crate) async fn row(
    connection: &mut SqliteConnection,
    sql: impl Into<String>,
    binds: Vec<Bind>,
) -> Result<Option<SqliteRow>, sqlx::Error> {
    let query = sqlx::query_with(AssertSqlSafe(sql.into()), arguments(binds)?);
    connection.fetch_optional(query).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_counted_on() {
        let mut batch = Batch::default();
        batch.add("INSERT INTO a VALUES ($1, $2)", binds![1_i64, "x"]);
        batch.add("UPDATE b SET c = $2 WHERE d = $1", binds![2_i64, None::<i64>]);
        assert_eq!(
            batch.sql,
            "INSERT INTO a VALUES ($1, $2);\nUPDATE b SET c = $4 WHERE d = $3;\n"
        );
        assert_eq!(batch.binds.len(), 4);
    }
}
