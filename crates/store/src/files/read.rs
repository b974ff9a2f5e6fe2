//! What is kept.

use std::collections::HashMap;

use domain::{ContentHash, SessionId};

use super::{FilePiece, FileStamp, KeptFile, Workspace, WorkspaceFile, whole};
use crate::batch::binds;
use crate::row::Row;
use crate::stored;
use crate::{Asker, Hash, Store, StoreError};

/// Bytes of paths and targets on one page, about: where they are no text each takes five times as much when it is sent.
const PAGE_BYTES: usize = 1 << 20;

impl Store {
    /// A session's files in short; none where they were never kept.
    ///
    /// # Errors
    /// There is no such session, for the one who asks.
    pub async fn workspace(&self, asker: Asker, session: SessionId) -> Result<Option<Workspace>, StoreError> {
        self.owner_of(asker, session).await?;
        let sql = "SELECT bytes, archived FROM workspaces WHERE session_id = $1";
        let row = self.read_one("read a session's files", sql, binds![session]).await?;
        row.map(|row| {
            Ok(Workspace {
                bytes: whole(row.integer("bytes")?)?,
                archived: row.time_or_none("archived")?,
            })
        })
        .transpose()
    }

    /// Files that this disk recorded, by path, after one.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn recorded_files(
        &self,
        asker: Asker,
        session: SessionId,
        disk: &str,
        after: Vec<u8>,
        limit: u32,
    ) -> Result<Vec<FileStamp>, StoreError> {
        asker.must_be_system("read a session's files")?;
        let sql = "SELECT path, stamp, kind FROM files WHERE session_id = $1 AND path > $2 AND disk = $3 \
                   ORDER BY path LIMIT $4";
        let binds = binds![session, after, disk, i64::from(limit)];
        let rows = self.read("read a session's files", sql, binds).await?;
        let mut files = Vec::new();
        let mut bytes = 0;
        for row in &rows {
            let path = row.bytes("path")?.to_vec();
            bytes += path.len();
            if bytes > PAGE_BYTES && !files.is_empty() {
                break;
            }
            files.push(FileStamp {
                path,
                stamp: row.integer("stamp")?,
                folder: row.str("kind")? == "folder",
            });
        }
        Ok(files)
    }

    /// Files that other disks recorded and this one not yet, newest first, after a version and path; together they have at
    /// most about `pieces` pieces. Each comes with its version.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn missing_files(
        &self,
        asker: Asker,
        session: SessionId,
        disk: &str,
        after: Option<(i64, Vec<u8>)>,
        limit: u32,
        pieces: usize,
    ) -> Result<Vec<(i64, WorkspaceFile)>, StoreError> {
        const ATTEMPT: &str = "read a session's files";
        asker.must_be_system(ATTEMPT)?;
        let sql = "SELECT path, kind, bytes, target, mode, changed, stamp, version FROM files \
                   WHERE session_id = $1 AND version <= $2 AND (version < $2 OR path > $3) AND disk <> $4 \
                   ORDER BY version DESC, path LIMIT $5";
        let (version, path) = after.unwrap_or((i64::MAX, Vec::new()));
        let binds = binds![session, version, path, disk, i64::from(limit)];
        let rows = self.read(ATTEMPT, sql, binds).await?;
        let sql = "SELECT place, sha256, bytes FROM pieces WHERE session_id = $1 AND path = $2 ORDER BY place";
        let mut files = Vec::new();
        let (mut count, mut bytes) = (0, 0);
        for row in &rows {
            let mut file = file_of(row)?;
            bytes += file.path.len();
            if let KeptFile::Link { target } = &file.kept {
                bytes += target.len();
            }
            if let KeptFile::File { pieces: of_file, .. } = &mut file.kept {
                let rows = self.read(ATTEMPT, sql, binds![session, file.path.clone()]).await?;
                count += rows.len();
                *of_file = rows.iter().map(piece_of).collect::<Result<_, _>>()?;
            }
            if (count > pieces || bytes > PAGE_BYTES) && !files.is_empty() {
                break;
            }
            files.push((row.integer("version")?, file));
        }
        Ok(files)
    }

    /// Which of these contents the object store has for the session, in order.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn has_contents(
        &self,
        asker: Asker,
        session: SessionId,
        contents: &[ContentHash],
    ) -> Result<Vec<bool>, StoreError> {
        const ATTEMPT: &str = "look for contents of files";
        asker.must_be_system(ATTEMPT)?;
        let sql = "SELECT 1 FROM contents WHERE session_id = $1 AND sha256 = $2 AND going = 0";
        let mut known = HashMap::new();
        for content in contents {
            if !known.contains_key(content) {
                let row = self.read_one(ATTEMPT, sql, binds![session, Hash(content.0)]).await?;
                known.insert(*content, row.is_some());
            }
        }
        Ok(contents.iter().map(|content| known[content]).collect())
    }
}

fn file_of(row: &Row) -> Result<WorkspaceFile, StoreError> {
    let kept = match row.str("kind")? {
        "file" => KeptFile::File {
            bytes: whole(row.integer("bytes")?)?,
            pieces: Vec::new(),
        },
        "folder" => KeptFile::Folder,
        "link" => KeptFile::Link {
            target: row.bytes("target")?.to_vec(),
        },
        other => return Err(stored::corrupt("file", format!("there is no kind {other:?}"))),
    };
    Ok(WorkspaceFile {
        path: row.bytes("path")?.to_vec(),
        kept,
        mode: u32::try_from(row.integer("mode")?).map_err(|source| stored::corrupt("mode", source))?,
        changed: row.integer("changed")?,
        stamp: row.integer("stamp")?,
    })
}

fn piece_of(row: &Row) -> Result<FilePiece, StoreError> {
    Ok(FilePiece {
        at: whole(row.integer("place")?)?,
        sha256: ContentHash(row.hash("sha256")?.0),
        bytes: whole(row.integer("bytes")?)?,
    })
}
