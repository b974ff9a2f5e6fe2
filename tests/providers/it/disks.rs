//! Disks have limits, outlive sandboxes, and cost no neighbour anything.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use containers::{DiskChoice, DiskKind};
use domain::{SandboxId, SessionId, SnapshotId};
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, XattrFlags, fallocate, makedev, mknodat, setxattr};
use sandbox::{ProviderError, SandboxProvider};

use crate::world::{By, ROOT, USER, World, words};

on_each!(
    nobody_inside_makes_a_disk_without_a_limit,
    what_is_planted_on_a_disk_gives_nobody_anything_where_it_is_restored,
);
on_each!(by_docker_in_volume, DockerInVolume: what_is_planted_on_a_disk_gives_nobody_anything_where_it_is_restored);

/// More than the limit of a test's disk.
const TOO_MUCH: &str = "dd if=/dev/zero bs=1M count=100";

async fn a_full_disk_fails_in_words_and_alone(disk: DiskChoice) {
    let world = World::new(disk);
    let (full, neighbour) = (world.create().await, world.create().await);
    // Through the overlay as through the workspace: it is one limit.
    for (uid, path) in [(USER, "/workspace/big"), (ROOT, "/var/big")] {
        let (said, code) = full
            .attempt(uid, &format!("{TOO_MUCH} of={path} conv=fsync 2>&1"))
            .await;
        assert_ne!(code, 0, "{said}");
        assert!(
            said.contains("No space left on device") || said.contains("Disk quota exceeded"),
            "{said}"
        );
        neighbour
            .run(
                uid,
                &format!("dd if=/dev/zero bs=1M count=20 of={path} conv=fsync 2>&1"),
            )
            .await;
        full.run(uid, &format!("rm -f {path}; sync")).await;
        neighbour.run(uid, &format!("rm -f {path}; sync")).await;
    }
    full.run(USER, "echo there is room again > /workspace/small && sync")
        .await;
    full.destroy().await;
    neighbour.destroy().await;
}

#[tokio::test]
async fn a_full_disk_on_btrfs_fails_in_words_and_alone() {
    a_full_disk_fails_in_words_and_alone(DiskChoice::Btrfs).await;
}

#[tokio::test]
async fn a_full_disk_on_ext4_fails_in_words_and_alone() {
    a_full_disk_fails_in_words_and_alone(DiskChoice::Ext4).await;
}

/// What an engine's container can write at all is on the session's disk, in its limit, and stays.
#[tokio::test]
async fn all_that_can_be_written_by_docker_is_the_session_s_disk() {
    let world = World::by(By::Docker, DiskChoice::Btrfs);
    let (full, neighbour) = (world.create().await, world.create().await);
    for place in ["/workspace", "/tmp", "/var/tmp", "/home/agent"] {
        full.run(USER, &format!("echo kept > {place}/small && sync")).await;
        let (said, code) = full
            .attempt(USER, &format!("{TOO_MUCH} of={place}/big conv=fsync 2>&1"))
            .await;
        assert_ne!(code, 0, "{place}: {said}");
        assert!(
            said.contains("No space left on device") || said.contains("Disk quota exceeded"),
            "{place}: {said}"
        );
        neighbour.run(USER, &format!("echo x > {place}/y")).await;
        full.run(USER, &format!("rm -f {place}/big; sync")).await;
    }
    for place in ["/etc", "/usr/bin", "/var/lib", "/", "/root", "/sys", "/dev/pts"] {
        let (said, code) = full.attempt(ROOT, &format!("(echo x > {place}/x) 2>&1")).await;
        assert_ne!(code, 0, "{place}: {said}");
    }
    let mut spec = world.spec();
    spec.session = full.spec.session;
    full.destroy().await;
    let again = world.create_as(&spec).await;
    let kept = again
        .run(USER, "cat /workspace/small /tmp/small /var/tmp/small /home/agent/small")
        .await;
    assert_eq!(kept, "kept\nkept\nkept\nkept");
    again.destroy().await;
    neighbour.destroy().await;
}

