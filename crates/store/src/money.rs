//! Caps and reservations: what is spent plus what is reserved never exceeds a cap, whatever happens at the same time.

use std::fmt;

use domain::{Epoch, Money, NumberedEvent, RunId, SessionId, TurnId, Usage, UserId};

use crate::{Asker, Store, StoreError};

/// What may be spent; none: without limit.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Caps {
    /// By one run.
    pub run: Option<Money>,
    /// By one session, ever.
    pub session: Option<Money>,
    /// By one user on one UTC day.
    pub user: Option<Money>,
    /// By everybody on one UTC day.
    pub day: Option<Money>,
}

/// Which cap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cap {
    /// Of the run.
    Run,
    /// Of the session.
    Session,
    /// Of the user's day.
    User,
    /// Of everybody's day.
    Day,
}

impl fmt::Display for Cap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Run => "this run",
            Self::Session => "this session",
            Self::User => "this user today (UTC)",
            Self::Day => "everybody today (UTC)",
        })
    }
}

/// A cap that would be exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the cap of {limit} for {cap} does not allow a call that may cost {wanted}: {spent} are spent, {reserved} are reserved by calls under way"
)]
pub struct OverCap {
    /// Which.
    pub cap: Cap,
    /// How much it allows.
    pub limit: Money,
    /// What is spent.
    pub spent: Money,
    /// What calls under way may still cost. Where it would be enough without it, waiting helps.
    pub reserved: Money,
    /// What was asked for.
    pub wanted: Money,
}

/// What one call of a model cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Charge {
    /// The model's name.
    pub model: String,
    /// The version of its price.
    pub price_version: String,
    /// Tokens.
    pub usage: Usage,
    /// What is charged.
    pub cost: Money,
    /// Counted by us, since the provider said nothing.
    pub estimated: bool,
}

/// A reservation for a call beside the turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// Names it.
    pub id: TurnId,
}

/// What is spent and reserved under each cap.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Spend {
    /// What is spent.
    pub spent: Money,
    /// What calls under way may still cost.
    pub reserved: Money,
}

impl Store {
    /// Reserves for a call beside the turns (a summary). Settle it with [`Store::settle`].
    ///
    /// # Errors
    /// [`StoreError::OverCap`]; the epoch is stale.
    pub async fn reserve(
        &self,
        asker: Asker,
        run: RunId,
        epoch: Epoch,
        model: &str,
        price_version: &str,
        amount: Money,
        caps: Caps,
    ) -> Result<Reserved, StoreError> {
        todo!()
    }

    /// Charges what a reserved call cost, and frees its reservation.
    ///
    /// # Errors
    /// There is no such reservation (it was settled, or charged after a crash).
    pub async fn settle(
        &self,
        asker: Asker,
        id: TurnId,
        charges: Vec<Charge>,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        todo!()
    }

    /// Corrects what a turn or reservation that is settled was charged, once the provider's own figure is there: the ledger gets an
    /// entry of the difference, on the day of the call.
    ///
    /// # Errors
    /// Nothing was ever charged for it.
    pub async fn correct(&self, asker: Asker, id: TurnId, charge: Charge) -> Result<(), StoreError> {
        todo!()
    }

    /// What is spent and reserved by a run.
    ///
    /// # Errors
    /// It does not exist, for the one who asks.
    pub async fn run_spend(&self, asker: Asker, run: RunId) -> Result<Spend, StoreError> {
        todo!()
    }

    /// What is spent and reserved by a session.
    ///
    /// # Errors
    /// It does not exist, for the one who asks.
    pub async fn session_spend(&self, asker: Asker, session: SessionId) -> Result<Spend, StoreError> {
        todo!()
    }

    /// What is spent and reserved by a user on a UTC day ([`domain::Timestamp::day`]).
    ///
    /// # Errors
    /// They do not exist, for the one who asks.
    pub async fn user_spend(&self, asker: Asker, user: UserId, day: i64) -> Result<Spend, StoreError> {
        todo!()
    }

    /// What is spent and reserved by everybody on a UTC day.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub async fn day_spend(&self, asker: Asker, day: i64) -> Result<Spend, StoreError> {
        todo!()
    }
}
