//! Scopes that came with requests: each narrows its session from then on, and none is ever taken back.

use domain::SessionId;
use serde_json::Value;

use crate::batch::binds;
use crate::head::Head;
use crate::stored;
use crate::writer::Work;
use crate::{Asker, Store, StoreError};

/// Scopes of one session.
const MOST: i64 = 64;

/// Keeps a scope, unless the last one of its session is the same.
pub(crate) fn narrow(work: &mut Work, head: &Head, scope: &Value) -> Result<(), StoreError> {
    let text = text(scope)?;
    let sql = "SELECT (SELECT COUNT(*) FROM narrowings WHERE session_id = $1) AS narrowings, \
               (SELECT scope FROM narrowings WHERE session_id = $1 ORDER BY number DESC LIMIT 1) AS last";
    if let Some(row) = work.one(sql, binds![head.session])? {
        if row.text_or_none("last")?.as_ref() == Some(&text) {
            return Ok(());
        }
        if row.integer("narrowings")? >= MOST {
            return Err(StoreError::Conflict {
                subject: "narrowing the session",
                reason: format!("it was narrowed {MOST} times already: begin a new session"),
            });
        }
    }
    insert(work, head.session, text);
    Ok(())
}

/// Adds a scope to a session that is made now.
pub(crate) fn add(work: &mut Work, session: SessionId, scope: &Value) -> Result<(), StoreError> {
    insert(work, session, text(scope)?);
    Ok(())
}

/// Adds a scope as it is stored.
pub(crate) fn insert(work: &mut Work, session: SessionId, scope: String) {
    work.batch.add(
        "INSERT INTO narrowings (session_id, scope) VALUES ($1, $2)",
        binds![session, scope],
    );
}

fn text(scope: &Value) -> Result<String, StoreError> {
    String::from_utf8(stored::write("scope", scope)?).map_err(|source| stored::corrupt("scope", source))
}

impl Store {
    /// The scopes that a session was narrowed by, in their order.
    ///
    /// # Errors
    /// There is no such session, for the one who asks.
    pub async fn narrowings(&self, asker: Asker, session: SessionId) -> Result<Vec<Value>, StoreError> {
        self.owner_of(asker, session).await?;
        let sql = "SELECT scope FROM narrowings WHERE session_id = $1 ORDER BY number";
        let rows = self.read("read a session's scopes", sql, binds![session]).await?;
        rows.iter()
            .map(|row| stored::read("scope", row.text("scope")?.as_bytes()))
            .collect()
    }
}
