//! What the names of a statement stand for, and what the user may do.

use serde_json::Value;
use worker::Dialect;

use super::connection::Connection;
use super::{Broken, MySql};
use crate::sql::{Asked, check};
use crate::{Code, Failure};

/// Rights with which a fault of ours would reach beyond the database.
const FORBIDDEN: [&str; 13] = [
    "ALL PRIVILEGES ON *.*",
    "SUPER",
    "FILE",
    "PROCESS",
    "RELOAD",
    "SHUTDOWN",
    "CREATE USER",
    "GRANT OPTION",
    "REPLICATION SLAVE",
    "SYSTEM_VARIABLES_ADMIN",
    "CONNECTION_ADMIN",
    "BINLOG ADMIN",
    "SET USER",
];
/// Rights that only read.
const READING: [&str; 4] = ["SELECT", "USAGE", "SHOW VIEW", "SHOW DATABASES"];
/// Engines whose tables are somewhere else.
const REMOTE: [&str; 5] = ["FEDERATED", "CONNECT", "SPIDER", "S3", "SPHINX"];
const VIEWS: usize = 64;

impl MySql {
    /// Our own statements: one lists tables, one describes one.
    pub(crate) fn catalogue(&self, tables: bool) -> String {
        let schemas: Vec<String> = self.schemas.iter().map(|schema| quoted(schema)).collect();
        let schemas = schemas.join(", ");
        if tables {
            return format!(
                "SELECT TABLE_SCHEMA AS `schema`, TABLE_NAME AS `name`, \
                 IF(TABLE_TYPE LIKE '%VIEW', 'view', 'table') AS `kind`, TABLE_ROWS AS `rows`, \
                 NULLIF(TABLE_COMMENT, '') AS `comment` FROM information_schema.TABLES \
                 WHERE TABLE_SCHEMA IN ({schemas}) AND COALESCE(?, TABLE_SCHEMA) = TABLE_SCHEMA ORDER BY 1, 2"
            );
        }
        format!(
            "SELECT COLUMN_NAME AS `name`, COLUMN_TYPE AS `type`, IS_NULLABLE AS `nullable`, COLUMN_KEY AS `key`, \
             NULLIF(COLUMN_COMMENT, '') AS `comment` FROM information_schema.COLUMNS WHERE TABLE_SCHEMA IN ({schemas}) \
             AND COALESCE(?, {}) = TABLE_SCHEMA AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION",
            quoted(&self.server.name)
        )
    }

    /// Refuses a statement that reads what it may not, or that would call somebody's code.
    pub(super) async fn resolve(&self, connection: &mut Connection, asked: &Asked) -> Result<(), Failure> {
        let mut waiting = asked.statement.relations.clone();
        let mut limited = waiting.len();
        let mut seen = 0;
        while !waiting.is_empty() {
            let named = waiting.remove(0);
            seen += 1;
            if seen > VIEWS {
                return Err(self.refused(asked, format!("it is made of more than {VIEWS} tables and views")));
            }
            let is_limited = limited > 0;
            limited = limited.saturating_sub(1);
            let schema = named.schema.clone().unwrap_or_else(|| self.server.name.clone());
            let place = format!("{schema}.{}", named.name);
            if is_limited && !self.schemas.iter().any(|listed| listed.eq_ignore_ascii_case(&schema)) {
                return Err(Failure::new(
                    Code::Refused,
                    format!("{}: {place} is in a schema that may not be read", asked.what),
                )
                .remedy(format!(
                    "tables() lists what may be read; an administrator adds schemas in services.{}.database.schemas",
                    self.server.way.service
                )));
            }
            let question = "SELECT t.ENGINE, v.VIEW_DEFINITION FROM information_schema.TABLES t LEFT JOIN \
                 information_schema.VIEWS v ON v.TABLE_SCHEMA = t.TABLE_SCHEMA AND v.TABLE_NAME = t.TABLE_NAME \
                 WHERE t.TABLE_SCHEMA = ? AND t.TABLE_NAME = ?";
            let parameters = [Value::from(schema), Value::from(named.name.as_str())];
            let found = connection
                .all(question, &parameters)
                .await
                .map_err(|broken| self.server.failure(asked, broken))?;
            for row in found {
                let engine = row.first().cloned().flatten().unwrap_or_default();
                if REMOTE.contains(&engine.to_uppercase().as_str()) {
                    return Err(self.refused(asked, format!("{place} is kept by {engine}, which asks elsewhere")));
                }
                let definition = row.get(1).cloned().flatten().unwrap_or_default();
                if definition.is_empty() {
                    continue;
                }
                // A view is a statement that somebody else wrote.
                let checked = check(&self.worker, Dialect::MySql, &asked.what, &definition)
                    .await
                    .map_err(|failure| {
                        let why = failure
                            .message
                            .rsplit_once("was refused: ")
                            .map_or(&*failure.message, |(_, why)| why);
                        self.refused(asked, format!("the view {place} is more than a query: {why}"))
                    })?;
                waiting.extend(checked.relations);
            }
        }
        Ok(())
    }

    fn refused(&self, asked: &Asked, why: String) -> Failure {
        Failure::new(Code::Refused, format!("{}: {why}", asked.what)).remedy("ask the tables themselves")
    }

    /// Refuses a user that a fault of ours would make the server's master, and warns of one that may write.
    pub(super) async fn judge(&self, connection: &mut Connection) -> Result<(), Failure> {
        let service = &self.server.way.service;
        let unread = |broken: Broken| {
            Failure::new(
                Code::Unreachable,
                format!(
                    "{service}: the user's rights cannot be had: {}",
                    causes::with_causes(&broken)
                ),
            )
        };
        let mut more = Vec::new();
        for row in connection
            .all("SHOW GRANTS FOR CURRENT_USER()", &[])
            .await
            .map_err(unread)?
        {
            let grant = row.first().cloned().flatten().unwrap_or_default();
            // The proof of the password stands behind the rights.
            let words = grant.split(" IDENTIFIED ").next().unwrap_or_default();
            let Some((rights, target)) = words.strip_prefix("GRANT ").and_then(|rest| rest.split_once(" ON ")) else {
                continue;
            };
            let whole = format!("{rights} ON {target}");
            let held = |right: &&&str| {
                whole.starts_with(**right)
                    || rights.split(", ").any(|one| one == **right)
                    || target.contains(&format!("WITH {right}"))
            };
            if let Some(right) = FORBIDDEN.iter().find(held) {
                return Err(Failure::new(
                    Code::CredentialRefused,
                    format!("{service}: the database's user is not used: it has the right {right}"),
                )
                .remedy(
                    "an administrator makes a user with GRANT SELECT, SHOW VIEW on what may be read, and nothing else",
                ));
            }
            more.extend(
                rights
                    .split(", ")
                    .filter(|right| !READING.iter().any(|reads| right.starts_with(reads)))
                    .map(str::to_owned),
            );
        }
        if !more.is_empty() {
            self.warn(&more.join(", "));
        }
        Ok(())
    }
}

/// A text as the server takes it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
