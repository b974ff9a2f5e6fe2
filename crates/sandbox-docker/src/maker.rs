//! Making a container by Docker's engine.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bollard::service::Mount;
use containers::Config;
use containers::attempt::{Attempt, unless_missing};
use containers::cgroup::{Group, Hierarchies};
use containers::disk::WORKSPACE;
use containers::filtered::{refusal, require_list};
use containers::library::Library;
use containers::maker::{Maker, Order};
use containers::mount::attach;
use containers::owners;
use containers::process::Process;
use containers::record::make_folder;
use domain::SandboxId;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid, chmodat, chownat, mkdirat, openat2};
use rustix::mount::{UnmountFlags, unmount};
use sandbox::{ProviderError, inside};

use crate::container::{self, home, places};
use crate::engine::Engine;
use crate::image::GivenImages;
use crate::knowledge;
use crate::shown::{Shown, Volume};

/// Which provider a container belongs to: its `run` folder.
const LABEL: &str = "belljar.provider";

/// Makes containers by Docker's engine.
#[derive(Debug)]
pub(crate) struct DockerMaker {
    engine: Engine,
    shown: Shown,
    images: GivenImages,
    library: Arc<dyn Library>,
    hierarchies: Hierarchies,
    /// The group that holds those of all sandboxes.
    parent: String,
    run: PathBuf,
}

impl DockerMaker {
    pub(crate) fn new(
        engine: Engine,
        shown: Shown,
        config: &Config,
        library: Arc<dyn Library>,
    ) -> Result<Self, ProviderError> {
        let parent = if engine.by_systemd() {
            format!("{}.slice", config.cgroup)
        } else {
            config.cgroup.clone()
        };
        let maker = Self {
            images: GivenImages::of(&config.data),
            library,
            hierarchies: Hierarchies::of_this_machine(&parent)?,
            parent,
            run: config.run.clone(),
            engine,
            shown,
        };
        if let Err(error) = maker.hierarchies.leave_room() {
            tracing::warn!(%error, "sandboxes together are not kept from the last of this machine's memory and processes");
        }
        Ok(maker)
    }

    /// Removes containers of this provider that are written down nowhere, as after a restart of the machine.
    fn remove_strays(&self) -> Result<(), ProviderError> {
        for name in self.engine.names(&format!("{LABEL}={}", self.run.display()))? {
            let known = name
                .strip_prefix(PREFIX)
                .is_some_and(|id| self.run.join("sandboxes").join(id).exists());
            if !known {
                self.engine.remove(&name)?;
                tracing::info!(name, "removed a container that nobody knows of");
            }
        }
        Ok(())
    }

    /// The name of a sandbox's group beneath the one of all. What systemd makes must be named after where it stands.
    fn group_name(&self, id: SandboxId) -> String {
        match self.parent.strip_suffix(".slice") {
            Some(parent) => format!("{parent}-{}.slice", id.to_string().replace('-', "_")),
            None => id.to_string(),
        }
    }

    /// What the engine is told of that group.
    fn group_path(&self, id: SandboxId) -> String {
        let name = self.group_name(id);
        if self.engine.by_systemd() {
            name
        } else {
            self.hierarchies.path(&name)
        }
    }

