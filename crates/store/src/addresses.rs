//! Which name each synthetic address of a session stands for: given once, and the same for ever, in every sandbox of the session
//! and in all that are forked from it.

use domain::SessionId;

use crate::batch::binds;
use crate::writer::Work;
use crate::{Asker, Store, StoreError};

impl Store {
    /// The number of a name's address in a session; a new one where the name has none and fewer than `most` have. None: there
    /// are too many.
    ///
    /// # Errors
    /// There is no such session, for the one who asks.
    pub async fn address_of(
        &self,
        asker: Asker,
        session: SessionId,
        name: &str,
        most: u32,
    ) -> Result<Option<u32>, StoreError> {
        asker.must_be_system("give a name an address")?;
        let sql = "SELECT number FROM addresses WHERE session_id = $1 AND name = $2";
        let known = self.read_one("look for the address of a name", sql, binds![session, name]);
        if let Some(row) = known.await? {
            return number(row.integer("number")?).map(Some);
        }
        let name = name.to_owned();
        self.write("give a name an address", move |work| give(work, session, name, most))
            .await
    }

    /// The name that an address of a session stands for.
    ///
    /// # Errors
    /// What stands in the database cannot be read.
    pub async fn name_at(&self, asker: Asker, session: SessionId, number: u32) -> Result<Option<String>, StoreError> {
        asker.must_be_system("read the name of an address")?;
        let sql = "SELECT name FROM addresses WHERE session_id = $1 AND number = $2";
        let binds = binds![session, i64::from(number)];
        let row = self.read_one("read the name of an address", sql, binds).await?;
        row.map(|row| row.text("name")).transpose()
    }
}

fn give(work: &mut Work, session: SessionId, name: String, most: u32) -> Result<Option<u32>, StoreError> {
    let sql = "SELECT (SELECT number FROM addresses WHERE session_id = $1 AND name = $2) AS known, \
               (SELECT COALESCE(MAX(number) + 1, 0) FROM addresses WHERE session_id = $1) AS next \
               FROM sessions WHERE id = $1";
    let row = work.one(sql, binds![session, name.as_str()])?;
    let row = row.ok_or_else(|| crate::head::not_found(session))?;
    if let Some(known) = row.integer_or_none("known")? {
        return number(known).map(Some);
    }
    let next = row.integer("next")?;
    if next >= i64::from(most) {
        return Ok(None);
    }
    work.batch.add(
        "INSERT INTO addresses (session_id, number, name) VALUES ($1, $2, $3)",
        binds![session, next, name],
    );
    number(next).map(Some)
}

fn number(stored: i64) -> Result<u32, StoreError> {
    u32::try_from(stored).map_err(|source| crate::stored::corrupt("number of an address", source))
}

/// Gives a session that is made now the addresses of another.
pub(crate) fn copy(work: &mut Work, from: SessionId, to: SessionId) {
    work.batch.add(
        "INSERT INTO addresses (session_id, number, name) SELECT $2, number, name FROM addresses WHERE session_id = $1",
        binds![from, to],
    );
}
