//! After a sandbox is gone nothing of it is left.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use containers::{Config, DiskChoice, DiskKind};
use domain::{SandboxId, SessionId};
use sandbox::{ImageDigest, ProviderError, SandboxProvider, SandboxSpec, SandboxState};
use testkit::DockerEngine;

use crate::world::{By, LIMITS, Living, ROOT, UIDS, USER, World, free_uids, full};

/// How many sandboxes come and go; the full number in `make test-full`.
fn rounds() -> usize {
    if full() { 1_000 } else { 100 }
}

/// How often a process is killed while it makes a sandbox, each time a bit later than the time before.
fn kills() -> u32 {
    if full() { 60 } else { 12 }
}

/// How the names of namespaces begin, where somebody holds one open.
const NAMESPACES: [&str; 7] = ["cgroup:", "ipc:", "mnt:", "net:", "pid:", "user:", "uts:"];

/// All that the machine has of one sandbox.
pub(crate) struct Traces {
    id: String,
    uids: std::ops::Range<u32>,
}

impl Traces {
    pub(crate) fn of(living: &Living) -> Self {
        Self {
            id: living.spec.id.to_string(),
            uids: living.status.root_uid..living.status.root_uid + 65_536,
        }
    }

    /// Fails if anything is left; what has ended may wait a moment for the machine's first process to take notice.
    pub(crate) fn must_be_gone(&self) {
        let mut told = Vec::new();
        let dead_and_noticed = || {
            let mut left = self.left();
            left.retain(|trace| trace.starts_with("process"));
            if told != left {
                println!("left: {left:?}");
            }
            told = left;
            told.is_empty().then_some(())
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
            // Root of the machine, or nobody knows who: what is its is told by its groups, and by what it was told to work on.
            let says_so = |file| {
                let told = fs::read(process.join(file)).unwrap_or_default();
                String::from_utf8_lossy(&told).contains(&self.id)
            };
            return says_so("cgroup") || says_so("cmdline");
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

/// Runs a test of this file in a process of its own, and says so: what that process holds, no other test holds.
async fn is_run_alone(test: &str) -> bool {
    if std::env::var_os(UIDS).is_some() {
        return false;
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", "--nocapture", &format!("leftovers::{test}")]);
    alone.env(UIDS, free_uids().to_string());
    let ended = tokio::task::spawn_blocking(move || alone.output()).await.unwrap();
    let ended = ended.unwrap();
    let said = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    true
}

/// The namespaces that this process holds open. One lives while a process is in it, or while somebody holds it.
fn held() -> Vec<PathBuf> {
    let mut held = links_in(Path::new("/proc/self/fd"));
    held.retain(|link| {
        let name = link.to_string_lossy();
        NAMESPACES.iter().any(|kind| name.starts_with(kind))
    });
    held
}

/// Waits until this process holds so many namespaces. Each provider keeps one network ready, and makes it when there is time.
fn must_be_held(count: usize) {
    testkit::eventually("no more namespaces to be held than are kept ready", || {
        (held().len() == count).then_some(())
    });
}

async fn nothing_is_left(test: &str, by: By, disk: DiskChoice, rounds: usize) {
    if is_run_alone(test).await {
        return;
    }
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
    must_be_held(usize::from(matches!(by, By::Oci(_))));
    let held = links_in(Path::new("/proc/self/fd"));
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
    nothing_is_left(
        "nothing_is_left_of_many_on_btrfs",
        By::RUNC,
        DiskChoice::Btrfs,
        rounds(),
    )
    .await;
}

#[tokio::test]
async fn nothing_is_left_of_many_on_ext4() {
    nothing_is_left(
        "nothing_is_left_of_many_on_ext4",
        By::RUNC,
        DiskChoice::Ext4,
        rounds() / 5,
    )
    .await;
}

#[tokio::test]
async fn nothing_is_left_of_many_by_runsc() {
    if By::RUNSC.is_here() {
        nothing_is_left(
            "nothing_is_left_of_many_by_runsc",
            By::RUNSC,
            DiskChoice::Btrfs,
            rounds() / 20,
        )
        .await;
    }
}

#[tokio::test]
async fn nothing_is_left_of_many_by_docker() {
    nothing_is_left(
        "nothing_is_left_of_many_by_docker",
        By::Docker,
        DiskChoice::Btrfs,
        rounds() / 5,
    )
    .await;
}

/// Where the process is told which provider it has.
const TOLD: &str = "BELLJAR_TEST_MAKES";

/// At which sandbox that process is.
const MARK: &str = "mark";

#[tokio::test]
async fn nothing_is_left_of_those_whose_maker_was_killed_half_way() {
    if is_run_alone("nothing_is_left_of_those_whose_maker_was_killed_half_way").await {
        return;
    }
    let world = World::new(DiskChoice::Btrfs);
    let began = Instant::now();
    let living = world.create().await;
    let took = began.elapsed();
    let session = living.spec.session;
    living.destroy().await;
    world.provider.remove_disk(session).await.unwrap();
    let (config, image) = (world.config.clone(), world.image.clone());
    let remains = world.give_up();
    let mark = config.run.join(MARK);
    for kill in 0..kills() {
        let told = (&config.data, &config.run, config.first_uid, &image);
        let mut maker = Command::new(std::env::current_exe().unwrap());
        maker.args(["--exact", "--ignored", "leftovers::make_sandboxes_until_killed"]);
        maker.env(TOLD, serde_json::to_string(&told).unwrap());
        let mut maker = maker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let id: SandboxId = testkit::eventually("the second sandbox to be begun", || {
            fs::read_to_string(&mark).ok()?.parse().ok()
        });
        // What goes on within a create has no name here: the kills are spread over the time that one takes.
        thread::sleep(took * kill / kills());
        maker.kill().unwrap();
        maker.wait().unwrap();
        fs::remove_file(&mark).unwrap();

        let own = config.clone();
        let opened = tokio::task::spawn_blocking(move || By::RUNC.open(own)).await.unwrap();
        let opened = opened.unwrap();
        // It may have been finished all the same.
        let listed = opened.list().await.unwrap();
        assert!(listed.iter().all(|status| status.id == id), "{listed:?}");
        opened.destroy(id).await.unwrap();
        for session in opened.disks().await.unwrap() {
            assert!(
                listed.iter().any(|status| status.session == session),
                "the disk of one that was never finished"
            );
            opened.remove_disk(session).await.unwrap();
        }
        let id = id.to_string();
        Traces { id, uids: 0..1 }.must_be_gone();
        for folder in ["sandboxes", "oci"] {
            let left: Vec<_> = fs::read_dir(config.run.join(folder)).into_iter().flatten().collect();
            assert!(left.is_empty(), "{folder}: {left:?}");
        }
        drop(opened);
        must_be_held(0);
    }
    drop(remains);
}

/// Not a test: the process that is killed. It makes one whole, so that all is warm, and marks each that it begins then.
#[tokio::test]
#[ignore = "is run by a test, in a process of its own"]
async fn make_sandboxes_until_killed() {
    let Ok(told) = std::env::var(TOLD) else {
        return;
    };
    let (data, run, first_uid, image): (PathBuf, PathBuf, u32, ImageDigest) = serde_json::from_str(&told).unwrap();
    let mut config = Config::new(data, env!("CARGO_BIN_EXE_sandbox-standin"));
    (config.run, config.first_uid, config.disk) = (run, first_uid, DiskChoice::Btrfs);
    config.pool_bytes = 2 << 30;
    let (mark, beside) = (config.run.join(MARK), config.run.join("mark.new"));
    let provider = By::RUNC.open(config).unwrap();
    for number in 0.. {
        let spec = SandboxSpec {
            id: SandboxId::new(),
            session: SessionId::new(),
            image: image.clone(),
            limits: LIMITS,
            builder: false,
        };
        if number > 0 {
            fs::write(&beside, spec.id.to_string()).unwrap();
            fs::rename(&beside, &mark).unwrap();
        }
        provider.create(&spec).await.unwrap();
        if number > 0 {
            // Until it is killed.
            thread::park();
        }
        provider.destroy(spec.id).await.unwrap();
        provider.remove_disk(spec.session).await.unwrap();
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
