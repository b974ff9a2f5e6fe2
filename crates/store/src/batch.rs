//! What a job is going to write: collected while it decides, and run when it has.

use crate::connection::Connection;

/// A value for a placeholder.
#[derive(Clone, Debug)]
pub(crate) enum Bind {
    Null,
    Integer(i64),
    Text(String),
    Blob(Vec<u8>),
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
        Self::Text(value.to_owned())
    }
}

impl From<String> for Bind {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<Vec<u8>> for Bind {
    fn from(value: Vec<u8>) -> Self {
        Self::Blob(value)
    }
}

impl From<crate::Hash> for Bind {
    fn from(value: crate::Hash) -> Self {
        Self::Blob(value.0.to_vec())
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
                Self::Text(value.to_string())
            }
        })*
    };
}

bind_id!(
    SessionId,
    RunId,
    TurnId,
    MessageId,
    SandboxId,
    SnapshotId,
    InstallationId,
    UserId,
    TokenId,
    ApprovalId,
    GenerationId
);

/// The values for a statement's placeholders, `$1` first.
macro_rules! binds {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::batch::Bind::from($value)),*]
    };
}

pub(crate) use binds;

/// The text of a statement that is put together of parts, once.
macro_rules! statement {
    ($text:literal) => {{
        static TEXT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| format!($text));
        TEXT.as_str()
    }};
}

pub(crate) use statement;

/// Statements of a job, in order.
#[derive(Default, Debug)]
pub(crate) struct Batch(Vec<(&'static str, Vec<Bind>)>);

impl Batch {
    /// Adds a statement; its `$1` is the first of `binds`.
    pub(crate) fn add(&mut self, sql: &'static str, binds: Vec<Bind>) {
        self.0.push((sql, binds));
    }

    /// Runs everything that was added.
    pub(crate) fn execute(&self, connection: &Connection) -> rusqlite::Result<()> {
        self.0
            .iter()
            .try_for_each(|(sql, binds)| connection.execute(sql, binds))
    }
}
