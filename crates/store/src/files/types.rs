//! What is told of files.

use domain::{ContentHash, Timestamp};

/// What a row takes beside its texts.
const ROW: usize = 100;

/// A piece of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePiece {
    /// Its first byte's place.
    pub at: u64,
    /// Its name.
    pub sha256: ContentHash,
    /// How many bytes it has.
    pub bytes: u64,
}

/// What a directory entry is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeptFile {
    /// A regular file.
    File {
        /// Its length.
        bytes: u64,
        /// What stands in it where it is not zero.
        pieces: Vec<FilePiece>,
    },
    /// A folder.
    Folder,
    /// A symbolic link.
    Link {
        /// What it says.
        target: Vec<u8>,
    },
}

/// A file of a workspace as it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkspaceFile {
    /// Relative to the workspace.
    pub path: Vec<u8>,
    /// What it is.
    pub kept: KeptFile,
    /// Its permissions.
    pub mode: u32,
    /// When its content was changed, in nanoseconds since 1970.
    pub changed: i64,
    /// What the runtime knows its state by.
    pub stamp: i64,
}

impl WorkspaceFile {
    /// About what its rows take.
    pub(super) fn weight(&self) -> i64 {
        let texts = match &self.kept {
            KeptFile::Link { target } => target.len(),
            KeptFile::File { pieces, .. } => pieces.len() * (ROW + self.path.len()),
            KeptFile::Folder => 0,
        };
        i64::try_from(ROW + self.path.len() + texts).unwrap_or(i64::MAX / 2)
    }
}

/// What was not recorded, by its place in the list.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RecordedFiles {
    /// The object store lacks something of them.
    pub refused: Vec<usize>,
    /// The session has no room for them among the rows.
    pub full: Vec<usize>,
}

/// A file that a disk recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileStamp {
    /// Relative to the workspace.
    pub path: Vec<u8>,
    /// What the runtime knows its state by.
    pub stamp: i64,
    /// Whether it is a folder.
    pub folder: bool,
}

/// What is known of a content that is offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContentState {
    /// The object store has it.
    Stored,
    /// It is to be uploaded.
    Wanted,
    /// It is being removed: to be offered again later.
    Going,
    /// There is no room for it.
    Full,
}

/// How much room a session has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes that its files may have.
    pub bytes: u64,
    /// Bytes beyond, for what was uploaded and is no file's yet, or any more.
    pub spare: u64,
}

/// A session's files, in short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workspace {
    /// Bytes in the object store.
    pub bytes: u64,
    /// When its disk was removed; none while it has one.
    pub archived: Option<Timestamp>,
}
