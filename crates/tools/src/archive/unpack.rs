//! In.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags, fchmod, fsetxattr, futimens, linkat, mkdirat,
    openat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::pack::names;
use super::{ArchiveError, OWN, PAX_ATTRIBUTE, PAX_ENCODED, USERS_ATTRIBUTE, place, stays};
use crate::files::open_beneath;

/// Entries of one archive.
const MOST_ENTRIES: u64 = 2_000_000;
/// Bytes of all files of one archive together, holes counted.
const MOST_BYTES: u64 = 1 << 40;
/// What is read at a time; as much of zeros becomes a hole.
const PIECE: usize = 64 << 10;

/// How the names of our folders end: what came in; what is being moved out of its way; what was moved out of it, all.
const NEW: &str = "new";
const OLD: &str = "old";
const GONE: &str = "gone";
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// What came in, beside the workspace. Dropped, it is removed.
#[derive(Debug)]
pub(super) struct Staged {
    root: OwnedFd,
    name: PathBuf,
    folder: OwnedFd,
}

/// A folder that gets its mode and times when everything is in it.
struct Folder {
    path: PathBuf,
    mode: u32,
    said: Said,
}

/// What stands about an entry beside its name.
#[derive(Default)]
struct Said {
    time: Option<Timespec>,
    attributes: Vec<(String, Vec<u8>)>,
}

/// Reads a whole archive into a folder beside what is in the workspace.
pub(super) fn unpack(root: OwnedFd, from: File) -> Result<Staged, ArchiveError> {
    let staged = Staged::new(root)?;
    let mut ended = false;
    let mut archive = Archive::new(Watched {
        from,
        ended: &mut ended,
    });
    let mut folders = Vec::new();
    let (mut count, mut bytes) = (0, 0_u64);
    for entry in archive.entries().map_err(ArchiveError::Broken)? {
        let mut entry = entry.map_err(ArchiveError::Broken)?;
        count += 1;
        bytes = bytes.saturating_add(entry.size());
        let name = PathBuf::from(OsStr::from_bytes(&entry.path_bytes()));
        if count > MOST_ENTRIES {
            return Err(ArchiveError::refused(&name, "there are too many files"));
        }
        if bytes > MOST_BYTES {
            return Err(ArchiveError::refused(&name, "its files are too large"));
        }
        staged.take(&mut entry, &name, &mut folders)?;
    }
    let mut rest = archive.into_inner();
    if *rest.ended {
        return Err(ArchiveError::Broken(io::ErrorKind::UnexpectedEof.into()));
    }
    // Whoever writes it may fill its last block.
    io::copy(&mut rest, &mut io::sink()).map_err(ArchiveError::Broken)?;
    for folder in folders.iter().rev() {
        staged.finish(folder)?;
    }
    Ok(staged)
}

/// Notes whether the end came.
struct Watched<'e> {
    from: File,
    ended: &'e mut bool,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        *self.ended |= read == 0 && !buffer.is_empty();
        Ok(read)
    }
}

impl Staged {
    fn new(root: OwnedFd) -> Result<Self, ArchiveError> {
        let (name, folder) = fresh(&root).map_err(ArchiveError::io("make a folder in", Path::new("/workspace")))?;
        Ok(Self { root, name, folder })
    }

