//! Bringing a copy back.

use std::path::{Path, PathBuf};

use crate::StoreError;

/// What restoring did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    /// Where the store that was replaced is kept, where there was one.
    pub replaced: Option<PathBuf>,
}

/// Puts a copy made by [`crate::Store::backup`] in the place of the store at `path`, which nobody may be using. The copy is checked first
/// and stays; the store that is replaced is kept beside it. Whenever this is cut short, the old store or the new one is in place.
///
/// # Errors
/// The copy is not a store, is damaged, or is of a newer release; the store is in use; a file cannot be written.
pub async fn restore(copy: &Path, path: &Path) -> Result<Restored, StoreError> {
    todo!()
}
