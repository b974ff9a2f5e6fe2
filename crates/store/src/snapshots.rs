//! Snapshots: what is kept of a session's files, and how far its history had come then.
//!
//! A row is written before the files are kept, and deleted before they are removed: whoever finds one without the other knows
//! what was under way. A session that is to have the files of a snapshot owes them (`owed`) until its disk is made.

mod fork;
mod rewind;

use domain::{Event, NumberedEvent, RunId, SessionId, SnapshotId, Timestamp};
use serde_json::json;

use crate::batch::{binds, statement};
use crate::head::{Head, not_found};
use crate::row::Row;
use crate::skipped::Skipped;
use crate::writer::Work;
use crate::{Asker, AuditEntry, Store, StoreError, audit, stored};

pub use fork::Fork;

/// Snapshots of one session that people keep. Those after runs are fewer, and go by themselves.
const MOST: i64 = 100;
/// The longest name, in characters.
const LONGEST_NAME: usize = 100;

/// Why a snapshot was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotKind {
    /// Somebody wanted it; it is kept until somebody removes it.
    Named,
    /// A run had ended.
    Run,
    /// Forks get their files from it; then it goes.
    Fork,
}

impl SnapshotKind {
    const ALL: [(Self, &'static str); 3] = [(Self::Named, "named"), (Self::Run, "run"), (Self::Fork, "fork")];

    /// The word that stands in the store and in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Run => "run",
            Self::Fork => "fork",
        }
    }

    fn from_word(word: &str) -> Result<Self, StoreError> {
        let known = Self::ALL.into_iter().find(|(_, known)| *known == word);
        known
            .map(|(kind, _)| kind)
            .ok_or_else(|| stored::corrupt("snapshot", format!("there is no kind {word:?}")))
    }
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Which.
    pub id: SnapshotId,
    /// Whose files.
    pub session: SessionId,
    /// Why it was made.
    pub kind: SnapshotKind,
    /// What people call it.
    pub name: Option<String>,
    /// The run that had ended.
    pub run: Option<RunId>,
    /// The last message that belongs to the files; 0: none.
    pub position: i64,
    /// When it was made.
    pub created: Timestamp,
    /// Bytes of its files, where that is known.
    pub bytes: Option<u64>,
    /// It is whole; false while it is being made.
    pub kept: bool,
}

/// A snapshot that is to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NewSnapshot {
    /// For people.
    Named(Option<String>),
    /// After a run, unless another has begun.
    Run(RunId),
    /// For forks.
    Fork,
}

const SNAPSHOT: &str = "n.id, n.session_id, n.kind, n.name, n.run_id, n.position, n.created, n.bytes, n.kept";

impl Snapshot {
    /// From a row with [`SNAPSHOT`].
    fn of(row: &Row) -> Result<Self, StoreError> {
        let bytes = row.integer_or_none("bytes")?;
        Ok(Self {
            id: row.id("id")?,
            session: row.id("session_id")?,
            kind: SnapshotKind::from_word(row.str("kind")?)?,
            name: row.text_or_none("name")?,
            run: row.id_or_none("run_id")?,
            position: row.integer("position")?,
            created: row.time("created")?,
            bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
            kept: row.integer("kept")? != 0,
        })
    }
}

fn no_snapshot(name: impl ToString) -> StoreError {
    StoreError::NotFound {
        kind: "snapshot",
        id: name.to_string(),
    }
}

/// The head of a session of which the one who asks may keep, bring back and fork files: whoever may prompt it.
fn theirs(work: &mut Work, asker: Asker, session: SessionId) -> Result<Head, StoreError> {
    let head = Head::read(work, session)?;
    if !asker.may_see(session, head.owner) || matches!(asker, Asker::Session(_)) {
        return Err(not_found(session));
    }
    Ok(head)
}