/// The pool of a test has 2 GiB.
#[tokio::test]
async fn no_disk_on_btrfs_fills_the_pool_alone_whatever_its_limit() {
    let world = World::new(DiskChoice::Btrfs);
    let mut spec = world.spec();
    spec.limits.disk_bytes = 10 << 30;
    let (greedy, neighbour) = (world.create_as(&spec).await, world.create().await);
    let write = |megabytes: u32, name: &str| {
        format!("dd if=/dev/zero bs=1M count={megabytes} of=/workspace/{name} conv=fsync 2>&1")
    };
    greedy.run(USER, &write(900, "much")).await;
    let (said, code) = greedy.attempt(USER, &write(200, "too-much")).await;
    assert!(code != 0 && said.contains("Disk quota exceeded"), "{said}");
    neighbour.run(USER, &write(50, "big")).await;
    greedy.destroy().await;
    neighbour.destroy().await;
}

/// A limit that was changed is the session's at its sandbox's next start, and costs it no file.
async fn a_changed_limit_counts_at_the_next_start(disk: DiskChoice) {
    let world = World::new(disk);
    let first = world.create().await;
    let mut spec = world.spec();
    spec.session = first.spec.session;
    first
        .run(USER, "head -c 40000000 /dev/urandom > /workspace/notes && sync")
        .await;
    let sum = first.run(USER, "sha256sum /workspace/notes").await;
    first.destroy().await;

    spec.limits.disk_bytes = 300 << 20;
    let larger = world.create_as(&spec).await;
    let command = format!("{TOO_MUCH} of=/workspace/big conv=fsync 2>&1 && rm /workspace/big && sync");
    larger.run(USER, &command).await;
    let (said, code) = larger
        .attempt(
            USER,
            "dd if=/dev/zero bs=1M count=400 of=/workspace/big conv=fsync 2>&1",
        )
        .await;
    assert_ne!(code, 0, "{said}");
    larger.run(USER, "rm /workspace/big && sync").await;
    assert_eq!(larger.run(USER, "sha256sum /workspace/notes").await, sum);
    larger.destroy().await;

    // Less than is on it: nothing is lost, and room can be made.
    spec.limits.disk_bytes = 32 << 20;
    spec.id = SandboxId::new();
    let smaller = world.create_as(&spec).await;
    assert_eq!(smaller.run(USER, "sha256sum /workspace/notes").await, sum);
    if disk == DiskChoice::Btrfs {
        let (said, code) = smaller
            .attempt(USER, &format!("{TOO_MUCH} of=/workspace/big conv=fsync 2>&1"))
            .await;
        assert_ne!(code, 0, "{said}");
    }
    smaller
        .run(
            USER,
            "rm -f /workspace/big /workspace/notes && sync && echo > /workspace/new",
        )
        .await;
    smaller.destroy().await;
}

#[tokio::test]
async fn a_changed_limit_on_btrfs_counts_at_the_next_start() {
    a_changed_limit_counts_at_the_next_start(DiskChoice::Btrfs).await;
}

#[tokio::test]
async fn a_changed_limit_on_ext4_counts_at_the_next_start() {
    a_changed_limit_counts_at_the_next_start(DiskChoice::Ext4).await;
}

async fn files_outlive_their_sandbox(disk: DiskChoice) {
    let world = World::new(disk);
    let first = world.create().await;
    first
        .run(USER, "head -c 5000000 /dev/urandom > /workspace/notes && sync")
        .await;
    first.run(ROOT, "echo changed > /etc/issue").await;
    let used = world.provider.usage(first.spec.id).await.unwrap().disk_bytes;
    assert!(used >= 5_000_000, "{used}");
    let mut spec = world.spec();
    spec.session = first.spec.session;
    let sum = first.run(USER, "sha256sum /workspace/notes").await;
    first.destroy().await;

    let second = world.create_as(&spec).await;
    assert_eq!(second.run(USER, "sha256sum /workspace/notes").await, sum);
    assert_eq!(
        second.run(USER, "stat -c '%u %g' /workspace/notes /etc/issue").await,
        "1000 1000\n0 0"
    );
    assert_eq!(second.run(USER, "cat /etc/issue").await, "changed");
    second.destroy().await;

    world.provider.remove_disk(spec.session).await.unwrap();
    let third = world.create_as(&spec).await;
    assert_eq!(third.run(USER, "ls /workspace").await, "");
    third.destroy().await;
}

