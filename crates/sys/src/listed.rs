//! Whether this process has the list of system calls that its sandbox should have, found out by trying.

use std::io;

use libc::c_long;

/// What a process finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed {
    /// What the list refuses is refused.
    Held,
    /// Nothing is.
    Missing,
    /// Not all is: rules about some bits of an argument were taken for others.
    Misread,
}

/// A path that nothing has.
const NOWHERE: &[u8; 1] = b"\0";
/// A descriptor that nobody has.
const NOBODY: c_long = -1;
/// The type of orders to btrfs.
const ORDER_TO_BTRFS: c_long = 0x9400;
const INTERNET: c_long = libc::AF_INET as c_long;
/// There is no such type of socket.
const NO_TYPE: c_long = 15;
/// A process with users of its own, which has handlers of signals in common with this one and not the memory that they are in.
const IMPOSSIBLE: c_long = (libc::CLONE_NEWUSER | libc::CLONE_SIGHAND) as c_long;
const NOTHING: c_long = 0;

/// Asks the kernel for what no sandbox may do, in words of which the kernel itself can make nothing: so nothing happens, and
/// who refused shows by the error.
#[must_use]
pub fn look() -> Listed {
    // SAFETY: the path is a constant that ends with a zero, and the kernel reads it alone.
    let root = is_refused(unsafe { libc::syscall(libc::SYS_chroot, NOWHERE.as_ptr()) });
    // SAFETY: numbers alone; as nobody has the descriptor, the kernel looks at neither order nor argument.
    let order = is_refused(unsafe { libc::syscall(libc::SYS_ioctl, NOBODY, ORDER_TO_BTRFS, NOTHING) });
    // SAFETY: numbers alone; no socket of this type is ever made.
    let socket = is_refused(unsafe { libc::syscall(libc::SYS_socket, INTERNET, NO_TYPE, NOTHING) });
    // SAFETY: numbers alone; every Linux refuses this combination before it makes anything (EINVAL, clone(2)), so that no second
    // process comes back from here.
    let users = is_refused(unsafe { libc::syscall(libc::SYS_clone, IMPOSSIBLE, NOTHING, NOTHING, NOTHING, NOTHING) });
    match (root, order && socket && users) {
        (true, true) => Listed::Held,
        (true, false) => Listed::Misread,
        (false, _) => Listed::Missing,
    }
}

/// Must be asked right after the call.
fn is_refused(answer: c_long) -> bool {
    answer == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_confined_finds_out_and_nothing_happens() {
        assert_eq!(look(), Listed::Missing);
    }
}
