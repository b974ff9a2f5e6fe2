//! Giving up every right that parsing does not need, for ever.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// What it may use, in the unit of each. Memory is address space, the program's own included; descriptors are the three standard
/// ones and those of a pipe to itself by which the grammar of Postgres catches what it says; processor time is for all of its jobs.
const LIMITS: [(Resource, u64); 7] = [
    (Resource::As, 1 << 30),
    (Resource::Core, 0),
    (Resource::Cpu, 600),
    (Resource::Fsize, 0),
    (Resource::Memlock, 0),
    (Resource::Nofile, 8),
    (Resource::Nproc, 0),
];

/// The newest version of Landlock that is made use of; older kernels enforce what they know of it.
const NEWEST: ABI = ABI::V6;

/// What a system call may be given.
#[derive(Clone, Copy)]
enum Allowed {
    /// Anything.
    Whatever,
    /// Only if this argument has none of these bits.
    Without(u8, u64),
    /// Only if this argument is one of these.
    OneOf(u8, &'static [u64]),
    /// Only to itself: the first argument is its own process.
    Itself,
}

/// All that a process may ask of the kernel that has its two pipes, computes and ends. Everything else kills it.
const CALLS: &[(libc::c_long, Allowed)] = &[
    // its pipes; nothing else is open, and nothing can be opened
    (libc::SYS_read, Allowed::Whatever),
    (libc::SYS_readv, Allowed::Whatever),
    (libc::SYS_write, Allowed::Whatever),
    (libc::SYS_writev, Allowed::Whatever),
    // a pipe to itself, in place of the standard error
    (libc::SYS_pipe2, Allowed::Whatever),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_pipe, Allowed::Whatever),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_dup2, Allowed::Whatever),
    (libc::SYS_dup, Allowed::Whatever),
    (libc::SYS_dup3, Allowed::Whatever),
    (libc::SYS_close, Allowed::Whatever),
    (
        libc::SYS_fcntl,
        Allowed::OneOf(1, &[libc::F_GETFL as u64, libc::F_SETFL as u64]),
    ),
    // memory, of which none may be executed
    (libc::SYS_brk, Allowed::Whatever),
    (libc::SYS_mmap, Allowed::Without(2, libc::PROT_EXEC as u64)),
    (libc::SYS_mprotect, Allowed::Without(2, libc::PROT_EXEC as u64)),
    (libc::SYS_mremap, Allowed::Whatever),
    (libc::SYS_munmap, Allowed::Whatever),
    (libc::SYS_madvise, Allowed::Whatever),
    // the allocator counts processors when memory gets short
    (libc::SYS_sched_getaffinity, Allowed::Whatever),
    // time and chance
    (libc::SYS_clock_gettime, Allowed::Whatever),
    (libc::SYS_gettimeofday, Allowed::Whatever),
    (libc::SYS_getrandom, Allowed::Whatever),
    // locks that nobody else wants
    (libc::SYS_futex, Allowed::Whatever),
    (libc::SYS_sched_yield, Allowed::Whatever),
    // its end
    (libc::SYS_exit, Allowed::Whatever),
    (libc::SYS_exit_group, Allowed::Whatever),
    (libc::SYS_rt_sigaction, Allowed::Whatever),
    (libc::SYS_rt_sigprocmask, Allowed::Whatever),
    (libc::SYS_rt_sigreturn, Allowed::Whatever),
    (libc::SYS_sigaltstack, Allowed::Whatever),
    (libc::SYS_restart_syscall, Allowed::Whatever),
    (libc::SYS_getpid, Allowed::Whatever),
    (libc::SYS_gettid, Allowed::Whatever),
    (libc::SYS_tgkill, Allowed::Itself),
];

/// What reading a file of SQLite asks besides. Which files can be opened, and that none can be written, is Landlock's to say;
/// what is only looked at, such as the folders above, gives no more than that it is there.
const READING: &[(libc::c_long, Allowed)] = &[
    (libc::SYS_openat, Allowed::Whatever),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, Allowed::Whatever),
    (libc::SYS_pread64, Allowed::Whatever),
    (libc::SYS_lseek, Allowed::Whatever),
    (libc::SYS_fstat, Allowed::Whatever),
    (libc::SYS_newfstatat, Allowed::Whatever),
    (libc::SYS_statx, Allowed::Whatever),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, Allowed::Whatever),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, Allowed::Whatever),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_access, Allowed::Whatever),
    (libc::SYS_faccessat, Allowed::Whatever),
    (libc::SYS_faccessat2, Allowed::Whatever),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_readlink, Allowed::Whatever),
    (libc::SYS_readlinkat, Allowed::Whatever),
    (libc::SYS_getcwd, Allowed::Whatever),
    (libc::SYS_geteuid, Allowed::Whatever),
    // what SQLite does to a log as root, and has no right to do
    (libc::SYS_fchown, Allowed::Whatever),
    // while others write it
    (libc::SYS_clock_nanosleep, Allowed::Whatever),
    (libc::SYS_nanosleep, Allowed::Whatever),
    (
        libc::SYS_fcntl,
        Allowed::OneOf(
            1,
            &[
                libc::F_GETFL as u64,
                libc::F_SETFL as u64,
                libc::F_GETFD as u64,
                libc::F_SETFD as u64,
                libc::F_GETLK as u64,
                libc::F_SETLK as u64,
                libc::F_DUPFD_CLOEXEC as u64,
            ],
        ),
    ),
];

