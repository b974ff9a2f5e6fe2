//! The list of system calls as an OCI runtime, or an engine, is told it.

use calls::{Action, Condition};
use sandbox::ProviderError;
use serde_json::{Value, json};

use crate::attempt::Attempt;

/// A program that finds a call missing falls back to an older one.
const ENOSYS: i32 = 38;
const EPERM: i32 = 1;

/// Family and protocol of sockets on which rules of the network are spoken about.
const NETLINK: u32 = 16;
const NETLINK_NETFILTER: u32 = 12;

/// How an OCI runtime reads a rule that compares some bits of an argument (`SCMP_CMP_MASKED_EQ`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Masks {
    /// `value` is the mask, `valueTwo` what is masked.
    #[default]
    AsSpecified,
    /// The other way round.
    Exchanged,
}

/// Who is known to exchange them, by the first line of what it says of its version.
const EXCHANGES: [&str; 1] = ["youki version: 0.7.0"];

impl Masks {
    /// How they are written for an OCI runtime that says this of its version. Whether it reads them so is tried by the first
    /// process of every sandbox ([`crate::filtered`]): who exchanges them and is not known to, or does so no longer, makes none.
    #[must_use]
    pub fn for_version(said: &str) -> Self {
        let line = said.lines().next().unwrap_or_default().trim_end();
        if EXCHANGES.contains(&line) {
            Self::Exchanged
        } else {
            Self::AsSpecified
        }
    }

    /// Writes a rule for who reads it so.
    pub(crate) fn write(self, rule: &mut Value) {
        if self == Self::AsSpecified {
            return;
        }
        let conditions = rule.get_mut("args").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten() {
            if condition["op"] == "SCMP_CMP_MASKED_EQ" {
                let (mask, masked) = (condition["value"].take(), condition["valueTwo"].take());
                condition["value"] = masked;
                condition["valueTwo"] = mask;
            }
        }
    }
}

/// The filter as an OCI runtime is told; what the list does not name fails with EPERM.
///
/// # Errors
/// Where the list, which is part of this program, cannot be read.
pub fn profile(masks: Masks) -> Result<Value, ProviderError> {
    filter(Vec::new(), masks)
}

/// The same as Docker's engine is told, for a sandbox whose runtime leads the network itself: it may open a socket to speak about
/// rules, and takes that from itself and everybody else before it does anything else.
///
/// # Errors
/// As [`profile`].
pub fn profile_with_rules() -> Result<Value, ProviderError> {
    let about_rules = json!([
        { "index": 0, "value": NETLINK, "op": "SCMP_CMP_EQ" }, { "index": 2, "value": NETLINK_NETFILTER, "op": "SCMP_CMP_EQ" },
    ]);
    filter(
        vec![json!({ "names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": about_rules })],
        Masks::AsSpecified,
    )
}

fn filter(mut rules: Vec<Value>, masks: Masks) -> Result<Value, ProviderError> {
    let list = calls::rules().attempt(|| "read the list of system calls".into())?;
    rules.extend(list.iter().map(|rule| match rule.action {
        // gVisor takes no conditions and an empty list of them for two things, and so a sandbox for another than it was.
        Action::Allow if rule.conditions.is_empty() => json!({ "names": rule.names, "action": "SCMP_ACT_ALLOW" }),
        Action::Allow => {
            let conditions: Vec<Value> = rule.conditions.iter().copied().map(condition).collect();
            json!({ "names": rule.names, "action": "SCMP_ACT_ALLOW", "args": conditions })
        }
        Action::Missing => json!({ "names": rule.names, "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS }),
    }));
    rules.iter_mut().for_each(|rule| masks.write(rule));
    Ok(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        // Calls of another architecture (32 bits on 64) end the process.
        "architectures": [architecture()],
        "syscalls": rules,
    }))
}

fn condition(condition: Condition) -> Value {
    match condition {
        Condition::Equal { index, value } => json!({ "index": index, "value": value, "op": "SCMP_CMP_EQ" }),
        Condition::Masked { index, mask, value } => {
            json!({ "index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" })
        }
    }
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
    use super::*;

    #[test]
    fn mask_and_value_are_exchanged_for_who_exchanges_them_and_nothing_else_is() {
        assert_eq!(
            Masks::for_version("youki version: 0.7.0\ncommit: x\n"),
            Masks::Exchanged
        );
        for other in [
            "youki version: 0.7.1",
            "youki version: 0.7.01\n",
            "youki 0.7.0",
            "runc version 1.1.5",
            "",
        ] {
            assert_eq!(Masks::for_version(other), Masks::AsSpecified, "{other}");
        }
        let told = profile(Masks::AsSpecified).unwrap();
        let mut exchanged = profile(Masks::Exchanged).unwrap();
        let masked = |profile: &Value, value: &str| profile.to_string().matches(value).count();
        let (as_specified, other) = (
            "\"value\":2114060288,\"valueTwo\":0",
            "\"value\":0,\"valueTwo\":2114060288",
        );
        assert_eq!((masked(&told, as_specified), masked(&told, other)), (1, 0));
        assert_eq!((masked(&exchanged, as_specified), masked(&exchanged, other)), (0, 1));
        // Once more, and all is as it was.
        let rules = exchanged["syscalls"].as_array_mut().unwrap();
        rules.iter_mut().for_each(|rule| Masks::Exchanged.write(rule));
        assert_eq!(exchanged, told);
    }
}
