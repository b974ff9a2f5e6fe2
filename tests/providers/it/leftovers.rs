//! After a sandbox is gone nothing of it is left.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use containers::{Config, DiskChoice, DiskKind};
use domain::SandboxId;
use sandbox::{ProviderError, SandboxProvider, SandboxSpec, SandboxState};
use testkit::DockerEngine;

use crate::world::{By, Living, ROOT, USER, World, full};

/// How many sandboxes come and go; the full number in `make test-full`.
fn rounds() -> usize {
    if full() { 1_000 } else { 100 }
}

/// More namespaces than all tests that run beside one another hold.
const MANY: usize = 10;

/// How the names of namespaces begin, where somebody holds one open.
const NAMESPACES: [&str; 7] = ["cgroup:", "ipc:", "mnt:", "net:", "pid:", "user:", "uts:"];

/// All that the machine has of one sandbox.
struct Traces {
    id: String,
    uids: std::ops::Range<u32>,
}

impl Traces {
    fn of(living: &Living) -> Self {
        Self {
            id: living.spec.id.to_string(),
            uids: living.status.root_uid..living.status.root_uid + 65_536,
        }
    }

    /// Fails if anything is left; what has ended may wait a moment for the machine's first process to take notice.
    fn must_be_gone(&self) {
        let dead_and_noticed = || {
            self.left()
                .iter()
                .all(|trace| !trace.starts_with("process"))
                .then_some(())
        };
        testkit::eventually("the dead are buried", dead_and_noticed);
        assert_eq!(self.left(), [] as [String; 0]);
    }

    /// What is left of it.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for process in processes() {
            if self.is_its(&process) {
                left.push(format!("process {}", process.display()));
            }
        }
        for table in ["/proc/self/mountinfo", "/proc/1/mountinfo"] {
            let mounts = fs::read_to_string(table).unwrap();
            left.extend(mounts.lines().filter(|line| line.contains(&self.id)).map(str::to_owned));
        }
        if let Some(engine) = DockerEngine::that_runs() {
            let kept = engine.containers().into_iter().filter(|folder| {
                let about = fs::read_to_string(folder.join("config.v2.json")).unwrap_or_default();
                about.contains(&self.id)
            });
            left.extend(kept.map(|folder| format!("{folder:?}")));
        }
        left.extend(
            groups()
                .into_iter()
                .filter(|group| group.ends_with(&self.id))
                .map(|group| format!("{group:?}")),
        );
        left
    }

    fn is_its(&self, process: &Path) -> bool {
        if self.uids.contains(&0) {
            // Root of the machine: what is its is told by its groups.
            let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
            return groups.contains(&self.id);
        }
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let uid = status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:\t")?.split('\t').next()?.parse().ok());
        uid.is_some_and(|uid: u32| self.uids.contains(&uid))
    }
}

fn processes() -> Vec<PathBuf> {
    let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap());
    let numbered = all.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    numbered.map(|entry| entry.path()).collect()
}

fn links_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

fn groups() -> Vec<PathBuf> {
    let hierarchies = fs::read_dir("/sys/fs/cgroup")
        .unwrap()
        .map(|entry| entry.unwrap().path().join("belljar"));
    let groups = hierarchies
        .chain([PathBuf::from("/sys/fs/cgroup/belljar")])
        .filter_map(|path| fs::read_dir(path).ok());
    groups.flatten().flatten().map(|entry| entry.path()).collect()
}

