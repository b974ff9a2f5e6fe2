//! `[auth]`, or `[[auth]]` where there are several ways.

use serde_json::Value;

use super::http::{header_name, outside_url};
use super::mcp::is_variable;
use super::table::{Mistakes, Table};
use crate::definition::source::{Source, below};
use crate::definition::{Auth, ClientPlace, Grant};

const KINDS: [&str; 10] = [
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
    tables.filter_map(way).collect()
}

fn way(table: Table<'_>) -> Option<Auth> {
    if !table.has("kind") {
        table.required("kind", "\"bearer\"");
    }
    let kind = table.word("kind", &KINDS);
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
