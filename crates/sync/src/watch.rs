//! The kernel's events.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::tree::Relative;

/// Where to look.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Hint {
    /// At a name in a folder.
    Name(Relative, Vec<u8>),
    /// Everywhere: events were lost.
    Everywhere,
}

/// Watches folders.
#[derive(Default)]
pub(crate) struct Watch {
    /// None where there was none for this process yet: all sandboxes of a machine share some.
    events: Option<OwnedFd>,
    /// The folder of each watch. One that was renamed has its new path as soon as it is looked at there.
    folders: HashMap<i32, Relative>,
}

impl Watch {
    /// Watches an opened folder from now on. To be called before it is listed: then nothing is missed.
    ///
    /// # Errors
    /// `NOSPC` where the user has no more watches, `MFILE` where no more may be opened to watch with.
    pub(crate) fn add(&mut self, folder: BorrowedFd<'_>, path: &[u8]) -> Result<(), Errno> {
        // By its descriptor: a path might lead elsewhere by now.
        let descriptor = format!("/proc/self/fd/{}", folder.as_raw_fd());
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        let events = match &mut self.events {
            Some(events) => events,
            none => none.insert(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?),
        };
        let watch = inotify::add_watch(events, descriptor, flags)?;
        self.folders.insert(watch, path.to_vec());
        Ok(())
    }

    /// What has happened since. A name is given once for each event.
    pub(crate) fn read(&mut self, mut see: impl FnMut(Hint)) {
        let Some(events) = &self.events else {
            return;
        };
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = Reader::new(events.as_fd(), &mut buffer);
        let mut ended = Vec::new();
        // Ends with `AGAIN`.
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                see(Hint::Everywhere);
            } else if event.events().contains(ReadFlags::IGNORED) {
                ended.push(event.wd());
            } else if let (Some(folder), Some(name)) = (self.folders.get(&event.wd()), event.file_name()) {
                see(Hint::Name(folder.clone(), name.to_bytes().to_vec()));
            }
        }
        for watch in ended {
            self.folders.remove(&watch);
        }
    }

    /// What can be read when something has happened.
    pub(crate) fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }
}
