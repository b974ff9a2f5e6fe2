//! Schemas go forward only, after a copy; a newer one is refused.

use std::path::{Path, PathBuf};

use domain::Timestamp;

use crate::StoreError;
use crate::backup::copy_to;
use crate::connection::Connection;
use crate::error::database;
use crate::open::{beside, not_a_store};

/// What each schema adds to the one before; the first makes schema 1.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_begin.sql"),
    include_str!("../migrations/0002_narrowings.sql"),
    include_str!("../migrations/0003_approvals.sql"),
    include_str!("../migrations/0004_audit.sql"),
    include_str!("../migrations/0005_triggers.sql"),
    include_str!("../migrations/0006_stored.sql"),
    include_str!("../migrations/0007_token_triggers.sql"),
    include_str!("../migrations/0008_snapshots.sql"),
    include_str!("../migrations/0009_files.sql"),
    include_str!("../migrations/0010_generations.sql"),
    include_str!("../migrations/0011_installation.sql"),
    include_str!("../migrations/0012_behind.sql"),
    include_str!("../migrations/0013_service_writes.sql"),
    include_str!("../migrations/0014_results.sql"),
    include_str!("../migrations/0015_addresses.sql"),
];

/// Says in the file's header that it is ours (`BELJ`).
pub(crate) const APPLICATION: i64 = 0x4245_4C4A;

/// The schema that this build writes.
pub(crate) const SCHEMA: i64 = MIGRATIONS.len() as i64;

/// What a file says of itself.
pub(crate) fn schema_of(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let application = pragma(connection, path, "PRAGMA application_id")?;
    let schema = pragma(connection, path, "PRAGMA user_version")?;
    let tables = pragma(connection, path, "SELECT COUNT(*) FROM sqlite_master")?;
    if application != APPLICATION && tables > 0 {
        return Err(StoreError::NotAStore {
            path: path.to_owned(),
            reason: "it is a database of another program".to_owned(),
        });
    }
    if schema > SCHEMA {
        return Err(StoreError::NewerSchema {
            path: path.to_owned(),
            found: schema,
            known: SCHEMA,
        });
    }
    Ok(if tables == 0 { 0 } else { schema })
}

fn pragma(connection: &Connection, path: &Path, sql: &str) -> Result<i64, StoreError> {
    let found = connection.first(sql).map_err(|source| not_a_store(path, source))?;
    Ok(found.unwrap_or(0))
}

/// Brings the file to this build's schema.
pub(crate) fn check_and_run(connection: &Connection, path: &Path, now: Timestamp) -> Result<(), StoreError> {
    run(connection, path, now, MIGRATIONS)
}

fn run(connection: &Connection, path: &Path, now: Timestamp, migrations: &[&str]) -> Result<(), StoreError> {
    let found = schema_of(connection, path)?;
    let wanted = migrations.len() as i64;
    if found == wanted {
        return Ok(());
    }
    if found > 0 {
        let copy = before(path, found, now);
        copy_to(connection, &copy)?;
        tracing::info!(copy = %copy.display(), from = found, to = wanted, "the store is migrated; a copy of it was made");
    }
    for (schema, migration) in (1_i64..).zip(migrations).skip(usize::try_from(found).unwrap_or(0)) {
        let sql = format!(
            "BEGIN IMMEDIATE;\n{migration}\nPRAGMA application_id = {APPLICATION};\nPRAGMA user_version = {schema};\nCOMMIT"
        );
        if let Err(source) = connection.script(&sql) {
            connection.roll_back();
            return Err(database("migrate the store", source));
        }
    }
    Ok(())
}

/// Where the copy of a store goes that is about to be migrated.
fn before(path: &Path, schema: i64, now: Timestamp) -> PathBuf {
    beside(path, &format!(".schema-{schema}-{}", now.0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;
    use crate::connection::Access;
    use crate::open::make_private;

    fn open(path: &Path) -> Connection {
        make_private(path).unwrap();
        Connection::open(path, Access::Write).unwrap()
    }

    /// What stands in the only row of the table that the test made.
    fn kept(path: &Path) -> i64 {
        let connection = open(path);
        let found = pragma(&connection, path, "SELECT word FROM kept").unwrap();
        connection.close().unwrap();
        found
    }

    #[test]
    fn an_older_store_is_copied_and_then_migrated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("belljar.db");
        let connection = open(&path);
        check_and_run(&connection, &path, Timestamp(6)).unwrap();
        for sql in ["CREATE TABLE kept (word BIGINT)", "INSERT INTO kept VALUES (42)"] {
            connection.script(sql).unwrap();
        }
        let broken = [MIGRATIONS, &["UPDATE kept SET word = 0; nonsense"]].concat();
        let error = run(&connection, &path, Timestamp(7), &broken).unwrap_err();
        assert!(error.to_string().contains("migrate the store"), "{error}");
        let version = "PRAGMA user_version";
        assert_eq!(pragma(&connection, &path, version).unwrap(), SCHEMA);
        assert_eq!(kept(&path), 42, "half a migration is none");

        let newer = [MIGRATIONS, &["UPDATE kept SET word = word + 1;"]].concat();
        run(&connection, &path, Timestamp(8), &newer).unwrap();
        assert_eq!(pragma(&connection, &path, version).unwrap(), SCHEMA + 1);
        let copy = before(&path, SCHEMA, Timestamp(8));
        let copied = open(&copy);
        assert_eq!(schema_of(&copied, &copy).unwrap(), SCHEMA);
        copied.close().unwrap();
        assert_eq!((kept(&copy), kept(&path)), (42, 43));
        connection.close().unwrap();
    }
}
