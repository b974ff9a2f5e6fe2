//! The provider: who has which sandbox, and in which order things happen to it.

mod asleep;
mod assign;
mod held;
mod images;
mod places;
mod restart;
mod snapshots;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use async_trait::async_trait;
use domain::{SandboxId, SessionId, SnapshotId, Timestamp};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{getpid, set_child_subreaper};
use sandbox::{
    ImageDigest, ImageStatus, Kept, ProviderError, SandboxProvider, SandboxSpec, SandboxState, SandboxStatus,
    SandboxUsage, SnapshotStatus, Snapshots,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::held::Held;
use self::places::{Place, Places};
use crate::attempt::Attempt;
use crate::library::Library;
use crate::maker::Maker;
use crate::record::{Folder, Record, make_folder};
use crate::words::Words;
use crate::workshop::{self, Workshop};
use crate::{Config, DiskChoice, DiskKind, mount};

/// Makes sandboxes as containers of this machine, by whatever [`Maker`]. Needs root. One provider at a time may use a `run` folder.
///
/// A clone is the same provider.
#[derive(Clone, Debug)]
pub struct ContainerProvider {
    shared: Arc<Shared>,
    /// Creating is work for the processors: more at once than they can do only makes all of them late.
    room: Arc<Semaphore>,
    /// So is keeping processes, and for the disk. Nobody who waits for a sandbox waits for it.
    keeping: Arc<Semaphore>,
}

#[derive(Debug)]
struct Shared {
    workshop: Workshop,
    sandboxes: Mutex<BTreeMap<SandboxId, Arc<Held>>>,
    places: Places,
    /// Keeps other providers away from the folder.
    _lock: std::fs::File,
}

impl ContainerProvider {
    /// Begins to provide: finds the sandboxes that live, removes what was never finished, opens the disk pool, and makes
    /// this process take in orphans. Takes moments; the first time, when the pool is made, seconds. Blocks.
    ///
    /// # Errors
    /// [`ProviderError::Machine`] where the machine lacks something; [`ProviderError::Unavailable`] where another provider
    /// uses the same folder.
    pub fn open(config: Config, library: Arc<dyn Library>, maker: impl Maker) -> Result<Self, ProviderError> {
        // A sandbox's PID 1 is nobody's child once the OCI runtime has ended. It becomes ours, and is buried when it is
        // destroyed, however slow the machine's own first process is with orphans.
        set_child_subreaper(Some(getpid())).attempt(|| "become the reaper of orphans".into())?;
        make_folder(&config.run, 0o711)?;
        if config.disk != DiskChoice::Folders {
            mount::hold_in_memory(&config.run)?;
        }
        let lock = restart::lock(&config.run)?;
        let workshop = Workshop::open(config, library, Arc::new(maker))?;
        workshop.maker.begin()?;
        // Also shows at once whether the machine can do it at all.
        workshop.maker.prepare()?;
        if let Err(error) = workshop.library.clear() {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "could not clear away images that were never finished; trying again at the next start"
            );
        }
        let sandboxes = restart::find(&workshop)?;
        restart::tidy(&workshop, &sandboxes)?;
        let processors = available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self {
            shared: Arc::new(Shared {
                workshop,
                sandboxes: Mutex::new(sandboxes),
                places: Places::default(),
                _lock: lock,
            }),
            room: Arc::new(Semaphore::new(processors * 2)),
            keeping: Arc::new(Semaphore::new(processors)),
        })
    }

    /// What session disks are made of.
    #[must_use]
    pub fn disk_kind(&self) -> DiskKind {
        self.shared.workshop.pool.kind()
    }

    /// Unmounts what all sandboxes share, the disk pool and the `run` folder: for good-bye, or before the folders are
    /// removed. Sandboxes that live keep their disks, but no provider finds them again. Blocks.
    ///
    /// # Errors
    /// Where something cannot be unmounted.
    pub fn close(self) -> Result<(), ProviderError> {
        self.shared.workshop.pool.close()?;
        let run = &self.shared.workshop.config.run;
        match unmount(run, UnmountFlags::DETACH) {
            // It was the machine's own tmpfs.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            unmounted => unmounted.attempt(|| format!("unmount {}", run.display())),
        }
    }

    /// Makes a sandbox, when it is its turn.
    async fn making(
        &self,
        what: &'static str,
        make: impl FnOnce(&Shared) -> Result<SandboxStatus, ProviderError> + Send + 'static,
    ) -> Result<SandboxStatus, ProviderError> {
        let turn = self.turn(&self.room).await?;
        let making = self.blocking(what, move |shared| {
            let made = make(shared);
            drop(turn);
            made
        });
        let made = making.await?;
        let shared = Arc::clone(&self.shared);
        // Nobody waits for it: if it fails the next `create` tries itself, and says why it failed.
        drop(tokio::task::spawn_blocking(move || shared.workshop.maker.prepare()));
        Ok(made)
    }

    async fn turn(&self, of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ProviderError> {
        let turn = Arc::clone(of).acquire_owned().await;
        turn.map_err(|error| ProviderError::failed("wait for a processor", error))
    }

    /// Does a thing that blocks, to its end, even if nobody waits for it any longer.
    async fn blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        act: impl FnOnce(&Shared) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let shared = Arc::clone(&self.shared);
        let done = tokio::task::spawn_blocking(move || act(&shared)).await;
        done.unwrap_or_else(|error| Err(ProviderError::failed(what, error)))
    }
}