async fn nothing_is_left(by: By, disk: DiskChoice, rounds: usize) {
    let world = World::by(by, disk);
    let mut uids = BTreeSet::new();
    for round in 0..rounds {
        let living = world.create().await;
        if round % 5 == 0 {
            living
                .run(
                    USER,
                    "sleep 600 > /dev/null 2>&1 & setsid sleep 600 > /dev/null 2>&1 & echo x > /workspace/x",
                )
                .await;
            living.run(ROOT, "echo x > /var/tmp/x").await;
        }
        if round % 3 == 0 {
            world.provider.freeze(living.spec.id).await.unwrap();
        }
        let traces = Traces::of(&living);
        assert!(!traces.left().is_empty(), "a living sandbox must show");
        uids.insert(living.status.root_uid);
        let session = living.spec.session;
        living.destroy().await;
        traces.must_be_gone();
        world.provider.remove_disk(session).await.unwrap();
    }
    assert_eq!(uids.len(), 1, "ids were not given back: {uids:?}");
    // A namespace lives while a process is in it, or while somebody holds it open. Each provider keeps one network ready,
    // and the tests beside this one hold theirs: what is counted says something only of many rounds.
    let held = links_in(Path::new("/proc/self/fd"));
    let namespaces = held.iter().filter(|link| {
        let name = link.to_string_lossy();
        NAMESPACES.iter().any(|kind| name.starts_with(kind))
    });
    let namespaces = namespaces.count();
    assert!(
        namespaces < (rounds / 2).max(MANY),
        "{namespaces} namespaces are held after {rounds} rounds"
    );
    let own: Vec<_> = held.iter().filter(|link| link.starts_with(world.folder())).collect();
    assert!(own.len() < 10, "files are held: {own:?}");
    assert!(world.files().is_empty(), "{:?}", world.files());
    let disks = ["pool", "disks"].map(|name| world.config.data.join(name));
    let left: Vec<_> = disks
        .iter()
        .filter_map(|path| fs::read_dir(path).ok())
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");
    if world.provider.disk_kind() != DiskKind::Ext4Files {
        let counts = quota_groups(&disks[0]);
        assert!(counts < 5, "{counts} quota groups are left after {rounds} rounds");
    }
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = table
        .lines()
        .filter(|line| line.contains(&*world.folder().to_string_lossy()))
        .count();
    assert!(mounts <= 2, "more than the pool and the records are mounted:\n{table}");
}

/// How many subvolumes are counted, when those that were removed are really gone.
fn quota_groups(pool: &Path) -> usize {
    testkit::run(Command::new("btrfs").args(["subvolume", "sync"]).arg(pool));
    let shown = testkit::run(Command::new("btrfs").args(["qgroup", "show", "--raw"]).arg(pool));
    shown.lines().filter(|line| line.trim_start().starts_with("0/")).count()
}

#[tokio::test]
async fn nothing_is_left_of_many_on_btrfs() {
    nothing_is_left(By::RUNC, DiskChoice::Btrfs, rounds()).await;
}

#[tokio::test]
async fn nothing_is_left_of_many_on_ext4() {
    nothing_is_left(By::RUNC, DiskChoice::Ext4, rounds() / 5).await;
}

#[tokio::test]
async fn nothing_is_left_of_many_by_runsc() {
    if By::RUNSC.is_here() {
        nothing_is_left(By::RUNSC, DiskChoice::Btrfs, rounds() / 20).await;
    }
}

#[tokio::test]
async fn nothing_is_left_of_many_by_docker() {
    if By::Docker.is_here() {
        nothing_is_left(By::Docker, DiskChoice::Btrfs, rounds() / 5).await;
    }
}

