//! What an image is made of.

mod read;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::knowledge::Knowledge;
use sandbox::inside;
use sha2::{Digest, Sha256};

pub(crate) use self::table::{Faults, Table, Text};
use crate::copies;
use crate::knowledge::{self, Written};

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

/// What the file says; `images/base/image.toml` explains every key.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) description: String,
    /// The day, as it is written.
    pub(crate) date: String,
    /// Its midnight UTC, in seconds since 1970.
    epoch: u64,
    pub(crate) debian: Debian,
    pub(crate) npm: BTreeMap<String, String>,
    pub(crate) user: User,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) folders: BTreeMap<PathBuf, Folder>,
    pub(crate) files: BTreeMap<PathBuf, String>,
    pub(crate) copies: BTreeMap<PathBuf, PathBuf>,
    pub(crate) links: BTreeMap<PathBuf, PathBuf>,
    pub(crate) remove: Vec<PathBuf>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Debian {
    pub(crate) suite: String,
    pub(crate) variant: Variant,
    pub(crate) packages: Vec<String>,
    pub(crate) leave_out: Vec<String>,
}

/// What is there besides the packages that are named, and what these depend on.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) enum Variant {
    /// What Debian calls essential: a shell, the small tools, no apt.
    #[default]
    Essential,
    /// Nothing, and the packages are only unpacked: none of their scripts runs.
    Extract,
}

/// Who the processes of a sandbox are.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its number, which is also its group's.
    pub id: u32,
    /// Where its processes start.
    pub folder: PathBuf,
}

/// A folder that must be there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Folder {
    /// The number of its owner.
    pub owner: u32,
    /// Its mode.
    pub mode: u32,
}

/// Of a folder whose mode is not said.
const USUAL_MODE: u32 = 0o755;

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
    /// Something in it is wrong. All such places are named at once.
    #[error("the recipe {path} cannot be built:\n  {}", faults.join("\n  "))]
    Wrong {
        /// Which.
        path: PathBuf,
        /// Each thing that is wrong, with its line and what to write instead.
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
        let faults = Faults::new(text);
        if !is_name(name) {
            faults.add_whole(format_args!(
                "its folder's name {name:?} is the image's: call it by small letters, digits and -, such as \"base\""
            ));
        }
        let document = faults.parse();
        let recipe = Table::of(&document, &faults);
        let mut wanted = Wanted::read(&recipe, &faults);
        let knowledge = Written::read(&recipe).check(&faults);
        recipe.finish();
        if !faults.is_empty() {
            return Err(RecipeError::Wrong {
                path: path.to_owned(),
                faults: faults.finish(),
            });
        }
        if knowledge.is_some() {
            let folder = Folder {
                owner: wanted.user.id,
                mode: USUAL_MODE,
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
        self.wanted.epoch
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

#[cfg(test)]
mod tests;
