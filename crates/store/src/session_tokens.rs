//! Tokens that sandboxes show. Only a hash is kept.
//!
//! A session has one current token. When it is rotated, the one before stays good for half a minute, and then only once (a
//! request that was under way). Shown again within that time it is refused; shown later it was stolen: every token of the
//! session is revoked, and the audit log says so.

use std::time::Duration;

use domain::{SessionId, Timestamp};
use secret::Secret;

use crate::{Asker, Store, StoreError};

/// A sandbox's token that was just made.
#[derive(Clone, Debug)]
pub struct SessionToken {
    /// What the sandbox shows.
    pub secret: Secret,
    /// From when it opens nothing.
    pub expires: Timestamp,
}

impl Store {
    /// The longest time for which a token that was rotated away is still accepted.
    pub const OVERLAP: Duration = Duration::from_secs(30);

    /// Makes a session's first token, for a sandbox that is claimed; every earlier one of the session is revoked.
    ///
    /// # Errors
    /// The session does not exist, or the one who asks is not Belljar itself.
    pub async fn issue_session_token(
        &self,
        asker: Asker,
        session: SessionId,
        life: Duration,
    ) -> Result<SessionToken, StoreError> {
        todo!()
    }

    /// Puts a new token in the place of the current one, which stays good for [`Store::OVERLAP`], once.
    ///
    /// # Errors
    /// The session has no token that is good.
    pub async fn rotate_session_token(
        &self,
        asker: Asker,
        session: SessionId,
        life: Duration,
    ) -> Result<SessionToken, StoreError> {
        todo!()
    }

    /// The session whose token this is. The current token costs one read.
    ///
    /// # Errors
    /// [`StoreError::Unauthorized`] where it opens nothing.
    pub async fn check_session_token(&self, secret: &str) -> Result<SessionId, StoreError> {
        todo!()
    }

    /// Ends every token of a session at once. Audited where there was one; to do it again changes nothing.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn revoke_session_tokens(
        &self,
        asker: Asker,
        session: SessionId,
        reason: &str,
    ) -> Result<(), StoreError> {
        todo!()
    }
}
