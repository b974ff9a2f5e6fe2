//! How the files of a workspace are kept outside of it.
//!
//! A process of the sandbox watches the workspace. It cuts files at multiples of [`PIECE`], names each piece by its SHA-256,
//! asks which of them are wanted ([`SyncRequest::Offer`]), uploads those, and then says how the files are now
//! ([`SyncRequest::Record`]). Pieces of nothing but zeros are named nowhere: they come back as holes.
//!
//! Each disk of a session has an id. What another disk recorded is brought back to this one, what this one recorded and no
//! longer has was deleted.

use std::fmt;

use domain::ContentHash;
use serde::{Deserialize, Serialize};

mod signed_url;
mod socket;

pub use signed_url::SignedUrl;
pub use socket::{Fault, FromSync, ToSync};

/// Where files are cut, in bytes.
pub const PIECE: u64 = 4 << 20;

/// Pieces or files that one request names at most.
pub const SYNC_ITEMS: usize = 1_000;

/// The longest request or answer of sync in JSON, and the most parts that it has.
pub const SYNC_BYTES: usize = 8 << 20;
/// See [`SYNC_BYTES`].
pub const SYNC_PARTS: usize = 400_000;

/// Pieces that the files of one request have together, at most. A file with more is not kept.
pub const SYNC_PIECES: usize = 40_000;

/// Names a disk of a session: 32 hexadecimal digits, made by the runtime when it finds a disk without one.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DiskId(String);

impl DiskId {
    /// The id as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for DiskId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Ok(Self(text));
        }
        Err("the id of a disk is 32 hexadecimal digits in lower case")
    }
}

impl From<DiskId> for String {
    fn from(disk: DiskId) -> Self {
        disk.0
    }
}

/// Bytes of a path or a link's target: a text where they are one, else a list of numbers.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Name", into = "Name")]
pub struct PathBytes(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Name> for PathBytes {
    fn from(name: Name) -> Self {
        Self(match name {
            Name::Text(text) => text.into_bytes(),
            Name::Bytes(bytes) => bytes,
        })
    }
}

impl From<PathBytes> for Name {
    fn from(path: PathBytes) -> Self {
        String::from_utf8(path.0).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

impl PathBytes {
    /// Whether these are plain names below a folder: nothing empty, no `.` and no `..`, no zero byte, nothing longer than
    /// the kernel takes.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let name = |name: &[u8]| !name.is_empty() && name != b"." && name != b".." && name.len() <= 255;
        self.0.len() <= 4_000 && !self.0.contains(&0) && self.0.split(|byte| *byte == b'/').all(name)
    }
}

impl fmt::Debug for PathBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(formatter)
    }
}

/// Bytes that are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Content {
    /// Their name.
    pub sha256: ContentHash,
    /// How many they are: 1 to [`PIECE`].
    pub bytes: u64,
}

/// Bytes and where in their file they stand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Piece {
    /// Their first byte's place: a multiple of [`PIECE`].
    pub at: u64,
    /// The bytes.
    #[serde(flatten)]
    pub content: Content,
}

/// What is kept of a directory entry. Pipes, sockets and devices are not kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kept {
    /// A regular file.
    File {
        /// Its length.
        bytes: u64,
        /// What stands in it where it is not zero, in order.
        pieces: Vec<Piece>,
    },
    /// A folder.
    Folder,
    /// A symbolic link, never followed.
    Link {
        /// What it says.
        target: PathBytes,
    },
}

/// A file of the workspace as it is kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileRecord {
    /// Relative to /workspace.
    pub path: PathBytes,
    /// What it is.
    #[serde(flatten)]
    pub kept: Kept,
    /// Its permissions: nine bits.
    pub mode: u32,
    /// When its content was changed, in nanoseconds since 1970.
    pub changed: i64,
    /// What the runtime knows its state by; means nothing to anybody else.
    pub stamp: i64,
}

/// Where a page of missing files ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SyncCursor {
    /// The version of its last file.
    pub version: i64,
    /// That file's path.
    pub path: PathBytes,
}