/// A session's snapshot, with how its history stood.
fn find(work: &mut Work, session: SessionId, snapshot: SnapshotId) -> Result<(Snapshot, Row), StoreError> {
    let sql = statement!(
        "SELECT {SNAPSHOT}, n.skipped, n.compacted, (SELECT COUNT(*) FROM sessions s WHERE s.owed = n.id) AS owing \
         FROM snapshots n WHERE n.id = $1 AND n.session_id = $2"
    );
    let row = work.one(sql, binds![snapshot, session])?;
    let row = row.ok_or_else(|| no_snapshot(snapshot))?;
    Ok((Snapshot::of(&row)?, row))
}

/// How a session's history stands: the last message that has all it needs, what is left out, and what is summed up.
fn standing(work: &mut Work, head: &Head) -> Result<(i64, Skipped, i64), StoreError> {
    let sql = "SELECT skipped, compacted FROM sessions WHERE id = $1";
    let row = work
        .one(sql, binds![head.session])?
        .ok_or_else(|| not_found(head.session))?;
    // Calls that have no result yet are made by the last message.
    let position = head.messages - i64::from(!head.open_calls.is_empty());
    Ok((position, Skipped::of(&row)?, row.integer("compacted")?))
}

fn check_name(name: &str) -> Result<(), StoreError> {
    let fits = (1..=LONGEST_NAME).contains(&name.chars().count())
        && !name.chars().any(char::is_control)
        && name.trim() == name
        && name.parse::<SnapshotId>().is_err();
    if fits {
        return Ok(());
    }
    Err(StoreError::Invalid {
        subject: "the snapshot's name",
        reason: format!("a name is 1 to {LONGEST_NAME} characters, without a line break, and does not look like an id"),
    })
}

/// Refuses one more that people keep; those that were never finished count.
fn check_number(work: &mut Work, session: SessionId) -> Result<(), StoreError> {
    let sql = "SELECT COUNT(*) AS snapshots FROM snapshots WHERE session_id = $1 AND kind = 'named'";
    let there = work.one(sql, binds![session])?;
    if there.map_or(Ok(0), |row| row.integer("snapshots"))? < MOST {
        return Ok(());
    }
    Err(StoreError::Conflict {
        subject: "the snapshot",
        reason: format!("the session has {MOST} already: remove one that is not needed"),
    })
}

fn must_be_free(work: &mut Work, session: SessionId, name: &str) -> Result<(), StoreError> {
    let sql = "SELECT id FROM snapshots WHERE session_id = $1 AND name = $2";
    if work.one(sql, binds![session, name])?.is_none() {
        return Ok(());
    }
    Err(StoreError::Conflict {
        subject: "the snapshot",
        reason: format!("there is one named {name:?} already: take another name, or remove that one"),
    })
}

impl Store {
    /// Writes down that a snapshot is going to be made. None: a run has begun since, and its end will be kept instead.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; the name is no name, or taken; there are too many.
    pub async fn begin_snapshot(
        &self,
        asker: Asker,
        session: SessionId,
        new: NewSnapshot,
    ) -> Result<Option<Snapshot>, StoreError> {
        if !matches!(new, NewSnapshot::Named(_)) {
            asker.must_be_system("keep files that nobody asked for")?;
        }
        self.write("begin a snapshot", move |work| {
            let head = theirs(work, asker, session)?;
            let (kind, name, run) = match new {
                NewSnapshot::Named(name) => (SnapshotKind::Named, name, None),
                NewSnapshot::Run(_) if head.open_runs > 0 => return Ok(None),
                NewSnapshot::Run(run) => (SnapshotKind::Run, None, Some(run)),
                NewSnapshot::Fork => (SnapshotKind::Fork, None, None),
            };
            if let Some(name) = &name {
                check_name(name)?;
                must_be_free(work, session, name)?;
            }
            if kind == SnapshotKind::Named {
                check_number(work, session)?;
            }
            let (position, skipped, compacted) = standing(work, &head)?;
            let snapshot = Snapshot {
                id: SnapshotId::new(),
                session,
                kind,
                name,
                run,
                position,
                created: work.now,
                bytes: None,
                kept: false,
            };
            work.batch.add(
                "INSERT INTO snapshots (id, session_id, kind, name, run_id, position, skipped, compacted, created, kept, image) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, (SELECT image FROM sessions WHERE id = $2))",
                binds![
                    snapshot.id,
                    session,
                    kind.as_str(),
                    snapshot.name.clone(),
                    run,
                    position,
                    skipped.text()?,
                    compacted,
                    work.now
                ],
            );
            if kind == SnapshotKind::Named {
                let detail = json!({ "snapshot": snapshot.id, "name": snapshot.name });
                audit::append(work, asker, [AuditEntry::about("snapshot.made", session, detail)])?;
            }
            Ok(Some(snapshot))
        })
        .await
    }

