//! The list, as it is read.

use serde::Deserialize;

const LIST: &str = include_str!("list.json");

/// What becomes of a call that a rule is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It works.
    Allow,
    /// The kernel seems to be too old to know it.
    Missing,
}

/// System calls, and what becomes of them where all conditions hold. A call that no rule is about is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The calls; not every architecture has each.
    pub names: Vec<String>,
    /// What becomes of them.
    pub action: Action,
    /// What must hold of their arguments.
    pub conditions: Vec<Condition>,
}

/// What must hold of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(tag = "op", deny_unknown_fields)]
pub enum Condition {
    /// It is this.
    #[serde(rename = "SCMP_CMP_EQ")]
    Equal {
        /// Which argument, from 0.
        index: u8,
        /// What it is.
        value: u64,
    },
    /// Some of its bits are those.
    #[serde(rename = "SCMP_CMP_MASKED_EQ")]
    Masked {
        /// Which argument, from 0.
        index: u8,
        /// Which bits.
        #[serde(rename = "value")]
        mask: u64,
        /// What they are.
        #[serde(rename = "valueTwo")]
        value: u64,
    },
}

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
    args: Vec<Condition>,
    /// Or all of one of these.
    #[serde(default)]
    any: Vec<Vec<Condition>>,
    /// Or this: an argument that is not of a kind.
    unlike: Option<Unlike>,
}

impl Group {
    fn rules(self) -> Vec<Rule> {
        let unlike = self.unlike.into_iter().flat_map(Unlike::alternatives);
        let mut all: Vec<_> = self.any.into_iter().chain(unlike).collect();
        if all.is_empty() {
            all.push(self.args);
        }
        let rule = |conditions| Rule {
            names: self.names.clone(),
            action: self.action,
            conditions,
        };
        all.into_iter().map(rule).collect()
    }
}

/// An argument some of whose bits (`mask`) are not those of `value`. A filter can ask whether bits are equal, and not whether
/// they differ: so this becomes a rule for each bit.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unlike {
    index: u8,
    mask: u64,
    value: u64,
}

impl Unlike {
    fn alternatives(self) -> impl Iterator<Item = Vec<Condition>> {
        let bits = (0..u64::BITS)
            .map(|place| 1 << place)
            .filter(move |bit| self.mask & bit != 0);
        bits.map(move |bit: u64| {
            vec![Condition::Masked {
                index: self.index,
                mask: bit,
                value: !self.value & bit,
            }]
        })
    }
}

/// The list.
///
/// # Errors
/// Where it, which is part of this program, cannot be read.
pub fn rules() -> Result<Vec<Rule>, serde_json::Error> {
    let groups: Vec<Group> = serde_json::from_str(LIST)?;
    Ok(groups.into_iter().flat_map(Group::rules).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn nothing_that_widens_the_way_out_is_allowed() {
        let rules = rules().unwrap();
        let mut seen = BTreeSet::new();
        for rule in rules.iter().filter(|rule| rule.conditions.is_empty()) {
            for name in &rule.names {
                assert!(seen.insert(name), "{name} stands twice");
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
        for rule in rules.iter().filter(|rule| rule.action == Action::Allow) {
            for name in never {
                assert!(!rule.names.iter().any(|allowed| allowed == name), "{name}");
            }
        }
    }
}