    fn take(
        &self,
        entry: &mut Entry<'_, impl Read>,
        name: &Path,
        folders: &mut Vec<Folder>,
    ) -> Result<(), ArchiveError> {
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        let path = place(name)?;
        let mode = entry.header().mode().map_err(ArchiveError::Broken)?;
        if mode & 0o6000 != 0 {
            return Err(ArchiveError::refused(name, "it has the set-uid or set-gid bit"));
        }
        let said = said(entry).map_err(ArchiveError::Broken)?;
        let failed = |errno: Errno| match errno {
            Errno::LOOP | Errno::NOTDIR => ArchiveError::refused(name, "a folder on its way is a link or a file"),
            Errno::EXIST => ArchiveError::refused(name, "something else in the archive has its name"),
            errno => ArchiveError::io("make", name)(errno),
        };
        if path.as_os_str().is_empty() {
            // The workspace itself, which stays.
            return Ok(());
        }
        let (parent, last) = self.parent(&path).map_err(failed)?;
        match kind {
            EntryType::Directory => {
                match mkdirat(&parent, &last, Mode::from_raw_mode(0o700)) {
                    Err(Errno::EXIST) if is_folder(&parent, &last) => {}
                    made => made.map_err(failed)?,
                }
                folders.push(Folder { path, mode, said });
                Ok(())
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(&parent, &last, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
                let mut file = File::from(file);
                fill(&mut file, entry, name)?;
                finish(&file, mode, &said).map_err(ArchiveError::io("finish", name))
            }
            EntryType::Symlink => {
                let target = target(entry, name)?;
                if !stays(&path, &target) {
                    return Err(ArchiveError::refused(
                        name,
                        "it is a link that leads out of the workspace",
                    ));
                }
                symlinkat(&target, &parent, &last).map_err(failed)?;
                if let Some(time) = said.time {
                    utimensat(&parent, &last, &times(time), AtFlags::SYMLINK_NOFOLLOW)
                        .map_err(ArchiveError::io("set the time of", name))?;
                }
                Ok(())
            }
            EntryType::Link => {
                let first = place(&target(entry, name)?)?;
                let missing = || ArchiveError::refused(name, "it is another name of a file that is not there");
                let (folder, other) = self.parent(&first).map_err(|_| missing())?;
                match statat(&folder, &other, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(status) if FileType::from_raw_mode(status.st_mode).is_file() => {}
                    _ => return Err(missing()),
                }
                linkat(&folder, &other, &parent, &last, AtFlags::empty()).map_err(failed)
            }
            EntryType::Fifo => Err(ArchiveError::refused(name, "it is a named pipe")),
            EntryType::Char | EntryType::Block => Err(ArchiveError::refused(name, "it is a device")),
            _ => Err(ArchiveError::refused(name, "it is of a kind that is not known")),
        }
    }

    /// The folder that a place is in, made with those on the way, none of which is a link; and the last part of the place.
    fn parent(&self, path: &Path) -> Result<(OwnedFd, PathBuf), Errno> {
        let last = path.file_name().map(PathBuf::from).ok_or(Errno::INVAL)?;
        let above = path.parent().unwrap_or(Path::new(""));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match open_beneath(&self.folder, above, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return opened.map(|folder| (folder, last)),
        }
        let mut folder = open_beneath(&self.folder, Path::new(""), flags, Mode::empty())?;
        for name in above {
            match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            folder = open_beneath(&folder, Path::new(name), flags, Mode::empty())?;
        }
        Ok((folder, last))
    }

    fn finish(&self, folder: &Folder) -> Result<(), ArchiveError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = open_beneath(&self.folder, &folder.path, flags, Mode::empty());
        opened
            .map_err(io::Error::from)
            .and_then(|opened| finish(&opened, folder.mode, &folder.said))
            .map_err(ArchiveError::io("finish", &folder.path))
    }

