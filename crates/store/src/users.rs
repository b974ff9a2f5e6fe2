//! Users.

use domain::{Timestamp, UserId};
use secret::Secret;
use serde_json::json;

use crate::batch::binds;
use crate::row::Row;
use crate::writer::Work;
use crate::{Asker, AuditEntry, Store, StoreError, audit, tokens};

/// The longest name, in bytes.
const LONGEST_NAME: usize = 100;

/// A person, or a program that acts as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// Which.
    pub id: UserId,
    /// The name that people use; unique among those who are there.
    pub name: String,
    /// Whether everything is theirs to see and do.
    pub admin: bool,
    /// When they came.
    pub created: Timestamp,
    /// When they were removed.
    pub removed: Option<Timestamp>,
}

const ANYBODY: &str = "SELECT id FROM users LIMIT 1";

impl Store {
    /// Adds a user. Audited.
    ///
    /// # Errors
    /// The one who asks is no admin; the name is empty, longer than 100 bytes, not printable, or taken.
    pub async fn create_user(&self, asker: Asker, name: &str, admin: bool) -> Result<User, StoreError> {
        const ATTEMPT: &str = "add a user";
        asker.must_be_admin(ATTEMPT)?;
        if name.is_empty() || name.len() > LONGEST_NAME || name.trim() != name || name.chars().any(char::is_control) {
            return Err(StoreError::Invalid {
                subject: "the user's name",
                reason: format!("a name is 1 to {LONGEST_NAME} bytes of printable text, with no space at its ends"),
            });
        }
        let name = name.to_owned();
        self.write(ATTEMPT, move |work| {
            let taken = "SELECT id FROM users WHERE name = $1 AND removed IS NULL";
            if work.one(taken, binds![name.as_str()])?.is_some() {
                return Err(StoreError::Conflict {
                    subject: "the user's name",
                    reason: format!("there is a user {name:?} already"),
                });
            }
            let (user, entry) = add(work, name, admin);
            audit::append(work, asker, &[entry])?;
            Ok(user)
        })
        .await
    }

    /// A secret for [`Store::create_first_admin`]; none where there is a user already, or was one.
    ///
    /// # Errors
    /// The store failed.
    pub async fn first_secret(&self) -> Result<Option<Secret>, StoreError> {
        let there = self.read_one("look for a user", ANYBODY, binds![]).await?;
        Ok(there.is_none().then(|| tokens::new_secret(tokens::WORD)))
    }

    /// Adds the first user, an admin, with a token that has this secret, both or none. False where there is a user already, or was
    /// one. Audited.
    ///
    /// # Errors
    /// The store failed.
    pub async fn create_first_admin(&self, name: &str, secret: &Secret) -> Result<bool, StoreError> {
        let (name, secret) = (name.to_owned(), secret.clone());
        self.write("add the first admin", move |work| {
            if work.one(ANYBODY, binds![])?.is_some() {
                return Ok(false);
            }
            let (user, added) = add(work, name, true);
            let (_, made) = tokens::add(work, &secret, user.id, "first".to_owned(), "first", None);
            audit::append(work, Asker::System, &[added, made])?;
            Ok(true)
        })
        .await
    }

    /// A new token of the admin who has been there longest, for whoever owns the machine and is left with none that opens anything;
    /// nothing where there is no admin. Audited.
    ///
    /// # Errors
    /// The store failed.
    pub async fn recover_admin(&self) -> Result<Option<Secret>, StoreError> {
        self.write("give an admin a token", |work| {
            let oldest = "SELECT id FROM users WHERE admin = 1 AND removed IS NULL ORDER BY created, id LIMIT 1";
            let Some(row) = work.one(oldest, binds![])? else {
                return Ok(None);
            };
            let secret = tokens::new_secret(tokens::WORD);
            let (_, made) = tokens::add(work, &secret, row.id("id")?, "recovered".to_owned(), "first", None);
            audit::append(work, Asker::System, &[made])?;
            Ok(Some(secret))
        })
        .await
    }

    /// One user. Users see themselves, admins everybody, the removed ones included.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn user(&self, asker: Asker, id: UserId) -> Result<User, StoreError> {
        if !asker.may_act_for(id) {
            return Err(not_found(id));
        }
        let sql = "SELECT id, name, admin, created, removed FROM users WHERE id = $1";
        let row = self.read_one("read a user", sql, binds![id]).await?;
        User::of(&row.ok_or_else(|| not_found(id))?)
    }

    /// Everybody, by name; the removed ones too where `removed` says so.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub async fn users(&self, asker: Asker, removed: bool) -> Result<Vec<User>, StoreError> {
        asker.must_be_admin("list users")?;
        let sql =
            "SELECT id, name, admin, created, removed FROM users WHERE removed IS NULL OR $1 = 1 ORDER BY name, id";
        let rows = self.read("list users", sql, binds![removed]).await?;
        rows.iter().map(User::of).collect()
    }

    /// Removes a user: their tokens and their sessions' tokens open nothing from now on, their sessions stay for admins to see. Audited. The last admin stays.
    ///
    /// # Errors
    /// The one who asks is no admin; there is no such user; it is the last admin.
    pub async fn remove_user(&self, asker: Asker, id: UserId) -> Result<(), StoreError> {
        asker.must_be_admin("remove a user")?;
        self.write("remove a user", move |work| {
                let sql = "SELECT id, name, admin, created, removed, \
                           (SELECT COUNT(*) FROM users WHERE admin = 1 AND removed IS NULL) AS admins FROM users WHERE id = $1";
                let row = work.one(sql, binds![id])?.ok_or_else(|| not_found(id))?;
                let user = User::of(&row)?;
                if user.removed.is_some() {
                    return Ok(());
                }
                if user.admin && row.integer("admins")? == 1 {
                    return Err(StoreError::Conflict {
                        subject: "removing the user",
                        reason: "this is the last admin: make another one first".to_owned(),
                    });
                }
                work.batch.add("UPDATE users SET removed = $2 WHERE id = $1", binds![id, work.now]);
                work.batch.add(
                    "UPDATE tokens SET revoked = $2 WHERE user_id = $1 AND revoked IS NULL",
                    binds![id, work.now],
                );
                work.batch.add(
                    "UPDATE session_tokens SET revoked = $2 WHERE revoked IS NULL \
                     AND session_id IN (SELECT id FROM sessions WHERE owner = $1)",
                    binds![id, work.now],
                );
                work.revoked = true;
                let entry = AuditEntry::new("user.removed", format!("user:{id}"), json!({ "name": user.name }));
                audit::append(work, asker, &[entry])
            })
        .await
    }
}

impl User {
    /// From a row with all of a user's columns.
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.id("id")?,
            name: row.text("name")?,
            admin: row.integer("admin")? != 0,
            created: row.time("created")?,
            removed: row.time_or_none("removed")?,
        })
    }
}

/// Adds a user to what is written, and says so.
fn add(work: &mut Work, name: String, admin: bool) -> (User, AuditEntry) {
    let user = User {
        id: UserId::new(),
        name,
        admin,
        created: work.now,
        removed: None,
    };
    work.batch.add(
        "INSERT INTO users (id, name, admin, created) VALUES ($1, $2, $3, $4)",
        binds![user.id, user.name.as_str(), user.admin, user.created],
    );
    let detail = json!({ "name": user.name, "admin": user.admin });
    let entry = AuditEntry::new("user.created", format!("user:{}", user.id), detail);
    (user, entry)
}

pub(crate) fn not_found(user: UserId) -> StoreError {
    StoreError::NotFound {
        kind: "user",
        id: user.to_string(),
    }
}
