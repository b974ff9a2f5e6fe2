//! `[auth]`, or `[[auth]]` where there are several ways.

use serde_json::Value;

use super::http::{header_name, outside_url};
use super::mcp::is_variable;
use super::table::{Mistakes, Table, is_identifier};
use crate::definition::source::{Source, below};
use crate::definition::{Auth, ClientPlace, Grant, Part};

const KINDS: [&str; 11] = [
    "bearer",
    "basic",
    "header",
    "query",
    "client_credentials",
    "refresh_token",
    "github_app",
    "aws_sigv4",
    "key_pair",
    "environment",
    "all",
];
/// What can be a part of several.
const PARTS: [&str; 6] = [
    "bearer",
    "basic",
    "header",
    "query",
    "client_credentials",
    "refresh_token",
];

/// Reads every way to authenticate.
pub(super) fn read(source: &Source, mistakes: &Mistakes) -> Vec<Auth> {
    let pointer = "/auth";
    let pointers = match source.value.pointer(pointer) {
        None => Vec::new(),
        Some(Value::Array(ways)) => (0..ways.len())
            .map(|index| below(pointer, &index.to_string()))
            .collect(),
        Some(_) => vec![pointer.to_owned()],
    };
    let tables = pointers
        .into_iter()
        .filter_map(|pointer| Table::at(source, pointer, mistakes));
    tables.filter_map(|table| way(table, &KINDS)).collect()
}

/// Several credentials of one request: no two in the same place, and no two by the same slot.
fn all(table: &Table<'_>) -> Option<Auth> {
    let count = table.value("parts").and_then(Value::as_array).map_or(0, Vec::len);
    if count < 2 {
        table.mistake(
            "parts",
            "several credentials at once are two at least",
            "write parts = [{ kind = \"header\", name = \"x-api-key\", slot = \"key\" }, { kind = \"bearer\" }]",
        );
        return None;
    }
    let mut parts: Vec<Part> = Vec::new();
    for index in 0..count {
        let pointer = below(&table.pointer("parts"), &index.to_string());
        let part = Table::at(table.source, pointer.clone(), table.mistakes)?;
        part.has("slot");
        let auth = way(part, &PARTS);
        let table = Table::at(table.source, pointer, table.mistakes)?;
        let slot = table.text("slot").filter(|slot| {
            let good = is_identifier(slot);
            if !good {
                table.mistake(
                    "slot",
                    format!("{slot:?} can be no slot's name"),
                    "write letters, digits and _",
                );
            }
            good
        });
        let part = auth.map(|auth| Part {
            auth,
            slot: slot.map(str::to_owned),
        });
        if let Some(part) = &part {
            let place = |part: &Part| place(&part.auth);
            if parts.iter().any(|other| place(other) == place(part)) {
                table.mistake(
                    "kind",
                    "another part stands at the same place of a request",
                    "write one of them",
                );
            }
            let slots = |part: &Part| -> Vec<String> {
                let own = part.auth.own_required().iter().chain(part.auth.own_optional());
                own.map(|own| part.slot(own).to_owned()).collect()
            };
            let taken = slots(part)
                .into_iter()
                .find(|slot| parts.iter().any(|other| slots(other).contains(slot)));
            if let Some(slot) = taken {
                table.mistake(
                    "slot",
                    format!("another part takes the slot {slot}"),
                    "give it another: slot = \"key\"",
                );
            }
        }
        parts.push(part?);
    }
    Some(Auth::All(parts))
}

/// Where a credential stands in a request.
fn place(auth: &Auth) -> (&'static str, String) {
    match auth {
        Auth::Query { name } => ("query", name.clone()),
        Auth::Header { name, .. } => ("header", name.clone()),
        _ => ("header", "authorization".to_owned()),
    }
}

fn way(table: Table<'_>, kinds: &[&'static str]) -> Option<Auth> {
    if !table.has("kind") {
        table.required("kind", "\"bearer\"");
    }
    let kind = table.word("kind", kinds);
    let auth = match kind? {
        "bearer" => Some(Auth::Bearer),
        "basic" => Some(Auth::Basic),
        "header" => {
            let prefix = table
                .value("prefix")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            let name = table.required("name", "\"x-api-key\"");
            name.and_then(|name| header_name(&table, "name", name))
                .map(|name| Auth::Header { name, prefix })
        }
        "query" => table
            .required("name", "\"api_key\"")
            .map(|name| Auth::Query { name: name.to_owned() }),
        "client_credentials" => oauth(&table, Grant::ClientCredentials),
        "refresh_token" => oauth(&table, Grant::RefreshToken),
        "all" => all(&table),
        "github_app" => Some(Auth::GitHubApp),
        "environment" => table.required("name", "\"API_TOKEN\"").and_then(|name| {
            if !is_variable(name) {
                table.mistake(
                    "name",
                    format!("{name:?} can be no variable of a server's program"),
                    "write capital letters, digits and _",
                );
                return None;
            }
            Some(Auth::Environment { name: name.to_owned() })
        }),
        "aws_sigv4" => {
            let region = table.required("region", "\"eu-central-1\"");
            let service = table.required("service", "\"execute-api\"");
            region.zip(service).map(|(region, service)| Auth::AwsSigV4 {
                region: region.to_owned(),
                service: service.to_owned(),
            })
        }
        _ => Some(Auth::KeyPair),
    };
    table.finish();
    auth
}

fn oauth(table: &Table<'_>, grant: Grant) -> Option<Auth> {
    let token_url = table.required("token_url", "\"https://login.example.com/oauth/token\"");
    let client_in = match table.word("client_in", &["basic", "body"]) {
        Some("body") => ClientPlace::Body,
        _ => ClientPlace::Basic,
    };
    let scopes = table.texts("scopes").into_iter().map(str::to_owned).collect();
    let parameters = table.pairs("parameters");
    let parameters = parameters
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .collect();
    let token_url = token_url.and_then(|url| outside_url(table, "token_url", url))?;
    Some(Auth::OAuth2 {
        token_url,
        grant,
        scopes,
        parameters,
        client_in,
    })
}
