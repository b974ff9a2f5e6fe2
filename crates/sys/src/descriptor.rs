//! What a process inherits open.

use std::io;
use std::os::fd::RawFd;

/// Closes every descriptor from this one on, whoever opened it.
///
/// For a process that has just started and has opened nothing itself: what anything in it owns would be closed behind its back,
/// and its number given to somebody else. So `first` may not be one of the three standard ones.
///
/// # Errors
/// What the kernel says; it knows this call from Linux 5.9 on.
pub fn close_from(first: RawFd) -> io::Result<()> {
    let first = u32::try_from(first).ok().filter(|first| *first > 2);
    let first = first.ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: close_range takes three numbers and touches no memory of ours. That nobody uses a closed descriptor is what the
    // caller promises; the worst that can come of a broken promise is a failing read or write, as with a descriptor that
    // another program closed.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0_u32) };
    if closed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
