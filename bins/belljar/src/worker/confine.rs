//! Giving up every right that parsing does not need, for ever.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;

use anyhow::Context;
use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
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
    rustix::thread::set_no_new_privs(true).context("cannot give up new privileges")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot hide its memory")?;
    sys::descriptor::close_from(3).context("cannot close what it inherited")?;
    give_up_files()?;
    for (resource, most) in LIMITS {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit).with_context(|| format!("cannot limit itself ({resource:?})"))?;
    }
    let filter = filter().context("its filter of system calls cannot be made")?;
    seccompiler::apply_filter(&filter).context("cannot load its filter of system calls")
}

/// No file, no port, no socket or signal of anybody else, held by the kernel a second time. A kernel without Landlock has the
/// filter of system calls alone, which forbids opening anything at all.
fn give_up_files() -> anyhow::Result<()> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.restrict_self())
        .context("cannot give up files")?;
    Ok(())
}

fn filter() -> anyhow::Result<BpfProgram> {
    let own = u64::from(std::process::id());
    let mut rules = BTreeMap::new();
    for (call, allowed) in CALLS {
        rules.insert(*call, conditions(*allowed, own)?);
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
