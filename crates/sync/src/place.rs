//! Files brought back. Nothing that is there is written over: it is newer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use domain::ContentHash;
use protocol::{
    Content, FileRecord, FromSync, Kept, KnownFile, PathBytes, Piece, SYNC_ITEMS, SignedUrl, SyncAnswer, SyncRequest,
};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::index::{Index, Known};
use crate::signed::{self, Signed};
use crate::tree::{as_path, join, open_folder, split, stamp};
use crate::uplink::{Uplink, UplinkError, nonsense};
use crate::{read, room};

/// Files that are fetched together.
const TOGETHER: usize = 64;
/// Pieces that are fetched at the same time: a bucket takes tens of milliseconds to answer, however small a piece is.
const SIDE_BY_SIDE: usize = 16;

/// How names of files begin that are not whole yet; left out by the rules.
const TEMPORARY: &str = ".belljar-sync-";

/// The way back of what other disks recorded and this one has not.
#[derive(Default)]
pub(crate) struct Filling {
    /// Folders that are as they were made, with their stamps: how they are to be when what is in them is there.
    folders: Vec<(FileRecord, i64)>,
    /// Files that cannot be brought back, as was said last.
    left: u64,
    /// What an interrupted way back left is removed.
    swept: bool,
    /// Files that came and were not what they should be: they are not fetched again.
    broken: HashSet<PathBytes>,
    /// The last time something was fetched for which there was no room after all.
    pub(crate) in_vain: bool,
}

impl Filling {
    /// Brings back everything, newest first, but for what the disk has no room for: how many files those are. What is there
    /// then is known to `index`.
    pub(crate) fn fill(&mut self, root: &OwnedFd, uplink: &mut Uplink, index: &mut Index) -> Result<u64, UplinkError> {
        let mut pass = Pass {
            root,
            folders: &mut self.folders,
            broken: &mut self.broken,
            placed: Vec::new(),
            left: 0,
            fault: None,
            no_room: 0,
            too_large: u64::MAX,
            next: 0,
            in_vain: &mut self.in_vain,
        };
        *pass.in_vain = false;
        let mut after = None;
        loop {
            let SyncAnswer::Page { files, next } = uplink.ask(SyncRequest::Missing { after })? else {
                return Err(nonsense());
            };
            if !files.is_empty() && !std::mem::replace(&mut self.swept, true) {
                sweep(root);
            }
            let files: Vec<_> = files.iter().filter(|record| record.path.is_plain()).collect();
            let done = files.chunks(TOGETHER).try_for_each(|files| pass.bring(files, uplink));
            // What came before it failed need not come again.
            tell(root, uplink, index, std::mem::take(&mut pass.placed))?;
            done?;
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let Pass {
            left, no_room, fault, ..
        } = pass;
        if no_room == 0 {
            self.finish_folders(root, uplink, index)?;
        }
        if std::mem::replace(&mut self.left, left) != left && left > 0 {
            let why = fault.map_or_else(String::new, |errno| format!("; the disk refused some: {errno}"));
            let words = format!("{left} files could not be brought back, and stay where they are kept{why}");
            uplink.tell(&FromSync::Said { words })?;
        }
        Ok(no_room)
    }

    /// What is in a folder that may not be written is there by now. One that was changed meanwhile stays so.
    fn finish_folders(&mut self, root: &OwnedFd, uplink: &mut Uplink, index: &mut Index) -> Result<(), UplinkError> {
        let mut folders = std::mem::take(&mut self.folders);
        folders.sort_by(|(one, _), (other, _)| other.path.cmp(&one.path));
        for folders in folders.chunks(SYNC_ITEMS) {
            let done = folders.iter();
            let done = done.filter_map(|(record, made)| finish_folder(root, record, *made));
            tell(root, uplink, index, done.collect())?;
        }
        Ok(())
    }
}

/// Removes files that a process that was killed did not bring back whole: they take room that the whole ones need.
fn sweep(root: &OwnedFd) {
    let mut folders = vec![Vec::new()];
    while let Some(path) = folders.pop() {
        let Ok(folder) = open_folder(root, &path) else { continue };
        let Ok(entries) = Dir::read_from(&folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            match entry.file_type() {
                FileType::Directory if name != c"." && name != c".." => folders.push(join(&path, name.to_bytes())),
                FileType::RegularFile if is_temporary(name.to_bytes()) => {
                    // One that cannot be removed takes its room, and harms nothing.
                    let _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
                }
                _ => {}
            }
        }
    }
}

/// The name of a file that is not whole yet.
fn temporary(number: u32) -> String {
    format!("{TEMPORARY}{}-{number}.new", std::process::id())
}

fn is_temporary(name: &[u8]) -> bool {
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    std::str::from_utf8(name)
        .ok()
        .and_then(|name| name.strip_prefix(TEMPORARY)?.strip_suffix(".new")?.split_once('-'))
        .is_some_and(|(process, number)| is_number(process) && is_number(number))
}

fn tell(root: &OwnedFd, uplink: &mut Uplink, index: &mut Index, files: Vec<KnownFile>) -> Result<(), UplinkError> {
    if files.is_empty() {
        return Ok(());
    }
    // What is said to be on this disk and is not will be taken for deleted.
    rustix::fs::syncfs(root).map_err(|errno| UplinkError::Later(errno.to_string()))?;
    for some in files.chunks(SYNC_ITEMS) {
        let files = some.to_vec();
        uplink.ask(SyncRequest::Placed { files })?;
    }
    for KnownFile { path, stamp, folder } in files {
        index.insert(&path.0, Known { stamp, folder });
    }
    Ok(())
}

/// One time through all that is missing.
struct Pass<'a> {
    root: &'a OwnedFd,
    folders: &'a mut Vec<(FileRecord, i64)>,
    broken: &'a mut HashSet<PathBytes>,
    placed: Vec<KnownFile>,
    /// They will not come to this disk: something stands in the way, what was in them is gone, or the disk takes none of them.
    left: u64,
    /// Why the disk takes none of them.
    fault: Option<Errno>,
    no_room: u64,
    /// What takes as much as this has no room.
    too_large: u64,
    /// The number that the next file has until it is whole.
    next: u32,
    /// Something was fetched for which there was no room.
    in_vain: &'a mut bool,
}

