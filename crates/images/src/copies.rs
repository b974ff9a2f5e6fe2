//! Files and folders that a recipe takes from beside itself.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::{BuildError, RecipeError};

/// What of a mode is kept: whether a file may be executed.
const EXECUTABLE: u32 = 0o111;

/// The key of a recipe with what it copies: another as soon as a file changes, moves, or may be executed.
pub(crate) fn key(recipe: &str, copies: &BTreeMap<PathBuf, PathBuf>) -> Result<String, RecipeError> {
    let mut hash = Sha256::new();
    hash.update(recipe);
    for (place, from) in copies {
        for (path, is_folder) in walk(from).map_err(|(path, source)| RecipeError::Copy { path, source })? {
            let failed = |source| RecipeError::Copy {
                path: path.clone(),
                source,
            };
            let name = place.join(path.strip_prefix(from).unwrap_or(&path));
            let content = if is_folder {
                Vec::new()
            } else {
                fs::read(&path).map_err(failed)?
            };
            let mode = mode(&path, is_folder).map_err(failed)?;
            hash.update(format!("{name:?} {mode:o} {}\n", content.len()));
            hash.update(content);
        }
    }
    Ok(hex::encode(hash.finalize()))
}

/// Copies a file or a folder with all that is in it; everything is root's, and everybody may read it.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), BuildError> {
    for (path, is_folder) in walk(from).map_err(|(path, source)| BuildError::file("read", path)(source))? {
        let relative = path.strip_prefix(from).unwrap_or(Path::new(""));
        let place = if relative.as_os_str().is_empty() {
            to.to_owned()
        } else {
            to.join(relative)
        };
        let copied = if is_folder {
            fs::create_dir_all(&place)
        } else {
            fs::copy(&path, &place).map(|_| ())
        };
        copied
            .and_then(|()| fs::set_permissions(&place, Permissions::from_mode(mode(&path, is_folder)?)))
            .map_err(BuildError::file("copy", &path))?;
    }
    Ok(())
}

fn mode(path: &Path, is_folder: bool) -> io::Result<u32> {
    let may_run = is_folder || fs::metadata(path)?.permissions().mode() & EXECUTABLE != 0;
    Ok(if may_run { 0o755 } else { 0o644 })
}

/// A path and everything beneath it, folders before what is in them, sorted; and whether each is a folder.
fn walk(from: &Path) -> Result<Vec<(PathBuf, bool)>, (PathBuf, io::Error)> {
    let failed = |error| (from.to_owned(), error);
    let about = from.symlink_metadata().map_err(failed)?;
    if !about.is_dir() && !about.is_file() {
        return Err(failed(io::Error::other("it is neither a file nor a folder")));
    }
    let mut found = vec![(from.to_owned(), about.is_dir())];
    if about.is_dir() {
        let entries: io::Result<Vec<_>> = fs::read_dir(from).map_err(failed)?.collect();
        let mut paths: Vec<_> = entries.map_err(failed)?.into_iter().map(|entry| entry.path()).collect();
        paths.sort_unstable();
        for path in paths {
            found.extend(walk(&path)?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_what_is_copied_changes_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skills/one/SKILL.md");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "one").unwrap();
        let copies = BTreeMap::from([("/skills".into(), folder.path().join("skills"))]);
        let key = || key("recipe", &copies).unwrap();
        let mut keys = vec![key()];
        assert_eq!(keys[0], key());
        fs::write(&file, "two").unwrap();
        keys.push(key());
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        keys.push(key());
        fs::create_dir(folder.path().join("skills/empty")).unwrap();
        keys.push(key());
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 4);
    }

    #[test]
    fn a_link_is_not_copied_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/shadow", folder.path().join("link")).unwrap();
        let to = folder.path().join("to");
        let error = copy(&folder.path().join("link"), &to).unwrap_err();
        assert!(error.to_string().contains("link"), "{error}");
        assert!(!to.exists());
    }
}
