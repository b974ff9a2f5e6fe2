//! Caps: what is spent plus what is reserved never exceeds one, whatever happens at the same time.

use std::fmt;
use std::sync::Arc;

use domain::{Money, Trigger};

use crate::StoreError;
use crate::batch::binds;
use crate::row::Row;
use crate::writer::Work;

/// What may be spent; none: without limit.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Caps {
    /// By one run.
    pub run: Option<Money>,
    /// By one session, ever.
    pub session: Option<Money>,
    /// By one user on one UTC day.
    pub user: Option<Money>,
    /// By everybody on one UTC day.
    pub day: Option<Money>,
    /// By what some triggers cause on one UTC day. Each that means a run's trigger counts.
    pub triggers: Arc<[TriggerCap]>,
}

/// What all runs of some triggers may cost together on one UTC day.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TriggerCap {
    /// Which triggers, see [`Trigger::is`].
    pub pattern: String,
    /// How much.
    pub most: Money,
}

impl Caps {
    /// Leaves out what does not count for runs of a trigger.
    pub fn keep(&mut self, trigger: &Trigger) {
        let kept = self.triggers.iter().filter(|cap| trigger.is(&cap.pattern));
        self.triggers = kept.cloned().collect();
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Which cap.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Cap {
    /// Of the run.
    Run,
    /// Of the session.
    Session,
    /// Of the user's day.
    User,
    /// Of everybody's day.
    Day,
    /// Of the day of the triggers that a pattern means.
    Trigger(String),
}

impl fmt::Display for Cap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::Trigger(pattern) => return write!(formatter, "runs of {pattern} today (UTC)"),
            Self::Run => "this run",
            Self::Session => "this session",
            Self::User => "this user today (UTC)",
            Self::Day => "everybody today (UTC)",
        };
        formatter.write_str(words)
    }
}

/// A cap that would be exceeded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
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

    /// The first cap that leaves no room for an amount which a run of this trigger wants.
    pub(crate) fn check(
        &self,
        work: &mut Work,
        trigger: &Trigger,
        wanted: Money,
        caps: &Caps,
    ) -> Result<Option<OverCap>, StoreError> {
        if wanted < Money::ZERO || wanted > DEAREST {
            return Err(StoreError::Invalid {
                subject: "the reservation",
                reason: format!("{wanted} is not what a call can cost: from nothing to {DEAREST}"),
            });
        }
        let limits = [caps.run, caps.session, caps.user, caps.day];
        let over = self
            .0
            .iter()
            .zip(limits)
            .find_map(|((cap, spend), limit)| spend.over(|| cap.clone(), limit?, wanted));
        match over {
            None => over_trigger(work, trigger, wanted, caps),
            over => Ok(over),
        }
    }
}

impl Spend {
    fn over(&self, cap: impl FnOnce() -> Cap, limit: Money, wanted: Money) -> Option<OverCap> {
        (self.spent.plus(self.reserved).plus(wanted) > limit).then(|| OverCap {
            cap: cap(),
            limit,
            spent: self.spent,
            reserved: self.reserved,
            wanted,
        })
    }
}

/// The name under which a trigger's sums of a day stand.
pub(crate) fn trigger_sum(trigger: &str, day: i64) -> String {
    format!("trigger:{day}:{trigger}")
}

/// The first cap of a run's trigger that leaves no room for an amount.
fn over_trigger(work: &mut Work, trigger: &Trigger, wanted: Money, caps: &Caps) -> Result<Option<OverCap>, StoreError> {
    if !caps.triggers.iter().any(|cap| trigger.is(&cap.pattern)) {
        return Ok(None);
    }
    // All of the day: a few names, and a pattern may mean any of them.
    let all = trigger_sum("", work.now.day());
    let end = format!("{};", all.trim_end_matches(':'));
    let rows = work.all(
        "SELECT name, spent, reserved FROM spend WHERE name >= $1 AND name < $2",
        binds![all.as_str(), end],
    )?;
    let mut sums = Vec::with_capacity(rows.len());
    for row in &rows {
        let name = row.text("name")?;
        let trigger = Trigger::stored(name[all.len()..].to_owned());
        sums.push((trigger, Spend::of(row)?));
    }
    let over = caps
        .triggers
        .iter()
        .filter(|cap| trigger.is(&cap.pattern))
        .find_map(|cap| {
            let meant = sums.iter().filter(|(trigger, _)| trigger.is(&cap.pattern));
            let sum = meant.fold(Spend::default(), |sum, (_, spend)| Spend {
                spent: sum.spent.plus(spend.spent),
                reserved: sum.reserved.plus(spend.reserved),
            });
            sum.over(|| Cap::Trigger(cap.pattern.clone()), cap.most, wanted)
        });
    Ok(over)
}