impl Pass<'_> {
    /// Brings back some files.
    fn bring(&mut self, files: &[&FileRecord], uplink: &mut Uplink) -> Result<(), UplinkError> {
        let mut fitting = Vec::new();
        for record in files.iter().copied() {
            if self.broken.contains(&record.path) {
                self.left += 1;
            } else if takes(record) >= self.too_large {
                self.no_room += 1;
            } else {
                fitting.push(record);
            }
        }
        for record in self.together(&fitting, uplink)? {
            // Side by side one may have taken the room of others.
            let bytes = takes(record);
            if bytes >= self.too_large || !self.together(&[record], uplink)?.is_empty() {
                self.too_large = self.too_large.min(bytes);
                self.no_room += 1;
            }
        }
        Ok(())
    }

    /// Brings back files side by side; gives back those for which there was no room.
    fn together<'a>(
        &mut self,
        files: &[&'a FileRecord],
        uplink: &mut Uplink,
    ) -> Result<Vec<&'a FileRecord>, UplinkError> {
        let mut begun = Vec::new();
        let mut crowded = Vec::new();
        for record in files.iter().copied() {
            match self.begin(record) {
                Ok(file) => begun.extend(file),
                Err(Errno::NOSPC | Errno::DQUOT) => crowded.push(record),
                Err(errno @ (Errno::NFILE | Errno::MFILE | Errno::NOMEM)) => {
                    return Err(UplinkError::Later(format!("cannot make a file: {errno}")));
                }
                Err(errno) => self.leave(errno),
            }
        }
        let mut fetching = Fetching {
            under_way: VecDeque::new(),
            came: vec![Came::Whole; begun.len()],
            later: None,
        };
        let files = begun.iter().enumerate();
        let wanted: Vec<(usize, &File, Piece)> = files
            .flat_map(|(place, (file, pieces))| pieces.iter().map(move |piece| (place, &file.file, *piece)))
            .collect();
        let mut urls = HashMap::new();
        let mut signed: Option<Signed> = None;
        for (number, (place, file, piece)) in wanted.iter().enumerate() {
            if fetching.under_way.len() >= SIDE_BY_SIDE {
                fetching.wait(uplink)?;
            }
            if fetching.later.is_some() {
                fetching.came[*place] = Came::Broken;
            }
            if fetching.came[*place] != Came::Whole {
                continue;
            }
            if !signed.as_ref().is_some_and(|signed| signed.is_good(number)) {
                let next = wanted.iter().skip(number).take(signed::TOGETHER);
                match sign(next.map(|(_, _, piece)| piece.content), uplink) {
                    Ok(signed) => urls = signed,
                    Err(error) => {
                        fetching.later = Some(error);
                        fetching.came[*place] = Came::Broken;
                        continue;
                    }
                }
                signed = Some(Signed::now(number));
            }
            match urls.get(&piece.content.sha256) {
                Some(url) => {
                    let number = uplink.get(url.clone(), file, piece.at, piece.content)?;
                    fetching.under_way.push_back((number, *place));
                }
                None => fetching.came[*place] = Came::Broken,
            }
        }
        while !fetching.under_way.is_empty() {
            fetching.wait(uplink)?;
        }
        for ((file, pieces), came) in begun.into_iter().zip(fetching.came) {
            let record = file.record;
            let finished = match came {
                Came::Whole if file.holds(pieces) => file.finish().map(Some),
                Came::NoRoom => Err(Errno::NOSPC),
                Came::Whole | Came::Broken => Ok(None),
            };
            match finished {
                Ok(Some(known)) => self.placed.push(known),
                Err(Errno::NOSPC | Errno::DQUOT) => {
                    *self.in_vain = true;
                    crowded.push(record);
                }
                // Of one that was not asked for whole nothing is known yet.
                Ok(None) if fetching.later.is_some() => {}
                Ok(None) => {
                    self.broken.insert(record.path.clone());
                    self.left += 1;
                }
                Err(errno) => self.leave(errno),
            }
        }
        fetching.later.map_or(Ok(crowded), Err)
    }

    /// Goes on without a file.
    fn leave(&mut self, errno: Errno) {
        self.left += 1;
        match errno {
            // Something stands in the way, a folder takes none, or went meanwhile: that is newer.
            Errno::EXIST
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::XDEV
            | Errno::ACCESS
            | Errno::PERM
            | Errno::NOENT => {}
            errno => self.fault = Some(errno),
        }
    }

    /// Makes what needs no content. A file that needs some is given back, with what it needs.
    fn begin<'a>(&mut self, record: &'a FileRecord) -> Result<Option<(Arriving<'a>, &'a [Piece])>, Errno> {
        match &record.kept {
            Kept::Folder => {
                let folder = make_folders(self.root, &record.path.0)?;
                // Told at once, so that one that is removed meanwhile was there.
                if let Some(known) = known(record, &folder) {
                    self.folders.push((record.clone(), known.stamp));
                    self.placed.push(known);
                }
                Ok(None)
            }
            Kept::Link { target } => {
                self.placed.extend(link(self.root, record, &target.0)?);
                Ok(None)
            }
            Kept::File { bytes, pieces } => {
                let file = Arriving::begin(self.root, record, *bytes, pieces, &mut self.next)?;
                Ok(file.map(|file| (file, pieces.as_slice())))
            }
        }
    }
}