    /// Puts what came in the place of what is there: only names change. Where one cannot, all are as before; where this process
    /// is killed meanwhile, [`recover`] knows by a name how far it came.
    pub(super) fn commit(self) -> Result<Leftover, ArchiveError> {
        let failed = ArchiveError::io("put files into", Path::new("/workspace"));
        let exchanged = || {
            let [old_name, gone] = [OLD, GONE].map(|end| self.name.with_extension(end));
            mkdirat(&self.root, &old_name, Mode::from_raw_mode(0o700))?;
            let old = open_beneath(&self.root, &old_name, FOLDER, Mode::empty())?;
            let mut moved = Vec::new();
            let done = move_all(&self.root, &old, &mut moved)
                .and_then(|()| Ok(renameat(&self.root, &old_name, &self.root, &gone)?))
                .and_then(|()| move_all(&self.folder, &self.root, &mut moved));
            if done.is_err() {
                for (from, to, name) in moved.into_iter().rev() {
                    renameat(to, &name, from, &name)?;
                }
                for name in [&old_name, &gone] {
                    remove(&self.root, name)?;
                }
            }
            done.map(|()| gone)
        };
        let gone = exchanged().map_err(failed)?;
        Ok(Leftover { gone, staged: self })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What is left bears our name, and goes at the next start.
        let _left = remove(&self.root, &self.name);
    }
}

/// What stood in the workspace before an archive came in.
#[derive(Debug)]
pub struct Leftover {
    gone: PathBuf,
    staged: Staged,
}

impl Leftover {
    /// Removes it, which may take long.
    pub fn remove(self) {
        // What is left bears our name, and goes at the next start.
        let _left = remove(&self.staged.root, &self.gone);
    }
}

/// Undoes what did not come to the exchange of all names, finishes what did, and removes what is left of either.
pub(super) fn recover(root: &OwnedFd) -> io::Result<()> {
    let here = || open_beneath(root, Path::new(""), FOLDER, Mode::empty());
    let ours = names(here()?)?.into_iter().map(PathBuf::from);
    let ours = ours.filter(|name| name.as_os_str().as_bytes().starts_with(OWN.as_bytes()));
    let ours: Vec<_> = ours.filter(|name| is_folder(root, name)).collect();
    for name in &ours {
        let from = match name.extension().and_then(OsStr::to_str) {
            Some(OLD) => name.clone(),
            Some(GONE) => name.with_extension(NEW),
            _ => continue,
        };
        match open_beneath(root, &from, FOLDER, Mode::empty()) {
            Ok(folder) => move_all(&folder, root, &mut Vec::new())?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    ours.iter().try_for_each(|name| remove(root, name))
}

/// Moves everything that is in one folder and not ours into another, and notes what it moved.
fn move_all<'f>(
    from: &'f OwnedFd,
    to: &'f OwnedFd,
    moved: &mut Vec<(&'f OwnedFd, &'f OwnedFd, OsString)>,
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for name in names(open_beneath(from, Path::new(""), flags, Mode::empty())?)? {
        if !name.as_bytes().starts_with(OWN.as_bytes()) {
            renameat(from, &name, to, &name)?;
            moved.push((from, to, name));
        }
    }
    Ok(())
}

/// A folder of our own beside what is in the workspace.
fn fresh(root: &OwnedFd) -> io::Result<(PathBuf, OwnedFd)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = PathBuf::from(format!("{OWN}{}-{number}.{NEW}", std::process::id()));
        match mkdirat(root, &name, Mode::from_raw_mode(0o700)) {
            // A process of the same number left it behind.
            Err(Errno::EXIST) => continue,
            made => made?,
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open_beneath(root, &name, flags, Mode::empty())?;
        return Ok((name, folder));
    }
}

fn is_folder(parent: &OwnedFd, name: &Path) -> bool {
    statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|status| FileType::from_raw_mode(status.st_mode).is_dir())
}

fn target(entry: &Entry<'_, impl Read>, name: &Path) -> Result<PathBuf, ArchiveError> {
    let target = entry.link_name_bytes();
    let target = target.ok_or_else(|| ArchiveError::refused(name, "it is a link to nothing"))?;
    Ok(PathBuf::from(OsStr::from_bytes(&target)))
}

