//! Which system calls a sandbox has, read from the reviewed list in `seccomp/list.json`.

use sandbox::ProviderError;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::attempt::Attempt;

const LIST: &str = include_str!("seccomp/list.json");

/// A program that finds a call missing falls back to an older one.
const ENOSYS: i32 = 38;
const EPERM: i32 = 1;

/// Family and protocol of sockets on which rules of the network are spoken about.
const NETLINK: u32 = 16;
const NETLINK_NETFILTER: u32 = 12;

/// System calls that are treated alike, and why.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[serde(rename = "why")]
    _why: String,
    action: Action,
    names: Vec<String>,
    /// All of these must hold of the arguments.
    #[serde(default)]
    args: Vec<Value>,
    /// Or all of one of these.
    #[serde(default)]
    any: Vec<Vec<Value>>,
    /// Or this: an argument that is not of a kind.
    unlike: Option<Unlike>,
}

impl Group {
    /// The conditions, of which one must hold.
    fn conditions(&self) -> Vec<Vec<Value>> {
        let unlike = self.unlike.into_iter().flat_map(Unlike::alternatives);
        let all: Vec<_> = self.any.iter().cloned().chain(unlike).collect();
        if all.is_empty() { vec![self.args.clone()] } else { all }
    }
}

/// An argument some of whose bits (`mask`) are not those of `value`. A filter can ask whether bits are equal, and not whether
/// they differ: so this becomes a rule for each bit.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unlike {
    index: u32,
    mask: u64,
    value: u64,
}

impl Unlike {
    fn alternatives(self) -> impl Iterator<Item = Vec<Value>> {
        let bits = (0..u64::BITS)
            .map(|place| 1 << place)
            .filter(move |bit| self.mask & bit != 0);
        bits.map(move |bit: u64| {
            vec![
                json!({ "index": self.index, "value": bit, "valueTwo": !self.value & bit, "op": "SCMP_CMP_MASKED_EQ" }),
            ]
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    /// The call works.
    Allow,
    /// The kernel seems to be too old to know it.
    Missing,
}

/// The filter as an OCI runtime or Docker's engine is told; what the list does not name fails with EPERM.
///
/// # Errors
/// Where the list, which is part of this program, cannot be read.
pub fn profile() -> Result<Value, ProviderError> {
    filter(Vec::new())
}

/// The same for a sandbox whose runtime leads the network itself: it may open a socket to speak about rules, and takes that
/// from itself and everybody else before it does anything else.
///
/// # Errors
/// As [`profile`].
pub fn profile_with_rules() -> Result<Value, ProviderError> {
    let about_rules = json!([
        { "index": 0, "value": NETLINK, "op": "SCMP_CMP_EQ" }, { "index": 2, "value": NETLINK_NETFILTER, "op": "SCMP_CMP_EQ" },
    ]);
    filter(vec![
        json!({ "names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": about_rules }),
    ])
}

fn filter(mut rules: Vec<Value>) -> Result<Value, ProviderError> {
    let groups: Vec<Group> = serde_json::from_str(LIST).attempt(|| "read the list of system calls".into())?;
    rules.extend(groups.into_iter().flat_map(|group| match group.action {
        Action::Allow => {
            let rule = |args| json!({ "names": group.names, "action": "SCMP_ACT_ALLOW", "args": args });
            group.conditions().into_iter().map(rule).collect()
        }
        Action::Missing => {
            vec![json!({ "names": group.names, "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS })]
        }
    }));
    Ok(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        // Calls of another architecture (32 bits on 64) end the process.
        "architectures": [architecture()],
        "syscalls": rules,
    }))
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "SCMP_ARCH_AARCH64",
        "riscv64" => "SCMP_ARCH_RISCV64",
        _ => "SCMP_ARCH_X86_64",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn nothing_that_widens_the_way_out_is_allowed() {
        let groups: Vec<Group> = serde_json::from_str(LIST).unwrap();
        let mut seen = BTreeSet::new();
        for group in &groups {
            for name in &group.names {
                assert!(
                    group.conditions() != [Vec::<Value>::new()] || seen.insert(name),
                    "{name} stands twice"
                );
            }
        }
        let never = [
            "add_key",
            "bpf",
            "clone3",
            "fanotify_init",
            "fsconfig",
            "fsmount",
            "fsopen",
            "init_module",
            "io_uring_enter",
            "io_uring_register",
            "io_uring_setup",
            "kcmp",
            "kexec_load",
            "keyctl",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_by_handle_at",
            "open_tree",
            "perf_event_open",
            "pidfd_getfd",
            "pivot_root",
            "process_vm_readv",
            "process_vm_writev",
            "ptrace",
            "reboot",
            "request_key",
            "setns",
            "swapon",
            "umount2",
            "unshare",
            "userfaultfd",
        ];
        for group in groups.iter().filter(|group| group.action == Action::Allow) {
            for name in never {
                assert!(!group.names.iter().any(|allowed| allowed == name), "{name}");
            }
        }
    }
}
