//! Secrets in files, each its whole content without the white space around it.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use secret::{Reference, Secret, Unresolved};
use zeroize::Zeroizing;

/// The longest content of a file; keys are shorter.
const MOST_BYTES: usize = 64 << 10;

/// What the file holds now. It is read anew each time: that takes microseconds, and nothing can be out of date.
pub(crate) fn secret(reference: &Reference, path: &Path) -> Result<Secret, Unresolved> {
    let shown = path.display();
    read(path).map_err(|error| match error {
        Unread::Io(error) if error.kind() == io::ErrorKind::NotFound => {
            Unresolved::absent(reference, "there is no such file", "make it, or correct the path")
        }
        Unread::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => Unresolved::unusable(
            reference,
            "the control plane's user may not read it",
            format!("give it to that user, and to nobody else: chown belljar {shown} && chmod 400 {shown}"),
        ),
        Unread::Io(error) => Unresolved::unusable(reference, format!("it cannot be read: {error}"), "mend that"),
        Unread::NoFile => Unresolved::unusable(reference, "it is no plain file", "name a file"),
        Unread::Owner(owner) => Unresolved::unusable(
            reference,
            format!("it belongs to user {owner}, who could change it"),
            format!("give it to root or to the control plane's user: chown root {shown}"),
        ),
        Unread::Open(mode) => Unresolved::unusable(
            reference,
            format!("others may read or change it (mode {mode:04o})"),
            format!("close it: chmod 400 {shown} (or 440 with the control plane's group)"),
        ),
        Unread::TooLong => Unresolved::unusable(
            reference,
            format!("it is longer than {} KiB", MOST_BYTES >> 10),
            "write the secret alone into it",
        ),
        Unread::NoText => Unresolved::unusable(reference, "it is not text", "write the secret as text into it"),
        Unread::Empty => Unresolved::unusable(reference, "it is empty", "write the secret into it"),
    })
}

/// Why a file is not taken as a secret.
pub(crate) enum Unread {
    Io(io::Error),
    NoFile,
    /// It belongs to this user.
    Owner(u32),
    /// Its mode lets others at it.
    Open(u32),
    TooLong,
    NoText,
    Empty,
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What a file holds from here on; none where that is more than `most`.
fn whole(file: &File, most: usize) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    // The standard library reads into a smaller one by way of the stack, where nobody wipes it.
    let mut bytes = Zeroizing::new(Vec::with_capacity((most + 1).max(64)));
    file.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= most).then_some(bytes))
}

/// Reads a file that nobody but its owner, and a group that reads, can reach. What was opened is what is looked at.
pub(crate) fn read(path: &Path) -> Result<Secret, Unread> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(Unread::NoFile);
    }
    if about.uid() != 0 && about.uid() != rustix::process::geteuid().as_raw() {
        return Err(Unread::Owner(about.uid()));
    }
    let mode = about.permissions().mode() & 0o7777;
    if mode & 0o027 != 0 {
        return Err(Unread::Open(mode));
    }
    if about.len() > MOST_BYTES as u64 {
        return Err(Unread::TooLong);
    }
    // Of the whole size from the start: a buffer that grew would leave pieces behind. It is wiped as a whole, so it is no larger.
    let bytes = match whole(&file, about.len() as usize)? {
        Some(bytes) => bytes,
        // It has grown since it was looked at.
        None => {
            file.rewind()?;
            whole(&file, MOST_BYTES)?.ok_or(Unread::TooLong)?
        }
    };
    let text = std::str::from_utf8(&bytes).map_err(|_| Unread::NoText)?.trim();
    if text.is_empty() {
        return Err(Unread::Empty);
    }
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn what_has_grown_since_it_was_looked_at_is_not_taken_in_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "a-new-and-longer-key").unwrap();
        let open = || File::open(&path).unwrap();
        assert!(whole(&open(), "an-old-key".len()).unwrap().is_none());
        let bytes = whole(&open(), "a-new-and-longer-key".len()).unwrap();
        assert_eq!(bytes.unwrap().as_slice(), b"a-new-and-longer-key");
        // One whose size is told as 0.
        let environment = Path::new("/proc/self/environ");
        let Ok(read) = read(environment) else {
            panic!("it is text, and nobody else's")
        };
        let all = std::fs::read_to_string(environment).unwrap();
        assert_eq!(read.expose(), all.trim());
    }
}
