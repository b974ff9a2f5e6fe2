//! What the names of a statement stand for, looked up in the database's own catalogue.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use worker::{Checked, Dialect, Named};

use super::{Postgres, identifier};
use crate::sql::{Asked, check};
use crate::{Code, Failure};

/// Views in views that are followed, all together.
const VIEWS: usize = 64;

/// The first number that a server gives to what is not its own: <https://www.postgresql.org/docs/current/system-catalog-initial-data.html>.
const FIRST: u32 = 16_384;

/// Our own statements.
pub(super) fn ours(tables: bool, schemas: &str) -> String {
    if tables {
        return format!(
            "SELECT n.nspname::text AS schema, c.relname::text AS name, CASE c.relkind WHEN 'v' THEN 'view' \
             WHEN 'm' THEN 'materialized view' ELSE 'table' END AS kind, \
             CASE WHEN c.reltuples >= 0 AND c.relkind IN ('r', 'm') THEN c.reltuples::bigint END AS rows, \
             pg_catalog.obj_description(c.oid, 'pg_class') AS comment \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname IN ({schemas}) AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition \
             AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT') AND ($1::text IS NULL OR n.nspname = $1) ORDER BY 1, 2"
        );
    }
    format!(
        "SELECT a.attname::text AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type, \
         NOT a.attnotnull AS nullable, EXISTS(SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = a.attrelid \
         AND i.indisprimary AND a.attnum = ANY(i.indkey)) AS key, pg_catalog.col_description(a.attrelid, a.attnum) AS comment \
         FROM pg_catalog.pg_attribute a WHERE a.attnum > 0 AND NOT a.attisdropped \
         AND pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT') AND a.attrelid = \
         (SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname IN ({schemas}) AND ($1::text IS NULL OR n.nspname = $1) AND c.relname = $2 \
         AND c.relkind IN ('r', 'p', 'v', 'm') ORDER BY pg_catalog.array_position(ARRAY[{schemas}], n.nspname::text) LIMIT 1) \
         ORDER BY a.attnum"
    )
}

/// Something a statement names.
struct Candidate {
    schema: String,
    name: String,
    volatile: bool,
    language: String,
}

impl Postgres {
    /// Refuses a statement that reads what it may not, or that would call somebody's code.
    pub(super) async fn resolve(&self, client: &Client, asked: &Asked) -> Result<(), Failure> {
        self.callable(client, asked, &asked.statement).await?;
        self.hidden_calls(client, asked).await?;
        let mut seen = BTreeSet::new();
        let (mut operators, mut types) = (asked.statement.operators.clone(), asked.statement.types.clone());
        let mut views = self
            .relations(client, asked, &asked.statement.relations, true, &mut seen)
            .await?;
        while let Some((name, definition)) = views.pop() {
            if seen.len() > VIEWS {
                return Err(self.refused(asked, format!("{name} is made of more than {VIEWS} tables and views")));
            }
            // A view is a statement that somebody else wrote.
            let checked = check(&self.worker, Dialect::Postgres, &asked.what, &definition)
                .await
                .map_err(|failure| {
                    let why = failure
                        .message
                        .rsplit_once("was refused: ")
                        .map_or(&*failure.message, |(_, why)| why)
                        .to_owned();
                    self.refused(asked, format!("the view {name} is more than a query: {why}"))
                })?;
            self.callable(client, asked, &checked).await?;
            views.extend(
                self.relations(client, asked, &checked.relations, false, &mut seen)
                    .await?,
            );
            operators.extend(checked.operators);
            types.extend(checked.types);
        }
        self.of_types(client, asked, &seen, &operators, &types).await
    }

