//! What a program beside the keys may do, held by the kernel.
//!
//! Landlock says which files it may open and where it may connect to, keeps its signals and its looking into processes to
//! itself; a system call filter keeps it from sockets of other kinds, which lead to daemons of this machine, and from what no
//! such program needs. Both count for the thread that calls, and for everything that it starts.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The newest version of Landlock that is made use of; older kernels enforce what they know of it.
const NEWEST: ABI = ABI::V6;

/// Programs and libraries of the system.
const EXECUTE: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"];
/// What programs read of the system to find others, to speak TLS and to know where they are.
const READ: [&str; 26] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/version",
    "/sys/devices/system/cpu",
];
/// Not the one of zeros: what is mapped of it is memory that is nobody's.
const DEVICES: [&str; 4] = ["/dev/full", "/dev/null", "/dev/random", "/dev/urandom"];

/// Who a program is where this process is root.
pub(super) const NOBODY: u32 = 65_534;

/// System calls that no such program needs, and that reach beyond it.
const REFUSED: [libc::c_long; 29] = [
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    // memory that no process has, but for a file that may be closed
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_mount,
    libc::SYS_move_mount,
    // memory and messages that outlive who made them
    libc::SYS_mq_open,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_shmget,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Flags of clone that make namespaces.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// What a program may have besides the system's own.
pub(super) struct Confinement<'c> {
    /// Its own folder, to do what it likes in.
    pub(super) scratch: &'c Path,
    /// Files and folders to read and execute.
    pub(super) read: Vec<PathBuf>,
    /// TCP ports to connect to. Without any there is no network.
    pub(super) ports: &'c [u16],
}

/// A program could not be confined, so it is not started.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfineError {
    #[error("give up the privileges of this process")]
    Privileges(#[source] io::Error),
    #[error("say to the kernel which files it may open")]
    Ruleset(#[from] RulesetError),
    #[error(
        "this kernel has no Landlock, without which a program does not run beside the keys (Linux 5.13 and newer have it)"
    )]
    Missing,
    #[error("say to the kernel which system calls it may make")]
    Filter(#[source] seccompiler::Error),
    #[error("the thread that starts it panicked")]
    Panicked,
}