/// Starts this same program anew without any variable, where it has some: they would stay readable in its memory.
pub(super) fn clear_environment() -> anyhow::Result<()> {
    if std::env::vars_os().next().is_none() {
        return Ok(());
    }
    let error = std::process::Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .env_clear()
        .exec();
    Err(error).context("cannot start anew without an environment")
}

/// Gives up everything. What comes after an error has given up a part.
pub(super) fn confine() -> anyhow::Result<()> {
    // A kernel without Landlock has the filter of system calls alone, which forbids opening anything at all.
    give_up(&[], LIMITS.to_vec(), CALLS.iter().copied()).map(drop)
}

/// Gives up everything but reading one database, for so many seconds of processor time. What comes after an error has given up a part.
pub(super) fn confine_to(database: &Path, seconds: u64) -> anyhow::Result<()> {
    let files = sqlite::files(database).unwrap_or_default();
    // Where it is root, all that is left of that is reading what others own.
    let reading = CapabilitySet::DAC_READ_SEARCH | CapabilitySet::DAC_OVERRIDE;
    let now = rustix::thread::capabilities(None).context("cannot tell its capabilities")?;
    let kept = CapabilitySets {
        effective: now.effective & reading,
        permitted: now.permitted & reading,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, kept).context("cannot give up its capabilities")?;
    let limits = LIMITS.iter().map(|(resource, most)| match resource {
        Resource::Cpu => (*resource, seconds.min(*most)),
        Resource::Nofile => (*resource, 16),
        _ => (*resource, *most),
    });
    let kept = CALLS.iter().filter(|(call, _)| *call != libc::SYS_fcntl);
    match give_up(&files, limits.collect(), kept.chain(READING).copied())? {
        RulesetStatus::NotEnforced => {
            bail!("this kernel has no Landlock, without which no file of SQLite is read (Linux 5.13 and newer have it)")
        }
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

fn give_up(
    files: &[PathBuf],
    limits: Vec<(Resource, u64)>,
    calls: impl Iterator<Item = (libc::c_long, Allowed)>,
) -> anyhow::Result<RulesetStatus> {
    rustix::thread::set_no_new_privs(true).context("cannot give up new privileges")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot hide its memory")?;
    sys::descriptor::close_from(3).context("cannot close what it inherited")?;
    let held = give_up_files(files)?;
    for (resource, most) in limits {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit).with_context(|| format!("cannot limit itself ({resource:?})"))?;
    }
    let filter = filter(calls).context("its filter of system calls cannot be made")?;
    seccompiler::apply_filter(&filter).context("cannot load its filter of system calls")?;
    Ok(held)
}

/// No file but those, to be read, no port, no socket or signal of anybody else, held by the kernel a second time.
fn give_up_files(files: &[PathBuf]) -> anyhow::Result<RulesetStatus> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .context("cannot give up files")?;
    for file in files {
        // What cannot be opened needs no rule; reading it says why.
        if let Ok(opened) = PathFd::new(file) {
            rules = rules
                .add_rule(PathBeneath::new(opened, AccessFs::ReadFile))
                .context("cannot keep its file")?;
        }
    }
    Ok(rules.restrict_self().context("cannot give up files")?.ruleset)
}

fn filter(calls: impl Iterator<Item = (libc::c_long, Allowed)>) -> anyhow::Result<BpfProgram> {
    let own = u64::from(std::process::id());
    let mut rules = BTreeMap::new();
    for (call, allowed) in calls {
        rules.insert(call, conditions(allowed, own)?);
    }
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, architecture)?;
    Ok(filter.try_into()?)
}

/// The rules of which one must hold; none for anything.
fn conditions(allowed: Allowed, own: u64) -> anyhow::Result<Vec<SeccompRule>> {
    let rule = |argument, operator, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
        SeccompRule::new(vec![condition])
    };
    let rules: Result<_, seccompiler::BackendError> = match allowed {
        Allowed::Whatever => Ok(Vec::new()),
        Allowed::Without(argument, bits) => rule(argument, SeccompCmpOp::MaskedEq(bits), 0).map(|rule| vec![rule]),
        Allowed::OneOf(argument, values) => values
            .iter()
            .map(|value| rule(argument, SeccompCmpOp::Eq, *value))
            .collect(),
        Allowed::Itself => rule(0, SeccompCmpOp::Eq, own).map(|rule| vec![rule]),
    };
    Ok(rules?)
}

#[cfg(test)]
mod tests;
