//! Overlays of an image's layers and what a session writes.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, lgetxattr, unlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, open_tree,
};
use rustix::process::chdir;
use sandbox::ProviderError;
use sys::mount::{Attributes, set_attributes};
use sys::namespace::{Own, leave};

use crate::attempt::Attempt;
use crate::mount::attach;
use crate::record::make_folder;

/// How an overlay knows a folder that hides what lower layers have in it.
pub const OPAQUE: &str = "trusted.overlay.opaque";

/// Whether a folder hides what lower layers have in it.
///
/// # Errors
/// Where it cannot be looked at.
pub fn is_opaque(folder: &Path) -> io::Result<bool> {
    let mut value = [0; 8];
    means_opaque(lgetxattr(folder, OPAQUE, &mut value), value)
}

/// What was read of [`OPAQUE`], understood.
///
/// # Errors
/// Where it could not be read.
pub fn means_opaque(got: Result<usize, Errno>, value: [u8; 8]) -> io::Result<bool> {
    match got {
        Ok(length) => Ok(value.get(..length) == Some(b"y")),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Of what layers have at one place, from the uppermost: the folders that together are seen as one there, and whether they hide
/// what is below all of these layers. An overlay does not ask this of its layers' own roots.
///
/// # Errors
/// Where a layer cannot be looked at.
pub fn shown_as(places: impl IntoIterator<Item = PathBuf>) -> io::Result<(Vec<PathBuf>, bool)> {
    let mut shown = Vec::new();
    for place in places {
        match place.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(about) if about.is_dir() => {
                let hides = is_opaque(&place)?;
                shown.push(place);
                if hides {
                    return Ok((shown, true));
                }
            }
            // A file, or the absence of one, in whose place folders were made.
            Ok(_) => return Ok((shown, true)),
        }
    }
    Ok((shown, false))
}

/// Lets a work folder be used again. An overlay that does not wait for the disk marks it, lest it be used after a power cut
/// unseen. We use it all the same: what may be lost then is said where the overlay is mounted. Only where nobody else writes.
///
/// # Errors
/// Where the mark cannot be removed.
pub fn forget_mark(beneath: impl AsFd, work: &str) -> io::Result<()> {
    let mark = format!("{work}/work/incompat/volatile");
    for (path, flags) in [(format!("{mark}/dirty"), AtFlags::empty()), (mark, AtFlags::REMOVEDIR)] {
        match unlinkat(&beneath, path, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What an overlay is made of.
#[derive(Debug)]
pub struct Layers<'a> {
    /// The folders below, from the lowest.
    pub lower: &'a [PathBuf],
    /// Where mounts of those are put in this thread's mount namespace.
    pub places: &'a Path,
    /// The folder that takes what is written, and the one that the kernel works in.
    pub upper: &'a Path,
    /// Beside it, on the same mount.
    pub work: &'a Path,
    /// What owners on disk are shown as, if not as they are.
    pub ids: Option<BorrowedFd<'a>>,
}

/// Moves this thread into a mount namespace of its own, out of which nothing spreads.
///
/// # Errors
/// [`ProviderError::Machine`] where the kernel makes none.
pub fn leave_mount_namespace() -> Result<(), ProviderError> {
    leave(Own::Mounts).map_err(|error| ProviderError::Machine {
        lacks: format!("no mount namespace can be made ({error}); run as root"),
    })?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .attempt(|| "part the mounts of a thread from the machine's".into())
}

/// An overlay, attached nowhere. Only in a thread that has a mount namespace of its own: its current folder is changed on the way.
///
/// # Errors
/// [`ProviderError::Machine`] where the file system of a layer cannot map ids.
pub fn overlay(layers: &Layers<'_>) -> Result<OwnedFd, ProviderError> {
    let lower = each_once(layers.lower);
    // The kernel takes 255 bytes of names, so each is short, and looked up from here.
    let names: Vec<String> = (0..lower.len()).map(|number| format!("{number:x}")).collect();
    for (folder, name) in lower.iter().zip(&names) {
        let place = layers.places.join(name);
        make_folder(&place, 0o711)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount = open_tree(CWD, *folder, flags).attempt(|| format!("mount {}", folder.display()))?;
        let attributes = Attributes {
            read_only: true,
            no_set_uid: true,
            no_devices: true,
            ids: layers.ids,
            ..Attributes::default()
        };
        set_attributes(&mount, attributes).map_err(|error| cannot_map(folder, &error))?;
        attach(&mount, &place).attempt(|| format!("mount a layer at {}", place.display()))?;
    }
    let uppermost_first: Vec<&str> = names.iter().rev().map(String::as_str).collect();
    let attempt = || format!("make an overlay of the layers in {}", layers.places.display());
    chdir(layers.places).attempt(attempt)?;
    let mounted = mount(&uppermost_first.join(":"), layers.upper, layers.work);
    chdir("/").attempt(attempt)?;
    mounted.attempt(attempt)
}

/// Layers from the lowest, each where it is uppermost: two refreshes that did the same leave the same layer twice, which shows
/// nothing that the upper one does not, and the kernel refuses it.
fn each_once(layers: &[PathBuf]) -> Vec<&PathBuf> {
    let (mut seen, mut once) = (HashSet::new(), Vec::new());
    once.extend(layers.iter().rev().filter(|layer| seen.insert(*layer)));
    once.reverse();
    once
}

/// Why a file system's owners cannot be shown as somebody else.
#[must_use]
pub fn cannot_map(folder: &Path, error: &io::Error) -> ProviderError {
    ProviderError::Machine {
        lacks: format!(
            "the file system under {} cannot map ids ({error}); it must be ext4, btrfs or xfs on Linux 6.1 or later",
            folder.display()
        ),
    }
}

fn mount(lower: &str, upper: &Path, work: &Path) -> io::Result<OwnedFd> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "belljar")?;
    fsconfig_set_string(&context, "lowerdir", lower)?;
    fsconfig_set_string(&context, "upperdir", upper)?;
    fsconfig_set_string(&context, "workdir", work)?;
    // What is written must be understood without what is below: it may become a layer.
    fsconfig_set_string(&context, "redirect_dir", "off")?;
    fsconfig_set_string(&context, "metacopy", "off")?;
    // Without this the end of a sandbox would wait until all that its neighbours have written has reached the disk, as
    // they share a pool. After a power cut the last changes of the image's files may be lost; /workspace does not go
    // through the overlay.
    fsconfig_set_flag(&context, "volatile")?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{XattrFlags, setxattr};

    use super::*;

    #[test]
    fn a_layer_that_is_there_twice_is_taken_where_it_is_uppermost() {
        let [a, b, c] = ["a", "b", "c"].map(PathBuf::from);
        assert_eq!(
            each_once(&[a.clone(), b.clone(), a.clone(), c.clone(), c.clone()]),
            [&b, &a, &c]
        );
        assert_eq!(each_once(&[a.clone(), b.clone()]), [&a, &b]);
    }

    #[test]
    fn what_a_layer_hides_is_not_shown() {
        let all = tempfile::tempdir().unwrap();
        let [lowest, hiding, file, uppermost, none] =
            ["lowest", "hiding", "file", "uppermost", "none"].map(|name| all.path().join(name));
        for folder in [&lowest, &hiding, &uppermost] {
            fs::create_dir(folder).unwrap();
        }
        setxattr(&hiding, OPAQUE, b"y", XattrFlags::empty()).unwrap();
        fs::write(&file, "").unwrap();
        let shown = |places: &[&PathBuf]| shown_as(places.iter().map(|place| (*place).clone())).unwrap();
        assert_eq!(
            shown(&[&uppermost, &none, &lowest]),
            (vec![uppermost.clone(), lowest.clone()], false)
        );
        assert_eq!(
            shown(&[&uppermost, &hiding, &lowest]),
            (vec![uppermost.clone(), hiding.clone()], true)
        );
        assert_eq!(shown(&[&uppermost, &file, &lowest]), (vec![uppermost.clone()], true));
        assert_eq!(shown(&[&file, &lowest]), (vec![], true));
        assert_eq!(shown(&[&none]), (vec![], false));
    }
}
