//! Namespaces of threads, and user namespaces that map ids.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;

/// What a thread can have of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    /// A table of mounts, at first a copy of that before; root and working folder too.
    Mounts,
    /// Network interfaces, routes and rules, at first none.
    Network,
}

/// Gives the calling thread a namespace of its own, for good; no other thread notices.
///
/// # Errors
/// `EPERM` without the right to; `ENOSPC` where the machine allows no more namespaces.
pub fn leave(own: Own) -> io::Result<()> {
    let flags = match own {
        Own::Mounts => libc::CLONE_NEWNS,
        Own::Network => libc::CLONE_NEWNET,
    };
    // SAFETY: no memory is passed. Neither flag parts what threads must share (descriptors, memory, signals): what becomes
    // the thread's own is only what paths and sockets that it opens from now on refer to.
    if unsafe { libc::unshare(flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A run of ids as a user namespace maps them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The first id in the namespace.
    pub inside: u32,
    /// The first id outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// A user namespace without processes, which maps user and group ids alike. Good for idmapped mounts.
///
/// # Errors
/// `EPERM` without the right to map these ids; `ENOSPC` where the machine allows no more namespaces.
pub fn user_namespace(mappings: &[Mapping]) -> io::Result<OwnedFd> {
    let table: String = mappings
        .iter()
        .map(|mapping| format!("{} {} {}\n", mapping.inside, mapping.outside, mapping.count))
        .collect();
    let holder = Holder::start()?;
    let of_holder = |file: &str| format!("/proc/{}/{file}", holder.0);
    fs::write(of_holder("uid_map"), &table)?;
    fs::write(of_holder("gid_map"), &table)?;
    Ok(File::open(of_holder("ns/user"))?.into())
}

/// A process that does nothing but be in a user namespace of its own until it is dropped.
struct Holder(libc::pid_t);

impl Holder {
    fn start() -> io::Result<Self> {
        // No signal at its end: nobody else's wait for children is disturbed.
        let flags = libc::CLONE_NEWUSER as libc::c_ulong;
        // SAFETY: without CLONE_VM and with no stack given this is a fork: the child has a copy of everything. It must only
        // do what is safe after a fork of a process with threads, and it does nothing but two system calls that touch no
        // memory of either process and no lock. The remaining arguments are read only with flags that are not set.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        if pid == 0 {
            // SAFETY: both are bare system calls. The child dies with the thread that made it, or by that thread's hand.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
        }
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::pid_t::try_from(pid).map(Self).map_err(io::Error::other)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // SAFETY: it is our child and nobody else waits for it, so the number is still its own; no memory is passed.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_namespace_outlives_the_process_that_made_it() {
        let mapping = Mapping {
            inside: 0,
            outside: 3_000_000,
            count: 65_536,
        };
        let namespace = user_namespace(&[mapping]).unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", namespace.as_raw_fd())).unwrap();
        assert!(link.to_string_lossy().starts_with("user:["), "{link:?}");
        assert_ne!(link, fs::read_link("/proc/self/ns/user").unwrap());
    }

    #[test]
    fn a_mapping_that_overlaps_is_refused() {
        let mapping = Mapping {
            inside: 0,
            outside: 3_000_000,
            count: 65_536,
        };
        assert!(user_namespace(&[mapping, mapping]).is_err());
    }
}
