//! Files as block devices.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
const BLKFLSBUF: libc::c_ulong = 0x1261;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Another process may take the device that was free a moment ago.
const ATTEMPTS: usize = 64;

/// `struct loop_info64` of the kernel's interface.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of the kernel's interface.
#[repr(C)]
struct Configuration {
    file: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A block device that shows a file. It goes when neither this nor a mount holds it any longer.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    open: File,
}

impl LoopDevice {
    /// Shows this file, open for reading and writing, as a block device.
    ///
    /// # Errors
    /// Where the machine has no loop devices, or none to spare.
    pub fn attach(file: &File) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
        for _ in 0..ATTEMPTS {
            // SAFETY: this request takes no argument and touches no memory.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            match configure(&device, file) {
                Ok(()) => return Ok(Self { path, open: device }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// The device that shows a file already, if one does; it stays while this is held. Told by the file itself: names differ by
    /// who looks.
    ///
    /// # Errors
    /// The file is not there, or what the kernel says of block devices cannot be read.
    pub fn showing(file: &Path) -> io::Result<Option<Self>> {
        let file = file.metadata()?;
        for device in fs::read_dir("/sys/block")? {
            let device = device?;
            if !device.path().join("loop/backing_file").exists() {
                continue;
            }
            let path = Path::new("/dev").join(device.file_name());
            // One that goes meanwhile shows nothing.
            let Ok(open) = OpenOptions::new().read(true).write(true).open(&path) else {
                continue;
            };
            if shown(&open).is_ok_and(|shown| shown == (file.dev(), file.ino())) {
                return Ok(Some(Self { path, open }));
            }
        }
        Ok(None)
    }

    /// Writes what the file system on it still has in memory to the file.
    ///
    /// # Errors
    /// `EACCES` for who is not root.
    pub fn flush(&self) -> io::Result<()> {
        // SAFETY: this request takes no argument and touches no memory; the descriptor is open.
        let result = unsafe { libc::ioctl(self.open.as_raw_fd(), BLKFLSBUF as _, 0) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Its node.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn configure(device: &File, file: &File) -> io::Result<()> {
    // SAFETY: the structure is made of numbers and arrays of numbers alone, for which zero is a value.
    let mut configuration: Configuration = unsafe { zeroed() };
    configuration.file = file.as_raw_fd().unsigned_abs();
    configuration.info.flags = LO_FLAGS_AUTOCLEAR;
    // SAFETY: the kernel reads one `loop_config`, which is whole and lives through the call; both descriptors are open.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const configuration) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The file system and the number of the file that a device shows.
fn shown(device: &File) -> io::Result<(u64, u64)> {
    // SAFETY: the structure is made of numbers and arrays of numbers alone, for which zero is a value.
    let mut info: Info = unsafe { zeroed() };
    // SAFETY: the kernel writes one `loop_info64`, which is whole and lives through the call; the descriptor is open.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, &raw mut info) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((info.device, info.inode))
}