    /// Operators must be harmless, and so must be the functions that convert values, which no text tells of. Of those that are
    /// made for somebody's type only such count as the statement can come upon: a column's, a row's, one that it names, and what
    /// these are made of.
    async fn of_types(
        &self,
        client: &Client,
        asked: &Asked,
        relations: &BTreeSet<u32>,
        operators: &[Named],
        types: &[Named],
    ) -> Result<(), Failure> {
        let kinds = "WITH RECURSIVE kinds(id) AS (\
             SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY($1::oid[]) AND a.attnum > 0 \
             UNION SELECT c.reltype FROM pg_catalog.pg_class c WHERE c.oid = ANY($1::oid[]) \
             UNION SELECT t.oid FROM pg_catalog.pg_type t WHERE t.typname = ANY($2::text[]) \
             UNION SELECT parts.part FROM kinds JOIN pg_catalog.pg_type t ON t.oid = kinds.id, LATERAL (\
             SELECT t.typelem UNION ALL SELECT t.typbasetype UNION ALL \
             SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0) AS parts(part) \
             WHERE parts.part <> 0) ";
        let ids: Vec<u32> = relations.iter().copied().collect();
        let names = |named: &[Named]| named.iter().map(|named| named.name.clone()).collect::<Vec<String>>();
        let made = format!(
            "{kinds}SELECT n.nspname::text, o.oprname::text, p.provolatile = 'v', l.lanname::text \
             FROM pg_catalog.pg_operator o JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace \
             JOIN pg_catalog.pg_proc p ON p.oid = o.oprcode JOIN pg_catalog.pg_language l ON l.oid = p.prolang \
             WHERE n.nspname <> 'pg_catalog' AND o.oprname = ANY($3::text[]) AND (o.oprleft < {FIRST} AND o.oprright < {FIRST} \
             OR o.oprleft IN (SELECT id FROM kinds) OR o.oprright IN (SELECT id FROM kinds))"
        );
        if !operators.is_empty() {
            let found = self
                .candidates_of(client, asked, &made, &[&ids, &names(types), &names(operators)])
                .await?;
            self.harmless(asked, "operator", &found, operators)?;
        }
        let casts = format!(
            "{kinds}SELECT n.nspname::text, p.proname::text, p.provolatile = 'v', l.lanname::text \
             FROM pg_catalog.pg_cast c JOIN pg_catalog.pg_proc p ON p.oid = c.castfunc \
             JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace JOIN pg_catalog.pg_language l ON l.oid = p.prolang \
             WHERE n.nspname <> 'pg_catalog' AND (c.castsource >= {FIRST} AND c.castsource IN (SELECT id FROM kinds) \
             OR c.casttarget >= {FIRST} AND c.casttarget IN (SELECT id FROM kinds))"
        );
        let found = self
            .candidates_of(client, asked, &casts, &[&ids, &names(types)])
            .await?;
        for candidate in found.into_values().flatten() {
            self.judge_one(asked, "conversion by", &candidate)?;
        }
        Ok(())
    }

    /// The views among these tables and all that belongs to them. `limited`: only schemas that are listed.
    async fn relations(
        &self,
        client: &Client,
        asked: &Asked,
        named: &[Named],
        limited: bool,
        seen: &mut BTreeSet<u32>,
    ) -> Result<Vec<(String, String)>, Failure> {
        let names: Vec<String> = named
            .iter()
            .map(|named| match &named.schema {
                Some(schema) => format!("{}.{}", identifier(schema), identifier(&named.name)),
                None => identifier(&named.name),
            })
            .collect();
        // The parts of a table count as it does: one may be on another server.
        let question = "WITH RECURSIVE reached(id, is_part) AS (\
             SELECT pg_catalog.to_regclass(name)::oid, false FROM pg_catalog.unnest($1::text[]) AS name \
             UNION SELECT i.inhrelid, true FROM pg_catalog.pg_inherits i JOIN reached ON reached.id = i.inhparent) \
             SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, \
             CASE WHEN c.relkind = 'v' THEN pg_catalog.pg_get_viewdef(c.oid) END, bool_and(reached.is_part) \
             FROM reached JOIN pg_catalog.pg_class c ON c.oid = reached.id \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace GROUP BY 1, 2, 3, 4, 5";
        let found = client
            .query(question, &[&names])
            .await
            .map_err(|error| self.failure(asked, &error))?;
        let mut views = Vec::new();
        for row in &found {
            let unread = |error: tokio_postgres::Error| self.failure(asked, &error);
            let id: u32 = row.try_get(0).map_err(unread)?;
            let (schema, name): (String, String) = (row.try_get(1).map_err(unread)?, row.try_get(2).map_err(unread)?);
            let kind: String = row.try_get(3).map_err(unread)?;
            let definition: Option<String> = row.try_get(4).map_err(unread)?;
            let is_part: bool = row.try_get(5).map_err(unread)?;
            let is_listed = self.schemas.contains(&schema);
            let place = format!("{schema}.{name}");
            if limited && !is_part && !is_listed {
                return Err(Failure::new(
                    Code::Refused,
                    format!("{}: {place} is in a schema that may not be read", asked.what),
                )
                .remedy(format!(
                    "tables() lists what may be read; an administrator adds schemas in services.{}.database.schemas",
                    self.way.service
                )));
            }
            if kind == "f" {
                return Err(self.refused(asked, format!("{place} is a foreign table, which asks another server")));
            }
            let is_catalogue = matches!(schema.as_str(), "pg_catalog" | "information_schema");
            if seen.insert(id)
                && !is_catalogue
                && let Some(definition) = definition
            {
                views.push((place, definition.trim_end().trim_end_matches(';').to_owned()));
            }
        }
        Ok(views)
    }

