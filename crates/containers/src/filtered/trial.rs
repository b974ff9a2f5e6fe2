//! The list of system calls, tried with an image's shell.

use sandbox::ProviderError;
use serde_json::{Value, json};

use crate::seccomp::Masks;

/// What the shell is told to run, of which [`heard`] understands the words. Of the two it may set the former alone.
pub const SCRIPT: &str = "umask 0027; umask 0077; \
    while read -r key value; do case $key in Seccomp:|Umask:) echo \"$key $value\";; esac; done < /proc/self/status";

/// These bits of a umask must be those.
const MASK: u32 = 0o77;
const ALLOWED: u32 = 0o27;

/// The same list, but for a rule about bits of an argument by which a shell can tell whether such rules are understood: who takes
/// mask and value for each other lets through more.
#[must_use]
pub fn with_probe(mut profile: Value, masks: Masks) -> Value {
    let rules = profile["syscalls"].as_array_mut().into_iter().flatten();
    for names in rules.filter_map(|rule| rule["names"].as_array_mut()) {
        names.retain(|name| name != "umask");
    }
    let mut probe = json!({
        "names": ["umask"],
        "action": "SCMP_ACT_ALLOW",
        "args": [{ "index": 0, "value": MASK, "valueTwo": ALLOWED, "op": "SCMP_CMP_MASKED_EQ" }],
    });
    masks.write(&mut probe);
    if let Some(rules) = profile["syscalls"].as_array_mut() {
        rules.push(probe);
    }
    profile
}

/// What became of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// It holds.
    Held,
    /// It was left out.
    Unfiltered,
    /// Rules about bits of an argument were misread.
    Misread,
}

/// Understands what the shell said.
///
/// # Errors
/// Where it said something else.
pub fn heard(said: &str) -> Result<Heard, ProviderError> {
    let of = |key: &str| {
        let mut lines = said.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == key).map(|(_, value)| value.trim())
    };
    match (of("Seccomp"), of("Umask")) {
        (Some("2"), Some("0027")) => Ok(Heard::Held),
        (Some("2"), Some(_)) => Ok(Heard::Misread),
        (Some(_), Some(_)) => Ok(Heard::Unfiltered),
        _ => Err(ProviderError::failed(
            format!("understand what the image's shell says of the list of system calls ({said:?})"),
            "it says nothing of its umask or filter",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp;

    #[test]
    fn what_the_shell_says_is_understood() {
        let said = |mode, umask| format!("Name: sh\nUmask: {umask}\nSeccomp: {mode}\nSeccomp_filters: 1\n");
        assert_eq!(heard(&said("2", "0027")).unwrap(), Heard::Held);
        assert_eq!(heard(&said("2", "0077")).unwrap(), Heard::Misread);
        assert_eq!(heard(&said("2", "0022")).unwrap(), Heard::Misread);
        for mode in ["0", "1", "22"] {
            assert_eq!(heard(&said(mode, "0027")).unwrap(), Heard::Unfiltered);
        }
        assert!(heard("").is_err());
    }

    #[test]
    fn a_list_with_a_probe_is_the_list_otherwise() {
        let list = seccomp::profile(Masks::AsSpecified).unwrap();
        let text = with_probe(list.clone(), Masks::AsSpecified).to_string();
        assert_eq!(text.matches("\"umask\"").count(), 1);
        let rules = |list: &Value| list["syscalls"].as_array().map(Vec::len);
        assert_eq!(
            rules(&with_probe(list.clone(), Masks::AsSpecified)),
            rules(&list).map(|count| count + 1)
        );
        let exchanged = with_probe(list, Masks::Exchanged).to_string();
        assert!(
            exchanged.contains(&format!("\"value\":{ALLOWED},\"valueTwo\":{MASK}")),
            "{exchanged}"
        );
    }
}
