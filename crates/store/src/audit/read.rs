//! Reading the audit log.

use domain::{RunId, SessionId, Timestamp, UserId};
use tokio::sync::watch;

use super::AuditRecord;
use crate::batch::Bind;
use crate::connection::Connection;
use crate::error::database;
use crate::{Asker, Store, StoreError};

const ATTEMPT: &str = "read the audit log";

/// Which entries are wanted: those that are all of what is named.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct AuditFilter {
    /// Of this user, and of their sessions.
    pub user: Option<UserId>,
    /// Of this session.
    pub session: Option<SessionId>,
    /// Of this run.
    pub run: Option<RunId>,
    /// With this action; `*` stands for anything.
    pub action: Option<String>,
    /// Decided so: `allow`, `ask` or `deny`.
    pub decision: Option<String>,
    /// Calls of this service.
    pub service: Option<String>,
    /// What was to reach this host.
    pub host: Option<String>,
    /// From this moment on.
    pub since: Option<Timestamp>,
    /// Before this moment.
    pub until: Option<Timestamp>,
}

/// Where reading begins, and in which direction it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuditFrom {
    /// With the entry after this one, to newer ones; 0: with the first.
    After(i64),
    /// With the entry before this one, to older ones.
    Before(i64),
    /// With the newest, to older ones.
    Newest,
}

/// Entries, in the order in which they were read.
#[derive(Clone, PartialEq, Debug)]
pub struct AuditPage {
    /// The entries.
    pub records: Vec<AuditRecord>,
    /// The last entry that was looked at, wanted or not: the next page begins behind it.
    pub reached: i64,
    /// There is nothing more in this direction, as of now.
    pub is_last: bool,
}

impl Store {
    /// Entries that a filter wants, at most `limit`.
    ///
    /// # Errors
    /// The one who asks is no admin; the action is no pattern.
    pub async fn audit_page(
        &self,
        asker: Asker,
        filter: AuditFilter,
        from: AuditFrom,
        limit: u32,
    ) -> Result<AuditPage, StoreError> {
        asker.must_be_admin(ATTEMPT)?;
        let limit = usize::try_from(limit.clamp(1, Self::LONGEST_PAGE)).unwrap_or(1);
        self.read_with(ATTEMPT, move |connection| page(connection, &filter, from, limit))
            .await
    }

    /// Holds the number of the newest entry, told after each commit.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub fn watch_audit(&self, asker: Asker) -> Result<watch::Receiver<i64>, StoreError> {
        asker.must_be_admin("follow the audit log")?;
        Ok(self.inner.watchers.watch_audit())
    }
}

fn page(connection: &Connection, filter: &AuditFilter, from: AuditFrom, limit: usize) -> Result<AuditPage, StoreError> {
    let newest = number(connection, "SELECT MAX(number) AS number FROM audit", &[])?.unwrap_or(0);
    let after = match from {
        AuditFrom::After(number) => number.max(0),
        AuditFrom::Before(_) | AuditFrom::Newest => 0,
    };
    let before = match from {
        AuditFrom::Before(number) => number.min(newest.saturating_add(1)),
        AuditFrom::After(_) | AuditFrom::Newest => newest.saturating_add(1),
    };
    let first = match filter.since {
        Some(since) => first_since(connection, newest, since)?.max(after.saturating_add(1)),
        None => after.saturating_add(1),
    };
    let end = match filter.until {
        Some(until) => first_since(connection, newest, until)?.min(before),
        None => before,
    };
    let (conditions, mut binds) = filter.conditions()?;
    let order = if matches!(from, AuditFrom::After(_)) {
        "ASC"
    } else {
        "DESC"
    };
    let place = binds.len();
    binds.extend([first.into(), end.into(), held(limit).into()]);
    let sql = format!(
        "SELECT * FROM audit WHERE {conditions}number >= ${} AND number < ${} ORDER BY number {order} LIMIT ${}",
        place + 1,
        place + 2,
        place + 3
    );
    let mut records = Vec::new();
    connection.each(ATTEMPT, &sql, &binds, |row| {
        records.push(AuditRecord::of(&row)?);
        Ok(())
    })?;
    let is_last = records.len() < limit;
    let reached = match (records.last(), from) {
        (Some(last), _) if !is_last => last.number,
        (_, AuditFrom::After(number)) => newest.max(number),
        _ => 0,
    };
    Ok(AuditPage {
        records,
        reached,
        is_last,
    })
}

fn held(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn number(connection: &Connection, sql: &str, binds: &[Bind]) -> Result<Option<i64>, StoreError> {
    let row = connection.one(sql, binds).map_err(|source| database(ATTEMPT, source))?;
    match row {
        Some(row) => row.integer_or_none("number"),
        None => Ok(None),
    }
}

/// The number of the first entry of this moment or later; one more than the newest where there is none. Entries stand in the
/// order of their moments.
fn first_since(connection: &Connection, newest: i64, since: Timestamp) -> Result<i64, StoreError> {
    let (mut low, mut high) = (1, newest.saturating_add(1));
    while low < high {
        let middle = low + (high - low) / 2;
        let sql = "SELECT number, at FROM audit WHERE number >= $1 ORDER BY number LIMIT 1";
        let row = connection
            .one(sql, &[middle.into()])
            .map_err(|source| database(ATTEMPT, source))?;
        match row {
            Some(row) if row.time("at")? < since => low = row.integer("number")?.saturating_add(1),
            _ => high = middle,
        }
    }
    Ok(low)
}

impl AuditFilter {
    /// Conditions with their values. Only what is wanted is named, so that an index is found for it.
    fn conditions(&self) -> Result<(String, Vec<Bind>), StoreError> {
        let mut conditions = String::new();
        let mut binds = Vec::new();
        let mut add = |condition: &str, bind: Option<Bind>| {
            if let Some(bind) = bind {
                binds.push(bind);
                conditions.push_str(&format!("{condition} ${} AND ", binds.len()));
            }
        };
        add("session_id =", self.session.map(Bind::from));
        add("run_id =", self.run.map(Bind::from));
        add("owner =", self.user.map(Bind::from));
        add("service =", self.service.clone().map(Bind::from));
        add("host =", self.host.clone().map(Bind::from));
        let refused = self.decision.as_deref().is_some_and(|decision| decision != "allow");
        // In the words of the index of what was not simply allowed.
        let decision = if refused {
            "decision <> 'allow' AND decision ="
        } else {
            "decision ="
        };
        add(decision, self.decision.clone().map(Bind::from));
        match self.action.as_deref().map(pattern).transpose()? {
            Some(Pattern::Word(word)) => add("action =", Some(word.into())),
            Some(Pattern::Like(like)) => add("action LIKE", Some(like.into())),
            None => {}
        }
        Ok((conditions, binds))
    }
}

enum Pattern {
    Word(String),
    Like(String),
}

/// A pattern of actions as the database understands it.
fn pattern(glob: &str) -> Result<Pattern, StoreError> {
    let is_word = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || ".*_".contains(letter);
    if glob.is_empty() || glob.len() > 100 || !glob.chars().all(is_word) {
        return Err(StoreError::Invalid {
            subject: "the filter",
            reason: "an action is lower-case words with dots, such as `egress.denied`, and `*` for anything".to_owned(),
        });
    }
    // `_` is any letter to LIKE: no two actions differ in nothing else.
    Ok(if glob.contains('*') {
        Pattern::Like(glob.replace('*', "%"))
    } else {
        Pattern::Word(glob.to_owned())
    })
}
