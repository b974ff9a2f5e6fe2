//! Out.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Cursor, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use tar::{Builder, EntryType, GnuExtSparseHeader, Header};

use super::{ArchiveError, MODE, OWN, PAX_ATTRIBUTE, PAX_ENCODED, USERS_ATTRIBUTE, stays};
use crate::files::open_beneath;

/// Pieces of a sparse file that a header names by itself, and each one that follows it.
const FIRST_PIECES: usize = 4;
const MORE_PIECES: usize = 21;

/// Writes everything beneath a folder that goes out.
pub(super) fn pack(root: &OwnedFd, into: File) -> Result<(), ArchiveError> {
    let mut packer = Packer {
        root,
        archive: Builder::new(BufWriter::with_capacity(64 << 10, into)),
        known: HashMap::new(),
    };
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        packer.folder(&folder, &mut folders)?;
    }
    let whole = packer.archive.into_inner().and_then(|mut into| into.flush());
    whole.map_err(ArchiveError::io("write the archive of", Path::new("/workspace")))
}

struct Packer<'r> {
    root: &'r OwnedFd,
    archive: Builder<BufWriter<File>>,
    /// Files with more than one name: the first of them.
    known: HashMap<(u64, u64), PathBuf>,
}

impl Packer<'_> {
    fn folder(&mut self, folder: &Path, folders: &mut Vec<PathBuf>) -> Result<(), ArchiveError> {
        let opened = self.open(folder, OFlags::DIRECTORY);
        let opened = opened.map_err(ArchiveError::io("open", folder))?;
        for name in names(&opened).map_err(ArchiveError::io("list", folder))? {
            let path = folder.join(&name);
            if folder.as_os_str().is_empty() && name.as_bytes().starts_with(OWN.as_bytes()) {
                continue;
            }
            // Gone meanwhile.
            let Ok(status) = rustix::fs::statat(&opened, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            match FileType::from_raw_mode(status.st_mode) {
                FileType::Directory => {
                    let inner = self.open(&path, OFlags::DIRECTORY);
                    let inner = inner.map_err(ArchiveError::io("open", &path))?;
                    self.describe(&status, Some(inner.as_fd()))
                        .and_then(|()| {
                            let mut header = header(EntryType::Directory, &status);
                            self.archive.append_data(&mut header, &path, io::empty())
                        })
                        .map_err(ArchiveError::io("pack", &path))?;
                    folders.push(path);
                }
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(&opened, &name, Vec::new());
                    let target = target.map_err(ArchiveError::io("read", &path))?;
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    if stays(&path, &target) {
                        let mut header = header(EntryType::Symlink, &status);
                        self.describe(&status, None)
                            .and_then(|()| self.archive.append_link(&mut header, &path, &target))
                            .map_err(ArchiveError::io("pack", &path))?;
                    }
                }
                FileType::RegularFile => self.file(&path).map_err(ArchiveError::io("pack", &path))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> io::Result<()> {
        let file = File::from(self.open(path, OFlags::NONBLOCK)?);
        let status = rustix::fs::fstat(&file)?;
        if !FileType::from_raw_mode(status.st_mode).is_file() {
            return Ok(());
        }
        if status.st_nlink > 1 {
            let file = (status.st_dev, status.st_ino);
            if let Some(first) = self.known.get(&file) {
                let mut header = header(EntryType::Link, &status);
                return self.archive.append_link(&mut header, path, first);
            }
            self.known.insert(file, path.to_owned());
        }
        self.describe(&status, Some(file.as_fd()))?;
        let length = u64::try_from(status.st_size).unwrap_or(0);
        let pieces = pieces(&file, length)?;
        if let [Piece { begin: 0, length: all }] = pieces[..]
            && all == length
        {
            let mut header = header(EntryType::Regular, &status);
            header.set_size(length);
            return self.archive.append_data(&mut header, path, Whole::new(file, pieces));
        }
        let mut header = header(EntryType::GNUSparse, &status);
        header.set_size(pieces.iter().map(|piece| piece.length).sum());
        let more = sparse(&mut header, &pieces, length);
        let data = Cursor::new(more).chain(Whole::new(file, pieces));
        self.archive.append_data(&mut header, path, data)
    }

    /// Says what a header has no room for: the time to the nanosecond, and the attributes of users.
    fn describe(&mut self, status: &Stat, opened: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut said: Vec<(String, Vec<u8>)> = Vec::new();
        if status.st_mtime_nsec != 0 {
            let time = format!("{}.{:09}", status.st_mtime, status.st_mtime_nsec);
            said.push(("mtime".to_owned(), time.into_bytes()));
        }
        if let Some(opened) = opened {
            for name in attributes(opened)? {
                let mut value = vec![0; 64 << 10];
                let length = rustix::fs::fgetxattr(opened, &name, &mut value)?;
                value.truncate(length);
                if value.contains(&b'\n') {
                    said.push((
                        format!("{PAX_ENCODED}{name}"),
                        STANDARD_NO_PAD.encode(value).into_bytes(),
                    ));
                } else {
                    said.push((format!("{PAX_ATTRIBUTE}{name}"), value));
                }
            }
        }
        if said.is_empty() {
            return Ok(());
        }
        let said = said.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        self.archive.append_pax_extensions(said)
    }

    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        open_beneath(self.root, path, flags, Mode::empty())
    }
}

fn header(kind: EntryType, status: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(status.st_mode & MODE);
    header.set_mtime(u64::try_from(status.st_mtime).unwrap_or(0));
    header.set_uid(status.st_uid.into());
    header.set_gid(status.st_gid.into());
    header.set_size(0);
    header
}

/// A part of a file that is no hole.
#[derive(Clone, Copy, Debug)]
struct Piece {
    begin: u64,
    length: u64,
}

/// Where a file has no holes. The last piece ends where the file does, and may be empty.
fn pieces(file: &File, length: u64) -> io::Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < length {
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            found => found?.min(length),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(at))?.min(length);
        if end > at {
            pieces.push(Piece {
                begin: at,
                length: end - at,
            });
        }
        at = end.max(at + 1);
    }
    if pieces.last().map_or(0, |piece| piece.begin + piece.length) < length || pieces.is_empty() {
        pieces.push(Piece {
            begin: length,
            length: 0,
        });
    }
    Ok(pieces)
}