/// What stands before an entry: its time, and the attributes that users may set.
fn said(entry: &mut Entry<'_, impl Read>) -> io::Result<Said> {
    let seconds = i64::try_from(entry.header().mtime()?).unwrap_or(0);
    let mut said = Said {
        time: Some(Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        }),
        ..Said::default()
    };
    let Some(extensions) = entry.pax_extensions()? else {
        return Ok(said);
    };
    for extension in extensions {
        let extension = extension?;
        let Ok(key) = extension.key() else { continue };
        let users = |name: &str| name.starts_with(USERS_ATTRIBUTE).then(|| name.to_owned());
        if key == "mtime" {
            said.time = extension.value().ok().and_then(moment).or(said.time);
        } else if let Some(name) = key.strip_prefix(PAX_ATTRIBUTE).and_then(users) {
            said.attributes.push((name, extension.value_bytes().to_vec()));
        } else if let Some(name) = key.strip_prefix(PAX_ENCODED).and_then(users) {
            let value = extension.value_bytes().split(|byte| *byte == b'=').next();
            let value = STANDARD_NO_PAD.decode(value.unwrap_or_default());
            said.attributes.push((name, value.map_err(io::Error::other)?));
        }
    }
    Ok(said)
}

/// Seconds since 1970, with a fraction.
fn moment(text: &str) -> Option<Timespec> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let nanos = format!("{fraction:0<9}");
    Some(Timespec {
        tv_sec: seconds.parse().ok()?,
        tv_nsec: nanos.get(..9)?.parse().ok()?,
    })
}

fn times(time: Timespec) -> Timestamps {
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Writes a file's bytes; zeros become holes.
fn fill(file: &mut File, entry: &mut Entry<'_, impl Read>, name: &Path) -> Result<(), ArchiveError> {
    let length = entry.size();
    let (mut piece, zeros) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < length {
        let read = entry.read(&mut piece).map_err(ArchiveError::Broken)?;
        if read == 0 {
            return Err(ArchiveError::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
        let bytes = &piece[..read];
        let written = if bytes == &zeros[..read] {
            file.seek_relative(read as i64)
        } else {
            file.write_all(bytes)
        };
        written.map_err(ArchiveError::io("write", name))?;
        at += read as u64;
    }
    file.set_len(length).map_err(ArchiveError::io("write", name))
}

/// Gives a file or folder what stands about it; the time last.
fn finish(opened: impl AsFd, mode: u32, said: &Said) -> io::Result<()> {
    for (name, value) in &said.attributes {
        fsetxattr(&opened, name.as_str(), value, XattrFlags::empty())?;
    }
    fchmod(&opened, Mode::from_raw_mode(mode & super::MODE))?;
    if let Some(time) = said.time {
        futimens(&opened, &times(time))?;
    }
    Ok(())
}

/// Removes a folder with everything in it; no link is followed.
fn remove(root: &OwnedFd, name: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut stack = vec![PathBuf::from(name)];
    while let Some(path) = stack.last().cloned() {
        let folder = match open_beneath(root, &path, flags, Mode::empty()) {
            // Its owner shut it.
            Err(Errno::ACCESS) => {
                let above = path.parent().unwrap_or(Path::new(""));
                let above = open_beneath(root, above, flags, Mode::empty())?;
                let last = path.file_name().unwrap_or_default();
                rustix::fs::chmodat(&above, last, Mode::from_raw_mode(0o700), AtFlags::empty())?;
                open_beneath(root, &path, flags, Mode::empty())?
            }
            Err(Errno::NOENT) => {
                stack.pop();
                continue;
            }
            opened => opened?,
        };
        fchmod(&folder, Mode::from_raw_mode(0o700))?;
        let mut inner = None;
        for entry in names(&folder)? {
            match unlinkat(&folder, &entry, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => match unlinkat(&folder, &entry, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::NOTEMPTY | Errno::EXIST) => {
                        inner = Some(path.join(entry));
                        break;
                    }
                    Err(errno) => return Err(errno.into()),
                },
                Err(errno) => return Err(errno.into()),
            }
        }
        if let Some(inner) = inner {
            stack.push(inner);
            continue;
        }
        stack.pop();
        match unlinkat(root, &path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