#[tokio::test]
async fn files_on_btrfs_outlive_their_sandbox() {
    files_outlive_their_sandbox(DiskChoice::Btrfs).await;
}

#[tokio::test]
async fn files_on_ext4_outlive_their_sandbox() {
    files_outlive_their_sandbox(DiskChoice::Ext4).await;
}

#[tokio::test]
async fn files_carry_the_ids_of_inside_and_the_image_stays_as_it_is() {
    let world = World::new(DiskChoice::Btrfs);
    let living = world.create().await;
    living.run(USER, "echo mine > /workspace/file && sync").await;
    living
        .run(ROOT, "echo root > /usr/bin/new && rm /usr/bin/seq && sync")
        .await;
    let disk = world.config.data.join("pool").join(living.spec.session.to_string());
    let owner = |path: &str| fs::symlink_metadata(disk.join(path)).unwrap().uid();
    assert_eq!(owner("workspace/file"), 1000);
    assert_eq!(owner("upper/usr/bin/new"), 0);
    let image = testkit::miniature().rootfs();
    assert!(image.join("usr/bin/seq").exists() && !image.join("usr/bin/new").exists());
    living.destroy().await;
}

/// Tries to make a subvolume of its own, to fill it beyond the limit, and to use every other order of btrfs.
const SUBVOLUME: &str = r#"
import ctypes, errno, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
folder = os.open("/workspace", os.O_RDONLY)
name = ctypes.create_string_buffer(struct.pack("q4088s", 0, b"mine"), 4096)
for order in (0x5000940e, 0x50009418, 0x50009401, 0x50009417, 0x1_5000940e):
    ctypes.set_errno(0)
    made = libc.ioctl(ctypes.c_int(folder), ctypes.c_ulong(order), name)
    print(hex(order), "made" if made >= 0 else errno.errorcode[ctypes.get_errno()])
for number in range(256):
    ctypes.set_errno(0)
    if libc.ioctl(ctypes.c_int(folder), ctypes.c_ulong(0x9400 | number), None) >= 0 or ctypes.get_errno() != errno.EPERM:
        print("order", number, "is let through")
with open("/workspace/one", "w+") as one, open("/workspace/two", "w") as two:
    one.write("words" * 4000); one.flush()
    try:
        fcntl.ioctl(two.fileno(), 0x40049409, one.fileno())
        print("cloned", os.path.getsize("/workspace/two"))
    except OSError as error:
        print("cloned", errno.errorcode[error.errno])
try:
    print("asked", len(fcntl.ioctl(folder, 0x80086601, b"\0" * 8)))
except OSError as error:
    print("asked", errno.errorcode[error.errno])
"#;

async fn nobody_inside_makes_a_disk_without_a_limit(by: By) {
    let world = World::by(by, DiskChoice::Btrfs);
    let living = world.create().await;
    let said = living.python(USER, SUBVOLUME).await;
    let refused = ["0x5000940e", "0x50009418", "0x50009401", "0x50009417", "0x15000940e"];
    let refused = refused.map(|order| format!("{order} EPERM")).join("\n");
    // A kernel of its own copies no file without its bytes, and knows no flags of files.
    let others = if by == By::RUNSC {
        "cloned ENOTSUP\nasked ENOTTY"
    } else {
        "cloned 20000\nasked 8"
    };
    assert_eq!(said, format!("{refused}\n{others}"));
    let session = living.spec.session;
    living.destroy().await;
    world.provider.remove_disk(session).await.unwrap();
}