    /// Functions and types that are not the server's own must be harmless, or listed.
    async fn callable(&self, client: &Client, asked: &Asked, statement: &Checked) -> Result<(), Failure> {
        let functions = "SELECT n.nspname::text, p.proname::text, p.provolatile <> 'i', l.lanname::text \
             FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
             JOIN pg_catalog.pg_language l ON l.oid = p.prolang WHERE p.proname = ANY($1)";
        let types = "SELECT n.nspname::text, t.typname::text, t.typtype NOT IN ('b', 'e'), 'internal' \
             FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace \
             WHERE n.nspname <> 'pg_catalog' AND t.typname = ANY($1)";
        for (kind, question, named) in [
            ("function", functions, &statement.functions),
            ("type", types, &statement.types),
        ] {
            if named.is_empty() {
                continue;
            }
            let names: Vec<String> = named.iter().map(|named| named.name.clone()).collect();
            let candidates = self.candidates_of(client, asked, question, &[&names]).await?;
            self.harmless(asked, kind, &candidates, named)?;
        }
        Ok(())
    }

    /// Refuses what is not harmless among what these names may stand for.
    fn harmless(
        &self,
        asked: &Asked,
        kind: &str,
        candidates: &BTreeMap<String, Vec<Candidate>>,
        named: &[Named],
    ) -> Result<(), Failure> {
        for named in named {
            let matching = candidates.get(&named.name).into_iter().flatten().filter(|candidate| {
                named.schema.as_ref().map_or_else(
                    || candidate.schema == "pg_catalog" || self.schemas.contains(&candidate.schema),
                    |schema| *schema == candidate.schema,
                )
            });
            for candidate in matching {
                self.judge_one(asked, kind, candidate)?;
            }
        }
        Ok(())
    }

    fn judge_one(&self, asked: &Asked, kind: &str, candidate: &Candidate) -> Result<(), Failure> {
        let Candidate {
            schema,
            name,
            volatile,
            language,
        } = candidate;
        let place = format!("{schema}.{name}");
        if self.functions.contains(&place) {
            return Ok(());
        }
        let why = if kind == "function" && schema == "pg_catalog" {
            // The guard knows those that only compute, and does not ask for them.
            "is not known to do no more than compute a value".to_owned()
        } else if !matches!(language.as_str(), "internal" | "c") {
            format!("is written in {language} by somebody of this database")
        } else if *volatile {
            "may do more than compute a value".to_owned()
        } else {
            return Ok(());
        };
        Err(Failure::new(Code::Refused, format!("{}: the {kind} {place} {why}", asked.what)).remedy(format!(
            "do without it; an administrator who knows that it only reads lists it in services.{}.database.functions",
            self.way.service
        )))
    }

    /// `t.f` calls f(t) where t has no column f: whatever is called like such a function is refused.
    async fn hidden_calls(&self, client: &Client, asked: &Asked) -> Result<(), Failure> {
        let question = "SELECT n.nspname::text, p.proname::text, true, l.lanname::text FROM pg_catalog.pg_proc p \
             JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace JOIN pg_catalog.pg_language l ON l.oid = p.prolang \
             JOIN pg_catalog.pg_type t ON t.oid = p.proargtypes[0] WHERE n.nspname = ANY($1) \
             AND p.pronargs - p.pronargdefaults <= 1 AND t.typtype IN ('c', 'p')";
        let found = self.candidates_of(client, asked, question, &[&self.schemas]).await?;
        for candidate in found.into_values().flatten() {
            let is_named = asked
                .statement
                .text
                .split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '$')
                .any(|word| word == candidate.name);
            if is_named {
                self.judge_one(asked, "function", &candidate)?;
            }
        }
        Ok(())
    }

    async fn candidates_of(
        &self,
        client: &Client,
        asked: &Asked,
        question: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<BTreeMap<String, Vec<Candidate>>, Failure> {
        let unread = |error: tokio_postgres::Error| self.failure(asked, &error);
        let mut candidates: BTreeMap<String, Vec<Candidate>> = BTreeMap::new();
        for row in client.query(question, parameters).await.map_err(unread)? {
            let name: String = row.try_get(1).map_err(unread)?;
            candidates.entry(name.clone()).or_default().push(Candidate {
                schema: row.try_get(0).map_err(unread)?,
                name,
                volatile: row.try_get(2).map_err(unread)?,
                language: row.try_get(3).map_err(unread)?,
            });
        }
        Ok(candidates)
    }

    fn refused(&self, asked: &Asked, why: String) -> Failure {
        Failure::new(Code::Refused, format!("{}: {why}", asked.what)).remedy("ask the tables themselves")
    }
}
