//! Who asks.

use domain::{SessionId, Timestamp, UserId};

use crate::StoreError;

/// Who asks the store for something. Every method decides by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Asker {
    /// Belljar itself: may do everything.
    System,
    /// A person, or a program that acts as one: sees what is its own; an admin sees everything.
    User {
        /// Who.
        id: UserId,
        /// Whether everything is theirs to see.
        admin: bool,
        /// When the token that they came with expires; a token that they make lives no longer.
        until: Option<Timestamp>,
    },
    /// A session's sandbox: sees its own session.
    Session(SessionId),
}

impl Asker {
    /// Whether a session of this owner exists for the one who asks.
    #[must_use]
    pub fn may_see(&self, session: SessionId, owner: UserId) -> bool {
        match self {
            Self::System => true,
            Self::User { id, admin, .. } => *admin || *id == owner,
            Self::Session(own) => *own == session,
        }
    }

    /// Whether what only admins may do is open to the one who asks.
    #[must_use]
    pub const fn is_admin(&self) -> bool {
        matches!(self, Self::System | Self::User { admin: true, .. })
    }

    /// Whether this user's own things (profile, tokens, spend) are open to the one who asks.
    #[must_use]
    pub fn may_act_for(&self, user: UserId) -> bool {
        match self {
            Self::System => true,
            Self::User { id, admin, .. } => *admin || *id == user,
            Self::Session(_) => false,
        }
    }

    /// As it stands in the audit log: `system`, `user:…`, `session:…`.
    #[must_use]
    pub fn word(&self) -> String {
        match self {
            Self::System => "system".to_owned(),
            Self::User { id, .. } => format!("user:{id}"),
            Self::Session(id) => format!("session:{id}"),
        }
    }

    /// Refuses everybody but Belljar itself.
    pub(crate) const fn must_be_system(&self, attempt: &'static str) -> Result<(), StoreError> {
        match self {
            Self::System => Ok(()),
            Self::User { .. } | Self::Session(_) => Err(StoreError::Denied {
                attempt,
                whom: "Belljar itself",
            }),
        }
    }

    /// Refuses everybody but admins.
    pub(crate) const fn must_be_admin(&self, attempt: &'static str) -> Result<(), StoreError> {
        if self.is_admin() {
            return Ok(());
        }
        Err(StoreError::Denied {
            attempt,
            whom: "an admin",
        })
    }
}
