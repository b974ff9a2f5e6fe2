//! `service.toml` as a whole.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::schemas::Schemas;
use super::table::{Mistakes, NAME_RULE, Table, is_identifier};
use super::{auth, fixtures, http, mcp, method, script, sql};
use crate::definition::mistake::Mistake;
use crate::definition::source::{Source, below};
use crate::definition::{Limits, Service};

/// What can be behind a service.
const KINDS: [&str; 4] = ["http", "sql", "mcp", "script"];

/// The file of a definition.
const FILE: &str = "service.toml";

/// The service of Belljar itself, in which code asks for access.
const OWN: &str = "belljar";

/// Reads the definition in a folder.
pub(crate) fn read(folder: &Path) -> Result<Service, Vec<Mistake>> {
    let source = Source::read(&folder.join(FILE))?;
    let mistakes = Mistakes::default();
    let service = service(&source, folder, &mistakes);
    let mistakes = mistakes.into_vec();
    match service {
        Some(service) if mistakes.is_empty() => Ok(service),
        _ => Err(mistakes),
    }
}

fn service(source: &Source, folder: &Path, mistakes: &Mistakes) -> Option<Service> {
    let table = Table::at(source, String::new(), mistakes)?;
    let name = name(&table, folder);
    let summary = table
        .required("summary", "\"one line on what it is for\"")
        .map(str::to_owned);
    let kind = kind(&table);
    table.has("auth");
    let auth = auth::read(source, mistakes);
    let behind = match kind {
        "http" => http::read(&table),
        "mcp" => mcp::read(&table, &auth),
        "sql" => sql::read(&table),
        _ => script::read(&table, folder),
    };
    let auth = if kind == "sql" {
        sql::auth(behind.as_ref())
    } else {
        auth
    };
    let limits = table.table("limits").map(limits).unwrap_or_default();
    if table.has("schemas") {
        table.table("schemas");
    }
    let schemas = Schemas::read(source, folder, mistakes);
    let tools = mcp::Tools::read(kind, folder, mistakes);
    let mut methods = BTreeMap::new();
    match table.table("methods") {
        None if !table.has("methods") => table.mistake(
            "",
            "there is no method",
            "write [methods.NAME], with access and request",
        ),
        None => {}
        Some(all) => {
            for name in all.names() {
                let pointer = below("/methods", name);
                if !is_identifier(name) {
                    mistakes.add(source.mistake(&pointer, format!("{name:?} can be no method's name"), NAME_RULE));
                }
                let read = Table::at(source, pointer, mistakes)
                    .and_then(|table| method::read(table, kind, name, folder, &schemas, &tools));
                methods.extend(read.map(|method| (name.to_owned(), method)));
            }
        }
    }
    fixtures::read(
        folder,
        &mut methods,
        table
            .table("methods")
            .map(|table| table.names().collect())
            .unwrap_or_default(),
        mistakes,
    );
    table.finish();
    Some(Service {
        name: name?,
        summary: summary?,
        folder: folder.to_owned(),
        kind: behind?,
        auth,
        limits,
        methods,
    })
}

/// The word for what is behind the service. Where it is none, the rest is read as if it were the first.
fn kind(table: &Table<'_>) -> &'static str {
    if !table.has("kind") {
        table.mistake("", "kind is missing", "write kind = \"http\"");
    }
    table.word("kind", &KINDS).unwrap_or(KINDS[0])
}

fn name(table: &Table<'_>, folder: &Path) -> Option<String> {
    let folder = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = table.required("name", &format!("{folder:?}"))?;
    if !is_identifier(name) {
        table.mistake("name", format!("{name:?} can be no service's name"), NAME_RULE);
        return None;
    }
    if name == OWN {
        table.mistake(
            "name",
            "what Belljar itself offers is called so, and nothing else would be called by it",
            "give the service another name, and its folder too",
        );
        return None;
    }
    if name != folder {
        table.mistake(
            "name",
            format!("the service is called {name:?}, its folder {folder:?}"),
            "give both the same name",
        );
        return None;
    }
    Some(name.to_owned())
}

/// `[limits]` of a service or a method.
pub(super) fn limits(table: Table<'_>) -> Limits {
    let number = |key: &'static str| {
        table
            .whole(key, 1, 1_000_000)
            .and_then(|number| u32::try_from(number).ok())
    };
    let limits = Limits {
        timeout: table.duration("timeout"),
        response: table.size("response"),
        arguments: table.size("arguments"),
        concurrency: number("concurrency"),
        per_minute: number("per_minute"),
    };
    table.finish();
    limits
}
/// A value as a mistake shows it.
pub(super) fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
