//! What an image is made of.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use ::knowledge::Knowledge;
use sandbox::inside;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use toml::Spanned;

use crate::copies;
use crate::knowledge::{self, Written, WrittenKnowledge, WrittenRepository};

/// Raised when an unchanged recipe gives another image than before.
const EDITION: u32 = 1;
const FILE: &str = "image.toml";

/// The content of an `image.toml`, checked.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) wanted: Wanted,
    pub(crate) knowledge: Option<Knowledge>,
}

/// The file as it is written; `images/base/image.toml` explains every key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    pub(crate) description: String,
    pub(crate) date: toml::value::Datetime,
    pub(crate) debian: Debian,
    #[serde(default)]
    pub(crate) npm: BTreeMap<String, String>,
    #[serde(default)]
    machine: BTreeMap<String, Machine>,
    pub(crate) user: User,
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) folders: BTreeMap<PathBuf, Folder>,
    #[serde(default)]
    pub(crate) files: BTreeMap<PathBuf, String>,
    #[serde(default)]
    pub(crate) copies: BTreeMap<PathBuf, PathBuf>,
    #[serde(default)]
    pub(crate) links: BTreeMap<PathBuf, PathBuf>,
    #[serde(default)]
    pub(crate) remove: Vec<PathBuf>,
    refresh: Option<Spanned<String>>,
    #[serde(default)]
    repositories: Vec<Spanned<WrittenRepository>>,
    knowledge: Option<Spanned<WrittenKnowledge>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Debian {
    pub(crate) suite: String,
    #[serde(default)]
    pub(crate) variant: Variant,
    pub(crate) packages: Vec<String>,
    #[serde(default)]
    pub(crate) leave_out: Vec<String>,
}

/// What is there besides the packages that are named, and what these depend on.
#[derive(Clone, Copy, Default, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Variant {
    /// What Debian calls essential: a shell, the small tools, no apt.
    #[default]
    Essential,
    /// Nothing, and the packages are only unpacked: none of their scripts runs.
    Extract,
}

/// What is wanted besides on one kind of processor.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    #[serde(default)]
    npm: BTreeMap<String, String>,
    #[serde(default)]
    links: BTreeMap<PathBuf, PathBuf>,
}

/// Who the processes of a sandbox are.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its number, which is also its group's.
    pub id: u32,
    /// Where its processes start.
    pub folder: PathBuf,
}

/// A folder that must be there.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Folder {
    /// The number of its owner.
    #[serde(default)]
    pub owner: u32,
    /// Its mode in octal digits.
    #[serde(default = "usual_mode")]
    pub mode: String,
}

fn usual_mode() -> String {
    "755".to_owned()
}

impl Folder {
    pub(crate) fn mode_bits(&self) -> Option<u32> {
        u32::from_str_radix(&self.mode, 8).ok().filter(|mode| *mode <= 0o7777)
    }
}

