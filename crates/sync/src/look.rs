//! What is there, against what is known.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

use protocol::{FileRecord, FromSync, Kept, PathBytes, SYNC_PIECES};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::batch::{Batch, Differs};
use crate::index::Known;
use crate::tree::{Relative, changed, join, open_beneath, open_folder, split, stamp};
use crate::work::{Where, Worker};
use crate::{read, rules};

/// Pieces of one file: with the others of its batch they fit into one request.
const MOST_PIECES: usize = SYNC_PIECES / 2;

impl Worker {
    /// Compares what is in a folder with what is known.
    pub(crate) fn look(
        &mut self,
        path: &[u8],
        names: Where,
        everywhere: bool,
        batch: &mut Batch,
        queue: &mut BTreeMap<Relative, Where>,
    ) {
        let folder = match open_folder(&self.root, path) {
            Ok(folder) => folder,
            // The folder that it is in tells.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return,
            Err(_) => {
                self.left.insert(path.to_vec(), 0);
                return;
            }
        };
        if self.left.get(path) == Some(&0) {
            self.left.remove(path);
        }
        let names = match names {
            Where::Names(names) => names,
            Where::Whole => {
                self.watch(&folder, path);
                let mut names: BTreeSet<Vec<u8>> = self.index.names(path).map(<[u8]>::to_vec).collect();
                match listed(&folder) {
                    Ok(listed) => names.extend(listed),
                    // There may be more in it than is known.
                    Err(_) => drop(self.left.insert(path.to_vec(), 0)),
                }
                names
            }
        };
        for name in names {
            if batch.is_full() {
                // The rest when this is sent.
                match queue
                    .entry(path.to_vec())
                    .or_insert_with(|| Where::Names(BTreeSet::new()))
                {
                    Where::Names(rest) => {
                        rest.insert(name);
                    }
                    Where::Whole => return,
                }
                continue;
            }
            let whole = join(path, &name);
            let known = self.index.get(path, &name);
            match self.see(&folder, &name, &whole) {
                Sight::Unseen => {
                    self.left.insert(whole, 0);
                }
                Sight::Nothing => {
                    self.left.remove(&whole);
                    if known.is_some() {
                        batch.gone.push(whole);
                    }
                }
                Sight::There(status, kind) => self.compare(whole, &status, kind, known, everywhere, batch, queue),
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what one look needs, at one place")]
    fn compare(
        &mut self,
        path: Relative,
        status: &Stat,
        kind: FileType,
        known: Option<Known>,
        everywhere: bool,
        batch: &mut Batch,
        queue: &mut BTreeMap<Relative, Where>,
    ) {
        let is_folder = kind == FileType::Directory;
        let same = known.is_some_and(|known| known.stamp == stamp(status) && known.folder == is_folder);
        if is_folder && (!same || everywhere) {
            queue.insert(path.clone(), Where::Whole);
        }
        if same || self.left.get(&path) == Some(&stamp(status)) {
            return;
        }
        if known.is_some_and(|known| known.folder != is_folder) {
            batch.gone.push(path.clone());
        }
        match self.read(&path, kind) {
            Ok(Some(differs)) => batch.add(differs),
            // Not there any more, or changed while it was read: an event says so.
            Ok(None) => self.dirty.path(&path),
            Err(Errno::NOENT | Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => self.dirty.path(&path),
            Err(_) => {
                self.left.insert(path, stamp(status));
            }
        }
    }

    fn watch(&mut self, folder: &OwnedFd, path: &[u8]) {
        if self.watch.add(folder.as_fd(), path).is_err() && !self.blind {
            self.blind = true;
            let words = format!(
                "not every folder can be watched (fs.inotify.max_user_watches, fs.inotify.max_user_instances): changes are found by looking everywhere, each {} s",
                self.settings.look_again.as_secs()
            );
            // Whoever cannot be told is not there.
            let _ = self.uplink.tell(&FromSync::Said { words });
        }
    }

    /// What stands at a name.
    fn see(&self, folder: &OwnedFd, name: &[u8], path: &[u8]) -> Sight {
        let status = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => status,
            Err(Errno::NOENT) => return Sight::Nothing,
            Err(_) => return Sight::Unseen,
        };
        let kind = FileType::from_raw_mode(status.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink) {
            return Sight::Nothing;
        }
        let is_folder = kind == FileType::Directory;
        if self.rules.leave_out(path, is_folder) {
            return Sight::Nothing;
        }
        if is_folder
            && !self.rules.keep_cache(path)
            && open_folder(folder, name).is_ok_and(|folder| rules::is_cache(&folder))
        {
            return Sight::Nothing;
        }
        if !PathBytes(path.to_vec()).is_plain() {
            // Longer than can be kept.
            return Sight::Unseen;
        }
        Sight::There(status, kind)
    }

    /// A file as it is now. None: it is not what it was a moment ago.
    fn read(&self, path: &[u8], kind: FileType) -> Result<Option<Differs>, Errno> {
        let nothing = OFlags::PATH | OFlags::NOFOLLOW;
        let flags = match kind {
            // Not blocking: an opened pipe must not wait for its writer.
            FileType::RegularFile => OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY,
            _ => nothing,
        };
        let (opened, status) = match kind {
            FileType::Symlink => {
                let (folder, name) = split(path);
                let folder = open_folder(&self.root, folder)?;
                let status = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
                (folder, status)
            }
            _ => {
                let opened = open_beneath(&self.root, path, flags)?;
                let status = rustix::fs::fstat(&opened)?;
                (opened, status)
            }
        };
        if FileType::from_raw_mode(status.st_mode) != kind {
            return Ok(None);
        }
        let mut file = None;
        let kept = match kind {
            FileType::Directory => Kept::Folder,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&opened, split(path).1, Vec::new())?;
                Kept::Link {
                    target: PathBytes(target.into_bytes()),
                }
            }
            _ => {
                let bytes = u64::try_from(status.st_size).unwrap_or(0);
                let Some(pieces) = read::pieces(&opened, bytes, MOST_PIECES)? else {
                    // It grows or shrinks at this moment, or nobody can keep it.
                    let is_still = rustix::fs::fstat(&opened).is_ok_and(|now| stamp(&now) == stamp(&status));
                    return if is_still { Err(Errno::FBIG) } else { Ok(None) };
                };
                if !pieces.is_empty() {
                    file = Some(opened);
                }
                Kept::File { bytes, pieces }
            }
        };
        let record = FileRecord {
            path: PathBytes(path.to_vec()),
            kept,
            mode: status.st_mode & 0o777,
            changed: changed(&status),
            stamp: stamp(&status),
        };
        Ok(Some(Differs { record, file }))
    }
}

/// What is found at a name.
enum Sight {
    /// Something that is to be kept.
    There(Stat, FileType),
    /// Nothing, or what is not kept.
    Nothing,
    /// It cannot be said: only what is certainly not there was deleted.
    Unseen,
}

/// The names in a folder.
fn listed(folder: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}
