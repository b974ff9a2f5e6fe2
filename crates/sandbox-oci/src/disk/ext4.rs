//! Disks as sparse files with a file system each: where there is no btrfs. A limit is the file system's size.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use domain::SessionId;
use sandbox::ProviderError;
use sys::loop_device::LoopDevice;

use crate::attempt::{Attempt, unless_missing};
use crate::record::make_folder;
use crate::{Config, root};

/// How long the kernel may take to let go of a disk after the last process of its sandbox.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Pool {
    folder: PathBuf,
}

impl Pool {
    pub(crate) fn open(config: &Config) -> Result<Self, ProviderError> {
        let folder = config.data.join("disks");
        make_folder(&config.data, 0o711)?;
        make_folder(&folder, 0o700)?;
        // The kernel says of a loop device where its file really is.
        let folder = folder.canonicalize().attempt(|| format!("find {}", folder.display()))?;
        Ok(Self { folder })
    }

    pub(crate) fn disk(&self, session: SessionId, bytes: u64) -> Result<OwnedFd, ProviderError> {
        let path = self.path(session);
        if path.exists() {
            wait_until_free(&path)?;
        } else {
            make_file(&path, bytes)?;
        }
        let attempt = || format!("mount the disk {}", path.display());
        let file = File::options().read(true).write(true).open(&path).attempt(attempt)?;
        let device = LoopDevice::attach(&file).attempt(attempt)?;
        root::mount_file_system("ext4", device.path(), &[]).attempt(attempt)
    }

    pub(crate) fn used(&self, session: SessionId) -> u64 {
        fs::metadata(self.path(session)).map_or(0, |file| file.blocks() * 512)
    }

    pub(crate) fn remove(&self, session: SessionId) -> Result<(), ProviderError> {
        let path = self.path(session);
        unless_missing(fs::remove_file(&path)).attempt(|| format!("remove {}", path.display()))
    }

    fn path(&self, session: SessionId) -> PathBuf {
        self.folder.join(format!("{session}.ext4"))
    }
}

fn make_file(path: &Path, bytes: u64) -> Result<(), ProviderError> {
    let attempt = || format!("make the disk {}", path.display());
    let half = path.with_extension("half");
    File::create(&half)
        .and_then(|file| file.set_len(bytes))
        .attempt(attempt)?;
    // Everything may be used (no blocks are kept for root), and nothing is written before it is needed.
    let made = Command::new("mkfs.ext4")
        .args([
            "-q",
            "-F",
            "-m",
            "0",
            "-E",
            "lazy_itable_init=1,lazy_journal_init=1,nodiscard",
        ])
        .arg(&half)
        .output();
    let made = made.map_err(|error| ProviderError::Machine {
        lacks: format!("mkfs.ext4 cannot be run ({error}); install it: apt-get install e2fsprogs"),
    })?;
    if !made.status.success() {
        let words = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(ProviderError::failed(attempt(), words));
    }
    fs::rename(&half, path).attempt(attempt)
}

/// Two devices that show one file would destroy what is on it.
fn wait_until_free(path: &Path) -> Result<(), ProviderError> {
    let attempt = || format!("wait until nobody holds the disk {}", path.display());
    let begun = Instant::now();
    while is_shown(path).attempt(attempt)? {
        if begun.elapsed() > PATIENCE {
            return Err(ProviderError::failed(
                attempt(),
                "a loop device still shows it (losetup -a)",
            ));
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn is_shown(path: &Path) -> io::Result<bool> {
    for device in fs::read_dir("/sys/block")? {
        let shown = fs::read_to_string(device?.path().join("loop/backing_file"));
        if shown.is_ok_and(|shown| Path::new(shown.trim_end()) == path) {
            return Ok(true);
        }
    }
    Ok(false)
}
