//! Following the chain of the audit log from end to end.

use std::fmt;
use std::path::Path;

use super::AuditRecord;
use crate::connection::{Access, Connection};
use crate::error::database;
use crate::open::{apart, not_a_store};
use crate::{Asker, Hash, Store, StoreError, migrations};

const ATTEMPT: &str = "verify the audit log";

/// Entries that are read at a time: whoever writes is not held up for the length of the log.
const TOGETHER: i64 = 4_096;

/// What verifying the log found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditVerdict {
    /// The number of the last entry.
    pub entries: i64,
    /// Its link: who notes both elsewhere can tell later that nothing was cut off, and nothing written anew.
    pub head: Hash,
    /// The first place where the log is not what was written; none: all is well.
    pub broken: Option<AuditBreak>,
}

/// A place where the log is not what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuditBreak {
    /// This entry is missing, and the next one there is another.
    Missing(i64),
    /// This entry does not follow from the one before: one of the two was changed, or its place.
    Altered(i64),
    /// The log ends before this entry, which was noted elsewhere.
    CutOff(i64),
    /// This entry was noted with another link: it, or something before it, was written anew.
    Rewritten(i64),
}

impl AuditBreak {
    /// The first entry that is not what was written.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Missing(number) | Self::Altered(number) | Self::CutOff(number) | Self::Rewritten(number) => number,
        }
    }
}

impl fmt::Display for AuditBreak {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(number) => write!(formatter, "entry {number} is missing"),
            Self::Altered(number) => write!(
                formatter,
                "entry {number} does not follow from the one before: it was changed, or put in another's place"
            ),
            Self::CutOff(number) => write!(
                formatter,
                "entry {number} was noted and is not there: the end of the log was cut off"
            ),
            Self::Rewritten(number) => write!(
                formatter,
                "entry {number} was noted with another hash: it, or entries before it, were written anew"
            ),
        }
    }
}

impl Store {
    /// Reads the whole log and follows its chain. `noted` is the number and link of an entry that somebody kept elsewhere.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub async fn verify_audit(&self, asker: Asker, noted: Option<(i64, Hash)>) -> Result<AuditVerdict, StoreError> {
        asker.must_be_admin(ATTEMPT)?;
        self.read_with(ATTEMPT, move |connection| follow(connection, noted))
            .await
    }
}

/// Follows the chain of the audit log in a copy of a store, which is only read.
///
/// # Errors
/// The file cannot be read, is no store, or is of a newer release.
pub async fn verify_audit_of(file: &Path, noted: Option<(i64, Hash)>) -> Result<AuditVerdict, StoreError> {
    let file = file.to_owned();
    apart(ATTEMPT, move || {
        let unreadable = |source| not_a_store(&file, source);
        let connection = Connection::open(&file, Access::Read).map_err(unreadable)?;
        if migrations::schema_of(&connection, &file)? == 0 {
            return Err(StoreError::NotAStore {
                path: file,
                reason: "it is empty".to_owned(),
            });
        }
        let verdict = follow(&connection, noted)?;
        connection.close().map_err(|source| database(ATTEMPT, source))?;
        Ok(verdict)
    })
    .await
}

fn follow(connection: &Connection, noted: Option<(i64, Hash)>) -> Result<AuditVerdict, StoreError> {
    let mut verdict = AuditVerdict {
        entries: 0,
        head: Hash::default(),
        broken: None,
    };
    let mut rewritten = false;
    loop {
        let begun = verdict.entries;
        let sql = "SELECT * FROM audit WHERE number > $1 ORDER BY number LIMIT $2";
        connection.each(ATTEMPT, sql, &[begun.into(), TOGETHER.into()], |row| {
            let number = row.integer("number")?;
            // What cannot even be read was not written by us.
            let found = AuditRecord::of(&row).ok();
            let follows = found.filter(|record| record.link(verdict.head) == record.hash);
            if verdict.broken.is_none() && number != verdict.entries + 1 {
                verdict.broken = Some(AuditBreak::Missing(verdict.entries + 1));
            } else if verdict.broken.is_none() && follows.is_none() {
                verdict.broken = Some(AuditBreak::Altered(number));
            }
            verdict.entries = number;
            verdict.head = row.hash("hash").unwrap_or_default();
            rewritten |= noted.is_some_and(|noted| noted.0 == number && noted.1 != verdict.head);
            Ok(())
        })?;
        if verdict.entries == begun {
            break;
        }
    }
    if verdict.broken.is_none()
        && let Some((number, _)) = noted
    {
        verdict.broken = if number > verdict.entries {
            Some(AuditBreak::CutOff(number))
        } else {
            rewritten.then_some(AuditBreak::Rewritten(number))
        };
    }
    Ok(verdict)
}
