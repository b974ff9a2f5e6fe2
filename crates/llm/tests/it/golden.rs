//! Golden files: `GOLDEN=write cargo test -p llm` writes them anew, and `git diff` shows what changed.

use std::path::{Path, PathBuf};

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The files of a golden folder with this ending, by name.
pub(crate) fn files(under: &str, ending: &str) -> Vec<PathBuf> {
    let folder = folder().join(under);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no .{ending} in {}", folder.display());
    files
}

/// Asserts that the golden file holds exactly this.
pub(crate) fn assert_golden(path: &Path, found: &str) {
    if std::env::var_os("GOLDEN").is_some_and(|mode| mode == "write") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, found).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(found, golden, "{} (GOLDEN=write takes what is found)", path.display());
}
