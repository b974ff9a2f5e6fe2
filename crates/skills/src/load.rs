//! Skills come from folders, within bounds.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::{Finding, Frontmatter, FrontmatterError};
use causes::with_causes;

/// The largest `SKILL.md` that is read.
pub const MAX_SKILL_BYTES: u64 = 256 * 1024;
/// The most skills that one folder may hold.
const MAX_SKILLS: usize = 500;
/// The longest name that a skill may have.
pub(crate) const MAX_NAME: usize = 64;

/// A skill as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skill {
    /// What it is called: its folder's name.
    pub name: String,
    /// What it is for and when to use it.
    pub description: String,
    /// What it says, once it is asked for.
    pub body: String,
    /// Its head as it stands.
    pub front: Frontmatter,
    /// Where it and its other files are.
    pub folder: PathBuf,
}

/// A skill, or a folder of them, cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file system said no.
    #[error("cannot read {path}")]
    Read {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is too large for a model to be shown.
    #[error("{path} is larger than {MAX_SKILL_BYTES} bytes: move parts of it into files beside it")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is no text.
    #[error("{path} is not UTF-8 text")]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// Its head is missing or broken.
    #[error("{path} is no skill")]
    Frontmatter {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: FrontmatterError,
    },
    /// Nothing tells a model when to use it.
    #[error("{path} has no description: say in its head what the skill does and when to use it")]
    NoDescription {
        /// The file.
        path: PathBuf,
    },
    /// There are too many.
    #[error("{path} holds more than {MAX_SKILLS} skills")]
    TooMany {
        /// The folder.
        path: PathBuf,
    },
}

/// Whether a text can be the name of a skill: 1–64 of a–z, 0–9 and single hyphens within.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

/// Reads the skill in a folder. The folder's name is the skill's, whatever the head says.
///
/// # Errors
/// When there is no readable `SKILL.md`, or it has no description.
pub fn load(folder: &Path) -> Result<Skill, LoadError> {
    let path = folder.join("SKILL.md");
    let mut bytes = Vec::new();
    regular(&path)
        .and_then(|()| File::open(&path))
        .and_then(|file| file.take(MAX_SKILL_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|source| LoadError::Read {
            path: path.clone(),
            source,
        })?;
    if bytes.len() as u64 > MAX_SKILL_BYTES {
        return Err(LoadError::TooLarge { path });
    }
    let Ok(text) = String::from_utf8(bytes) else {
        return Err(LoadError::NotText { path });
    };
    let (front, body) = match Frontmatter::parse(&text) {
        Ok(parts) => parts,
        Err(source) => return Err(LoadError::Frontmatter { path, source }),
    };
    let description = front.description.as_deref().map(one_line).unwrap_or_default();
    if description.is_empty() {
        return Err(LoadError::NoDescription { path });
    }
    Ok(Skill {
        name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        description,
        body: body.trim().to_owned(),
        front,
        folder: folder.to_owned(),
    })
}

/// Refuses a link, which may lead to a file of this machine, and a pipe, which would be waited for.
fn regular(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_file() {
        return Ok(());
    }
    Err(io::Error::other("it is no ordinary file"))
}

/// Reads every skill beneath a folder, in the order of their names, and says what was left out and why. A folder that does
/// not exist holds none.
///
/// # Errors
/// When the folder exists and cannot be read, or holds too many.
pub fn load_folder(folder: &Path) -> Result<(Vec<Skill>, Vec<Finding>), LoadError> {
    let unreadable = |source| LoadError::Read {
        path: folder.to_owned(),
        source,
    };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
        entries => entries.map_err(unreadable)?,
    };
    let (mut skills, mut left_out) = (Vec::new(), Vec::new());
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A link is no skill: what it shows may change under our feet.
        if name.starts_with('.') || !entry.file_type().map_err(unreadable)?.is_dir() {
            continue;
        }
        if skills.len() + left_out.len() == MAX_SKILLS {
            return Err(LoadError::TooMany {
                path: folder.to_owned(),
            });
        }
        if !is_name(&name) {
            left_out.push(Finding::new(&name, true, crate::check::NAME_RULE));
            continue;
        }
        match load(&entry.path()) {
            Ok(skill) => skills.push(skill),
            Err(error) => left_out.push(Finding::new(&name, true, with_causes(&error))),
        }
    }
    skills.sort_by(|one, other| one.name.cmp(&other.name));
    left_out.sort_by(|one, other| one.skill.cmp(&other.skill));
    Ok((skills, left_out))
}

/// The text without line breaks and doubled blanks.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(skills: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in skills {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("SKILL.md"), text).unwrap();
        }
        folder
    }

    #[test]
    fn skills_come_in_the_order_of_their_names_and_what_is_left_out_is_said() {
        let folder = folder(&[
            ("zebra", "---\ndescription: last\n---\nZ"),
            ("apple", "---\nname: apple\ndescription: first\n---\n\nA\n"),
            ("blank", "---\nname: blank\n---\nB"),
            ("Upper", "---\ndescription: d\n---\n"),
            ("head-less", "text"),
            (".hidden", "text"),
        ]);
        fs::write(folder.path().join("README.md"), "no skill").unwrap();
        std::os::unix::fs::symlink(folder.path().join("apple"), folder.path().join("link")).unwrap();
        let (skills, left_out) = load_folder(folder.path()).unwrap();
        let names: Vec<_> = skills.iter().map(|s| (s.name.as_str(), s.body.as_str())).collect();
        assert_eq!(names, [("apple", "A"), ("zebra", "Z")]);
        let names: Vec<_> = left_out.iter().map(|f| f.skill.as_str()).collect();
        assert_eq!(names, ["Upper", "blank", "head-less"]);
        assert!(left_out[1].message.contains("no description"), "{left_out:?}");
    }

    #[test]
    fn a_link_is_not_followed_to_a_file_of_the_machine() {
        let folder = folder(&[("good", "---\ndescription: d\n---\nsecret")]);
        let evil = folder.path().join("evil");
        fs::create_dir(&evil).unwrap();
        std::os::unix::fs::symlink(folder.path().join("good/SKILL.md"), evil.join("SKILL.md")).unwrap();
        let (skills, left_out) = load_folder(folder.path()).unwrap();
        assert_eq!((skills.len(), left_out.len()), (1, 1));
        assert!(left_out[0].message.contains("no ordinary file"), "{left_out:?}");
    }

    #[test]
    fn no_folder_holds_no_skill() {
        assert_eq!(load_folder(Path::new("/nowhere/skills")).unwrap(), (vec![], vec![]));
    }

    #[test]
    fn a_skill_that_is_too_large_is_not_read() {
        let text = format!("---\ndescription: d\n---\n{}", "x".repeat(MAX_SKILL_BYTES as usize));
        let folder = folder(&[("big", &text)]);
        let error = load(&folder.path().join("big")).unwrap_err();
        assert!(matches!(error, LoadError::TooLarge { .. }), "{error}");
    }
}
