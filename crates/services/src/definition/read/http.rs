//! What only services of kind `http` have.

use url::Url;

use super::pages::pointer;
use super::table::{Table, shown};
use crate::definition::{Condition, Failing, Http, Kind, Nesting, Pointer};

/// Reads what `service.toml` says of the API.
pub(super) fn read(table: &Table<'_>) -> Option<Kind> {
    let base_url = table.required("base_url", "\"https://api.example.com\"");
    let base_url = base_url
        .and_then(|url| outside_url(table, "base_url", url))
        .map(|url| url.trim_end_matches('/').to_owned());
    let headers = headers(table);
    let nesting = match table.word("lists", &["repeat", "comma", "brackets", "indices"]) {
        Some("comma") => Nesting::Comma,
        Some("brackets") => Nesting::Brackets,
        Some("indices") => Nesting::Indices,
        _ => Nesting::Repeat,
    };
    let failure = table.table("failure").map(failing).unwrap_or_default();
    Some(Kind::Http(Http {
        base_url: base_url?,
        headers,
        nesting,
        failure,
    }))
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
pub(super) fn headers(table: &Table<'_>) -> Vec<(String, String)> {
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