/// Bytes that a file needs on the disk.
fn takes(record: &FileRecord) -> u64 {
    match &record.kept {
        Kept::File { pieces, .. } => pieces.iter().map(|piece| piece.content.bytes).sum(),
        Kept::Folder | Kept::Link { .. } => 0,
    }
}

/// How a file came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    Whole,
    /// Something of it is not there.
    Broken,
    NoRoom,
}

/// Pieces on their way.
struct Fetching {
    /// The number of each, and its file's place.
    under_way: VecDeque<(u64, usize)>,
    came: Vec<Came>,
    /// Why no more is asked for.
    later: Option<UplinkError>,
}

impl Fetching {
    /// Waits for the one that was asked for first.
    fn wait(&mut self, uplink: &mut Uplink) -> Result<(), UplinkError> {
        let Some((number, place)) = self.under_way.pop_front() else {
            return Ok(());
        };
        match uplink.wait(number) {
            Ok(()) => {}
            Err(UplinkError::NoRoom) => self.came[place] = Came::NoRoom,
            Err(UplinkError::Refused(_)) => self.came[place] = Came::Broken,
            Err(error @ UplinkError::Later(_)) => {
                self.came[place] = Came::Broken;
                self.later = Some(error);
            }
            Err(error @ UplinkError::Closed(_)) => return Err(error),
        }
        Ok(())
    }
}

