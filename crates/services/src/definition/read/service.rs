//! `service.toml` as a whole.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use url::Url;

use super::pages::pointer;
use super::schemas::Schemas;
use super::table::{Mistakes, NAME_RULE, Table, is_identifier, shown};
use super::{auth, fixtures, method};
use crate::definition::mistake::Mistake;
use crate::definition::source::{Source, below};
use crate::definition::{Condition, Failing, Limits, Nesting, Pointer, Service};

/// The file of a definition.
const FILE: &str = "service.toml";

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
    match table.word("kind", &["http", "sql", "mcp", "script"]) {
        Some("http") => {}
        None if table.has("kind") => {}
        None => table.mistake("", "kind is missing", "write kind = \"http\""),
        Some(other) => {
            table.mistake(
                "kind",
                format!("services of kind {other:?} cannot be used yet"),
                "write kind = \"http\", or take the folder away",
            );
            return None;
        }
    }
    let base_url = table.required("base_url", "\"https://api.example.com\"");
    let base_url = base_url
        .and_then(|url| outside_url(&table, "base_url", url))
        .map(|url| url.trim_end_matches('/').to_owned());
    table.has("auth");
    let auth = auth::read(source, mistakes);
    let headers = headers(&table);
    let nesting = match table.word("lists", &["repeat", "comma", "brackets", "indices"]) {
        Some("comma") => Nesting::Comma,
        Some("brackets") => Nesting::Brackets,
        Some("indices") => Nesting::Indices,
        _ => Nesting::Repeat,
    };
    let failure = table.table("failure").map(failing).unwrap_or_default();
    let limits = table.table("limits").map(limits).unwrap_or_default();
    if table.has("schemas") {
        table.table("schemas");
    }
    let schemas = Schemas::read(source, folder, mistakes);
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
                let read =
                    Table::at(source, pointer, mistakes).and_then(|table| method::read(table, name, folder, &schemas));
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
        base_url: base_url?,
        auth,
        headers,
        nesting,
        failure,
        limits,
        methods,
    })
}

fn name(table: &Table<'_>, folder: &Path) -> Option<String> {
    let folder = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = table.required("name", &format!("{folder:?}"))?;
    if !is_identifier(name) {
        table.mistake("name", format!("{name:?} can be no service's name"), NAME_RULE);
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

/// An http or https URL without user, query and fragment.
pub(super) fn outside_url(table: &Table<'_>, key: &'static str, text: &str) -> Option<String> {
    let wrong = |problem: String, remedy: &str| {
        table.mistake(key, problem, remedy);
        None
    };
    if text.contains(['{', '}']) {
        return wrong(
            format!("{} has a place for an argument", shown(&table.pointer(key))),
            "write the whole host; where it differs from install to install, bind base_url in belljar.toml",
        );
    }
    let Ok(url) = Url::parse(text) else {
        return wrong(
            format!("{text:?} is no URL"),
            "write one such as https://api.example.com/v1",
        );
    };
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return wrong(
            format!("{text:?} is no http or https URL"),
            "write one such as https://api.example.com/v1",
        );
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return wrong(
            format!("{text:?} has more than scheme, host, port and path"),
            "write credentials as [auth], and parameters with the methods",
        );
    }
    Some(url.to_string())
}

/// `headers` of a service: fixed texts.
fn headers(table: &Table<'_>) -> Vec<(String, String)> {
    let pairs = table.pairs("headers").into_iter();
    pairs
        .filter_map(|(name, text)| {
            let good = http::HeaderValue::from_str(text).is_ok() && !text.contains(['{', '}']);
            if !good {
                table.mistake(
                    "headers",
                    format!("the header {name} has no fixed text"),
                    "write a line of ASCII; a header with an argument belongs to a method",
                );
            }
            header_name(table, "headers", name)
                .filter(|_| good)
                .map(|name| (name, text.to_owned()))
        })
        .collect()
}

/// A header's name, in lower case; those that we write ourselves are refused.
pub(super) fn header_name(table: &Table<'_>, key: &'static str, name: &str) -> Option<String> {
    const OURS: [&str; 9] = [
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    let lower = name.to_ascii_lowercase();
    if http::HeaderName::from_bytes(lower.as_bytes()).is_err() {
        table.mistake(
            key,
            format!("{name:?} can be no header's name"),
            "write letters, digits and -",
        );
        return None;
    }
    if OURS.contains(&lower.as_str()) {
        table.mistake(
            key,
            format!("the header {name} is written by Belljar itself"),
            "take it away",
        );
        return None;
    }
    Some(lower)
}

fn failing(table: Table<'_>) -> Failing {
    let when = table.table("when").and_then(|when| {
        let at = pointer(&when, "at");
        let equals = when.value("equals").cloned();
        if at.is_none() || equals.is_none() {
            when.mistake(
                "",
                "failure.when is not whole",
                "write { at = \"/ok\", equals = false }",
            );
        }
        when.finish();
        Some(Condition {
            at: at?,
            equals: equals?,
        })
    });
    let pointers = |key: &'static str| -> Vec<Pointer> {
        let texts = table.texts(key);
        for text in texts.iter().filter(|text| !text.starts_with('/')) {
            table.mistake(
                key,
                format!("{text:?} is no JSON pointer"),
                "begin it with /, such as \"/error/message\"",
            );
        }
        texts.into_iter().map(|text| Pointer(text.to_owned())).collect()
    };
    let codes = |key: &'static str| table.texts(key).into_iter().map(str::to_owned).collect();
    let failing = Failing {
        when,
        code: pointers("code"),
        message: pointers("message"),
        rate_limited: codes("rate_limited"),
        unauthorized: codes("unauthorized"),
        not_found: codes("not_found"),
    };
    table.finish();
    failing
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
