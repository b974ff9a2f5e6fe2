//! What a layer takes away: on disk as an overlay knows it, in an archive as OCI writes it.

use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use containers::overlay::{OPAQUE as OPAQUE_ATTRIBUTE, means_opaque};
use rustix::fs::{FileType, Mode, XattrFlags, fgetxattr, fsetxattr, mknodat};

/// The name in an archive of what takes away the rest of that name.
pub(crate) const PREFIX: &str = ".wh.";
/// The name in an archive of what takes away all that a folder had in lower layers.
pub(crate) const OPAQUE: &str = ".wh..wh..opq";

/// Whether a folder hides what lower layers have in it.
pub(crate) fn is_opaque(folder: impl AsFd) -> io::Result<bool> {
    let mut value = [0; 8];
    means_opaque(fgetxattr(folder, OPAQUE_ATTRIBUTE, &mut value), value)
}

/// Lets a folder hide what lower layers have in it.
pub(crate) fn make_opaque(folder: impl AsFd) -> io::Result<()> {
    Ok(fsetxattr(folder, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())?)
}

/// Puts what takes away a name into a folder.
pub(crate) fn make(folder: impl AsFd, name: impl rustix::path::Arg) -> io::Result<()> {
    Ok(mknodat(folder, name, FileType::CharacterDevice, Mode::empty(), 0)?)
}

/// Whether something on disk takes away its name.
pub(crate) fn is_one(about: &Metadata) -> bool {
    about.file_type().is_char_device() && about.rdev() == 0
}
