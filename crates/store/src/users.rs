//! Users.

use domain::{Timestamp, UserId};

use crate::{Asker, Store, StoreError};

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

impl Store {
    /// Adds a user. Audited.
    ///
    /// # Errors
    /// The one who asks is no admin; the name is empty, longer than 100 bytes, not printable, or taken.
    pub async fn create_user(&self, asker: Asker, name: &str, admin: bool) -> Result<User, StoreError> {
        todo!()
    }

    /// One user. Users see themselves, admins everybody, the removed ones included.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn user(&self, asker: Asker, id: UserId) -> Result<User, StoreError> {
        todo!()
    }

    /// Everybody, by name; the removed ones too where `removed` says so.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub async fn users(&self, asker: Asker, removed: bool) -> Result<Vec<User>, StoreError> {
        todo!()
    }

    /// Removes a user: their tokens and their sessions' tokens open nothing from now on, their sessions stay for admins to see. Audited. The last admin stays.
    ///
    /// # Errors
    /// The one who asks is no admin; there is no such user; it is the last admin.
    pub async fn remove_user(&self, asker: Asker, id: UserId) -> Result<(), StoreError> {
        todo!()
    }
}
