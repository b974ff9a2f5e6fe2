//! Files brought back. Nothing that is there is written over: it is newer.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use domain::ContentHash;
use protocol::{Content, FileRecord, FromSync, Kept, KnownFile, Piece, SYNC_ITEMS, SyncAnswer, SyncRequest};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::read;
use crate::tree::{as_path, open_folder, split, stamp};
use crate::uplink::{Uplink, UplinkError, nonsense};

/// Files that are fetched together.
const TOGETHER: usize = 32;
/// Pieces that are fetched at the same time.
const SIDE_BY_SIDE: usize = 8;

/// Brings back everything that other disks recorded and this one has not, newest first.
pub(crate) fn fill(root: &OwnedFd, uplink: &mut Uplink) -> Result<(), UplinkError> {
    let mut after = None;
    let mut folders = Vec::new();
    let mut left = 0_u64;
    loop {
        let SyncAnswer::Page { files, next } = uplink.ask(SyncRequest::Missing { after })? else {
            return Err(nonsense());
        };
        let mut placed = Vec::new();
        for files in files.chunks(TOGETHER) {
            left += some(root, files, uplink, &mut placed, &mut folders)?;
        }
        tell(root, uplink, placed)?;
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    // What is in a folder that may not be written is there by now.
    folders.sort_by(|one: &FileRecord, other| other.path.cmp(&one.path));
    for folders in folders.chunks(SYNC_ITEMS) {
        let done = folders.iter().filter_map(|record| finish_folder(root, record));
        tell(root, uplink, done.collect())?;
    }
    if left > 0 {
        let words =
            format!("{left} files could not be brought back; they stay where they are kept, and are tried again");
        uplink.tell(&FromSync::Said { words })?;
    }
    Ok(())
}

fn tell(root: &OwnedFd, uplink: &mut Uplink, files: Vec<KnownFile>) -> Result<(), UplinkError> {
    if files.is_empty() {
        return Ok(());
    }
    // What is said to be on this disk and is not will be taken for deleted.
    rustix::fs::syncfs(root).map_err(|errno| UplinkError::Later(errno.to_string()))?;
    uplink.ask(SyncRequest::Placed { files }).map(drop)
}

/// Brings back some files; gives back how many could not be.
fn some(
    root: &OwnedFd,
    files: &[FileRecord],
    uplink: &mut Uplink,
    placed: &mut Vec<KnownFile>,
    folders: &mut Vec<FileRecord>,
) -> Result<u64, UplinkError> {
    let urls = urls(files, uplink)?;
    let mut begun = Vec::new();
    let mut left = 0;
    for record in files.iter().filter(|record| record.path.is_plain()) {
        let result = match &record.kept {
            Kept::Folder => make_folders(root, &record.path.0).map(|folder| {
                folders.push(record.clone());
                // Told at once, so that one that is removed meanwhile was there.
                placed.extend(known(record, &folder));
            }),
            Kept::Link { target } => link(root, record, &target.0).map(|known| placed.extend(known)),
            Kept::File { bytes, pieces } => {
                Arriving::begin(root, record, *bytes).map(|file| begun.extend(file.map(|file| (file, pieces))))
            }
        };
        match result {
            Ok(()) => {}
            Err(Errno::NOSPC | Errno::DQUOT | Errno::NFILE | Errno::MFILE | Errno::NOMEM) => {
                return Err(UplinkError::Later("the disk is full".to_owned()));
            }
            // A link or a file stands in the way: that is newer.
            Err(_) => left += 1,
        }
    }
    let mut under_way = Vec::new();
    let mut broken = vec![false; begun.len()];
    let mut later = None;
    for (place, (file, pieces)) in begun.iter().enumerate() {
        for piece in *pieces {
            if under_way.len() >= SIDE_BY_SIDE {
                let (number, place) = under_way.remove(0);
                broken[place] |= arrived(uplink, number, &mut later)?;
            }
            match urls.get(&piece.content.sha256) {
                Some(url) if later.is_none() => {
                    under_way.push((uplink.get(url.clone(), &file.file, piece.at, piece.content)?, place));
                }
                _ => broken[place] = true,
            }
        }
    }
    for (number, place) in under_way {
        broken[place] |= arrived(uplink, number, &mut later)?;
    }
    if let Some(later) = later {
        return Err(later);
    }
    for ((file, pieces), broken) in begun.into_iter().zip(broken) {
        match file.finish(!broken, pieces) {
            Some(known) => placed.push(known),
            None => left += 1,
        }
    }
    Ok(left)
}

/// Whether a piece did not arrive, and never will.
fn arrived(uplink: &mut Uplink, number: u64, later: &mut Option<UplinkError>) -> Result<bool, UplinkError> {
    match uplink.wait(number) {
        Ok(()) => Ok(false),
        Err(UplinkError::Refused(_)) => Ok(true),
        Err(error @ UplinkError::Later(_)) => {
            *later = Some(error);
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

fn urls(files: &[FileRecord], uplink: &mut Uplink) -> Result<HashMap<ContentHash, String>, UplinkError> {
    let mut contents: Vec<Content> = Vec::new();
    for record in files {
        if let Kept::File { pieces, .. } = &record.kept {
            contents.extend(pieces.iter().map(|piece| piece.content));
        }
    }
    contents.sort_by_key(|content| content.sha256);
    contents.dedup();
    let mut all = HashMap::with_capacity(contents.len());
    for contents in contents.chunks(SYNC_ITEMS) {
        let request = SyncRequest::Fetch {
            contents: contents.to_vec(),
        };
        let SyncAnswer::Fetch { urls } = uplink.ask(request)? else {
            return Err(nonsense());
        };
        all.extend(contents.iter().map(|content| content.sha256).zip(urls));
    }
    Ok(all)
}

/// Opens a folder below the workspace, made with all on the way.
fn make_folders(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    match open_folder(root, path) {
        Err(Errno::NOENT) => {}
        done => return done,
    }
    let (parent, name) = split(path);
    let parent = make_folders(root, parent)?;
    match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => open_folder(root, path),
        Err(errno) => Err(errno),
    }
}

fn finish_folder(root: &OwnedFd, record: &FileRecord) -> Option<KnownFile> {
    let folder = open_folder(root, &record.path.0).ok()?;
    rustix::fs::fchmod(&folder, mode(record)).ok()?;
    rustix::fs::futimens(&folder, &times(record.changed)).ok()?;
    known(record, &folder)
}

fn link(root: &OwnedFd, record: &FileRecord, target: &[u8]) -> Result<Option<KnownFile>, Errno> {
    let (parent, name) = split(&record.path.0);
    let parent = make_folders(root, parent)?;
    match rustix::fs::symlinkat(as_path(target), &parent, name) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(None),
        Err(errno) => return Err(errno),
    }
    // Where the time cannot be set the link is there all the same.
    let _ = rustix::fs::utimensat(&parent, name, &times(record.changed), AtFlags::SYMLINK_NOFOLLOW);
    let status = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(Some(KnownFile {
        path: record.path.clone(),
        stamp: stamp(&status),
        folder: false,
    }))
}

/// A file on its way back, beside its place.
struct Arriving<'a> {
    record: &'a FileRecord,
    file: File,
    parent: OwnedFd,
    temporary: String,
}

impl<'a> Arriving<'a> {
    /// None: something stands there.
    fn begin(root: &OwnedFd, record: &'a FileRecord, bytes: u64) -> Result<Option<Self>, Errno> {
        let (parent, name) = split(&record.path.0);
        let parent = make_folders(root, parent)?;
        if rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Ok(None);
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for number in 0.. {
            let temporary = format!(".belljar-sync-{}-{number}.new", std::process::id());
            match rustix::fs::openat(&parent, temporary.as_str(), flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => {
                    let file = Self {
                        record,
                        file: File::from(file),
                        parent,
                        temporary,
                    };
                    rustix::fs::ftruncate(&file.file, bytes)?;
                    return Ok(Some(file));
                }
                // Another of these, or what a process that was killed left.
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }

    /// Puts it in its place, if all of it came and the place is free.
    fn finish(self, whole: bool, pieces: &[Piece]) -> Option<KnownFile> {
        if !whole || !pieces.iter().all(|piece| read::is(&self.file, piece)) {
            return None;
        }
        rustix::fs::fchmod(&self.file, mode(self.record)).ok()?;
        rustix::fs::futimens(&self.file, &times(self.record.changed)).ok()?;
        let name = OsStr::from_bytes(split(&self.record.path.0).1);
        let flags = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&self.parent, self.temporary.as_str(), &self.parent, name, flags).ok()?;
        known(self.record, &self.file)
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        // Gone where it took its place.
        let _ = rustix::fs::unlinkat(&self.parent, self.temporary.as_str(), AtFlags::empty());
    }
}

fn known(record: &FileRecord, opened: impl AsFd) -> Option<KnownFile> {
    Some(KnownFile {
        path: record.path.clone(),
        stamp: stamp(&rustix::fs::fstat(opened).ok()?),
        folder: matches!(record.kept, Kept::Folder),
    })
}

fn mode(record: &FileRecord) -> Mode {
    Mode::from_raw_mode(record.mode & 0o777)
}

fn times(changed: i64) -> Timestamps {
    let time = Timespec {
        tv_sec: changed.div_euclid(1_000_000_000),
        tv_nsec: changed.rem_euclid(1_000_000_000),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