    /// Writes down that a snapshot's files are kept.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn keep_snapshot(
        &self,
        asker: Asker,
        snapshot: SnapshotId,
        bytes: Option<u64>,
    ) -> Result<(), StoreError> {
        asker.must_be_system("keep a snapshot")?;
        self.write("keep a snapshot", move |work| {
            let bytes = bytes.and_then(|bytes| i64::try_from(bytes).ok());
            work.batch.add(
                "UPDATE snapshots SET kept = 1, bytes = $2 WHERE id = $1",
                binds![snapshot, bytes],
            );
            Ok(())
        })
        .await
    }

    /// Forgets a snapshot; its files are removed next.
    ///
    /// # Errors
    /// There is none, for the one who asks; a session is still to have its files.
    pub async fn forget_snapshot(
        &self,
        asker: Asker,
        session: SessionId,
        snapshot: SnapshotId,
    ) -> Result<(), StoreError> {
        self.write("forget a snapshot", move |work| {
            theirs(work, asker, session)?;
            let (found, row) = find(work, session, snapshot)?;
            if row.integer("owing")? > 0 {
                return Err(StoreError::Conflict {
                    subject: "removing the snapshot",
                    reason: "a session is about to get its files from it: try again in a moment".to_owned(),
                });
            }
            work.batch.add("DELETE FROM snapshots WHERE id = $1", binds![snapshot]);
            if found.kind == SnapshotKind::Named && found.kept {
                let detail = json!({ "snapshot": snapshot, "name": found.name });
                audit::append(work, asker, [AuditEntry::about("snapshot.removed", session, detail)])?;
            }
            Ok(())
        })
        .await
    }

    /// Gives a snapshot a name. From then on it is kept until somebody removes it.
    ///
    /// # Errors
    /// There is none, for the one who asks; the name is no name, or taken.
    pub async fn name_snapshot(
        &self,
        asker: Asker,
        session: SessionId,
        snapshot: SnapshotId,
        name: &str,
    ) -> Result<(), StoreError> {
        check_name(name)?;
        let name = name.to_owned();
        self.write("name a snapshot", move |work| {
            theirs(work, asker, session)?;
            let (found, _) = find(work, session, snapshot)?;
            must_be_free(work, session, &name)?;
            if found.kind != SnapshotKind::Named {
                check_number(work, session)?;
            }
            work.batch.add(
                "UPDATE snapshots SET name = $2, kind = 'named' WHERE id = $1",
                binds![snapshot, name.as_str()],
            );
            let detail = json!({ "snapshot": snapshot, "name": name });
            audit::append(work, asker, [AuditEntry::about("snapshot.named", session, detail)])
        })
        .await
    }

    /// A session's snapshots that are whole, newest first.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn snapshots(&self, asker: Asker, session: SessionId) -> Result<Vec<Snapshot>, StoreError> {
        self.owner_of(asker, session).await?;
        let sql = statement!(
            "SELECT {SNAPSHOT} FROM snapshots n WHERE n.session_id = $1 AND n.kept = 1 AND n.kind <> 'fork' ORDER BY n.id DESC"
        );
        let rows = self.read("list snapshots", sql, binds![session]).await?;
        rows.iter().map(Snapshot::of).collect()
    }

    /// Every snapshot there is, those that are being made included.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn all_snapshots(&self, asker: Asker) -> Result<Vec<Snapshot>, StoreError> {
        asker.must_be_system("list everybody's snapshots")?;
        let sql = statement!("SELECT {SNAPSHOT} FROM snapshots n ORDER BY n.id");
        let rows = self.read("list snapshots", sql, Vec::new()).await?;
        rows.iter().map(Snapshot::of).collect()
    }

    /// Forgets what was only begun, or made for forks that all have their files: to be done when a process begins, before
    /// anything else is. Their files are removed next.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn forget_half_snapshots(&self, asker: Asker) -> Result<(), StoreError> {
        asker.must_be_system("forget snapshots that were never finished")?;
        self.write("forget snapshots that were never finished", move |work| {
            work.batch.add(
                "DELETE FROM snapshots WHERE (kept = 0 OR kind = 'fork') \
                 AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.owed = snapshots.id)",
                binds![],
            );
            Ok(())
        })
        .await
    }

    /// Forgets those of a session's snapshots after runs that are older than the newest `most`, and says which. Their files
    /// are removed next.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn forget_older_snapshots(
        &self,
        asker: Asker,
        session: SessionId,
        most: u32,
    ) -> Result<Vec<SnapshotId>, StoreError> {
        asker.must_be_system("forget older snapshots")?;
        self.write("forget older snapshots", move |work| {
            let sql = "SELECT n.id FROM snapshots n WHERE n.session_id = $1 AND n.kind = 'run' AND n.kept = 1 \
                       AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.owed = n.id) ORDER BY n.id DESC LIMIT -1 OFFSET $2";
            let rows = work.all(sql, binds![session, i64::from(most)])?;
            let mut forgotten = Vec::with_capacity(rows.len());
            for row in &rows {
                let id: SnapshotId = row.id("id")?;
                work.batch.add("DELETE FROM snapshots WHERE id = $1", binds![id]);
                forgotten.push(id);
            }
            Ok(forgotten)
        })
        .await
    }

    /// Writes down that the files which a session is owed are gone for ever, and that it goes on with those it has.
    ///
    /// # Errors
    /// There is no such session, or the one who asks is not Belljar itself.
    pub async fn files_gone(
        &self,
        asker: Asker,
        session: SessionId,
        snapshot: SnapshotId,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        asker.must_be_system("give files up")?;
        self.write("give files up", move |work| {
            let mut head = Head::read(work, session)?;
            work.batch
                .add("UPDATE sessions SET owed = NULL WHERE id = $1", binds![session]);
            let detail = json!({ "snapshot": snapshot });
            audit::append(work, asker, [AuditEntry::about("session.files_gone", session, detail)])?;
            head.event(work, Event::FilesGone { snapshot })?;
            head.finish(work)
        })
        .await
    }

    /// Writes down that a session's disk was made from the snapshot that it was owed. Gives that snapshot where it was made for
    /// this alone and is forgotten now: its files are removed next.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn files_brought(&self, asker: Asker, session: SessionId) -> Result<Option<SnapshotId>, StoreError> {
        asker.must_be_system("bring files")?;
        self.write("bring files", move |work| {
            let sql = "SELECT n.id, (SELECT COUNT(*) FROM sessions o WHERE o.owed = n.id) AS owing FROM sessions s \
                       JOIN snapshots n ON n.id = s.owed AND n.kind = 'fork' WHERE s.id = $1";
            let spent = match work.one(sql, binds![session])? {
                Some(row) if row.integer("owing")? <= 1 => Some(row.id("id")?),
                _ => None,
            };
            work.batch.add(
                "UPDATE sessions SET image = (SELECT n.image FROM snapshots n WHERE n.id = owed), owed = NULL WHERE id = $1",
                binds![session],
            );
            if let Some(spent) = spent {
                work.batch.add("DELETE FROM snapshots WHERE id = $1", binds![spent]);
            }
            Ok(spent)
        })
        .await
    }
}
