//! Files of workspaces as they are kept: what they are made of, and what the object store has.
//!
//! A file is recorded only when the object store has everything that stands in it. What no file needs any more is collected
//! after a while: first its row says that it goes, then the object is removed, then the row, so that it is never removed
//! under somebody who was told that it is there. One that could not be removed can be asked for again, and is uploaded anew.

use std::collections::HashMap;

use domain::{ContentHash, Event, NumberedEvent, SessionId};

use crate::batch::{Bind, binds};
use crate::head::Head;
use crate::row::Row;
use crate::stored;
use crate::writer::Work;
use crate::{Asker, Hash, Store, StoreError};

mod behind;
mod collect;
mod read;
mod types;

pub use types::{ContentState, FilePiece, FileStamp, KeptFile, RecordedFiles, Room, Workspace, WorkspaceFile};

/// States of a content, besides 0: it is there.
const GOING: i64 = 1;
const COMING: i64 = 2;

/// About what the rows of one session may take in the store's own file, and how many contents they may name: a million short
/// paths, and never all of the store.
const MOST_WEIGHT: i64 = 128 << 20;
const MOST_CONTENTS: i64 = 400_000;

impl Store {
    /// A disk's files are kept from now on. Answers how many were recorded by other disks, and are to be brought back to it.
    ///
    /// # Errors
    /// There is no such session.
    pub async fn begin_files(&self, asker: Asker, session: SessionId, disk: &str) -> Result<u64, StoreError> {
        asker.must_be_system("keep a session's files")?;
        let disk = disk.to_owned();
        self.write("keep a session's files", move |work| {
            Head::read(work, session)?;
            work.batch.add(
                "INSERT INTO workspaces (session_id, version, bytes, full_told) VALUES ($1, 0, 0, 0) \
                 ON CONFLICT (session_id) DO UPDATE SET archived = NULL",
                binds![session],
            );
            let sql = "SELECT COUNT(*) AS files FROM files WHERE session_id = $1 AND disk <> $2";
            let row = work.one(sql, binds![session, disk])?;
            row.map_or(Ok(0), |row| whole(row.integer("files")?))
        })
        .await
    }

    /// What is known of these contents, in order. The first time that there is no room an event says so, until there is room
    /// again.
    ///
    /// # Errors
    /// The session's files are not kept.
    pub async fn offer_contents(
        &self,
        asker: Asker,
        session: SessionId,
        contents: Vec<(ContentHash, u64)>,
        room: Room,
    ) -> Result<(Vec<ContentState>, Vec<NumberedEvent>), StoreError> {
        asker.must_be_system("look for contents of files")?;
        self.write("look for contents of files", move |work| {
            let workspace = row_of(work, session)?;
            let mut all = whole(workspace.integer("bytes")?)?;
            let told = workspace.integer("full_told")? != 0;
            let mut count = workspace.integer("contents")?;
            let mut used = None;
            let mut states = Vec::with_capacity(contents.len());
            let mut seen = HashMap::new();
            let mut comes = false;
            for (sha256, bytes) in contents {
                if let Some(state) = seen.get(&sha256) {
                    states.push(*state);
                    continue;
                }
                let sql = "SELECT going, unused FROM contents WHERE session_id = $1 AND sha256 = $2";
                let state = match work.one(sql, binds![session, Hash(sha256.0)])? {
                    Some(row) if row.integer("going")? == GOING => ContentState::Going,
                    Some(row) => {
                        if row.time_or_none("unused")?.is_some() {
                            work.batch.add(
                                "UPDATE contents SET unused = $3 WHERE session_id = $1 AND sha256 = $2",
                                binds![session, Hash(sha256.0), work.now],
                            );
                        }
                        if row.integer("going")? == COMING {
                            ContentState::Wanted
                        } else {
                            ContentState::Stored
                        }
                    }
                    None => {
                        let fits = count < MOST_CONTENTS && (all + bytes <= room.bytes || {
                            let used = match &mut used {
                                Some(used) => used,
                                none => none.insert(bytes_in_use(work, session)?),
                            };
                            *used += bytes;
                            *used <= room.bytes && all + bytes <= room.bytes.saturating_add(room.spare)
                        });
                        if fits {
                            all += bytes;
                            count += 1;
                            comes = true;
                            come(work, session, sha256, bytes)?;
                            ContentState::Wanted
                        } else {
                            ContentState::Full
                        }
                    }
                };
                seen.insert(sha256, state);
                states.push(state);
            }
            let full = states.contains(&ContentState::Full);
            // What came before says nothing of the room that there is now.
            let room_again = told && comes && !full;
            let mut events = Vec::new();
            if full != told && (full || room_again) {
                work.batch.add(
                    "UPDATE workspaces SET full_told = $2 WHERE session_id = $1",
                    binds![session, full],
                );
                if full {
                    let mut head = Head::read(work, session)?;
                    let reason = format!(
                        "the files of this session have more than {} bytes (objects.quota): what does not fit is on its disk \
                         only, and lost with it; work goes on",
                        room.bytes
                    );
                    head.event(
                        work,
                        Event::Files {
                            state: "full".to_owned(),
                            reason: Some(reason),
                        },
                    )?;
                    events = head.finish(work)?;
                }
            }
            Ok((states, events))
        })
        .await
    }

