//! What a path means.

use std::path::{Path, PathBuf};

use super::{FileError, Files, Root};

/// The longest path, and the longest name in it, that the kernel takes.
const MAX_PATH: usize = 4_095;
const MAX_NAME: usize = 255;

/// A path as a folder and what is beneath it: plain names only.
pub(crate) struct Place<'a> {
    pub(super) root: &'a Root,
    /// Beneath the root; empty for the root itself.
    pub(super) relative: PathBuf,
}

impl Files {
    /// Takes a path apart. Nothing is looked up: since links are never followed, `a/../b` is `b`.
    pub(super) fn place(&self, path: &str) -> Result<Place<'_>, FileError> {
        let refuse = |reason| {
            Err(FileError::NotAPath {
                path: path.chars().take(200).collect(),
                reason,
            })
        };
        if path.is_empty() {
            return refuse("it is empty");
        }
        if path.contains('\0') {
            return refuse("it contains a NUL");
        }
        if path.len() > MAX_PATH {
            return refuse("it is longer than 4095 bytes");
        }
        if path.split('/').any(|name| name.len() > MAX_NAME) {
            return refuse("a name in it is longer than 255 bytes");
        }
        let outside = || FileError::Outside {
            path: path.to_owned(),
            reach: self.reach(),
        };
        let Some(absolute) = path.strip_prefix('/') else {
            return Ok(Place {
                root: &self.roots[0],
                relative: plain(path).ok_or_else(outside)?,
            });
        };
        let absolute = Path::new("/").join(plain(absolute).ok_or_else(outside)?);
        self.roots
            .iter()
            .find_map(|root| {
                let relative = absolute
                    .strip_prefix(&root.path)
                    .or_else(|_| absolute.strip_prefix(root.name))
                    .ok()?;
                Some(Place {
                    root,
                    relative: relative.to_owned(),
                })
            })
            .ok_or_else(outside)
    }
}

impl Place<'_> {
    /// The first symbolic link on the way, and what it says; only to explain a refusal.
    pub(super) fn first_link(&self) -> Option<(String, String)> {
        let mut walked = PathBuf::new();
        for name in &self.relative {
            walked.push(name);
            if let Ok(target) = rustix::fs::readlinkat(&self.root.folder, &walked, Vec::new()) {
                let link = Path::new(self.root.name).join(&walked);
                return Some((link.display().to_string(), target.to_string_lossy().into_owned()));
            }
        }
        None
    }
}

/// The path without `.`, `..` and doubled slashes; none where it leads above its beginning.
fn plain(path: &str) -> Option<PathBuf> {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop()?;
            }
            name => names.push(name),
        }
    }
    Some(names.iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_made_plain_and_never_leads_above_its_beginning() {
        for (path, expected) in [
            ("a/b", Some("a/b")),
            ("./a//b/./c/", Some("a/b/c")),
            ("a/../b", Some("b")),
            (".", Some("")),
            ("a/..", Some("")),
            ("..", None),
            ("a/../../b", None),
        ] {
            assert_eq!(plain(path), expected.map(PathBuf::from), "{path}");
        }
    }
}