/// What the runtime asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SyncRequest {
    /// The runtime begins to keep this disk's files. Answered by `begun`.
    Begin,
    /// What this disk has recorded, by path. Answered by `known`.
    Known {
        /// The path after which the page begins; nothing for the first.
        after: Option<PathBytes>,
    },
    /// What other disks recorded and this one not yet, newest first. Answered by `page`.
    Missing {
        /// Where the page before ended; nothing for the first.
        after: Option<SyncCursor>,
    },
    /// Files were brought back to this disk, or are there in another way. Answered by `recorded`.
    Placed {
        /// The files.
        files: Vec<KnownFile>,
    },
    /// The disk has no room for so many of the missing files; none: it has all of them now. Answered by `recorded`. Control
    /// planes of before refuse it, and nothing is lost by that.
    NoRoom {
        /// How many.
        files: u64,
    },
    /// Nothing waits any more to be uploaded or fetched. Answered by `recorded`. Control planes of before refuse it.
    CaughtUp,
    /// Which of these are to be uploaded. Answered by `offered`.
    Offer {
        /// The contents, at most [`SYNC_ITEMS`].
        contents: Vec<Content>,
    },
    /// Files are so from now on, and what stood there, or below, is gone. Their contents were uploaded before. Answered by
    /// `recorded`.
    Record {
        /// The paths where nothing is any more of what this disk had, with all below them; removed first.
        gone: Vec<PathBytes>,
        /// The files.
        files: Vec<FileRecord>,
    },
    /// Where contents can be fetched. Answered by `fetch`.
    Fetch {
        /// The contents, at most [`SYNC_ITEMS`].
        contents: Vec<Content>,
    },
}

/// What is asked, and of which disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SyncCall {
    /// The disk.
    pub disk: DiskId,
    /// What is asked.
    pub request: SyncRequest,
}

/// What becomes of an offer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Offered {
    /// It is kept already.
    Stored,
    /// It is wanted.
    Upload {
        /// Where: a path of the link with its signature, good for this content alone and for five minutes.
        url: SignedUrl,
    },
    /// It is being removed at this moment: offer it again in a while.
    Later,
    /// The session has used up its room.
    Full,
}

/// A file that this disk recorded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KnownFile {
    /// Its path.
    pub path: PathBytes,
    /// Its stamp.
    pub stamp: i64,
    /// Whether it is a folder.
    pub folder: bool,
}

/// The answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SyncAnswer {
    /// To `begin`.
    Begun {
        /// How many files are to be brought back to this disk.
        missing: u64,
    },
    /// To `known`; a page that is empty is the last.
    Known {
        /// The files, by path.
        files: Vec<KnownFile>,
    },
    /// To `missing`.
    Page {
        /// The files, newest first.
        files: Vec<FileRecord>,
        /// Where it ended; nothing for the last.
        next: Option<SyncCursor>,
    },
    /// To `offer`.
    Offered {
        /// One for each content, in order.
        offers: Vec<Offered>,
    },
    /// To `record`, and to what is told.
    Recorded {
        /// Files that were not taken, since a content of theirs is not kept: by their place in the request.
        refused: Vec<usize>,
        /// Files for which there is no room among the rows, in the same way.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        full: Vec<usize>,
    },
    /// To `fetch`.
    Fetch {
        /// One URL for each content, in order.
        urls: Vec<SignedUrl>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threat_116_only_plain_paths_are_plain() {
        let plain = |path: &str| PathBytes(path.as_bytes().to_vec()).is_plain();
        for path in ["a", "a/b", "a b/ü", "...", "%2e%2e%2fx", "a\\b"] {
            assert!(plain(path), "{path}");
        }
        let long = format!("{}/x", "y".repeat(256));
        for path in [
            "",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "a/../b",
            "a/.",
            "a\0b",
            &long,
            &"ab/".repeat(2_000),
        ] {
            assert!(!plain(path), "{path}");
        }
    }

    #[test]
    fn a_path_of_any_bytes_travels() {
        for bytes in [&b"plain"[..], b"\xff\xfe", "ü".as_bytes()] {
            let path = PathBytes(bytes.to_vec());
            let text = serde_json::to_string(&path).expect("it can be said");
            assert_eq!(
                serde_json::from_str::<PathBytes>(&text).expect("it is understood"),
                path
            );
        }
    }

    #[test]
    fn a_record_says_what_it_keeps() {
        let record = FileRecord {
            path: PathBytes(b"a/b".to_vec()),
            kept: Kept::File {
                bytes: 5,
                pieces: vec![Piece {
                    at: 0,
                    content: Content {
                        sha256: ContentHash([1; 32]),
                        bytes: 5,
                    },
                }],
            },
            mode: 0o644,
            changed: 7,
            stamp: -1,
        };
        let text = serde_json::to_string(&record).expect("it can be said");
        assert_eq!(
            serde_json::from_str::<FileRecord>(&text).expect("it is understood"),
            record
        );
    }
}