    /// The object store has a content now that was offered. False: it is being removed at this moment, and does not count.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn content_stored(
        &self,
        asker: Asker,
        session: SessionId,
        sha256: ContentHash,
    ) -> Result<bool, StoreError> {
        asker.must_be_system("write down a content of files")?;
        self.write("write down a content of files", move |work| {
            let sql = "SELECT going FROM contents WHERE session_id = $1 AND sha256 = $2";
            let Some(row) = work.one(sql, binds![session, Hash(sha256.0)])? else {
                return Ok(false);
            };
            let state = row.integer("going")?;
            if state == COMING {
                work.batch.add(
                    "UPDATE contents SET going = 0, unused = $3 WHERE session_id = $1 AND sha256 = $2",
                    binds![session, Hash(sha256.0), work.now],
                );
            }
            Ok(state != GOING)
        })
        .await
    }

    /// Files are so from now on, and nothing of what the disk had is at the paths of `gone` and below any more. Files of which the object store
    /// lacks something, and those for which the session has no room among the rows, are not recorded.
    ///
    /// # Errors
    /// The session's files are not kept.
    pub async fn record_files(
        &self,
        asker: Asker,
        session: SessionId,
        disk: &str,
        gone: Vec<Vec<u8>>,
        files: Vec<WorkspaceFile>,
    ) -> Result<RecordedFiles, StoreError> {
        asker.must_be_system("record a session's files")?;
        let disk = disk.to_owned();
        self.write("record a session's files", move |work| {
            let workspace = row_of(work, session)?;
            let version = workspace.integer("version")? + 1;
            let mut weight = workspace.integer("weight")?;
            for path in gone {
                remove(work, session, &disk, &path);
            }
            let mut recorded = RecordedFiles::default();
            for (place, file) in files.into_iter().enumerate() {
                if !has_all(work, session, &file)? {
                    recorded.refused.push(place);
                } else if weight + file.weight() > MOST_WEIGHT {
                    recorded.full.push(place);
                } else {
                    weight += file.weight();
                    replace(work, session, &disk, version, file)?;
                }
            }
            work.batch.add(
                "UPDATE workspaces SET version = $2 WHERE session_id = $1",
                binds![session, version],
            );
            Ok(recorded)
        })
        .await
    }

    /// Files that other disks recorded are on this one too, with these stamps.
    ///
    /// # Errors
    /// The session's files are not kept.
    pub async fn place_files(
        &self,
        asker: Asker,
        session: SessionId,
        disk: &str,
        files: Vec<FileStamp>,
    ) -> Result<(), StoreError> {
        asker.must_be_system("record a session's files")?;
        let disk = disk.to_owned();
        self.write("record a session's files", move |work| {
            row_of(work, session)?;
            for file in files {
                work.batch.add(
                    "UPDATE files SET disk = $3, stamp = $4 WHERE session_id = $1 AND path = $2",
                    binds![session, file.path, disk.as_str(), file.stamp],
                );
            }
            Ok(())
        })
        .await
    }

    /// Says how the keeping of a session's files is from now on.
    ///
    /// # Errors
    /// There is no such session.
    pub async fn tell_files(
        &self,
        asker: Asker,
        session: SessionId,
        state: &str,
        reason: String,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        asker.must_be_system("tell of a session's files")?;
        let state = state.to_owned();
        self.write("tell of a session's files", move |work| {
            behind::tell(work, session, &state, reason)
        })
        .await
    }

    /// The session's disk was removed: its files are in the object store only.
    ///
    /// # Errors
    /// The session's files are not kept.
    pub async fn archive_files(&self, asker: Asker, session: SessionId) -> Result<Vec<NumberedEvent>, StoreError> {
        asker.must_be_system("archive a session's files")?;
        self.write("archive a session's files", move |work| {
            row_of(work, session)?;
            work.batch.add(
                "UPDATE workspaces SET archived = $2, behind = NULL WHERE session_id = $1",
                binds![session, work.now],
            );
            // The next disk begins with what is the newest then.
            work.batch
                .add("UPDATE sessions SET image = NULL WHERE id = $1", binds![session]);
            let mut head = Head::read(work, session)?;
            head.event(
                work,
                Event::Files {
                    state: "archived".to_owned(),
                    reason: Some("they are in the object store only; the next prompt brings them back".to_owned()),
                },
            )?;
            head.finish(work)
        })
        .await
    }
}

