//! Whether a session's disk can be limited.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use sys::{btrfs, loop_device::LoopDevice};

use super::Machine;
use super::attempt::{Lack, OrLacking};
use super::file_system::mount_device;

/// The least that btrfs is content with, and some.
const POOL_BYTES: u64 = 256 << 20;
const LIMIT_BYTES: u64 = 16 << 20;
const FILE_BYTES: u64 = 32 << 20;

/// What is written in one go.
const CHUNK: usize = 1 << 20;

/// A disk of the better kind, or else of the other, refuses what is over its limit.
pub(super) fn disk(machine: &Machine) -> Result<String, Lack> {
    machine.with_own_mounts(|folder| try_both(machine, folder))
}

fn try_both(machine: &Machine, folder: &Path) -> Result<String, Lack> {
    let better = match pool(machine, folder) {
        Ok(()) => {
            return Ok("session disks are btrfs subvolumes with a quota: snapshots and forks cost nothing".to_owned());
        }
        Err(lack) => lack,
    };
    single(machine, folder)?;
    Err(Lack::warning(
        format!(
            "session disks are ext4 files, so forks copy, because btrfs does not do: {}",
            better.says()
        ),
        "apt-get install btrfs-progs, on a kernel with btrfs (modprobe btrfs)",
    ))
}

fn pool(machine: &Machine, folder: &Path) -> Result<(), Lack> {
    let (file, at) = (folder.join("pool"), folder.join("pool-mounted"));
    let mend = "modprobe btrfs";
    let arguments = ["--quiet", "--force", "--metadata", "single"];
    mounted(
        machine,
        "mkfs.btrfs",
        "btrfs-progs",
        "btrfs",
        &arguments,
        (&file, POOL_BYTES),
        &at,
    )?;
    let limited = || -> io::Result<()> {
        let pool = File::open(&at)?;
        btrfs::enable_quota(&pool)?;
        btrfs::create_subvolume(&pool, "session")?;
        let session = File::open(at.join("session"))?;
        btrfs::limit_subvolume(&pool, btrfs::subvolume_id(&session)?, LIMIT_BYTES)
    };
    limited().or_lacking("a btrfs subvolume cannot be limited", mend)?;
    refuses(&at.join("session"))
}

fn single(machine: &Machine, folder: &Path) -> Result<(), Lack> {
    let (file, at) = (folder.join("disk"), folder.join("disk-mounted"));
    mounted(
        machine,
        "mkfs.ext4",
        "e2fsprogs",
        "ext4",
        &["-q", "-F", "-m", "0"],
        (&file, LIMIT_BYTES),
        &at,
    )?;
    refuses(&at)
}

/// Makes a file system in a file and mounts it.
fn mounted(
    machine: &Machine,
    program: &str,
    package: &str,
    kind: &str,
    arguments: &[&str],
    (path, bytes): (&Path, u64),
    at: &Path,
) -> Result<(), Lack> {
    let made = File::options().read(true).write(true).create_new(true).open(path);
    let file = made.and_then(|file| file.set_len(bytes).map(|()| file));
    let file = file.or_lacking(
        "no file for a disk can be made",
        "free some space in the data directory",
    )?;
    let path = path.to_string_lossy();
    let arguments: Vec<&str> = arguments.iter().copied().chain([&*path]).collect();
    let run = machine.run(Path::new(program), &arguments, "");
    run.map_err(|failed| failed.lack(Path::new(program), package, "free some space in the data directory"))?;
    let device = LoopDevice::attach(&file).or_lacking("no loop device can be had", "modprobe loop")?;
    fs::create_dir_all(at)
        .and_then(|()| mount_device(kind, device.path(), at))
        .or_lacking(
            &format!("a file system of the kind {kind} cannot be mounted"),
            format!("modprobe {kind}"),
        )
}

/// Writes more than may be written.
fn refuses(folder: &Path) -> Result<(), Lack> {
    let mend = "report the kernel's version: its limits on disks do not hold";
    let write = || -> io::Result<()> {
        let mut file = File::create(folder.join("large"))?;
        let chunk = vec![0x5a; CHUNK];
        for _ in 0..FILE_BYTES / CHUNK as u64 {
            io::Write::write_all(&mut file, &chunk)?;
        }
        file.sync_all()
    };
    match write() {
        Ok(()) => Err(Lack::lacking("a disk took more than its limit", mend)),
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => Ok(()),
        Err(error) => Err(Lack::lacking(format!("a disk cannot be written to: {error}"), mend)),
    }
}
