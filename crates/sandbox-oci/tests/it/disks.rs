//! Disks have limits, outlive sandboxes, and cost no neighbour anything.

use std::fs;
use std::os::unix::fs::MetadataExt;

use sandbox::SandboxProvider;
use sandbox_oci::DiskChoice;

use crate::world::{ROOT, USER, World};

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
    fcntl.ioctl(two.fileno(), 0x40049409, one.fileno())
print("cloned", os.path.getsize("/workspace/two"))
print("asked", len(fcntl.ioctl(folder, 0x80086601, b"\0" * 8)))
"#;

#[tokio::test]
async fn nobody_inside_makes_a_disk_without_a_limit() {
    let world = World::new(DiskChoice::Btrfs);
    let living = world.create().await;
    let said = living.python(USER, SUBVOLUME).await;
    let refused = ["0x5000940e", "0x50009418", "0x50009401", "0x50009417", "0x15000940e"];
    let refused = refused.map(|order| format!("{order} EPERM")).join("\n");
    assert_eq!(said, format!("{refused}\ncloned 20000\nasked 8"));
    let session = living.spec.session;
    living.destroy().await;
    world.provider.remove_disk(session).await.unwrap();
}