    fn start(&self, order: &Order<'_>, disk: &Path, knowledge: Option<Mount>) -> Result<Process, ProviderError> {
        let id = order.spec.id;
        let run = self.run.display().to_string();
        let body = container::body(
            order,
            &self.images.name(&order.image.base),
            &self.shown,
            disk,
            knowledge,
            &self.group_path(id),
            (LABEL, &run),
        )?;
        let code = || {
            self.engine
                .exit_code(&name(id))
                .ok()
                .and_then(|code| i32::try_from(code).ok())
        };
        let pid = self.engine.run(&name(id), body)?;
        let ended = |why: &str| {
            let code = code();
            let refused = code.and_then(|code| refusal(code, MAKER));
            refused.unwrap_or_else(|| {
                let code = code.map_or("unknown".to_owned(), |code| code.to_string());
                ProviderError::failed(
                    format!("keep sandbox {id} alive: {why} (code {code})"),
                    self.engine.last_words(&name(id)),
                )
            })
        };
        let pid = pid.ok_or_else(|| ended("its runtime ended at once"))?;
        // A number says nothing where the engine counts other processes than this one sees.
        let other = || ProviderError::Machine {
            lacks: format!(
                "process {pid} is not here what it is for Docker's engine: in a container, the host agent needs --pid host and \
                 --cgroupns host"
            ),
        };
        let process = match Process::open(pid) {
            Err(_) if self.engine.runs(&name(id)) => return Err(other()),
            opened => opened.map_err(|error| ended(&error.to_string()))?,
        };
        // Of what has ended nothing that can be seen is true any more.
        let unless_ended = |why| {
            if process.lives() {
                why
            } else {
                ended("its runtime ended at once")
            }
        };
        let seen =
            |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).map_err(|error| ended(&error.to_string()));
        if !seen("cgroup")?.contains(&self.group_name(id)) {
            return Err(unless_ended(other()));
        }
        // What it is to the link's other end is what the kernel says, not what the engine was thought to do.
        let mapped = seen("uid_map")?;
        let outside = mapped.split_ascii_whitespace().nth(1).and_then(|uid| uid.parse().ok());
        if outside != Some(order.root_uid) {
            return Err(unless_ended(ProviderError::failed(
                format!("make sandbox {id}"),
                format!(
                    "the engine made its root user {outside:?} of the machine, and not {}",
                    order.root_uid
                ),
            )));
        }
        if !self.group(id).exists() {
            return Err(unless_ended(ProviderError::Machine {
                lacks: format!(
                    "Docker's engine does not put containers into the groups that it is told ({}); the engine and the host \
                     agent must see the same cgroups",
                    self.group_path(id)
                ),
            }));
        }
        require_list(&process, MAKER, code)?;
        Ok(process)
    }

    /// Mounts the disk and what is at /knowledge for as long as the container is made.
    fn make_mounted(&self, order: &Order<'_>) -> Result<Process, ProviderError> {
        let place = order.folder.path().join(DISK);
        make_folder(&place, 0o711)?;
        let disk = (order.disk)()?;
        furnish(disk.as_fd(), home(&order.image.environment))
            .attempt(|| format!("furnish the disk of {}", order.spec.session))?;
        let ids = match order.root_uid {
            0 => None,
            root_uid => Some(owners::shown_from(root_uid).attempt(|| "map the ids of a sandbox".into())?),
        };
        let ids = ids.as_ref().map(AsFd::as_fd);
        if ids.is_some() {
            owners::map(&disk, ids).attempt(|| "map the ids of a disk".into())?;
        }
        attach(&disk, &place).attempt(|| format!("mount a disk at {}", place.display()))?;
        let shown = order.folder.path().join(KNOWLEDGE);
        let knowledge = match knowledge::folders(order.image, &place)? {
            None => None,
            Some(folders) => {
                let overlaid = knowledge::overlaid(&folders, order.folder, ids)?;
                make_folder(&shown, 0o711)?;
                attach(&overlaid, &shown).attempt(|| format!("mount an overlay at {}", shown.display()))?;
                Some(self.shown.mount(&shown, inside::KNOWLEDGE, false)?)
            }
        };
        let started = self.start(order, &place, knowledge);
        // The container holds what it needs of them.
        detach(&shown)?;
        detach(&place)?;
        started
    }

    /// Nothing is mounted here: the engine would not see it.
    fn make_in(&self, volume: &Volume, order: &Order<'_>) -> Result<Process, ProviderError> {
        let disk = (order.disk)()?;
        furnish(disk.as_fd(), home(&order.image.environment))
            .attempt(|| format!("furnish the disk of {}", order.spec.session))?;
        drop(disk);
        let place = order.disk_folder.as_deref();
        let place = place.ok_or_else(|| ProviderError::failed("show a disk to Docker's engine", "it is no folder"))?;
        let knowledge = knowledge::folders(order.image, place)?;
        let knowledge =
            knowledge.map(|folders| volume.overlay(&folders.lower, &folders.upper, &folders.work, inside::KNOWLEDGE));
        self.start(order, place, knowledge.transpose()?)
    }
}

impl Maker for DockerMaker {
    fn begin(&self) -> Result<(), ProviderError> {
        self.images.collect(&self.engine, &*self.library)?;
        self.remove_strays()
    }

    fn prepare(&self) -> Result<(), ProviderError> {
        Ok(())
    }

    fn root_uid(&self) -> Option<u32> {
        Some(self.engine.root_uid())
    }

    fn group(&self, id: SandboxId) -> Group {
        self.hierarchies.group(&self.group_name(id))
    }

    fn make(&self, order: &Order<'_>) -> Result<Process, ProviderError> {
        self.images.offer(&self.engine, order.image)?;
        match &self.shown {
            Shown::ByPlace => self.make_mounted(order),
            Shown::In(volume) => self.make_in(volume, order),
        }
    }

    fn forget(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.engine.remove(&name(id))?;
        let folder = self.run.join("sandboxes").join(id.to_string());
        detach(&folder.join(KNOWLEDGE))?;
        detach(&folder.join(DISK))
    }

    fn words(&self, id: SandboxId) -> Option<String> {
        Some(self.engine.last_words(&name(id)))
    }

    fn ran_out_of_memory(&self, id: SandboxId) -> bool {
        self.engine.ran_out_of_memory(&name(id))
    }
}

/// Who makes containers, in the end.
pub(crate) const MAKER: &str = "the OCI runtime that Docker's engine uses";

/// Where the session's disk is mounted while its container is made.
const DISK: &str = "disk";

/// Where its /knowledge is, meanwhile.
const KNOWLEDGE: &str = "knowledge";

/// What the names of our containers begin with.
const PREFIX: &str = "belljar-";

fn name(id: SandboxId) -> String {
    format!("{PREFIX}{id}")
}

/// Sees to it that what a sandbox is shown of its disk is there. Nothing inside can reach the folder that holds it.
fn furnish(disk: BorrowedFd<'_>, home: &str) -> io::Result<()> {
    for (folder, place) in places(home) {
        if folder == WORKSPACE {
            continue;
        }
        match mkdirat(disk, folder, Mode::from_raw_mode(0o755)) {
            Err(rustix::io::Errno::EXIST) => {}
            Ok(()) if place == home => {
                let (user, group) = (Uid::from_raw(inside::USER_ID), Gid::from_raw(inside::GROUP_ID));
                chownat(disk, folder, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Ok(()) => chmodat(disk, folder, Mode::from_raw_mode(0o1777), AtFlags::empty())?,
            Err(error) => return Err(error.into()),
        }
    }
    // The engine follows names: each must be a folder, and no link.
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for (folder, _) in places(home) {
        openat2(disk, folder, flags, Mode::empty(), beneath)?;
    }
    Ok(())
}

fn detach(place: &Path) -> Result<(), ProviderError> {
    match unmount(place, UnmountFlags::DETACH) {
        // Nothing is mounted there, or the folder is gone.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => unless_missing(Err(error.into())).attempt(|| format!("unmount {}", place.display())),
    }
}
