//! What a container of ours may see and do, whoever makes it.

use rustix::process::{Resource, getrlimit};

/// What hostname a sandbox has: the same for all, so that it tells nothing.
pub const HOSTNAME: &str = "sandbox";

/// All that PID 1 may do beyond what any user may: become the user, and end the user's processes.
pub const CAPABILITIES: [&str; 3] = ["CAP_KILL", "CAP_SETGID", "CAP_SETUID"];

/// Of /proc: what tells of the machine.
pub const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];

/// Of /proc: what would change it.
pub const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// How many files a process may have open.
const OPEN_FILES: u64 = 65_536;

/// How many files a process may have open, and no more than this process may itself: who makes the container has no right to
/// raise it.
#[must_use]
pub fn open_files() -> u64 {
    getrlimit(Resource::Nofile)
        .maximum
        .map_or(OPEN_FILES, |most| most.min(OPEN_FILES))
}

/// A processor's time is given out in slices of this, in microseconds.
pub const SLICE_MICROS: u64 = 100_000;
