//! Which installation this is.

use domain::InstallationId;

use crate::batch::binds;
use crate::{Store, StoreError};

impl Store {
    /// Names this store, and so all control planes that share it: what one of them made is known by the others, and nobody
    /// else's is theirs. It is chosen when it is first asked for, and goes with backups.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn installation(&self) -> Result<InstallationId, StoreError> {
        self.write("name the installation", |work| {
            if let Some(row) = work.one("SELECT id FROM installation", binds![])? {
                return row.id("id");
            }
            let id = InstallationId::new();
            work.batch
                .add("INSERT INTO installation (only_one, id) VALUES (1, $1)", binds![id]);
            Ok(id)
        })
        .await
    }
}