/// URLs of a few contents.
fn sign(
    contents: impl Iterator<Item = Content>,
    uplink: &mut Uplink,
) -> Result<HashMap<ContentHash, SignedUrl>, UplinkError> {
    let mut seen = HashSet::new();
    let contents: Vec<Content> = contents.filter(|content| seen.insert(content.sha256)).collect();
    let names: Vec<ContentHash> = contents.iter().map(|content| content.sha256).collect();
    let SyncAnswer::Fetch { urls } = uplink.ask(SyncRequest::Fetch { contents })? else {
        return Err(nonsense());
    };
    Ok(names.into_iter().zip(urls).collect())
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

fn finish_folder(root: &OwnedFd, record: &FileRecord, made: i64) -> Option<KnownFile> {
    let folder = open_folder(root, &record.path.0).ok()?;
    if known(record, &folder)?.stamp != made {
        return None;
    }
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
    /// Makes it, with room for all of it. None: something stands there.
    fn begin(
        root: &OwnedFd,
        record: &'a FileRecord,
        bytes: u64,
        pieces: &[Piece],
        next: &mut u32,
    ) -> Result<Option<Self>, Errno> {
        let (parent, name) = split(&record.path.0);
        let parent = make_folders(root, parent)?;
        if rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Ok(None);
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let temporary = temporary(*next);
            *next = next.wrapping_add(1);
            match rustix::fs::openat(&parent, temporary.as_str(), flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => {
                    let file = Self {
                        record,
                        file: File::from(file),
                        parent,
                        temporary,
                    };
                    rustix::fs::ftruncate(&file.file, bytes)?;
                    room::take(&file.file, pieces)?;
                    return Ok(Some(file));
                }
                // What a process that was killed left.
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Whether this is what stands in it.
    fn holds(&self, pieces: &[Piece]) -> bool {
        // Before it is read: what was read counts as written.
        room::give_back(&self.file, pieces.last().map_or(0, |last| last.at + last.content.bytes));
        pieces.iter().all(|piece| read::is(&self.file, piece))
    }

    /// Puts it in its place, if that is free.
    fn finish(self) -> Result<KnownFile, Errno> {
        rustix::fs::fchmod(&self.file, mode(self.record))?;
        rustix::fs::futimens(&self.file, &times(self.record.changed))?;
        let name = OsStr::from_bytes(split(&self.record.path.0).1);
        let (parent, temporary) = (&self.parent, self.temporary.as_str());
        match rustix::fs::renameat_with(parent, temporary, parent, name, RenameFlags::NOREPLACE) {
            // A file system that only renames what replaces, such as those that gVisor shares with the host.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => name_anew(parent, temporary, name)?,
            done => done?,
        }
        known(self.record, &self.file).ok_or(Errno::IO)
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        // Gone where it took its place.
        let _ = rustix::fs::unlinkat(&self.parent, self.temporary.as_str(), AtFlags::empty());
    }
}

/// Gives a file a name that is free, in place of its own.
fn name_anew(parent: &OwnedFd, old: &str, new: &OsStr) -> Result<(), Errno> {
    match rustix::fs::linkat(parent, old, parent, new, AtFlags::empty()) {
        // A file system on which nothing has two names; with that word a folder says who may not write to it.
        Err(Errno::PERM) => return Err(Errno::OPNOTSUPP),
        done => done?,
    }
    rustix::fs::unlinkat(parent, old, AtFlags::empty())
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn a_file_that_is_named_anew_replaces_nothing_and_has_one_name() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| std::fs::write(folder.path().join(name), name).unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let parent = OwnedFd::from(File::open(folder.path()).unwrap());
        write("old");
        write("there");
        assert_eq!(name_anew(&parent, "old", OsStr::new("there")), Err(Errno::EXIST));
        assert_eq!(std::fs::read(folder.path().join("there")).unwrap(), b"there");
        assert_eq!(names(), 2);
        name_anew(&parent, "old", OsStr::new("new")).unwrap();
        assert_eq!(std::fs::read(folder.path().join("new")).unwrap(), b"old");
        assert_eq!(names(), 2);
    }
}