#[tokio::test]
async fn what_was_never_finished_is_cleared_at_the_next_start() {
    let world = World::new(DiskChoice::Btrfs);
    let living = world.create().await;
    let traces = Traces::of(&living);
    let folder = world.config.run.join("sandboxes").join(living.spec.id.to_string());
    let record = folder.join("record.json");
    // As if the provider had been killed before it could write down that the sandbox lives.
    let text = fs::read_to_string(&record).unwrap();
    let mut half: serde_json::Value = serde_json::from_str(&text).unwrap();
    half["process"] = serde_json::Value::Null;
    fs::write(&record, half.to_string()).unwrap();
    // And another, even earlier.
    fs::create_dir(world.config.run.join("sandboxes/01a1ffb9-0711-752f-bfb6-90d5bdacd6c1")).unwrap();
    drop(living);
    let config: Config = world.config.clone();
    let remains = world.give_up();

    let opened = tokio::task::spawn_blocking(|| By::RUNC.open(config))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(opened.list().await.unwrap(), []);
    traces.must_be_gone();
    assert!(!folder.exists());
    drop(opened);
    drop(remains);
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made_leaves_nothing() {
    let world = World::by(By::Oci("false"), DiskChoice::Btrfs);
    let spec = world.spec();
    let refused = world.provider.create(&spec).await.unwrap_err();
    assert!(refused.to_string().contains("run false for sandbox"), "{refused}");
    assert!(world.files().is_empty(), "{:?}", world.files());
    assert!(!groups().iter().any(|group| group.ends_with(spec.id.to_string())));
    assert_eq!(world.provider.disks().await.unwrap(), []);
    let missing = World::by(By::Oci("/nowhere/runc"), DiskChoice::Ext4);
    let refused = missing.provider.create(&missing.spec()).await.unwrap_err();
    assert!(matches!(refused, ProviderError::Machine { .. }), "{refused:?}");
    assert_eq!(missing.provider.disks().await.unwrap(), []);
}

/// Whoever made it was killed before the sandbox lived.
#[tokio::test]
async fn a_sandbox_that_was_never_finished_leaves_no_disk_that_was_made_for_it() {
    for had_one in [false, true] {
        let mut world = World::new(DiskChoice::Ext4);
        let living = world.create().await;
        let (session, folder) = (
            living.spec.session,
            world.config.run.join(format!("sandboxes/{}", living.spec.id)),
        );
        let record = folder.join("record.json");
        let text = fs::read_to_string(&record).unwrap();
        living.destroy().await;
        drop(world.provider);
        // As it stands there before a process does.
        let mut written: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(written["new_disk"], true);
        written["process"] = serde_json::Value::Null;
        written["new_disk"] = (!had_one).into();
        fs::create_dir(&folder).unwrap();
        fs::write(&record, written.to_string()).unwrap();
        world.provider = Arc::new(world.by.open(world.config.clone()).unwrap());
        let kept = if had_one { vec![session] } else { vec![] };
        assert_eq!(world.provider.disks().await.unwrap(), kept);
        assert!(!folder.exists());
    }
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made_costs_no_session_the_disk_that_it_had() {
    let mut world = World::new(DiskChoice::Ext4);
    let living = world.create().await;
    living.run(USER, "echo kept > /workspace/file && sync").await;
    let mut spec = world.spec();
    spec.session = living.spec.session;
    living.destroy().await;
    drop(world.provider);
    world.provider = Arc::new(By::Oci("false").open(world.config.clone()).unwrap());
    world.provider.create(&spec).await.unwrap_err();
    assert_eq!(world.provider.disks().await.unwrap(), [spec.session]);
    drop(world.provider);
    world.provider = Arc::new(world.by.open(world.config.clone()).unwrap());
    let living = world.create_as(&spec).await;
    assert_eq!(living.run(USER, "cat /workspace/file").await, "kept");
    living.destroy().await;
}

#[tokio::test]
async fn a_sandbox_that_can_neither_be_made_nor_cleared_keeps_its_disk_until_it_is_destroyed() {
    let world = World::new(DiskChoice::Ext4);
    let spec = world.spec();
    let folder = world.config.run.join(format!("sandboxes/{}", spec.id));
    let link = folder.join("link");
    fs::create_dir_all(&link).unwrap();
    let change = |how: &str| Command::new("chattr").arg(how).arg(&link).status().unwrap();
    if !change("+i").success() {
        println!("a tmpfs of this kernel knows no files that cannot be changed, so it is not tried");
        return;
    }
    world.provider.create(&spec).await.unwrap_err();
    assert!(folder.exists());
    let next = SandboxSpec {
        id: SandboxId::new(),
        ..spec.clone()
    };
    let refused = world.provider.create(&next).await.unwrap_err();
    assert!(
        matches!(refused, ProviderError::DiskInUse { sandbox, .. } if sandbox == spec.id),
        "{refused:?}"
    );
    let all = world.provider.list().await.unwrap();
    assert!(
        matches!(&all[..], [only] if only.id == spec.id && matches!(only.state, SandboxState::Dead { .. })),
        "{all:?}"
    );
    world.provider.destroy(spec.id).await.unwrap_err();
    assert!(change("-i").success());
    world.provider.destroy(spec.id).await.unwrap();
    assert!(!folder.exists());
    assert_eq!(world.provider.disks().await.unwrap(), []);
    world.create_as(&next).await.destroy().await;
}

#[tokio::test]
async fn what_is_still_mounted_in_a_sandboxs_folder_is_not_emptied_with_it() {
    let world = World::new(DiskChoice::Ext4);
    let living = world.create().await;
    let place = world.config.run.join(format!("sandboxes/{}/left", living.spec.id));
    let disk = world.folder().join("a disk");
    for folder in [&place, &disk] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(disk.join("kept"), "").unwrap();
    let mounted = Command::new("mount").arg("--bind").args([&disk, &place]).status();
    assert!(mounted.unwrap().success());
    living.destroy().await;
    assert!(!place.exists());
    assert!(disk.join("kept").exists());
}