/// Names the pieces in a header; what it has no room for goes into further ones.
fn sparse(header: &mut Header, pieces: &[Piece], length: u64) -> Vec<u8> {
    let (first, rest) = pieces.split_at(pieces.len().min(FIRST_PIECES));
    if let Some(header) = header.as_gnu_mut() {
        header.set_real_size(length);
        for (place, piece) in header.sparse.iter_mut().zip(first) {
            place.set_offset(piece.begin);
            place.set_length(piece.length);
        }
        header.set_is_extended(!rest.is_empty());
    }
    let mut more = Vec::new();
    let mut further = rest.chunks(MORE_PIECES).peekable();
    while let Some(pieces) = further.next() {
        let mut header = GnuExtSparseHeader::new();
        for (place, piece) in header.sparse.iter_mut().zip(pieces) {
            place.set_offset(piece.begin);
            place.set_length(piece.length);
        }
        header.set_is_extended(further.peek().is_some());
        more.extend_from_slice(header.as_bytes());
    }
    more
}

/// The bytes of a file's pieces: as many as were promised. Where somebody shortens it meanwhile, zeros.
struct Whole {
    file: File,
    pieces: std::vec::IntoIter<Piece>,
    piece: Piece,
}

impl Whole {
    fn new(file: File, pieces: Vec<Piece>) -> Self {
        Self {
            file,
            pieces: pieces.into_iter(),
            piece: Piece { begin: 0, length: 0 },
        }
    }
}

impl Read for Whole {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.length == 0 {
            match self.pieces.next() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let wanted = usize::try_from(self.piece.length)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let mut read = self.file.read_at(&mut buffer[..wanted], self.piece.begin)?;
        if read == 0 {
            buffer[..wanted].fill(0);
            read = wanted;
        }
        self.piece.begin += read as u64;
        self.piece.length -= read as u64;
        Ok(read)
    }
}

/// The attributes of users that a file has.
fn attributes(opened: impl AsFd) -> io::Result<Vec<String>> {
    let mut list = vec![0; 64 << 10];
    let length = match rustix::fs::flistxattr(opened, &mut list) {
        Err(Errno::NOTSUP) => 0,
        length => length?,
    };
    let names = list[..length].split(|byte| *byte == 0);
    let names = names.filter_map(|name| std::str::from_utf8(name).ok());
    Ok(names
        .filter(|name| name.starts_with(USERS_ATTRIBUTE))
        .map(str::to_owned)
        .collect())
}

/// The names in a folder, in order.
pub(super) fn names(folder: impl AsFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}
