//! `fixtures/METHOD.json`: recorded exchanges of a method.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use spelling::nearest;

use super::schemas::files;
use super::service::brief;
use super::table::{Mistakes, Table};
use crate::definition::source::{Source, whole};
use crate::definition::{Action, Exchange, Fixture, Method, Recorded};

/// Reads the fixtures of every method into it; `names` are all methods, those with mistakes as well.
pub(super) fn read(folder: &Path, methods: &mut BTreeMap<String, Method>, names: Vec<&str>, mistakes: &Mistakes) {
    for file in files(&folder.join("fixtures")) {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(name) = name.strip_suffix(".json").filter(|name| names.contains(name)) else {
            let meant = nearest(name.trim_end_matches(".json"), names.iter().copied());
            let remedy = meant.map_or_else(
                || "call it METHOD.json".to_owned(),
                |meant| format!("did you mean {meant}.json?"),
            );
            mistakes.add(whole(&file, "there is no method of this name", &remedy));
            continue;
        };
        let source = match Source::read(&file) {
            Ok(source) => source,
            Err(wrong) => {
                mistakes.extend(wrong);
                continue;
            }
        };
        let Some(count) = source.value.as_array().map(Vec::len) else {
            mistakes.add(source.mistake(
                "",
                "fixtures are a list",
                "write [{ \"name\": …, \"arguments\": …, \"exchanges\": […], \"result\": … }]",
            ));
            continue;
        };
        let Some(method) = methods.get_mut(name) else { continue };
        let fixtures = (0..count).filter_map(|index| fixture(&source, &format!("/{index}"), method, mistakes));
        method.fixtures = fixtures.collect();
    }
}

fn fixture(source: &Source, pointer: &str, method: &Method, mistakes: &Mistakes) -> Option<Fixture> {
    let table = Table::at(source, pointer.to_owned(), mistakes)?;
    let name = table.required("name", "\"what it shows\"");
    let arguments = table
        .value("arguments")
        .cloned()
        .unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    let exchanges: Vec<Exchange> = match table.value("exchanges") {
        Some(Value::Array(items)) => {
            let pointers = (0..items.len()).map(|index| format!("{pointer}/exchanges/{index}"));
            pointers
                .filter_map(|pointer| exchange(Table::at(source, pointer, mistakes)?))
                .collect()
        }
        // What a database gives follows from what is in it.
        None if matches!(method.action, Action::Sql(_)) => Vec::new(),
        _ => {
            table.mistake(
                "",
                "there is no list of exchanges",
                "write \"exchanges\": [{ \"request\": \"GET /path\", \"status\": 200, \"answer\": {} }]",
            );
            Vec::new()
        }
    };
    let failure = table.table("failure").and_then(|failure| {
        let code = failure.required("code", "the reason code");
        let words = failure.text("words").unwrap_or_default();
        failure.finish();
        Some(Recorded::Failure {
            code: code?.to_owned(),
            words: words.to_owned(),
        })
    });
    let outcome = match (failure, table.value("result")) {
        (Some(failure), None) => Some(failure),
        (None, Some(result)) => Some(Recorded::Result(result.clone())),
        _ => {
            table.mistake(
                "",
                "it is not said what the caller gets, or twice",
                "write \"result\": … or \"failure\": { \"code\": … }",
            );
            None
        }
    };
    if let Some(Recorded::Result(result)) = &outcome {
        fits(&table, method, &arguments, result);
    }
    table.finish();
    Some(Fixture {
        name: name?.to_owned(),
        arguments,
        exchanges,
        outcome: outcome?,
    })
}

/// The arguments and the result of a call that goes well are as the schemas say.
fn fits(table: &Table<'_>, method: &Method, arguments: &Value, result: &Value) {
    for violation in method.arguments.violations(arguments) {
        table.mistake(
            "arguments",
            format!("the arguments are not as the method's schema says: {violation}"),
            "mend the one or the other",
        );
    }
    let Some(schema) = &method.result else { return };
    let parts: Vec<&Value> = if method.pages.is_some() {
        let items = result.get("items").and_then(Value::as_array);
        if items.is_none()
            || !result
                .get("next")
                .is_some_and(|next| next.is_string() || next.is_null())
        {
            let remedy = "write { \"items\": […], \"next\": \"…\" or null }";
            table.mistake(
                "result",
                format!("{} is no result of a paged method", brief(result)),
                remedy,
            );
        }
        items.into_iter().flatten().collect()
    } else {
        vec![result]
    };
    for violation in parts.into_iter().flat_map(|part| schema.violations(part)) {
        table.mistake(
            "result",
            format!("the result is not as the method's schema says: {violation}"),
            "mend the one or the other",
        );
    }
}

fn exchange(table: Table<'_>) -> Option<Exchange> {
    let request = table.required("request", "\"GET /path?limit=2\"");
    let status = table
        .whole("status", 100, 599)
        .and_then(|status| u16::try_from(status).ok())
        .unwrap_or(200);
    let headers = table.pairs("headers").into_iter();
    let headers = headers
        .map(|(name, text)| (name.to_ascii_lowercase(), text.to_owned()))
        .collect();
    let body = table.value("body").cloned();
    let answer = table.value("answer").cloned().unwrap_or(Value::Null);
    table.finish();
    Some(Exchange {
        request: request?.to_owned(),
        body,
        status,
        headers,
        answer,
    })
}