impl Confinement<'_> {
    /// Starts something that is confined, and whatever it starts with it. The caller is not.
    pub(super) fn start<T: Send>(&self, start: impl FnOnce() -> T + Send) -> Result<T, ConfineError> {
        std::thread::scope(|scope| {
            let confined = scope.spawn(|| {
                self.enforce()?;
                Ok(start())
            });
            confined.join().unwrap_or(Err(ConfineError::Panicked))
        })
    }

    fn enforce(&self) -> Result<(), ConfineError> {
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_no_new_privs(true).map_err(|errno| ConfineError::Privileges(errno.into()))?;
        if rustix::process::geteuid().is_root() {
            // This thread alone: the others stay who they are.
            let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
            rustix::thread::set_thread_groups(&[])
                .and_then(|()| rustix::thread::set_thread_res_gid(group, group, group))
                .and_then(|()| rustix::thread::set_thread_res_uid(user, user, user))
                .map_err(|errno| ConfineError::Privileges(errno.into()))?;
        }
        rustix::thread::set_capabilities(None, none).map_err(|errno| ConfineError::Privileges(errno.into()))?;
        self.files_and_ports()?;
        for filter in [self.filter(), no_clone3()] {
            seccompiler::apply_filter(&filter.map_err(ConfineError::Filter)?).map_err(ConfineError::Filter)?;
        }
        Ok(())
    }

    fn files_and_ports(&self) -> Result<(), ConfineError> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            // Where ports are named, a kernel that cannot hold a program to them does not run it.
            .set_compatibility(if self.ports.is_empty() { CompatLevel::BestEffort } else { CompatLevel::HardRequirement })
            .handle_access(AccessNet::from_all(NEWEST))?
            .set_compatibility(CompatLevel::BestEffort)
            .scope(Scope::AbstractUnixSocket | Scope::Signal)?
            .create()?;
        for path in EXECUTE
            .iter()
            .map(Path::new)
            .chain(self.read.iter().map(PathBuf::as_path))
        {
            rules = allow(rules, path, read | AccessFs::Execute)?;
        }
        for path in READ {
            rules = allow(rules, Path::new(path), read)?;
        }
        for path in DEVICES {
            rules = allow(rules, Path::new(path), AccessFs::ReadFile | AccessFs::WriteFile)?;
        }
        rules = allow(rules, self.scratch, AccessFs::from_all(NEWEST))?;
        for port in self.ports {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        match rules.restrict_self()?.ruleset {
            RulesetStatus::NotEnforced => Err(ConfineError::Missing),
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        }
    }

    fn filter(&self) -> Result<seccompiler::BpfProgram, seccompiler::Error> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
        // A socket of the machine's own kind leads to its daemons. Pairs of them, which lead nowhere, are another call.
        let families: &[libc::c_int] = if self.ports.is_empty() {
            &[libc::AF_NETLINK]
        } else {
            &[libc::AF_NETLINK, libc::AF_INET, libc::AF_INET6]
        };
        let is_none_of_them = families.iter().map(|family| {
            let family = u64::from(family.unsigned_abs());
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family)
        });
        let is_none_of_them = is_none_of_them.collect::<Result<Vec<_>, _>>()?;
        rules.insert(libc::SYS_socket, vec![SeccompRule::new(is_none_of_them)?]);
        // Namespaces of its own would make it root of them.
        let makes_one = NAMESPACES.iter().map(|flag| bits(0, *flag, *flag));
        let mut clones = makes_one.collect::<Result<Vec<_>, _>>()?;
        // What it has open is counted for each process, so no thread has files of its own, and nobody hides them.
        clones.push(bits(0, libc::CLONE_THREAD | libc::CLONE_FILES, libc::CLONE_THREAD)?);
        rules.insert(libc::SYS_clone, clones);
        let unshares = libc::CLOSE_RANGE_UNSHARE.cast_signed();
        rules.insert(libc::SYS_close_range, vec![bits(2, unshares, unshares)?]);
        let hides = SeccompCondition::new(
            0,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            u64::from(libc::PR_SET_DUMPABLE.unsigned_abs()),
        )?;
        rules.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![hides])?]);
        // Memory that is shared stays when a process gives back its own part of it, and is not counted any more.
        let shares = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        rules.insert(libc::SYS_mmap, vec![bits(3, shares | libc::MAP_PRIVATE, shares)?]);
        filter(rules, libc::EPERM)
    }
}

/// The newer way to start threads and processes takes its flags from memory, which no filter sees. Whoever is told that there
/// is none takes the older one.
fn no_clone3() -> Result<seccompiler::BpfProgram, seccompiler::Error> {
    filter(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)
}

/// An argument that has these bits of a mask.
fn bits(argument: u8, mask: libc::c_int, set: libc::c_int) -> Result<SeccompRule, seccompiler::Error> {
    let (mask, set) = (u64::from(mask.unsigned_abs()), u64::from(set.unsigned_abs()));
    let operator = SeccompCmpOp::MaskedEq(mask);
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, set)?;
    Ok(SeccompRule::new(vec![condition])?)
}

fn filter(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    errno: libc::c_int,
) -> Result<seccompiler::BpfProgram, seccompiler::Error> {
    let refused = SeccompAction::Errno(errno.unsigned_abs());
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refused, arch)?.try_into()?)
}

/// Allows something below a path; what is not there needs no rule.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: landlock::BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(opened) = PathFd::new(path) else {
        return Ok(rules);
    };
    // A rule for a file may not speak of folders.
    let access = if path.is_dir() {
        access
    } else {
        access & AccessFs::from_file(NEWEST)
    };
    rules.add_rule(PathBeneath::new(opened, access))
}
