//! What people call users and sessions, beside the ids that everything else goes by.

use std::collections::{BTreeSet, HashMap};

use domain::{ExternalKey, SessionId, UserId};

use crate::batch::{Bind, binds};
use crate::row::Row;
use crate::stored;
use crate::{Asker, Store, StoreError};

/// Those that are looked for by one statement.
const LOOKED_FOR_AT_ONCE: usize = 500;

/// What people call some users and sessions.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Names {
    users: HashMap<UserId, String>,
    sessions: HashMap<SessionId, ExternalKey>,
}

impl Names {
    /// A user's name, also of one who was removed; none where the one who asked may not know it.
    #[must_use]
    pub fn user(&self, user: UserId) -> Option<String> {
        self.users.get(&user).cloned()
    }

    /// A session's key; none where it has none, or the one who asked may not see it.
    #[must_use]
    pub fn session(&self, session: SessionId) -> Option<ExternalKey> {
        self.sessions.get(&session).cloned()
    }
}

impl Store {
    /// What people call these users and sessions, as far as they exist for the one who asks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn names(&self, asker: Asker, users: Vec<UserId>, sessions: Vec<SessionId>) -> Result<Names, StoreError> {
        let users: BTreeSet<UserId> = users.into_iter().filter(|user| asker.may_act_for(*user)).collect();
        let sessions: BTreeSet<SessionId> = sessions.into_iter().collect();
        let mut names = Names::default();
        for row in self.those("SELECT id, name FROM users", &users).await? {
            names.users.insert(row.id("id")?, row.text("name")?);
        }
        let keyed = "SELECT id, owner, name FROM sessions";
        for row in self.those(keyed, &sessions).await? {
            let (id, owner) = (row.id("id")?, row.id("owner")?);
            let key = row.text_or_none("name")?.filter(|_| asker.may_see(id, owner));
            if let Some(key) = key {
                let key = ExternalKey::try_from(key).map_err(|reason| stored::corrupt("session's key", reason))?;
                names.sessions.insert(id, key);
            }
        }
        Ok(names)
    }

    /// Rows with these ids.
    async fn those<I: Copy>(&self, select: &str, ids: &BTreeSet<I>) -> Result<Vec<Row>, StoreError>
    where
        Bind: From<I>,
    {
        let ids: Vec<I> = ids.iter().copied().collect();
        let mut rows = Vec::new();
        for some in ids.chunks(LOOKED_FOR_AT_ONCE) {
            let places: Vec<_> = (1..=some.len()).map(|place| format!("${place}")).collect();
            let sql = format!("{select} WHERE id IN ({})", places.join(", "));
            let binds = some.iter().flat_map(|id| binds![*id]).collect();
            rows.extend(self.read("look for names", sql, binds).await?);
        }
        Ok(rows)
    }
}
