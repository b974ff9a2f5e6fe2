//! What a process may do beyond what any user may.

use std::collections::BTreeMap;
use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Family and protocol of sockets on which rules are spoken about.
const NETLINK: u64 = 16;
const NETLINK_NETFILTER: u64 = 12;

pub(crate) fn may_administer() -> io::Result<bool> {
    Ok(capabilities(None)?.permitted.contains(CapabilitySet::NET_ADMIN))
}

/// Gives up all else: what this process has, and what it could ever get by running a program.
pub(crate) fn keep_only(keep: CapabilitySet) -> io::Result<()> {
    for (_, right) in CapabilitySet::all().iter_names() {
        if !keep.contains(right) && capability_is_in_bounding_set(right).unwrap_or(false) {
            remove_capability_from_bounding_set(right)?;
        }
    }
    clear_ambient_capability_set()?;
    let held = capabilities(None)?;
    let kept = CapabilitySets {
        effective: held.effective & keep,
        permitted: held.permitted & keep,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept)?;
    if capabilities(None)? == kept && !capability_is_in_bounding_set(CapabilitySet::NET_ADMIN)? {
        return Ok(());
    }
    Err(io::Error::other("the kernel keeps rights that were given up"))
}

/// Takes the means of speaking about rules from this process and whatever it starts: nobody else ever needs them.
pub(crate) fn forget_rules() -> io::Result<()> {
    let equals = |argument, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value);
    let load = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let rule = SeccompRule::new(vec![equals(0, NETLINK)?, equals(2, NETLINK_NETFILTER)?])?;
        let denied = SeccompAction::Errno(rustix::io::Errno::PERM.raw_os_error().unsigned_abs());
        let filter = SeccompFilter::new(
            BTreeMap::from([(libc::SYS_socket, vec![rule])]),
            SeccompAction::Allow,
            denied,
            std::env::consts::ARCH.try_into()?,
        )?;
        Ok(seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?)
    };
    load().map_err(io::Error::other)
}
