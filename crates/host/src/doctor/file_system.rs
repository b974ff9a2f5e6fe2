//! Whether the data directory's files can be shown to a sandbox as its own.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use causes::with_causes;
use containers::mount::{attach, mount_file_system};
use containers::overlay::{Layers, overlay as join};
use containers::owners;
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::Machine;
use super::attempt::{Lack, OrLacking};

/// Where a range of ids like those that sandboxes get begins.
pub(super) const FIRST: u32 = 2_000_000;

/// A file that root owns on disk is seen as the sandbox's through a mount that maps ids.
pub(super) fn ids(machine: &Machine) -> Result<String, Lack> {
    machine.with_own_mounts(see_ids)
}

fn see_ids(folder: &Path) -> Result<String, Lack> {
    let file = folder.join("from/file");
    make(&folder.join("from"), &file)?;
    let seen = folder.join("seen");
    show(&folder.join("from"), &seen, &mapped()?)?;
    let owner = fs::metadata(seen.join("file"))
        .or_lacking("a mapped file cannot be looked at", MEND)?
        .uid();
    if owner != FIRST {
        return Err(Lack::lacking(
            format!("a mapped file belongs to {owner} and should belong to {FIRST}"),
            MEND,
        ));
    }
    Ok("user namespaces and idmapped mounts work".to_owned())
}

/// A file of an image can be changed, and the image stays as it was.
pub(super) fn overlay(machine: &Machine) -> Result<String, Lack> {
    machine.with_own_mounts(change_image)
}

fn change_image(folder: &Path) -> Result<String, Lack> {
    let [image, disk, lower, session, root] =
        ["image", "disk", "lower", "session", "root"].map(|name| folder.join(name));
    make(&image, &image.join("file"))?;
    for part in ["upper", "work"] {
        make_folder(&disk.join(part))?;
    }
    let ids = mapped()?;
    show(&disk, &session, &ids)?;
    make_folder(&root)?;
    let mend =
        "sandboxes need overlay on idmapped mounts: Linux 6.1 or later with CONFIG_OVERLAY_FS (modprobe overlay)";
    let joined = join(&Layers {
        lower: std::slice::from_ref(&image),
        places: &lower,
        upper: &session.join("upper"),
        work: &session.join("work"),
        ids: Some(ids.as_fd()),
    });
    let joined = joined.map_err(|error| with_causes(&error));
    let joined = joined.and_then(|joined| attach(&joined, &root).map_err(|error| error.to_string()));
    joined.or_lacking("an overlay on idmapped mounts cannot be mounted", mend)?;
    // An overlay that could not prepare its work folder is there, and cannot be written to.
    fs::write(root.join("file"), "changed").or_lacking("an overlay cannot be written to", mend)?;
    let (seen, kept) = (
        fs::read_to_string(root.join("file")),
        fs::read_to_string(image.join("file")),
    );
    if seen.is_ok_and(|text| text == "changed") && kept.is_ok_and(|text| text == "image") {
        return Ok("a layer of changes over an image works".to_owned());
    }
    Err(Lack::lacking(
        "what was written into an overlay is not what is read from it",
        mend,
    ))
}

const MEND: &str = "put the data directory on ext4, btrfs or xfs, on Linux 6.1 or later; \
                    where user namespaces are forbidden: sysctl -w user.max_user_namespaces=100000";

fn make(folder: &Path, file: &Path) -> Result<(), Lack> {
    make_folder(folder)?;
    fs::write(file, "image").or_lacking(
        "a file cannot be written to the data directory",
        "free some space there",
    )
}

fn make_folder(folder: &Path) -> Result<(), Lack> {
    fs::create_dir_all(folder).or_lacking("a folder cannot be made in the data directory", "free some space there")
}

fn mapped() -> Result<OwnedFd, Lack> {
    owners::shown_from(FIRST).or_lacking("no user namespace can be made", MEND)
}

/// Shows a folder at another place, with its owners mapped.
fn show(from: &Path, at: &Path, ids: &OwnedFd) -> Result<(), Lack> {
    make_folder(at)?;
    let shown = || -> io::Result<()> {
        let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount = open_tree(CWD, from, clone)?;
        owners::map(&mount, Some(ids.as_fd()))?;
        attach(&mount, at)
    };
    shown().or_lacking(&format!("the file system of {} cannot map ids", from.display()), MEND)
}

/// Mounts a device in this thread's mounts.
pub(super) fn mount_device(kind: &str, device: &Path, at: &Path) -> io::Result<()> {
    attach(&mount_file_system(kind, device, &[])?, at)
}