/// Makes folders in each other, as deep as nobody who goes down into them comes.
const DEEP: &str = r#"
import os
os.chdir("/workspace")
for _ in range(20000):
    os.mkdir("deeper")
    os.chdir("deeper")
"#;

#[tokio::test]
async fn a_folder_of_any_depth_is_counted_and_removed_and_never_half_kept() {
    let world = World::new(DiskChoice::Folders);
    assert_eq!(world.provider.disk_kind(), DiskKind::Folders);
    let living = world.create().await;
    let session = living.spec.session;
    living.python(USER, DEEP).await;
    world.provider.usage(living.spec.id).await.unwrap();
    // The program that copies does not come to its end.
    let refused = world.provider.snapshot(session, SnapshotId::new()).await.unwrap_err();
    assert!(words(&refused).contains("File name too long"), "{}", words(&refused));
    let names = || {
        let entries = fs::read_dir(world.config.data.join("disks")).unwrap();
        Vec::from_iter(entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()))
    };
    assert_eq!(names(), [format!("{session}.folder")]);
    living.destroy().await;
    world.provider.remove_disk(session).await.unwrap();
    assert!(names().is_empty(), "{:?}", names());
}

/// Unmounts a pool; a provider that is given up may have something open for a moment still.
fn is_unmounted(pool: &Path) {
    testkit::eventually_asked("the pool is unmounted", || {
        let unmounted = Command::new("umount").arg(pool).output().unwrap();
        unmounted.status.success().then_some(())
    });
}

/// Does something to the files of a disk that no sandbox has, from outside.
fn with_disk(world: &World, session: SessionId, work: impl FnOnce(&Path)) {
    let data = &world.config.data;
    match world.provider.disk_kind() {
        DiskKind::Btrfs | DiskKind::BtrfsFile => work(&data.join("pool").join(session.to_string())),
        DiskKind::Folders => work(&data.join(format!("disks/{session}.folder"))),
        DiskKind::Ext4Files => {
            let place = tempfile::tempdir().unwrap();
            let disk = data.join(format!("disks/{session}.ext4"));
            testkit::run(Command::new("mount").args(["-o", "loop"]).arg(disk).arg(place.path()));
            work(place.path());
            // Whatever has been given a copy of this mount meanwhile holds back what was not written.
            testkit::run(Command::new("sync").arg("--file-system").arg(place.path()));
            testkit::run(Command::new("umount").arg(place.path()));
        }
    }
}

/// Every right there is, for whoever runs the file that has this as its `security.capability`.
const EVERY_RIGHT: [u8; 20] = [
    1, 0, 0, 2, // version 2, which counts at once
    0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, // permitted, and inherited: the first 32
    0xff, 1, 0, 0, 0, 0, 0, 0, // the same: the other 9
];

/// Root's programs, and a device that every sandbox may open where it is its own: whoever could make a file of a disk, or alter
/// a snapshot, could put them there.
async fn what_is_planted_on_a_disk_gives_nobody_anything_where_it_is_restored(by: By) {
    nobody_gets_anything(World::by(by, DiskChoice::Auto)).await;
}

#[tokio::test]
async fn what_is_planted_on_a_disk_of_ext4_gives_nobody_anything_where_it_is_restored() {
    nobody_gets_anything(World::new(DiskChoice::Ext4)).await;
}

#[tokio::test]
async fn what_is_planted_in_a_folder_gives_nobody_anything_where_it_is_restored() {
    nobody_gets_anything(World::new(DiskChoice::Folders)).await;
}

