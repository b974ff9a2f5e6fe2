//! A sandbox's root file system, put together from detached mounts.
//!
//! What stands on the session's disk was written by the sandbox before: no path on it is followed by name. Each mount's
//! place is looked up beneath the root without following a link, and the mount is moved onto what was found.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use containers::attempt::Attempt;
use containers::disk::{UPPER, WORK, WORKSPACE};
use containers::kernel::Kernel;
use containers::library::Image;
use containers::mount::{attach, tmpfs};
use containers::overlay::{Layers, cannot_map, overlay};
use containers::owners;
use containers::record::{Folder, make_folder};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use sandbox::{ProviderError, SandboxSpec, inside};
use sys::mount::{Attributes, set_attributes};

use crate::memory::bring_back;

/// What a root file system is made of.
pub(crate) struct Parts<'a> {
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) folder: &'a Folder,
    /// What it is made from.
    pub(crate) image: &'a Image,
    /// The session's disk, attached nowhere.
    pub(crate) disk: OwnedFd,
    pub(crate) root_uid: u32,
    /// Whose kernel answers in it.
    pub(crate) kernel: Kernel,
    /// `belljar-runtime`.
    pub(crate) runtime: &'a Path,
    /// Files that every sandbox has, by their place.
    pub(crate) files: &'a [(&'static str, PathBuf)],
    /// Where what was kept of its files in memory is, beside its processes.
    pub(crate) kept: Option<&'a Path>,
}

/// Where its files in memory are that its user may write.
pub(crate) const TEMPORARY: &str = "tmp";
pub(crate) const SHARED: &str = "dev/shm";

/// Puts the root file system together in this thread's mount namespace and says where it is.
pub(crate) fn assemble(parts: Parts<'_>) -> Result<PathBuf, ProviderError> {
    let folder = parts.folder.path();
    let [lower, disk, root] = ["lower", "disk", "rootfs"].map(|name| folder.join(name));
    for place in [&lower, &disk, &root] {
        make_folder(place, 0o711)?;
    }
    let ids = owners::shown_from(parts.root_uid).map_err(|error| ProviderError::Machine {
        lacks: format!("no user namespace can be made ({error}); sysctl -w user.max_user_namespaces=100000"),
    })?;

    owners::map(&parts.disk, Some(ids.as_fd())).map_err(|error| cannot_map(&disk, &error))?;
    attach(&parts.disk, &disk).attempt(|| format!("mount a disk at {}", disk.display()))?;
    let files: Vec<PathBuf> = parts.image.layers.iter().map(|layer| layer.files.clone()).collect();
    let overlaid = overlay(&Layers {
        lower: &files,
        places: &lower,
        upper: &disk.join(UPPER),
        work: &disk.join(WORK),
        ids: Some(ids.as_fd()),
    })?;
    attach(&overlaid, &root).attempt(|| format!("mount an overlay at {}", root.display()))?;

    let opened = openat(
        CWD,
        &root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let opened = opened.attempt(|| format!("open {}", root.display()))?;
    let place = Root {
        opened,
        spec: parts.spec,
    };
    let memory = parts.spec.limits.memory_bytes;

    let in_memory = |name: &str| {
        let files = tmpfs(memory / 2, "1777", parts.root_uid).attempt(|| format!("make /{name}"))?;
        if let Some(kept) = parts.kept {
            bring_back(kept, name, files.as_fd()).attempt(|| format!("bring back what was kept of /{name}"))?;
        }
        Ok::<_, ProviderError>(files)
    };
    place.put(TEMPORARY, &in_memory(TEMPORARY)?)?;
    if parts.kernel.brings_files() {
        let shared = shared(&root);
        make_folder(&shared, 0o711)?;
        let files = in_memory(SHARED)?;
        attach(&files, &shared).attempt(|| format!("mount files in memory at {}", shared.display()))?;
    }
    let run = tmpfs(memory / 16, "0755", parts.root_uid).attempt(|| "make /run".into())?;
    furnish_run(run.as_fd()).attempt(|| "furnish /run".into())?;
    place.put("run", &run)?;
    place.put_bound(inside::WORKSPACE, &disk.join(WORKSPACE), false, true)?;
    place.put_bound(inside::LINK_DIRECTORY, &parts.folder.link(), true, false)?;
    place.put_bound(inside::RUNTIME, parts.runtime, true, true)?;
    for (name, file) in parts.files {
        place.put_bound(name, file, true, false)?;
    }
    Ok(root)
}

/// Where the files of `/dev/shm` are that are not made from within, beside the root file system.
pub(crate) fn shared(root: &Path) -> PathBuf {
    root.with_file_name("shm")
}

/// The places that the link and the runtime are mounted on.
fn furnish_run(run: BorrowedFd<'_>) -> io::Result<()> {
    let name = |path: &'static str| path.strip_prefix("/run/").unwrap_or(path);
    mkdirat(run, name(inside::LINK_DIRECTORY), Mode::from_raw_mode(0o700))?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(run, name(inside::RUNTIME), flags, Mode::from_raw_mode(0o444))?;
    Ok(())
}

/// A root file system that is being furnished.
struct Root<'a> {
    opened: OwnedFd,
    spec: &'a SandboxSpec,
}

impl Root<'_> {
    /// Puts a mount on a place, which must be in the image.
    fn put(&self, place: &str, mount: &OwnedFd) -> Result<(), ProviderError> {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let relative = place.trim_start_matches('/');
        let found = openat2(&self.opened, relative, flags, Mode::empty(), beneath);
        let found = found.map_err(|error| ProviderError::ImageMissing {
            image: self.spec.image.clone(),
            reason: format!("/{relative} is not there, or is a link ({error}); an image must have it as a mount point"),
        })?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(mount, "", found, "", flags).attempt(|| format!("mount /{relative} of a sandbox"))
    }

    /// Puts a file or folder of the machine on a place.
    fn put_bound(&self, place: &str, from: &Path, read_only: bool, may_run: bool) -> Result<(), ProviderError> {
        let attempt = || format!("mount {} at {place} of a sandbox", from.display());
        let mount = open_tree(CWD, from, clone()).attempt(attempt)?;
        let attributes = Attributes {
            read_only,
            no_set_uid: true,
            no_devices: true,
            no_exec: !may_run,
            ids: None,
        };
        set_attributes(&mount, attributes).attempt(attempt)?;
        self.put(place, &mount)
    }
}

fn clone() -> OpenTreeFlags {
    OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC
}