/// A content that was asked for: written down before it is uploaded, so that it is collected where it never comes to be used.
fn come(work: &mut Work, session: SessionId, sha256: ContentHash, bytes: u64) -> Result<(), StoreError> {
    let bytes = number(bytes)?;
    work.batch.add(
        "INSERT INTO contents (session_id, sha256, bytes, unused, going) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (session_id, sha256) DO NOTHING",
        binds![session, Hash(sha256.0), bytes, work.now, COMING],
    );
    work.batch.add(
        "UPDATE workspaces SET bytes = bytes + $2, contents = contents + 1 WHERE session_id = $1",
        binds![session, bytes],
    );
    Ok(())
}

fn row_of(work: &Work, session: SessionId) -> Result<Row, StoreError> {
    let sql = "SELECT version, bytes, full_told, weight, contents FROM workspaces WHERE session_id = $1";
    work.one(sql, binds![session])?.ok_or_else(|| StoreError::NotFound {
        kind: "kept files of session",
        id: session.to_string(),
    })
}

/// Bytes of what some file has, or may have.
fn bytes_in_use(work: &Work, session: SessionId) -> Result<u64, StoreError> {
    let sql = "SELECT COALESCE(SUM(bytes), 0) AS used FROM contents WHERE session_id = $1 AND unused IS NULL";
    let row = work.one(sql, binds![session])?;
    row.map_or(Ok(0), |row| whole(row.integer("used")?))
}

