//! The files of a sandbox that are in the machine's memory. They are kept with its processes, which may have some of them open.
//!
//! They were made by a stranger, who has ended: nobody changes them while they are read, and what they are put into is empty.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use containers::process::has_argument;
use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, open, openat2};

use crate::root::{SHARED, TEMPORARY};
use crate::write;

const TMPFS: u64 = 0x0102_1994;

/// How the process is called, among its arguments, that opens files for a kernel of its own.
const OPENER: &str = "gofer";

/// Files in memory, which are there as long as this is held.
#[derive(Debug)]
pub(crate) struct Files(Vec<(&'static str, OwnedFd)>);

impl Files {
    /// Those of a sandbox that has these processes, one of which opens them.
    pub(crate) fn of(processes: impl IntoIterator<Item = i32>) -> io::Result<Self> {
        let opener = processes.into_iter().find(|process| opens_files(*process));
        let opener = opener.ok_or_else(|| io::Error::other("the process that opens its files is not there"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(format!("/proc/{opener}/root"), flags, Mode::empty())?;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let found = [TEMPORARY, SHARED].map(|place| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = openat2(&root, place, flags, Mode::empty(), beneath)?;
            // The type of the field differs between architectures; the number fits each.
            if fstatfs(&folder)?.f_type as u64 != TMPFS {
                return Err(io::Error::other(format!("/{place} is not in memory")));
            }
            Ok((place, folder))
        });
        found.into_iter().collect::<io::Result<_>>().map(Self)
    }

    /// Writes all of them into a folder, which is to hold no more than `most` bytes.
    pub(crate) fn keep(self, into: &Path, most: u64) -> io::Result<()> {
        for (place, folder) in self.0 {
            let mut tar = tar(&folder);
            tar.args(["--create", "--sparse", "--one-file-system", "--file"]);
            tar.arg(archive(into, place)).arg(".");
            write::watched(tar, into, most)?;
        }
        Ok(())
    }
}

/// Puts what was kept of a place into a mount, which is empty.
pub(crate) fn bring_back(kept: &Path, place: &str, mount: BorrowedFd<'_>) -> io::Result<()> {
    let mut tar = tar(&mount);
    tar.args([
        "--extract",
        "--same-owner",
        "--same-permissions",
        "--delay-directory-restore",
        "--file",
    ]);
    tar.arg(archive(kept, place));
    write::watched(tar, kept, u64::MAX)
}

/// The archiver, at work in a folder that has no name here.
fn tar(folder: &impl AsRawFd) -> Command {
    let mut tar = Command::new("tar");
    tar.current_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    tar.env("LC_ALL", "C").stdin(Stdio::null());
    tar.args(["--numeric-owner", "--xattrs", "--warning=no-timestamp"]);
    tar
}

fn archive(folder: &Path, place: &str) -> PathBuf {
    folder.join(place.replace('/', "-")).with_extension("tar")
}

fn opens_files(process: i32) -> bool {
    has_argument(process, OPENER.as_bytes())
}
