//! The tool `skill`.

use std::io::Read;
use std::sync::Arc;

use protocol::FileKind;
use serde::Deserialize;
use skills::{Frontmatter, FrontmatterError, MAX_SKILL_BYTES};

use crate::toolbox::{Answer, Bounds, Failure, beside, words};
use crate::{FileError, Files, Tools};

/// The most files of a skill that are named.
const MAX_FILES: usize = 50;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    name: String,
    #[serde(default)]
    file: Option<String>,
}

/// A skill could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SkillError {
    #[error("there is no skill {name:?}; {there}")]
    Unknown { name: String, there: String },
    #[error("{path} is larger than {MAX_SKILL_BYTES} bytes: look at it with read")]
    TooLarge { path: String },
    #[error("{path} is not text: look at it with read")]
    NotText { path: String },
    #[error("the skill {name} cannot be loaded")]
    Broken {
        name: String,
        #[source]
        source: FrontmatterError,
    },
}

/// Loads a skill's body, or another of its files.
pub(crate) async fn skill(tools: &Tools, arguments: Arguments, bounds: Bounds<'_>) -> Answer {
    bounds.tell("loading", &arguments.name);
    let files = Arc::clone(&tools.files);
    let grants = tools.grants();
    let most = bounds.output_bytes;
    beside(move || {
        let Arguments { name, file } = arguments;
        let there = known(&files, |name| {
            grants.skills.as_ref().is_none_or(|allowed| allowed.contains(name))
        });
        if !there.contains(&name) {
            let there = match there.len() {
                0 => "there are none".to_owned(),
                _ => format!("there are {}", there.join(", ")),
            };
            let name = name.chars().take(100).collect();
            return Err(SkillError::Unknown { name, there }.into());
        }
        let folder = format!("/skills/{name}");
        let text = match file.filter(|file| file != "SKILL.md") {
            // A path of its own would be a way past the allowed names.
            Some(file) => text_of(&files, &beneath(&folder, &file)?)?,
            None => body(&files, &name, &folder)?,
        };
        Ok(words(fitting(text, most)))
    })
    .await
}

/// The skills that may be loaded, by name.
fn known(files: &Files, allowed: impl Fn(&str) -> bool) -> Vec<String> {
    let entries = files
        .list_one("/skills", 1_000)
        .map(|(entries, _)| entries)
        .unwrap_or_default();
    entries
        .into_iter()
        .filter(|entry| entry.kind == FileKind::Folder && !entry.path.starts_with('.'))
        .map(|entry| entry.path)
        .filter(|name| allowed(name))
        .collect()
}

fn beneath(folder: &str, file: &str) -> Result<String, FileError> {
    let within = !file.starts_with('/') && file.split('/').all(|name| name != "..");
    if within {
        return Ok(format!("{folder}/{file}"));
    }
    Err(FileError::Outside {
        path: file.to_owned(),
        reach: folder.to_owned(),
    })
}

fn body(files: &Files, name: &str, folder: &str) -> Result<String, Failure> {
    let text = text_of(files, &format!("{folder}/SKILL.md"))?;
    let (_, body) = Frontmatter::parse(&text).map_err(|source| SkillError::Broken {
        name: name.to_owned(),
        source,
    })?;
    let place = files.real_path(folder)?.display().to_string();
    let (entries, more) = files.list(folder, MAX_FILES)?;
    let mut others: Vec<String> = entries
        .into_iter()
        .filter(|entry| entry.kind == FileKind::File && entry.path != "SKILL.md")
        .map(|entry| entry.path)
        .collect();
    if more {
        others.push("…".to_owned());
    }
    let others = match others.len() {
        0 => String::new(),
        _ => format!("\n\nFiles of this skill, in {place}: {}", others.join(", ")),
    };
    Ok(format!("# Skill {name}\n\n{}{others}", body.trim()))
}

fn text_of(files: &Files, path: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = files.read(path)?.take(MAX_SKILL_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| FileError::io("read", path, error))?;
    if bytes.len() as u64 > MAX_SKILL_BYTES {
        return Err(SkillError::TooLarge { path: path.to_owned() }.into());
    }
    String::from_utf8(bytes).map_err(|_| SkillError::NotText { path: path.to_owned() }.into())
}

/// The text, as much as fits.
fn fitting(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most.saturating_sub(80)));
        text.push_str("\n[… the rest is left out: use read on the file …]");
    }
    text
}
