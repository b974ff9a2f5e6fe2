//! The ledger: every call of a model and what it cost. It is only added to.

use domain::{Money, RunId, SessionId, Timestamp, TurnId, Usage, UserId};

use crate::batch::{Bind, binds};
use crate::money::Account;
use crate::row::Row;
use crate::writer::Work;
use crate::{Asker, Charge, Store, StoreError};

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
    /// Tokens.
    pub tokens: Tokens,
    /// What was charged.
    pub cost: Money,
    /// Counted by us.
    pub estimated: bool,
    /// The UTC day that it counts for.
    pub day: i64,
    /// When it was stored.
    pub at: Timestamp,
}

/// Tokens as the ledger counts them, field by field as [`Usage`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are those of `Usage`")]
pub struct Tokens {
    pub input: i64,
    pub cache_read: i64,
    pub cache_write: i64,
    pub cache_write_hour: i64,
    pub output: i64,
    pub thinking: i64,
}

impl From<Usage> for Tokens {
    fn from(usage: Usage) -> Self {
        // More than any call can have; so no sum comes to its end, whatever a provider says.
        const MOST: u64 = 1_000_000_000_000;
        let count = |tokens: u64| i64::try_from(tokens.min(MOST)).unwrap_or(i64::MAX);
        Self {
            input: count(usage.input),
            cache_read: count(usage.cache_read),
            cache_write: count(usage.cache_write),
            cache_write_hour: count(usage.cache_write_hour),
            output: count(usage.output),
            thinking: count(usage.thinking),
        }
    }
}

impl Tokens {
    /// From a row with the ledger's columns, or their sums.
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            input: row.integer("input")?,
            cache_read: row.integer("cache_read")?,
            cache_write: row.integer("cache_write")?,
            cache_write_hour: row.integer("cache_write_hour")?,
            output: row.integer("output")?,
            thinking: row.integer("thinking")?,
        })
    }

    /// The same as providers count them.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let count = |tokens: i64| u64::try_from(tokens).unwrap_or(0);
        Usage {
            input: count(self.input),
            cache_read: count(self.cache_read),
            cache_write: count(self.cache_write),
            cache_write_hour: count(self.cache_write_hour),
            output: count(self.output),
            thinking: count(self.thinking),
        }
    }
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
    /// One for each trigger.
    Trigger,
}

/// A sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageSum {
    /// The session's or user's id, the day's number ([`Timestamp::day`]), the model's name, or the trigger.
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
        let filter = self.allowed(asker, filter).await?;
        let column = match by {
            By::Session => "session_id",
            By::User => "owner",
            By::Day => "CAST(day AS TEXT)",
            By::Model => "model",
            By::Trigger => "(SELECT r.triggered_by FROM runs r WHERE r.id = ledger.run_id)",
        };
        let sql = format!(
            "SELECT {column} AS name, COUNT(*) AS calls, SUM(estimated) AS estimated, SUM(input) AS input, \
             SUM(cache_read) AS cache_read, SUM(cache_write) AS cache_write, SUM(cache_write_hour) AS cache_write_hour, \
             SUM(output) AS output, SUM(thinking) AS thinking, SUM(cost) AS cost FROM ledger WHERE {} \
             GROUP BY 1 ORDER BY 1",
            filter.condition()
        );
        let rows = self.read("sum up the ledger", sql, filter.binds()).await?;
        let sum = |row: &Row| {
            Ok(UsageSum {
                name: row.text("name")?,
                calls: row.integer("calls")?,
                estimated: row.integer("estimated")?,
                usage: Tokens::of(row)?.usage(),
                cost: Money(row.integer("cost")?),
            })
        };
        rows.iter().map(sum).collect()
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
        let filter = self.allowed(asker, filter).await?;
        let mut binds = filter.binds();
        let (after_place, limit_place) = (binds.len() + 1, binds.len() + 2);
        binds.extend(binds![after, i64::from(limit.min(Self::LONGEST_PAGE))]);
        let sql = format!(
            "SELECT * FROM ledger WHERE {} AND number > ${after_place} ORDER BY number LIMIT ${limit_place}",
            filter.condition()
        );
        let rows = self.read("read the ledger", sql, binds).await?;
        rows.iter().map(LedgerEntry::of).collect()
    }

    /// The filter as far as it is open to the one who asks.
    async fn allowed(&self, asker: Asker, mut filter: UsageFilter) -> Result<UsageFilter, StoreError> {
        match asker {
            Asker::System | Asker::User { admin: true, .. } => {}
            Asker::Session(own) => {
                self.owner_of(asker, filter.session.unwrap_or(own)).await?;
                filter.session = Some(own);
            }
            Asker::User { id, .. } => {
                if let Some(session) = filter.session {
                    self.owner_of(asker, session).await?;
                }
                if let Some(user) = filter.user {
                    self.user(asker, user).await?;
                }
                filter.user = Some(id);
            }
        }
        Ok(filter)
    }
}

impl UsageFilter {
    /// Only what is wanted is named, so that an index is found for it.
    fn condition(&self) -> String {
        let wanted = [
            ("session_id =", self.session.is_some()),
            ("owner =", self.user.is_some()),
            ("day >=", self.from_day.is_some()),
            ("day <=", self.to_day.is_some()),
        ];
        let wanted = wanted.iter().filter(|(_, wanted)| *wanted);
        let conditions = (1..)
            .zip(wanted)
            .map(|(place, (column, _))| format!("{column} ${place}"));
        let conditions: Vec<_> = conditions.collect();
        if conditions.is_empty() {
            return "1 = 1".to_owned();
        }
        conditions.join(" AND ")
    }

    fn binds(&self) -> Vec<Bind> {
        let binds = [
            self.session.map(Bind::from),
            self.user.map(Bind::from),
            self.from_day.map(Bind::from),
            self.to_day.map(Bind::from),
        ];
        binds.into_iter().flatten().collect()
    }
}

impl LedgerEntry {
    fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            number: row.integer("number")?,
            user: row.id("owner")?,
            session: row.id("session_id")?,
            run: row.id("run_id")?,
            turn: row.id("turn_id")?,
            model: row.text("model")?,
            price_version: row.text("price_version")?,
            tokens: Tokens::of(row)?,
            cost: Money(row.integer("cost")?),
            estimated: row.integer("estimated")? != 0,
            day: row.integer("day")?,
            at: row.time("at")?,
        })
    }
}

/// Adds an entry.
pub(crate) fn insert(work: &mut Work, account: &Account, turn: TurnId, charge: &Charge) {
    let tokens = Tokens::from(charge.usage);
    let (owner, session, run, day) = account.parts();
    work.batch.add(
        "INSERT INTO ledger (owner, session_id, run_id, turn_id, model, price_version, input, cache_read, cache_write, \
         cache_write_hour, output, thinking, cost, estimated, day, at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
        binds![
            owner,
            session,
            run,
            turn,
            charge.model.as_str(),
            charge.price_version.as_str(),
            tokens.input,
            tokens.cache_read,
            tokens.cache_write,
            tokens.cache_write_hour,
            tokens.output,
            tokens.thinking,
            charge.cost.0,
            charge.estimated,
            day,
            work.now
        ],
    );
}