fn has_all(work: &Work, session: SessionId, file: &WorkspaceFile) -> Result<bool, StoreError> {
    let KeptFile::File { pieces, .. } = &file.kept else {
        return Ok(true);
    };
    let sql = "SELECT 1 FROM contents WHERE session_id = $1 AND sha256 = $2 AND bytes = $3 AND going = 0";
    for piece in pieces {
        let found = work.one(sql, binds![session, Hash(piece.sha256.0), number(piece.bytes)?])?;
        if found.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what a disk had at a path and below it. What is still to be brought back to it was never there, and stays.
fn remove(work: &mut Work, session: SessionId, disk: &str, path: &[u8]) {
    let (from, to) = below(path);
    // Whether another file has them too is looked at when they are collected.
    work.batch.add(
        "UPDATE contents SET unused = $6 WHERE session_id = $1 AND unused IS NULL AND sha256 IN \
         (SELECT p.sha256 FROM pieces p JOIN files f ON f.session_id = p.session_id AND f.path = p.path \
         WHERE p.session_id = $1 AND (p.path = $2 OR (p.path >= $3 AND p.path < $4)) AND f.disk = $5)",
        binds![session, path.to_vec(), from.clone(), to.clone(), disk, work.now],
    );
    for sql in [
        "UPDATE workspaces SET weight = weight - COALESCE((SELECT SUM(weight) FROM files \
         WHERE session_id = $1 AND (path = $2 OR (path >= $3 AND path < $4)) AND disk = $5), 0) WHERE session_id = $1",
        "DELETE FROM pieces WHERE session_id = $1 AND path IN (SELECT path FROM files \
         WHERE session_id = $1 AND (path = $2 OR (path >= $3 AND path < $4)) AND disk = $5)",
        "DELETE FROM files WHERE session_id = $1 AND (path = $2 OR (path >= $3 AND path < $4)) AND disk = $5",
    ] {
        work.batch
            .add(sql, binds![session, path.to_vec(), from.clone(), to.clone(), disk]);
    }
}

/// The session goes back to files of before: what its next disk has is recorded anew, and nothing is brought back to it. What
/// is still in the object store is not uploaded again.
pub(crate) fn forget(work: &mut Work, session: SessionId) {
    work.batch.add(
        "UPDATE contents SET unused = $2 WHERE session_id = $1 AND unused IS NULL",
        binds![session, work.now],
    );
    for sql in [
        "DELETE FROM pieces WHERE session_id = $1",
        "DELETE FROM files WHERE session_id = $1",
        "UPDATE workspaces SET weight = 0 WHERE session_id = $1",
    ] {
        work.batch.add(sql, binds![session]);
    }
}

/// The range of paths below one.
fn below(path: &[u8]) -> (Vec<u8>, Vec<u8>) {
    ([path, b"/"].concat(), [path, b"0"].concat())
}

fn replace(
    work: &mut Work,
    session: SessionId,
    disk: &str,
    version: i64,
    file: WorkspaceFile,
) -> Result<(), StoreError> {
    let weight = file.weight();
    let sql = "SELECT kind FROM files WHERE session_id = $1 AND path = $2";
    let before = work.one(sql, binds![session, file.path.clone()])?;
    let before = before.map(|row| row.text("kind")).transpose()?;
    let (kind, bytes, target, pieces) = match file.kept {
        KeptFile::File { bytes, pieces } => ("file", bytes, None, pieces),
        KeptFile::Folder => ("folder", 0, None, Vec::new()),
        KeptFile::Link { target } => ("link", 0, Some(target), Vec::new()),
    };
    match before.as_deref() {
        Some("folder") if kind != "folder" => remove(work, session, disk, &file.path),
        Some("file") => {
            work.batch.add(
                "UPDATE contents SET unused = $3 WHERE session_id = $1 AND unused IS NULL AND sha256 IN \
                 (SELECT sha256 FROM pieces WHERE session_id = $1 AND path = $2)",
                binds![session, file.path.clone(), work.now],
            );
            work.batch.add(
                "DELETE FROM pieces WHERE session_id = $1 AND path = $2",
                binds![session, file.path.clone()],
            );
        }
        _ => {}
    }
    // What was removed just now weighs nothing any more.
    work.batch.add(
        "UPDATE workspaces SET weight = weight + $3 - COALESCE((SELECT weight FROM files \
         WHERE session_id = $1 AND path = $2), 0) WHERE session_id = $1",
        binds![session, file.path.clone(), weight],
    );
    work.batch.add(
        "INSERT INTO files (session_id, path, kind, bytes, target, mode, changed, stamp, disk, version, weight) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
         ON CONFLICT (session_id, path) DO UPDATE SET kind = excluded.kind, bytes = excluded.bytes, \
         target = excluded.target, mode = excluded.mode, changed = excluded.changed, stamp = excluded.stamp, \
         disk = excluded.disk, version = excluded.version, weight = excluded.weight",
        binds![
            session,
            file.path.clone(),
            kind,
            number(bytes)?,
            target.map_or(Bind::Null, Bind::Blob),
            i64::from(file.mode),
            file.changed,
            file.stamp,
            disk,
            version,
            weight,
        ],
    );
    for piece in pieces {
        work.batch.add(
            "INSERT INTO pieces (session_id, path, place, sha256, bytes) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (session_id, path, place) DO UPDATE SET sha256 = excluded.sha256, bytes = excluded.bytes",
            binds![
                session,
                file.path.clone(),
                number(piece.at)?,
                Hash(piece.sha256.0),
                number(piece.bytes)?,
            ],
        );
        work.batch.add(
            "UPDATE contents SET unused = NULL WHERE session_id = $1 AND sha256 = $2",
            binds![session, Hash(piece.sha256.0)],
        );
    }
    Ok(())
}

fn number(bytes: u64) -> Result<i64, StoreError> {
    i64::try_from(bytes).map_err(|_| StoreError::Invalid {
        subject: "the length of a file",
        reason: "no file is as long".to_owned(),
    })
}

fn whole(number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|source| stored::corrupt("number of files", source))
}
