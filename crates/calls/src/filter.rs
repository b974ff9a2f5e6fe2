//! The list, given by a process to itself.

use std::env::consts::ARCH;

use seccompiler::{BpfProgram, TargetArch, apply_filter, compile_from_json};
use serde_json::{Value, json};

use crate::list::{Action, Condition, Rule, rules};

/// A program that finds a call missing falls back to an older one.
const ENOSYS: u32 = 38;
const EPERM: u32 = 1;

/// A process could not give itself the list of system calls.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The list, which is part of this program.
    #[error("the list of system calls cannot be read")]
    List(#[from] serde_json::Error),
    /// No filter can be made of it.
    #[error("no filter can be made of the list of system calls")]
    Compile(#[source] seccompiler::Error),
    /// The kernel takes none.
    #[error("the kernel takes no filter of system calls")]
    Apply(#[source] seccompiler::Error),
}

/// Gives the list to the calling thread, and to whatever it starts, for ever. To be called by a process that has no other thread.
///
/// # Errors
/// [`FilterError`]; the process must not go on then.
pub fn give_to_this_process() -> Result<(), FilterError> {
    for program in programs(&rules()?)? {
        apply_filter(&program).map_err(FilterError::Apply)?;
    }
    Ok(())
}

/// A filter has one answer for what it is about: so that some calls are missing is said by one of its own. The kernel asks both,
/// and the one that refuses counts; so what is missing is let through by the other.
fn programs(rules: &[Rule]) -> Result<[BpfProgram; 2], FilterError> {
    let arch = TargetArch::try_from(ARCH).map_err(|error| FilterError::Compile(error.into()))?;
    let missing = rules.iter().filter(|rule| rule.action == Action::Missing);
    Ok([
        compile(missing, arch, &json!("allow"), &json!({ "errno": ENOSYS }))?,
        compile(rules.iter(), arch, &json!({ "errno": EPERM }), &json!("allow"))?,
    ])
}

fn compile<'a>(
    rules: impl Iterator<Item = &'a Rule>,
    arch: TargetArch,
    otherwise: &Value,
    then: &Value,
) -> Result<BpfProgram, FilterError> {
    let program = |filter: Vec<Value>| {
        let told = json!({ "it": { "mismatch_action": otherwise, "match_action": then, "filter": filter } });
        let mut programs = compile_from_json(told.to_string().as_bytes(), arch).map_err(FilterError::Compile)?;
        Ok(programs.remove("it").unwrap_or_default())
    };
    // What this architecture does not have nobody can call.
    let is_known = |told: &Value| program(vec![told.clone()]).is_ok();
    program(rules.flat_map(write).filter(is_known).collect())
}

/// A rule in the compiler's words, for each of its names.
fn write(rule: &Rule) -> impl Iterator<Item = Value> {
    let conditions: Vec<Value> = rule.conditions.iter().copied().map(condition).collect();
    rule.names.iter().map(move |name| match conditions.as_slice() {
        [] => json!({ "syscall": name }),
        all => json!({ "syscall": name, "args": all }),
    })
}

fn condition(condition: Condition) -> Value {
    match condition {
        Condition::Equal { index, value } => json!({ "index": index, "type": "qword", "op": "eq", "val": value }),
        Condition::Masked { index, mask, value } => {
            json!({ "index": index, "type": "qword", "op": { "masked_eq": mask }, "val": value })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::thread;

    use sys::listed::{Listed, look};

    use super::*;

    #[test]
    fn who_has_it_is_refused_what_it_refuses_and_can_do_all_else() {
        // For this thread alone, and what it starts.
        let confined = thread::spawn(|| {
            assert_eq!(look(), Listed::Missing);
            give_to_this_process().unwrap();
            assert_eq!(look(), Listed::Held);
            // C libraries look for an older call where one is missing, and give up where it is refused.
            thread::spawn(|| assert_eq!(look(), Listed::Held)).join().unwrap();
            let server = TcpListener::bind("[::1]:0").unwrap();
            TcpStream::connect(server.local_addr().unwrap()).unwrap();
            let output = Command::new("sh")
                .args(["-c", "unshare --user true || echo refused"])
                .output();
            assert_eq!(output.unwrap().stdout, b"refused\n");
        });
        confined.join().unwrap();
        assert_eq!(look(), Listed::Missing);
    }

    #[test]
    fn every_architecture_has_most_of_the_calls() {
        let rules = rules().unwrap();
        for arch in [TargetArch::x86_64, TargetArch::aarch64, TargetArch::riscv64] {
            let refused = json!({ "errno": EPERM });
            let program = compile(rules.iter(), arch, &refused, &json!("allow")).unwrap();
            assert!(program.len() > 1_000, "{arch:?}: {}", program.len());
        }
    }
}
