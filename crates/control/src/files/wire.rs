//! Between what is said on the link and what is stored. What a sandbox says of its files is checked here, once.

use std::collections::HashSet;

use protocol::{Content, FileRecord, Kept, PIECE, PathBytes, Piece, SYNC_PIECES, SyncAnswer, SyncCursor};
use store::{FilePiece, KeptFile, WorkspaceFile};

/// The longest target of a link.
const TARGET: usize = 4_096;

pub(super) fn is_content(content: &Content) -> bool {
    (1..=PIECE).contains(&content.bytes)
}

/// What a runtime wants recorded, or what is wrong with it.
pub(super) fn record(
    gone: Vec<PathBytes>,
    files: Vec<FileRecord>,
) -> Result<(Vec<Vec<u8>>, Vec<WorkspaceFile>), String> {
    let mut pieces = 0;
    for path in gone.iter().chain(files.iter().map(|file| &file.path)) {
        if !path.is_plain() {
            return Err(format!("{path:?} is no path of a workspace"));
        }
    }
    let mut named = HashSet::new();
    for file in &files {
        if !named.insert(&file.path) {
            return Err(format!("{:?} is named twice", file.path));
        }
        match &file.kept {
            Kept::Folder => {}
            Kept::Link { target } if target.0.len() <= TARGET && !target.0.contains(&0) && !target.0.is_empty() => {}
            Kept::File { bytes, pieces: of_file } if fit(of_file, *bytes) => pieces += of_file.len(),
            Kept::Link { .. } | Kept::File { .. } => return Err(format!("{:?} cannot be so", file.path)),
        }
    }
    if pieces > SYNC_PIECES {
        return Err(format!("a request has at most {SYNC_PIECES} pieces of files"));
    }
    let files = files.into_iter().map(|file| WorkspaceFile {
        path: file.path.0,
        kept: match file.kept {
            Kept::Folder => KeptFile::Folder,
            Kept::Link { target } => KeptFile::Link { target: target.0 },
            Kept::File { bytes, pieces } => KeptFile::File {
                bytes,
                pieces: pieces.into_iter().map(piece).collect(),
            },
        },
        mode: file.mode & 0o777,
        changed: file.changed,
        stamp: file.stamp,
    });
    Ok((gone.into_iter().map(|path| path.0).collect(), files.collect()))
}

fn piece(piece: Piece) -> FilePiece {
    FilePiece {
        at: piece.at,
        sha256: piece.content.sha256,
        bytes: piece.content.bytes,
    }
}

/// Whether pieces stand in a file of this length, one behind the other.
fn fit(pieces: &[Piece], length: u64) -> bool {
    let mut end = 0;
    let fits = |piece: &Piece| {
        let begins = piece.at >= end && piece.at.is_multiple_of(PIECE);
        end = piece.at.saturating_add(piece.content.bytes);
        begins && is_content(&piece.content) && end <= length
    };
    i64::try_from(length).is_ok() && pieces.iter().all(fits)
}

/// A page of files that are to be brought back.
pub(super) fn page(files: Vec<(i64, WorkspaceFile)>) -> SyncAnswer {
    let next = files.last().map(|(version, file)| SyncCursor {
        version: *version,
        path: PathBytes(file.path.clone()),
    });
    let files = files.into_iter().map(|(_, file)| FileRecord {
        path: PathBytes(file.path),
        kept: match file.kept {
            KeptFile::Folder => Kept::Folder,
            KeptFile::Link { target } => Kept::Link {
                target: PathBytes(target),
            },
            KeptFile::File { bytes, pieces } => {
                let pieces = pieces.into_iter().map(|piece| Piece {
                    at: piece.at,
                    content: Content {
                        sha256: piece.sha256,
                        bytes: piece.bytes,
                    },
                });
                Kept::File {
                    bytes,
                    pieces: pieces.collect(),
                }
            }
        },
        mode: file.mode,
        changed: file.changed,
        stamp: file.stamp,
    });
    SyncAnswer::Page {
        files: files.collect(),
        next,
    }
}

#[cfg(test)]
mod tests {
    use domain::ContentHash;

    use super::*;

    fn record_of(path: &str, kept: Kept) -> Result<(), String> {
        let file = FileRecord {
            path: PathBytes(path.as_bytes().to_vec()),
            kept,
            mode: 0o4755,
            changed: 0,
            stamp: 0,
        };
        let (_, files) = record(Vec::new(), vec![file])?;
        assert!(files.iter().all(|file| file.mode == 0o755), "set-uid bits are not kept");
        Ok(())
    }

    #[test]
    fn a_path_is_named_once() {
        let folder = || FileRecord {
            path: PathBytes(b"a".to_vec()),
            kept: Kept::Folder,
            mode: 0o755,
            changed: 0,
            stamp: 0,
        };
        let refused = record(Vec::new(), vec![folder(), folder()]).map(drop).unwrap_err();
        assert!(refused.contains("twice"), "{refused}");
    }

    #[test]
    fn threat_116_what_cannot_be_a_file_is_not_recorded() {
        let piece = |at, bytes| Piece {
            at,
            content: Content {
                sha256: ContentHash([0; 32]),
                bytes,
            },
        };
        let file = |bytes, pieces: &[Piece]| Kept::File {
            bytes,
            pieces: pieces.to_vec(),
        };
        let link = |target: &str| Kept::Link {
            target: PathBytes(target.as_bytes().to_vec()),
        };
        assert!(record_of("a/b", file(PIECE + 5, &[piece(0, PIECE), piece(PIECE, 5)])).is_ok());
        assert!(record_of("a", link("../../anywhere")).is_ok(), "it is never followed");
        for path in ["../a", "/a", "a//b", "", "a/..", "a\0"] {
            assert!(record_of(path, Kept::Folder).is_err(), "{path}");
        }
        for kept in [
            file(4, &[piece(0, 5)]),
            file(PIECE + 5, &[piece(1, 5)]),
            file(PIECE + 5, &[piece(PIECE, 5), piece(0, 5)]),
            file(10, &[piece(0, 5), piece(0, 5)]),
            file(10, &[piece(0, 0)]),
            file(u64::MAX, &[]),
            file(3 * PIECE, &[piece(0, PIECE + 1)]),
            link(""),
            link("a\0b"),
        ] {
            assert!(record_of("a", kept.clone()).is_err(), "{kept:?}");
        }
    }
}
