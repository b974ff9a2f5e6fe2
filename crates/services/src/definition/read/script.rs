//! What only services of kind `script` have.

use std::path::Path;

use super::http;
use super::method::{Common, common};
use super::schemas::Schemas;
use super::table::{Table, is_identifier};
use crate::definition::source::whole;
use crate::definition::{Access, Action, Answer, Kind, Method, Pointer, Script};

/// The file with the functions, and its largest size in bytes.
const FILE: &str = "script.js";
const MAX_FILE: usize = 256 << 10;

/// Reads where the script's requests may go, and the script.
pub(super) fn read(table: &Table<'_>, folder: &Path) -> Option<Kind> {
    let api = http::read(table);
    let hosts = table.pairs("hosts").into_iter().filter_map(|(name, url)| {
        if !is_identifier(name) {
            table.mistake(
                "hosts",
                format!("{name:?} can be no host's name"),
                "write a lower-case letter, then letters and digits",
            );
        }
        let url = http::outside_url(table, "hosts", url)?;
        Some((name.to_owned(), url.trim_end_matches('/').to_owned()))
    });
    let hosts = hosts.collect();
    let file = folder.join(FILE);
    let source = match std::fs::read_to_string(&file) {
        Ok(source) if source.len() <= MAX_FILE => Some(source),
        Ok(_) => {
            let problem = format!("the file is larger than {MAX_FILE} bytes");
            table
                .mistakes
                .add(whole(&file, problem, "keep in it what glues calls together"));
            None
        }
        Err(error) => {
            let problem = format!("the file cannot be read ({error})");
            table
                .mistakes
                .add(whole(&file, problem, "write the functions there, one for each method"));
            None
        }
    };
    let Some(Kind::Http(api)) = api else { return None };
    Some(Kind::Script(Script {
        api,
        hosts,
        source: source?,
    }))
}

/// Reads a method: the function of its name.
pub(super) fn method(table: Table<'_>, name: &str, folder: &Path, schemas: &Schemas<'_>) -> Option<Method> {
    let Common {
        summary,
        access,
        arguments,
        result,
        limits,
    } = common(&table, schemas);
    let idempotent = table.flag("idempotent").unwrap_or(access == Some(Access::Read));
    let source = std::fs::read_to_string(folder.join(FILE)).unwrap_or_default();
    if !source.is_empty() && !exports(&source, name) {
        table.mistake(
            "",
            format!("{FILE} has no function {name}"),
            format!("write there: export async function {name}(args) {{ … }}"),
        );
    }
    table.finish();
    Some(Method {
        name: name.to_owned(),
        summary: summary?,
        access: access?,
        idempotent,
        arguments: arguments?,
        result,
        action: Action::Script,
        answer: Answer::Json,
        select: Pointer::default(),
        pages: None,
        idempotency_header: None,
        limits,
        fixtures: Vec::new(),
    })
}

/// Whether a line of a script exports this function.
fn exports(source: &str, name: &str) -> bool {
    source.lines().any(|line| {
        let declared = line
            .strip_prefix("export ")
            .map(|line| line.strip_prefix("async ").unwrap_or(line));
        declared
            .and_then(|line| line.strip_prefix("function ")?.trim_start().strip_prefix(name))
            .is_some_and(|rest| rest.trim_start().starts_with('('))
    })
}