#[async_trait]
impl SandboxProvider for ContainerProvider {
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        let spec = spec.clone();
        self.making("create a sandbox", move |shared| shared.create(&spec))
            .await
    }

    async fn assign(&self, id: SandboxId, session: SessionId) -> Result<SandboxStatus, ProviderError> {
        let assign = move |shared: &Shared| shared.assign(id, session);
        let assigned = self.blocking("give a sandbox to a session", assign).await?;
        let shared = Arc::clone(&self.shared);
        // Nobody waits for it: until the kernel does it by itself, a power cut alone could take the name back.
        drop(tokio::task::spawn_blocking(move || shared.settle()));
        Ok(assigned)
    }

    async fn link(&self, id: SandboxId) -> Result<UnixListener, ProviderError> {
        self.shared.find(id)?.link()
    }

    async fn freeze(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.blocking("freeze a sandbox", move |shared| {
            shared.find(id)?.in_turn(|held| {
                held.living()?;
                held.freeze()
            })
        })
        .await
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.blocking("thaw a sandbox", move |shared| {
            shared.find(id)?.in_turn(|held| {
                held.living()?;
                held.thaw()
            })
        })
        .await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), ProviderError> {
        self.blocking("destroy a sandbox", move |shared| shared.destroy(id))
            .await
    }

    async fn hibernate(&self, id: SandboxId) -> Result<Kept, ProviderError> {
        let turn = self.turn(&self.keeping).await?;
        self.blocking("hibernate a sandbox", move |shared| {
            let _turn = turn;
            shared.hibernate(id)
        })
        .await
    }

    async fn wake(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        let spec = spec.clone();
        self.making("wake a sandbox", move |shared| shared.wake(&spec)).await
    }

    async fn forget(&self, session: SessionId) -> Result<(), ProviderError> {
        self.blocking("forget what is kept of processes", move |shared| {
            let _alone = shared.places.take([Place::Disk(session)]);
            shared.workshop.asleep.forget(session)
        })
        .await
    }

    async fn status(&self, id: SandboxId) -> Result<SandboxStatus, ProviderError> {
        self.blocking("look at a sandbox", move |shared| {
            shared.find(id)?.status().ok_or(ProviderError::NotFound(id))
        })
        .await
    }

    async fn usage(&self, id: SandboxId) -> Result<SandboxUsage, ProviderError> {
        self.blocking("measure a sandbox", move |shared| {
            let held = shared.find(id)?;
            held.living()?;
            Ok(SandboxUsage {
                disk_bytes: shared.workshop.pool.used(held.session()),
                ..held.usage()
            })
        })
        .await
    }

    async fn words(&self, id: SandboxId) -> Result<String, ProviderError> {
        self.blocking("read a sandbox's words", move |shared| Ok(shared.find(id)?.said()))
            .await
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError> {
        self.blocking("list the sandboxes", |shared| {
            let all: Vec<_> = shared.sandboxes().values().cloned().collect();
            Ok(all.iter().filter_map(|held| held.status()).collect())
        })
        .await
    }

    async fn disks(&self) -> Result<Vec<SessionId>, ProviderError> {
        self.blocking("list the disks", |shared| shared.workshop.pool.sessions())
            .await
    }

    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError> {
        self.blocking("remove a disk", move |shared| {
            let _alone = shared.places.take([Place::Disk(session)]);
            free_of(&shared.sandboxes(), session)?;
            shared.workshop.asleep.forget(session)?;
            shared.workshop.pool.remove(session)
        })
        .await
    }

    async fn snapshot(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        self.blocking("make a snapshot", move |shared| shared.snapshot(session, snapshot))
            .await
    }

    async fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        self.blocking("restore a snapshot", move |shared| shared.restore(snapshot, session))
            .await
    }

    async fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError> {
        self.blocking("remove a snapshot", move |shared| {
            let _alone = shared.places.take([Place::Snapshot(snapshot)]);
            shared.workshop.pool.remove_snapshot(snapshot)
        })
        .await
    }

    async fn snapshots(&self) -> Result<Snapshots, ProviderError> {
        self.blocking("list the snapshots", |shared| shared.workshop.pool.snapshots())
            .await
    }

    async fn commit(&self, id: SandboxId) -> Result<ImageDigest, ProviderError> {
        self.blocking("make an image", move |shared| shared.commit(id)).await
    }

    async fn images(&self) -> Result<Vec<ImageStatus>, ProviderError> {
        self.blocking("list the images", |shared| shared.workshop.library.list())
            .await
    }

    async fn remove_image(&self, image: &ImageDigest) -> Result<(), ProviderError> {
        let image = image.clone();
        self.blocking("remove an image", move |shared| shared.remove_image(&image))
            .await
    }
}