async fn nobody_gets_anything(world: World) {
    let first = world.create().await;
    let session = first.spec.session;
    let make = "cp \"$(command -v id)\" \"$(command -v cat)\" /workspace && sync";
    first.run(USER, make).await;
    first.destroy().await;
    with_disk(&world, session, |disk| {
        let workspace = disk.join("workspace");
        let [id, cat] = ["id", "cat"].map(|name| workspace.join(name));
        for program in [&id, &cat] {
            chown(program, Some(0), Some(0)).unwrap();
            fs::set_permissions(program, fs::Permissions::from_mode(0o6755)).unwrap();
        }
        setxattr(&cat, "security.capability", &EVERY_RIGHT, XattrFlags::empty()).unwrap();
        for (name, kind, device) in [
            ("null", FileType::CharacterDevice, makedev(1, 3)),
            ("loop", FileType::BlockDevice, makedev(7, 0)),
        ] {
            let place = workspace.join(name);
            mknodat(CWD, &place, kind, Mode::from_raw_mode(0o666), device).unwrap();
            fs::set_permissions(&place, fs::Permissions::from_mode(0o666)).unwrap();
        }
    });
    let (snapshot, fork) = (SnapshotId::new(), SessionId::new());
    world.provider.snapshot(session, snapshot).await.unwrap();
    for session in [session, fork] {
        world.provider.restore(snapshot, session).await.unwrap();
        let mut spec = world.spec();
        spec.session = session;
        let living = world.create_as(&spec).await;
        let seen = living
            .run(USER, "stat -c '%a %u %F' /workspace/id /workspace/null")
            .await;
        assert_eq!(seen, "6755 0 regular file\n666 0 character special file");
        assert_eq!(
            living.run(USER, "/workspace/id -u; /workspace/id -g").await,
            "1000\n1000"
        );
        let (rights, code) = living.attempt(USER, "/workspace/cat /proc/self/status").await;
        let is_refused = code == 126 && rights.contains("Operation not permitted");
        assert!(
            is_refused || rights.contains("CapEff:\t0000000000000000"),
            "{code} {rights}"
        );
        let devices: &[&str] = match world.by {
            // A kernel of its own has none of the machine's devices.
            By::RUNSC => &[],
            // A part of a volume is mounted with devices, of which the engine lets those be opened that are in every sandbox.
            By::DockerInVolume => &["loop"],
            _ => &["loop", "null"],
        };
        for (device, uid) in devices.iter().flat_map(|device| [(device, USER), (device, ROOT)]) {
            let (said, code) = living.attempt(uid, &format!("cat /workspace/{device} 2>&1")).await;
            let refused = said.contains("denied") || said.contains("not permitted");
            assert!(code != 0 && refused, "{device} by {uid}: {said}");
        }
        living.destroy().await;
    }
}

async fn files_go_with_a_sandbox_that_was_made_ahead(disk: DiskChoice) {
    let mut world = World::new(disk);
    let ahead = world.create().await;
    ahead
        .run(USER, "head -c 3000000 /dev/urandom > /workspace/notes && sync")
        .await;
    let sum = ahead.run(USER, "sha256sum /workspace/notes").await;
    let mut spec = world.spec();
    world.provider.assign(ahead.spec.id, spec.session).await.unwrap();
    // What runs inside does not notice, and is counted under the new name.
    ahead.run(USER, "echo more > /workspace/more && sync").await;
    let used = world.provider.usage(ahead.spec.id).await.unwrap().disk_bytes;
    assert!(used >= 3_000_000, "{used}");

    // A provider that was killed after it wrote down whose it is and before it gave the disk away.
    let (folder, ending) = match disk {
        DiskChoice::Ext4 => ("disks", ".ext4"),
        _ => ("pool", ""),
    };
    let disk_of = |session: SessionId| world.config.data.join(folder).join(format!("{session}{ending}"));
    fs::rename(disk_of(spec.session), disk_of(ahead.spec.session)).unwrap();
    let config = world.config.clone();
    let id = ahead.spec.id;
    drop(ahead);
    drop(world.provider);
    world.provider = Arc::new(world.by.open(config).unwrap());
    assert_eq!(world.provider.disks().await.unwrap(), [spec.session]);
    assert_eq!(world.provider.status(id).await.unwrap().session, spec.session);
    world.provider.destroy(id).await.unwrap();

    spec.id = SandboxId::new();
    let next = world.create_as(&spec).await;
    assert_eq!(next.run(USER, "sha256sum /workspace/notes").await, sum);
    assert_eq!(next.run(USER, "cat /workspace/more").await, "more");
    next.destroy().await;
}

