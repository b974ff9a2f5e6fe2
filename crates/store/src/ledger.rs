//! The ledger: every call of a model and what it cost. It is only added to; a correction is an entry of the difference.

use domain::{Money, RunId, SessionId, Timestamp, TurnId, Usage, UserId};

use crate::{Asker, Store, StoreError};

/// One entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LedgerEntry {
    /// Its place in the ledger.
    pub number: i64,
    /// Who pays.
    pub user: UserId,
    /// Of which session.
    pub session: SessionId,
    /// Of which run.
    pub run: RunId,
    /// The claim or reservation.
    pub turn: TurnId,
    /// The model.
    pub model: String,
    /// The version of its price.
    pub price_version: String,
    /// Tokens; of a correction the provider's own count, which takes the place of the earlier ones.
    pub usage: Usage,
    /// What was charged; of a correction the difference, which may be below zero.
    pub cost: Money,
    /// Counted by us.
    pub estimated: bool,
    /// It corrects earlier entries of the same turn.
    pub correction: bool,
    /// The UTC day that it counts for.
    pub day: i64,
    /// When it was stored.
    pub at: Timestamp,
}

/// Which entries are wanted.
#[derive(Clone, Copy, Default, Debug)]
pub struct UsageFilter {
    /// Of this session.
    pub session: Option<SessionId>,
    /// Of this user; for a user who is no admin, and names no session, always themselves.
    pub user: Option<UserId>,
    /// Of this UTC day and later.
    pub from_day: Option<i64>,
    /// Of this UTC day and earlier.
    pub to_day: Option<i64>,
}

/// What sums are made by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// One for each session.
    Session,
    /// One for each user.
    User,
    /// One for each UTC day.
    Day,
    /// One for each model.
    Model,
}

/// A sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageSum {
    /// The session's, user's or day's (`2026-05-01`) or model's name.
    pub name: String,
    /// Calls.
    pub calls: i64,
    /// Calls that we counted ourselves.
    pub estimated: i64,
    /// Tokens.
    pub usage: Usage,
    /// What was charged.
    pub cost: Money,
}

impl Store {
    /// Sums of the ledger, by name.
    ///
    /// # Errors
    /// The filter names what does not exist for the one who asks.
    pub async fn usage(&self, asker: Asker, filter: UsageFilter, by: By) -> Result<Vec<UsageSum>, StoreError> {
        todo!()
    }

    /// The ledger itself, entries after `after` (0: from the first), at most `limit`.
    ///
    /// # Errors
    /// The filter names what does not exist for the one who asks.
    pub async fn ledger(
        &self,
        asker: Asker,
        filter: UsageFilter,
        after: i64,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>, StoreError> {
        todo!()
    }
}