/// A recipe that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The file cannot be read.
    #[error("the recipe {path} cannot be read")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file or folder that it copies cannot be read.
    #[error("{path}, which the recipe copies, cannot be read")]
    Copy {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not what a recipe looks like.
    #[error("the recipe {path} is not understood")]
    Parse {
        /// Which.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// The file is well-formed and says what cannot be. All such places are named at once.
    #[error("the recipe {path} cannot be built:\n  {}", faults.join("\n  "))]
    Wrong {
        /// Which.
        path: PathBuf,
        /// Each thing that is wrong, in words.
        faults: Vec<String>,
    },
}

impl Recipe {
    /// Reads `image.toml` of a folder, which gives the image its name.
    ///
    /// # Errors
    /// [`RecipeError`], with everything that is wrong with it.
    pub fn read(folder: &Path) -> Result<Self, RecipeError> {
        let path = folder.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(|source| RecipeError::Read {
            path: path.clone(),
            source,
        })?;
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut recipe = Self::parse(name, &text, &path)?;
        for from in recipe.wanted.copies.values_mut() {
            *from = folder.join(&*from);
        }
        recipe.key = copies::key(&recipe.key, &recipe.wanted.copies)?;
        Ok(recipe)
    }

    pub(crate) fn parse(name: &str, text: &str, path: &Path) -> Result<Self, RecipeError> {
        let mut wanted: Wanted = toml::from_str(text).map_err(|source| RecipeError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let machine = wanted.machine.remove(std::env::consts::ARCH).unwrap_or_default();
        wanted.npm.extend(machine.npm);
        wanted.links.extend(machine.links);
        let written = Written {
            refresh: wanted.refresh.take(),
            repositories: std::mem::take(&mut wanted.repositories),
            knowledge: wanted.knowledge.take(),
        };
        let mut faults = wanted.faults(name);
        let knowledge = written.check(text).unwrap_or_else(|more| {
            faults.extend(more);
            None
        });
        if !faults.is_empty() {
            return Err(RecipeError::Wrong {
                path: path.to_owned(),
                faults,
            });
        }
        if knowledge.is_some() {
            let folder = Folder {
                owner: wanted.user.id,
                mode: usual_mode(),
            };
            wanted.folders.insert(PathBuf::from(inside::KNOWLEDGE), folder);
        }
        let mut hash = Sha256::new();
        let rest = knowledge::left_out(text);
        let there = if knowledge.is_some() { "knowledge" } else { "" };
        for part in [&EDITION.to_string(), std::env::consts::ARCH, name, &rest, there] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        Ok(Self {
            name: name.to_owned(),
            key: hex::encode(hash.finalize()),
            wanted,
            knowledge,
        })
    }

    /// The image's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is for, in a sentence.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.wanted.description
    }

    /// A text that changes whenever the image is to be built anew; not with what is to be in `/knowledge`, which comes later.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What is to be in `/knowledge`, where anything is.
    #[must_use]
    pub fn knowledge(&self) -> Option<&Knowledge> {
        self.knowledge.as_ref()
    }

    /// The recipe's date in seconds since 1970: nothing in the image is younger.
    pub(crate) fn epoch(&self) -> u64 {
        epoch(&self.wanted.date).unwrap_or_default()
    }
}

impl Wanted {
    fn faults(&self, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let mut hold = |holds: bool, fault: &dyn Fn() -> String| {
            if !holds {
                faults.push(fault());
            }
        };
        let is_place = |path: &Path| {
            path.is_absolute()
                && !path.components().any(|part| matches!(part, Component::ParentDir))
                && path != Path::new("/")
        };
        hold(is_name(name), &|| {
            format!("its folder's name {name:?} is the image's, and should be small letters, digits and -")
        });
        hold(epoch(&self.date).is_some(), &|| {
            format!(
                "date = {} should be a day since 1970 without an hour, such as 2026-11-01",
                self.date
            )
        });
        hold(is_word(&self.debian.suite, "-"), &|| {
            format!("debian.suite = {:?} is no name of a suite", self.debian.suite)
        });
        for package in &self.debian.packages {
            hold(is_word(package, "+.-"), &|| {
                format!("debian.packages: {package:?} is no name of a package")
            });
        }
        for pattern in &self.debian.leave_out {
            hold(
                pattern.starts_with('/') && !pattern.contains(char::is_whitespace),
                &|| {
                    format!(
                        "debian.leave_out: {pattern:?} should be a pattern of a full path, such as /usr/share/man/*"
                    )
                },
            );
        }
        for (package, version) in &self.npm {
            let plain = package.strip_prefix('@').unwrap_or(package);
            let exact = version.starts_with(|first: char| first.is_ascii_digit()) && is_word(version, ".+-");
            hold(is_word(plain, "-._/") && !plain.contains("..") && exact, &|| {
                format!("npm: {package:?} = {version:?} should be a package and an exact version, such as \"3.10.1\"")
            });
        }
        hold(is_word(&self.user.name, "_-"), &|| {
            format!("user.name = {:?} is no name of a user", self.user.name)
        });
        hold((1..=65_533).contains(&self.user.id), &|| {
            format!("user.id = {} should be between 1 and 65533", self.user.id)
        });
        for variable in self.environment.keys() {
            hold(!variable.is_empty() && !variable.contains(['=', '\0']), &|| {
                format!("environment: {variable:?} cannot be the name of a variable")
            });
        }
        for (path, folder) in &self.folders {
            hold(folder.mode_bits().is_some(), &|| {
                format!(
                    "folders: the mode {:?} of {} should be octal digits, such as 1777",
                    folder.mode,
                    path.display()
                )
            });
        }
        let places = self
            .folders
            .keys()
            .chain(self.files.keys())
            .chain(self.copies.keys())
            .chain(self.links.keys());
        for path in places.chain(&self.remove).chain([&self.user.folder]) {
            hold(is_place(path), &|| {
                format!("{} should be a full path without ..", path.display())
            });
        }
        faults
    }
}

/// Whether an image may be called so.
pub(crate) fn is_name(name: &str) -> bool {
    is_word(name, "-")
}

fn is_word(text: &str, more: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && text
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || more.contains(letter))
}

/// Midnight UTC of a plain day, in seconds since 1970.
fn epoch(date: &toml::value::Datetime) -> Option<u64> {
    let (Some(date), None, None) = (date.date, date.time, date.offset) else {
        return None;
    };
    // Days from the civil calendar: years begin in March, so that the leap day is the last.
    let (year, month, day) = (i64::from(date.year), i64::from(date.month), i64::from(date.day));
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468;
    u64::try_from(days * 86_400).ok()
}

#[cfg(test)]
mod tests;
