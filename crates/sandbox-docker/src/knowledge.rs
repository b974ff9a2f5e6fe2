//! What an image has at `/knowledge`, with what the session writes there.
//!
//! The engine has the base of an image alone, and its root file system cannot be written. So what was committed since never
//! goes to the engine: an overlay of the layers' folders, with its upper one on the session's disk where the other providers
//! have it too, is shown at that place.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread;

use containers::attempt::Attempt;
use containers::disk::UPPER;
use containers::library::Image;
use containers::overlay::{Layers, forget_mark, leave_mount_namespace, overlay, shown_as};
use containers::record::Folder;
use sandbox::{ProviderError, inside};

/// What the overlay needs beside its upper folder.
const WORK: &str = "work-knowledge";

/// The folders of an overlay for a sandbox with this disk, furnished.
pub(crate) struct Folders {
    /// From the lowest.
    pub(crate) lower: Vec<PathBuf>,
    pub(crate) upper: PathBuf,
    pub(crate) work: PathBuf,
}

/// None where the image has no such folder.
pub(crate) fn folders(image: &Image, disk: &Path) -> Result<Option<Folders>, ProviderError> {
    let name = inside::KNOWLEDGE.trim_start_matches('/');
    // The uppermost first. What one of them hides is not to be seen: an overlay does not heed that of its layers' roots.
    let places = image.layers.iter().rev().map(|layer| layer.files.join(name));
    let (mut lower, _) = shown_as(places).attempt(|| format!("look for {} in an image", inside::KNOWLEDGE))?;
    let Some(uppermost) = lower.first().cloned() else {
        return Ok(None);
    };
    lower.reverse();
    let (upper, work) = (disk.join(UPPER).join(name), disk.join(WORK));
    furnish(&uppermost, &upper, disk).attempt(|| format!("furnish {} of a sandbox", inside::KNOWLEDGE))?;
    Ok(Some(Folders { lower, upper, work }))
}

/// The overlay, attached nowhere.
pub(crate) fn overlaid(
    folders: &Folders,
    folder: &Folder,
    ids: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, ProviderError> {
    let places = folder.path().join("lower");
    fs::create_dir_all(&places).attempt(|| format!("make the folder {}", places.display()))?;
    // The layers are mounted where nobody else sees them.
    thread::scope(|scope| {
        let made = scope.spawn(|| {
            leave_mount_namespace()?;
            overlay(&Layers {
                lower: &folders.lower,
                places: &places,
                upper: &folders.upper,
                work: &folders.work,
                ids,
            })
        });
        let panicked = |_| Err(ProviderError::failed("make an overlay", "its thread panicked"));
        made.join().unwrap_or_else(panicked)
    })
}

fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|about| about.is_dir())
}

/// Makes the folders of an overlay, which nothing inside can reach; the upper one is whose the image's is.
fn furnish(uppermost: &Path, upper: &Path, disk: &Path) -> io::Result<()> {
    if !is_folder(upper) {
        let about = fs::symlink_metadata(uppermost)?;
        fs::create_dir(upper)?;
        chown(upper, Some(about.uid()), Some(about.gid()))?;
        fs::set_permissions(upper, fs::Permissions::from_mode(about.mode() & 0o7777))?;
    }
    let work = disk.join(WORK);
    if !is_folder(&work) {
        fs::create_dir(&work)?;
    }
    forget_mark(fs::File::open(disk)?, WORK)
}