impl Shared {
    fn sandboxes(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<Held>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sandbox that was made, whole.
    fn find(&self, id: SandboxId) -> Result<Arc<Held>, ProviderError> {
        let found = self.sandboxes().get(&id).cloned();
        found.filter(|held| held.is_made()).ok_or(ProviderError::NotFound(id))
    }

    fn create(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        spec.limits.check()?;
        let words = Words::new().attempt(|| "make room for a runtime's words".into())?;
        let held = {
            // From here on disk and image are the sandbox's; nobody is half-way through with either.
            let _alone = self
                .places
                .take([Place::Disk(spec.session), Place::Image(spec.image.clone())]);
            let held = self.reserve(spec, None)?;
            // What was kept is not of this sandbox's time.
            if let Err(error) = self.workshop.asleep.forget(spec.session) {
                self.give_up(&held);
                return Err(error);
            }
            held
        };
        self.start(&held, words, None)
    }

    /// Makes a sandbox that has its name, its disk and its ids: a new one, or one whose processes go on that were kept here. What
    /// was begun of one that cannot be made is cleared away.
    fn start(&self, held: &Held, words: Words, kept: Option<&Path>) -> Result<SandboxStatus, ProviderError> {
        let spec = &held.record.spec;
        let made = held.in_turn(|held| {
            held.folder.make()?;
            held.folder.write(&held.record)?;
            held.listens(workshop::listen(&held.folder, held.record.root_uid)?);
            let (link, words) = (held.link()?, held.words.get_or_init(|| words));
            let process = self
                .workshop
                .make(spec, &held.folder, link.as_fd(), words, held.record.root_uid, kept)?;
            let attempt = || format!("limit the TCP buffers of sandbox {}", spec.id);
            held.group
                .limit_tcp_buffers(spec.limits.memory_bytes)
                .attempt(attempt)?;
            held.folder.write(&Record {
                process: Some(process.identity),
                ..held.record.clone()
            })?;
            held.folder.forget_crew()?;
            held.lives(Some(process));
            held.status().ok_or(ProviderError::NotFound(spec.id))
        });
        if made.is_err() {
            // What was tried first is what the caller learns.
            self.give_up(held);
        }
        made
    }

    /// Clears away what was begun of a sandbox that is not made.
    fn give_up(&self, held: &Held) {
        match held.destroy(&self.workshop) {
            Ok(()) => {
                self.sandboxes().remove(&held.record.spec.id);
            }
            Err(error) => held.is_in_the_way(&error),
        }
    }

    /// Gives a sandbox its name, its session's disk and its ids, all at once. `kept`: whose processes are kept has had its ids.
    fn reserve(&self, spec: &SandboxSpec, kept: Option<u32>) -> Result<Arc<Held>, ProviderError> {
        let mut sandboxes = self.sandboxes();
        if sandboxes.contains_key(&spec.id) {
            return Err(ProviderError::Exists(spec.id));
        }
        free_of(&sandboxes, spec.session)?;
        // Before anything is taken that somebody would have to give back.
        let new_disk = !self.workshop.pool.has(spec.session)?;
        let programs = self.workshop.programs()?;
        let root_uid = match kept.or_else(|| self.workshop.maker.root_uid()) {
            Some(root_uid) => root_uid,
            None => {
                let folder = folder(&self.workshop, &spec.id.to_string());
                self.workshop.ids.give(&folder)?
            }
        };
        let record = Record {
            version: Record::VERSION,
            spec: spec.clone(),
            assigned: None,
            created: Timestamp::now(),
            root_uid,
            new_disk,
            process: None,
            programs,
        };
        let held = Arc::new(Held::new(&self.workshop, record));
        sandboxes.insert(spec.id, Arc::clone(&held));
        Ok(held)
    }

    fn destroy(&self, id: SandboxId) -> Result<(), ProviderError> {
        let Some(held) = self.sandboxes().get(&id).cloned() else {
            return Ok(());
        };
        held.destroy(&self.workshop)?;
        self.sandboxes().remove(&id);
        Ok(())
    }
}

fn free_of(sandboxes: &BTreeMap<SandboxId, Arc<Held>>, session: SessionId) -> Result<(), ProviderError> {
    let holder = sandboxes.values().find(|held| held.occupies(session));
    match holder {
        Some(held) => Err(ProviderError::DiskInUse {
            session,
            sandbox: held.record.spec.id,
        }),
        None => Ok(()),
    }
}

impl Held {
    /// How it is; nothing while it is still being made.
    fn status(&self) -> Option<SandboxStatus> {
        let state = match self.process()? {
            None => SandboxState::Dead {
                reason: self.cause_of_death(),
            },
            Some(process) if !process.lives() => SandboxState::Dead {
                reason: self.cause_of_death(),
            },
            Some(_) if self.is_frozen() => SandboxState::Frozen,
            Some(_) => SandboxState::Running,
        };
        Some(SandboxStatus {
            id: self.record.spec.id,
            session: self.session(),
            image: self.record.spec.image.clone(),
            state,
            root_uid: self.record.root_uid,
            created: self.record.created,
            builder: self.record.spec.builder,
        })
    }

    fn cause_of_death(&self) -> String {
        if self.ran_out_of_memory() {
            return "it ran out of memory and the kernel ended its runtime".into();
        }
        let words = self.said();
        match words.lines().last() {
            Some(last) => format!(
                "its runtime has ended; its last words: {}",
                last.chars().take(200).collect::<String>()
            ),
            None => "its runtime has ended without a word".into(),
        }
    }

    fn living(&self) -> Result<(), ProviderError> {
        match self.status().map(|status| status.state) {
            None => Err(ProviderError::NotFound(self.record.spec.id)),
            Some(SandboxState::Dead { reason }) => Err(ProviderError::Dead {
                id: self.record.spec.id,
                reason,
            }),
            Some(_) => Ok(()),
        }
    }
}

/// Where the sandboxes of a workshop have their folders.
fn folder(workshop: &Workshop, name: &str) -> Folder {
    Folder::new(workshop.config.run.join("sandboxes").join(name))
}
