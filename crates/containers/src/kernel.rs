//! Whose kernel answers what an OCI runtime starts, and what follows from that.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::thread::{CapabilitySet, capabilities};
use sandbox::{Limits, inside};

use crate::seccomp::Masks;

/// Whose kernel answers the system calls of what an OCI runtime starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// This machine's. The OCI runtime applies the list of system calls, whose rules about bits it reads so.
    OfTheMachine(Masks),
    /// One of its own, a program beside what it answers to: gVisor's `runsc`. The first process gives itself the list.
    Own,
}

/// How the first line begins of what gVisor's says of its version.
const GVISOR: &str = "runsc version ";

/// What gVisor's is told so that its sandboxes are as others' are.
const TO_GVISOR: [&str; 6] = [
    // Its sockets are this machine's, in the namespace that it is started in: there connections are captured.
    "--network=host",
    // The link is a socket of this machine's.
    "--host-uds=open",
    // What is written is on the session's disk, at once: there a snapshot finds it.
    "--overlay2=none",
    "--file-access=shared",
    // What opens files for it has a network that goes with it.
    "--gofer-network-namespace=new",
    // Its threads are as many as the processors that it may use, and not as those that there are.
    "--cpu-num-from-quota=true",
];

/// Of this machine's processes and threads a kernel of its own takes these for itself,
const OF_ITSELF: u64 = 128;
/// and these for each process inside, besides one for each processor that it may use.
const FOR_EACH: u64 = 2;
/// It uses two at least.
const PROCESSORS: u32 = 2;

/// Where memory ends this machine's kernel ends what is largest. What stands for the processes inside counts as larger than it
/// is, in thousandths of all memory, and a kernel of its own, which has the memory of all of them in it, as smaller.
const OF_PROCESSES: u16 = 1_000;
const OF_A_KERNEL: i32 = -900;

/// What root has inside: PID 1 with two threads, the hands and the watcher.
const OF_ROOT: u32 = 4;
const _: () = assert!(OF_ROOT < Limits::LEAST.pids);

impl Kernel {
    /// Whose it is with an OCI runtime that says this of its version. Whether that is so is tried with every sandbox
    /// ([`crate::filtered`]): who says so and is not, makes none.
    #[must_use]
    pub fn for_version(said: &str) -> Self {
        if said.starts_with(GVISOR) {
            Self::Own
        } else {
            Self::OfTheMachine(Masks::for_version(said))
        }
    }

    /// Whose it is with this OCI runtime. One that cannot be run is refused when it is to make something, and says why.
    #[must_use]
    pub fn of(command: &Path) -> Self {
        let said = Command::new(command).arg("--version").stdin(Stdio::null()).output();
        let said = said.map(|output| output.stdout).unwrap_or_default();
        Self::for_version(&String::from_utf8_lossy(&said))
    }

    /// Whether the processes that it answers can be written to disk with their memory, and go on in another sandbox.
    #[must_use]
    pub fn keeps_processes(self) -> bool {
        self == Self::Own
    }

    /// What the OCI runtime is told before the order.
    #[must_use]
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::OfTheMachine(_) => &[],
            Self::Own => &TO_GVISOR,
        }
    }

    /// How rules about bits are written for it. A kernel of its own does not read them; they are written all the same, for whoever
    /// only says that it has one.
    #[must_use]
    pub fn masks(self) -> Masks {
        match self {
            Self::OfTheMachine(masks) => masks,
            Self::Own => Masks::AsSpecified,
        }
    }

    /// The second argument of PID 1: what it does about the list of system calls.
    #[must_use]
    pub fn about_the_list(self) -> &'static str {
        match self {
            Self::OfTheMachine(_) => inside::LISTED_ARGUMENT,
            Self::Own => inside::LISTS_ARGUMENT,
        }
    }

    /// Whether it would put files of its own at places where it is told of none, or where they are to be in memory: as many as
    /// anybody likes, and a picture of a machine. Then it is shown the machine's.
    #[must_use]
    pub fn brings_files(self) -> bool {
        self == Self::Own
    }

    /// By how much what the OCI runtime starts counts as larger than it is, where memory ends: [`sys::child::end_first`].
    #[must_use]
    pub fn ends_first(self) -> Option<u16> {
        (self == Self::Own).then_some(OF_PROCESSES)
    }

    /// What the OCI runtime is told of that for the container's first process, which is the kernel where it is one of its own.
    #[must_use]
    pub fn score(self) -> i32 {
        let may = || capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::SYS_RESOURCE));
        if self == Self::Own && may() { OF_A_KERNEL } else { 0 }
    }

    /// How many of this machine's processes and threads the sandbox may take.
    #[must_use]
    pub fn outside(self, limits: &Limits) -> u64 {
        let inside = u64::from(limits.pids);
        let processors = limits.cpu_millis.div_ceil(1_000).max(PROCESSORS);
        match self {
            Self::OfTheMachine(_) => inside,
            Self::Own => OF_ITSELF + inside * (FOR_EACH + u64::from(processors)),
        }
    }

    /// How many processes and threads the user inside may have, where this machine's do not tell. Those that PID 1 starts, and its
    /// own, are root's: they come on top.
    #[must_use]
    pub fn inside(self, limits: &Limits) -> Option<u32> {
        match self {
            Self::OfTheMachine(_) => None,
            Self::Own => Some(limits.pids - OF_ROOT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_kernel_of_its_own_says_so() {
        for said in [
            "runsc version release-20260905.0\nspec: 1.1.0-rc.1\n",
            "runsc version VERSION_MISSING",
        ] {
            assert_eq!(Kernel::for_version(said), Kernel::Own, "{said}");
        }
        let other = |masks| Kernel::OfTheMachine(masks);
        assert_eq!(Kernel::for_version("runc version 1.1.5"), other(Masks::AsSpecified));
        assert_eq!(Kernel::for_version("youki version: 0.7.0"), other(Masks::Exchanged));
        assert_eq!(Kernel::for_version(""), other(Masks::AsSpecified));
        assert_eq!(Kernel::of(Path::new("/nowhere/runsc")), other(Masks::AsSpecified));
    }
}
