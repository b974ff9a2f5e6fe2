//! A copy while the store is in use.

use std::path::Path;

use crate::{Asker, Store, StoreError};

impl Store {
    /// Writes a consistent copy of the store to a new file while it is in use: complete, checked, on the disk, and readable by its owner
    /// alone, or not there at all. Audited.
    ///
    /// # Errors
    /// The file exists; it cannot be written; the one who asks is no admin.
    pub async fn backup(&self, asker: Asker, file: &Path) -> Result<(), StoreError> {
        todo!()
    }
}