#[tokio::test]
async fn giving_a_sandbox_away_that_failed_half_way_is_finished_by_the_next_try() {
    let world = World::new(DiskChoice::Btrfs);
    let ahead = world.create().await;
    let (id, session) = (ahead.spec.id, SessionId::new());
    let obstacle = world.config.run.join(format!("sandboxes/{id}/record.json.new"));
    fs::create_dir(&obstacle).unwrap();
    world.provider.assign(id, session).await.unwrap_err();
    fs::remove_dir(&obstacle).unwrap();
    let other = world.provider.assign(id, SessionId::new()).await;
    assert!(matches!(other, Err(ProviderError::Assigned(_))), "{other:?}");
    world.provider.assign(id, session).await.unwrap();
    assert_eq!(world.provider.disks().await.unwrap(), [session]);
    ahead.destroy().await;
}

#[tokio::test]
async fn files_on_btrfs_go_with_a_sandbox_that_was_made_ahead() {
    files_go_with_a_sandbox_that_was_made_ahead(DiskChoice::Btrfs).await;
}

#[tokio::test]
async fn files_on_ext4_go_with_a_sandbox_that_was_made_ahead() {
    files_go_with_a_sandbox_that_was_made_ahead(DiskChoice::Ext4).await;
}

/// A small file system, as long as it is held.
struct Small(PathBuf);

