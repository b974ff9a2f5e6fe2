//! Caps: what is spent plus what is reserved never exceeds one, whatever happens at the same time.

use std::fmt;

use domain::Money;

use crate::StoreError;
use crate::row::Row;

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

/// What is spent and reserved under each cap.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Spend {
    /// What is spent.
    pub spent: Money,
    /// What calls under way may still cost.
    pub reserved: Money,
}

impl Spend {
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            spent: Money(row.integer("spent")?),
            reserved: Money(row.integer("reserved")?),
        })
    }
}

/// More than one call can cost. Amounts within it never bring a sum to its end, whatever a provider says.
pub(crate) const DEAREST: Money = Money::dollars(1_000_000);

/// The columns of [`Sums`], `r` being the runs and `s` the sessions.
pub(crate) const SUMS: &str = "r.spent AS run_spent, r.reserved AS run_reserved, s.spent AS session_spent, \
     s.reserved AS session_reserved, COALESCE(u.spent, 0) AS user_spent, COALESCE(u.reserved, 0) AS user_reserved, \
     COALESCE(d.spent, 0) AS day_spent, COALESCE(d.reserved, 0) AS day_reserved";

/// Where the sums of a day come from, which is the second placeholder.
pub(crate) const DAYS: &str = "LEFT JOIN spend u ON u.name = 'user:' || s.owner || ':' || $2 \
     LEFT JOIN spend d ON d.name = 'day:' || $2";

/// What is spent and reserved under every cap that a call counts in.
pub(crate) struct Sums([(Cap, Spend); 4]);

impl Sums {
    /// From a row with [`SUMS`].
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        let spend = |spent: &str, reserved: &str| -> Result<Spend, StoreError> {
            Ok(Spend {
                spent: Money(row.integer(spent)?),
                reserved: Money(row.integer(reserved)?),
            })
        };
        Ok(Self([
            (Cap::Run, spend("run_spent", "run_reserved")?),
            (Cap::Session, spend("session_spent", "session_reserved")?),
            (Cap::User, spend("user_spent", "user_reserved")?),
            (Cap::Day, spend("day_spent", "day_reserved")?),
        ]))
    }

    /// The first cap that leaves no room for an amount.
    pub(crate) fn check(&self, wanted: Money, caps: &Caps) -> Result<Option<OverCap>, StoreError> {
        if wanted < Money::ZERO || wanted > DEAREST {
            return Err(StoreError::Invalid {
                subject: "the reservation",
                reason: format!("{wanted} is not what a call can cost: from nothing to {DEAREST}"),
            });
        }
        let limits = [caps.run, caps.session, caps.user, caps.day];
        let over = self.0.iter().zip(limits).find_map(|((cap, spend), limit)| {
            let limit = limit?;
            (spend.spent.plus(spend.reserved).plus(wanted) > limit).then_some(OverCap {
                cap: *cap,
                limit,
                spent: spend.spent,
                reserved: spend.reserved,
                wanted,
            })
        });
        Ok(over)
    }
}
