//! Tokens with which users come in. Only a hash is kept.

use domain::{Timestamp, TokenId, UserId};
use secret::Secret;

use crate::{Asker, Store, StoreError};

/// A user's token, without what opens the door.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// Its public half.
    pub id: TokenId,
    /// Whose.
    pub user: UserId,
    /// What its maker called it.
    pub label: String,
    /// When it was made.
    pub created: Timestamp,
    /// From when it opens nothing.
    pub expires: Option<Timestamp>,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
}

/// A token that was just made.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What is kept of it.
    pub token: Token,
    /// What its owner keeps; it is shown this once.
    pub secret: Secret,
}

/// Who a token belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The user.
    pub user: User,
    /// The token that was shown.
    pub token: TokenId,
    /// When it expires.
    pub expires: Option<Timestamp>,
}

use crate::User;

impl Identity {
    /// Who asks, for the other methods.
    #[must_use]
    pub const fn asker(&self) -> Asker {
        Asker::User {
            id: self.user.id,
            admin: self.user.admin,
            until: self.expires,
        }
    }
}

impl Store {
    /// Makes a token for a user. Where the one who asks came with a token that expires, the new one expires no later: a later
    /// or missing `expires` is refused. Audited.
    ///
    /// # Errors
    /// The user does not exist for the one who asks; the label is empty or too long; it would live longer than its maker's.
    pub async fn create_token(
        &self,
        asker: Asker,
        user: UserId,
        label: &str,
        expires: Option<Timestamp>,
    ) -> Result<NewToken, StoreError> {
        todo!()
    }

    /// Whose token this is.
    ///
    /// # Errors
    /// [`StoreError::Unauthorized`] where it opens nothing, whatever it is.
    pub async fn check_token(&self, secret: &str) -> Result<Identity, StoreError> {
        todo!()
    }

    /// A user's tokens, newest first, the revoked and expired ones included.
    ///
    /// # Errors
    /// The user does not exist for the one who asks.
    pub async fn tokens(&self, asker: Asker, user: UserId) -> Result<Vec<Token>, StoreError> {
        todo!()
    }

    /// Ends a token at once. To revoke it again changes nothing. Audited.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn revoke_token(&self, asker: Asker, token: TokenId) -> Result<(), StoreError> {
        todo!()
    }
}