impl Small {
    fn mount(place: &Path, mebibytes: u32) -> Self {
        fs::create_dir_all(place).unwrap();
        let size = format!("size={mebibytes}m");
        testkit::run(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
                .arg(place),
        );
        Self(place.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_snapshot_that_finds_no_room_leaves_nothing_and_harms_nothing() {
    let mut small = None;
    // For a disk and one copy of it.
    let world = World::prepared(By::RUNC, DiskChoice::Ext4, |config| {
        small = Some(Small::mount(&config.data, 110));
    });
    let living = world.create().await;
    let session = living.spec.session;
    living
        .run(USER, "head -c 40000000 /dev/urandom > /workspace/kept && sync")
        .await;
    let sum = living.run(USER, "sha256sum /workspace/kept").await;
    let (first, second) = (SnapshotId::new(), SnapshotId::new());
    let provider = &world.provider;
    provider.snapshot(session, first).await.unwrap();
    let full = |answer: Result<(), ProviderError>| {
        let words = answer.as_ref().map_err(|error| words(error));
        assert!(matches!(answer, Err(ProviderError::Full(_))), "{words:?}");
    };
    let kept = async || -> Vec<_> {
        let kept = world.provider.snapshots().await.unwrap().kept;
        kept.into_iter().map(|status| status.id).collect()
    };
    full(provider.snapshot(session, second).await.map(drop));
    assert_eq!(kept().await, [first]);
    // What runs goes on as if nothing had been asked.
    let again = living.run(USER, "echo more > /workspace/more && sync && sha256sum /workspace/kept");
    assert_eq!(again.await, sum);
    let mut spec = world.spec();
    spec.session = session;
    living.destroy().await;
    full(provider.restore(first, session).await);
    assert_eq!(provider.disks().await.unwrap(), [session]);
    let living = world.create_as(&spec).await;
    let both = living.run(USER, "cat /workspace/more; sha256sum /workspace/kept").await;
    assert_eq!(both, format!("more\n{sum}"));
    // As soon as there is room it is done.
    provider.remove_snapshot(first).await.unwrap();
    provider.snapshot(session, second).await.unwrap();
    assert_eq!(kept().await, [second]);
    living.destroy().await;
    drop(world);
    drop(small);
}

#[tokio::test]
async fn a_provider_begins_where_there_is_no_room_at_all_and_makes_some() {
    let mut small = None;
    let world = World::prepared(By::RUNC, DiskChoice::Ext4, |config| {
        small = Some(Small::mount(&config.data, 110));
    });
    let living = world.create().await;
    let session = living.spec.session;
    living.destroy().await;
    let config = world.config.clone();
    let mut ballast = fs::File::create(config.data.join("ballast")).unwrap();
    let full = std::io::copy(&mut std::io::repeat(1), &mut ballast).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let remains = world.give_up();
    let provider = By::RUNC
        .open(config)
        .unwrap_or_else(|error| panic!("{}", words(&error)));
    assert_eq!(provider.disks().await.unwrap(), [session]);
    let kept = provider.snapshots().await.unwrap();
    assert!(kept.kept.is_empty() && !kept.shared);
    provider.remove_disk(session).await.unwrap();
    drop(provider);
    drop(remains);
    drop(small);
}

/// What a sandbox writes to a disk finds its room only then. Where a copy took the last of it, the session's file would be
/// zeros, and nobody would have been told.
#[tokio::test]
async fn a_snapshot_leaves_the_room_that_running_disks_need() {
    let mut small = None;
    let world = World::prepared(By::RUNC, DiskChoice::Ext4, |config| {
        small = Some(Small::mount(&config.data, 110));
    });
    let living = world.create().await;
    let session = living.spec.session;
    living
        .run(USER, "head -c 30000000 /dev/urandom > /workspace/kept && sync")
        .await;
    let free = || {
        let about = rustix::fs::statvfs(&world.config.data).unwrap();
        about.f_bavail * about.f_frsize
    };
    // A copy would fit, and leave one MiB.
    let used = world.provider.usage(living.spec.id).await.unwrap().disk_bytes;
    let ballast = usize::try_from(free() - used - (1 << 20)).unwrap();
    fs::write(world.config.data.join("ballast"), vec![1; ballast]).unwrap();
    let answer = world.provider.snapshot(session, SnapshotId::new()).await;
    let write = "head -c 4000000 /dev/urandom > /workspace/more && sync && sha256sum /workspace/*";
    let sums = living.run(USER, write).await;
    let mut spec = world.spec();
    spec.session = session;
    living.destroy().await;
    let again = world.create_as(&spec).await;
    assert_eq!(again.run(USER, "sha256sum /workspace/*").await, sums);
    assert!(matches!(answer, Err(ProviderError::Full(_))), "{answer:?}");
    again.destroy().await;
    drop(world);
    drop(small);
}

/// What a snapshot shares is kept when it is written to: where that takes the last of a pool's room, nobody in it can write.
#[tokio::test]
async fn a_snapshot_in_a_full_pool_of_btrfs_is_refused_and_leaves_nothing() {
    let world = World::new(DiskChoice::Btrfs);
    let living = world.create().await;
    let session = living.spec.session;
    let write = "head -c 20000000 /dev/urandom > /workspace/kept && sync && sha256sum /workspace/kept";
    let sum = living.run(USER, write).await;
    let (first, second) = (SnapshotId::new(), SnapshotId::new());
    let provider = &world.provider;
    provider.snapshot(session, first).await.unwrap();
    let pool = world.config.data.join("pool");
    // Room for what the file system notes by itself, which a small pool gets none of otherwise; then all but a little is taken.
    for number in 0..6_000 {
        fs::write(pool.join(format!("small-{number}")), [1; 2_000]).unwrap();
    }
    let pool_folder = fs::File::open(&pool).unwrap();
    let free = || {
        rustix::fs::syncfs(&pool_folder).unwrap();
        let about = rustix::fs::fstatvfs(&pool_folder).unwrap();
        about.f_bavail * about.f_frsize
    };
    let place = pool.join("ballast");
    let ballast = fs::File::create(&place).unwrap();
    let mut taken = 0;
    while free() > 90 << 20 {
        let more = (free().saturating_sub(80 << 20) / 2).max(1 << 20);
        fallocate(&ballast, FallocateFlags::empty(), taken, more).unwrap();
        taken += more;
    }
    let full = |answer: Result<(), ProviderError>| {
        let words = answer.as_ref().map_err(|error| words(error));
        assert!(matches!(answer, Err(ProviderError::Full(_))), "{words:?}");
    };
    let kept = async || -> Vec<_> {
        let kept = world.provider.snapshots().await.unwrap().kept;
        kept.into_iter().map(|status| status.id).collect()
    };
    full(provider.snapshot(session, second).await.map(drop));
    assert_eq!(kept().await, [first]);
    living.run(USER, "echo more > /workspace/more && sync").await;
    let mut spec = world.spec();
    spec.session = session;
    living.destroy().await;
    full(provider.restore(first, session).await);
    assert_eq!(provider.disks().await.unwrap(), [session]);
    let living = world.create_as(&spec).await;
    let both = living.run(USER, "cat /workspace/more; sha256sum /workspace/kept").await;
    assert_eq!(both, format!("more\n{sum}"));
    // As soon as there is room it is done.
    drop(ballast);
    fs::remove_file(&place).unwrap();
    assert!(free() > 1 << 30);
    provider.snapshot(session, second).await.unwrap();
    assert_eq!(kept().await.len(), 2);
    living.destroy().await;
}

/// A second device that shows the file of a pool would be a second file system that writes to it.
#[tokio::test]
async fn a_pool_that_sandboxes_hold_is_mounted_again_by_the_device_that_it_has() {
    let world = World::new(DiskChoice::Btrfs);
    let living = world.create().await;
    living.run(USER, "echo before > /workspace/note").await;
    let (by, config, id) = (world.by, world.config.clone(), living.spec.id);
    drop((living, world.provider.clone()));
    let remains = world.give_up();
    let pool = config.data.join("pool");
    is_unmounted(&pool);
    let file = config.data.join("pool.btrfs");
    let devices = || {
        testkit::run(
            Command::new("losetup")
                .args(["--noheadings", "--output", "NAME", "-j"])
                .arg(&file),
        )
    };
    let before = devices();
    assert_eq!(before.lines().count(), 1, "the sandbox holds it: {before}");
    let provider = by.open(config.clone()).unwrap();
    assert_eq!(devices(), before);
    provider.destroy(id).await.unwrap();
    drop(provider);
    drop(remains);
}

#[tokio::test]
async fn the_disks_that_sessions_have_decide_what_others_are_made_of() {
    for (disk, kind) in [
        (DiskChoice::Ext4, DiskKind::Ext4Files),
        (DiskChoice::Btrfs, DiskKind::BtrfsFile),
    ] {
        let mut world = World::new(disk);
        let living = world.create().await;
        let session = living.spec.session;
        living.destroy().await;
        let mut config = world.config.clone();
        config.disk = DiskChoice::Auto;
        drop(world.provider);
        world.provider = Arc::new(world.by.open(config).unwrap());
        assert_eq!(world.provider.disk_kind(), kind);
        assert_eq!(world.provider.disks().await.unwrap(), [session]);
    }
    // A pool that cannot be had any more is no reason to begin another.
    let world = World::new(DiskChoice::Btrfs);
    world.create().await.destroy().await;
    let mut config = world.config.clone();
    config.disk = DiskChoice::Auto;
    let (by, file) = (world.by, config.data.join("pool.btrfs"));
    let remains = world.give_up();
    let pool = config.data.join("pool");
    is_unmounted(&pool);
    let aside = file.with_extension("aside");
    fs::rename(&file, &aside).unwrap();
    fs::write(&file, "no file system").unwrap();
    let refused = by.open(config.clone()).map(drop).unwrap_err();
    assert!(words(&refused).contains("pool.btrfs"), "{}", words(&refused));
    assert!(!config.data.join("disks").exists());
    fs::rename(&aside, &file).unwrap();
    drop(remains);
}
