//! What an author should mend.

use std::path::Path;

use crate::Skill;

/// The rule for names, in words.
pub(crate) const NAME_RULE: &str =
    "its folder's name is no skill's name: 1–64 characters of a–z, 0–9 and single hyphens, neither first nor last";

/// The longest description and the longest note on compatibility that the format allows, in characters.
const MAX_DESCRIPTION: usize = 1_024;
const MAX_COMPATIBILITY: usize = 500;
/// What a body may have before a part of it should move to a file of its own.
const MAX_LINES: usize = 500;
const MAX_BODY_BYTES: usize = 20_000;

/// Something about a skill that is wrong, or could be better.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The skill.
    pub skill: String,
    /// It is not loaded, or breaks a rule of the format; otherwise it is advice.
    pub is_error: bool,
    /// What, and what to do.
    pub message: String,
}

impl Finding {
    pub(crate) fn new(skill: &str, is_error: bool, message: impl Into<String>) -> Self {
        Self {
            skill: skill.to_owned(),
            is_error,
            message: message.into(),
        }
    }
}

/// Everything about a loaded skill that breaks the format or would serve a model badly.
#[must_use]
pub fn check(skill: &Skill) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |is_error, message: String| findings.push(Finding::new(&skill.name, is_error, message));
    let front = &skill.front;

    match &front.name {
        None => find(true, format!("the head has no name: write `name: {}`", skill.name)),
        Some(name) if *name != skill.name => {
            find(
                true,
                format!("the head says `name: {name}`, the folder is called {}", skill.name),
            );
        }
        Some(_) => {}
    }
    if skill.description.chars().count() > MAX_DESCRIPTION {
        find(
            true,
            format!("the description is longer than {MAX_DESCRIPTION} characters"),
        );
    }
    if !skill.description.to_lowercase().contains("when") && !skill.description.to_lowercase().contains("use ") {
        find(false, "the description does not say when to use the skill".into());
    }
    if front
        .compatibility
        .as_ref()
        .is_some_and(|text| text.chars().count() > MAX_COMPATIBILITY)
    {
        find(
            true,
            format!("`compatibility` is longer than {MAX_COMPATIBILITY} characters"),
        );
    }
    if front.mended {
        find(
            true,
            "the head is no YAML as it stands: quote values that contain `: ` or ` #`".into(),
        );
    }
    for key in front.unknown.keys() {
        find(
            false,
            format!("the head has a key that the format does not know: `{key}`"),
        );
    }
    if front.metadata.values().any(|value| !value.is_string()) {
        find(
            true,
            "`metadata` maps words to words: quote numbers, and do not nest".into(),
        );
    }
    if skill.body.is_empty() {
        find(true, "there is no body: nothing would be loaded".into());
    }
    if skill.body.lines().count() > MAX_LINES || skill.body.len() > MAX_BODY_BYTES {
        find(
            false,
            format!("the body is longer than {MAX_LINES} lines or {MAX_BODY_BYTES} bytes: move parts into references/"),
        );
    }
    for file in named_files(&skill.body) {
        if !skill.folder.join(file).exists() {
            find(true, format!("the body names {file}, which is not there"));
        }
    }
    findings
}

/// The files beside the skill that its body names.
fn named_files(body: &str) -> Vec<&str> {
    let mut files: Vec<&str> = body
        .split(|c: char| c.is_whitespace() || "`()[]<>\"',;".contains(c))
        .map(|word| word.trim_start_matches("./").trim_end_matches(['.', ':']))
        .filter(|word| {
            ["scripts/", "references/", "assets/"]
                .iter()
                .any(|folder| word.starts_with(folder) && word.len() > folder.len())
                && Path::new(word).extension().is_some()
                && !word.contains(['*', '…', '{'])
        })
        .collect();
    files.sort_unstable();
    files.dedup();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    fn findings(name: &str, text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("SKILL.md"), text).unwrap();
        check(&load(&folder).unwrap())
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn a_good_skill_has_no_findings() {
        let text = "---\nname: good\ndescription: Does a thing. Use when asked.\nlicense: Apache-2.0\n---\nDo it.";
        assert_eq!(findings("good", text), Vec::<String>::new());
    }

    #[test]
    fn each_mistake_is_found() {
        let body = "line\n".repeat(501);
        let text = format!(
            "---\nname: other\ndescription: A thing: {}\nmetadata:\n  version: 1\ncolour: red\n---\nRun `scripts/go.js`.\n{body}",
            "x".repeat(1_100)
        );
        let found = findings("bad", &text).join("\n");
        for words in [
            "the folder is called bad",
            "longer than 1024",
            "when to use",
            "quote values",
            "`colour`",
            "longer than 500 lines",
            "names scripts/go.js",
        ] {
            assert!(found.contains(words), "{words} is missing in:\n{found}");
        }
    }
}
