//! What there is, in tables.

use std::io::Write;

use domain::{Money, Timestamp};
use serde_json::Value;

use crate::arguments::{ByArgument, ListArguments};
use crate::{Client, ClientError};

use super::table::{Column, part_of_table, table};
use super::{encoded, output, resolve, say};

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A moment in UTC, as people write it.
pub(super) fn time(value: &Value) -> String {
    let at = value.as_i64().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    at.map_or_else(String::new, |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// How long ago a moment is, or will be: one number, which is enough to tell old from new.
pub(super) fn away(value: &Value) -> String {
    value
        .as_i64()
        .map_or_else(String::new, |at| span(Timestamp::now().0.abs_diff(at)))
}

/// A time in its largest unit.
pub(super) fn span(milliseconds: u64) -> String {
    let seconds = milliseconds / 1_000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Bytes in MiB.
pub(super) fn mebibytes(value: &Value) -> String {
    value
        .as_u64()
        .map_or_else(String::new, |bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20)))
}

/// So much of an image's digest that one can be told from another.
pub(super) fn digits(value: &Value) -> String {
    text(value).chars().take(12).collect()
}

/// What people call it; its id, where they call it nothing.
fn called(name: &Value, id: &Value) -> String {
    text(if name.is_null() { id } else { name })
}

/// The session of a row, as its owner calls it.
pub(super) fn session(row: &Value) -> String {
    called(&row["session_key"], &row["session"])
}

/// The name of a session in a list of sessions.
fn name(row: &Value) -> String {
    match row["parent"].as_str() {
        Some(_) if row["key"].is_null() => format!("(fork of {})", called(&row["parent_key"], &row["parent"])),
        _ => text(&row["key"]),
    }
}

/// Says why a list is empty, to a person.
pub(super) fn nothing(rows: &Value, words: &str, json: bool) -> Result<bool, ClientError> {
    let is_empty = !json && rows.as_array().is_none_or(Vec::is_empty);
    if is_empty {
        writeln!(std::io::stderr(), "{words}").map_err(output)?;
    }
    Ok(is_empty)
}

pub(super) fn money(value: &Value) -> String {
    Money(value.as_i64().unwrap_or_default()).to_string()
}

pub(super) const SESSIONS: [Column; 7] = [
    Column::left("SESSION", |row| text(&row["id"])),
    Column::left("RUN", |row| text(&row["run"]["state"])),
    Column::left("SANDBOX", |row| text(&row["sandbox"]["state"])).goes(2),
    Column::right("UNUSED", |row| away(&row["active"])).goes(3),
    Column::left("OWNER", |row| called(&row["owner_name"], &row["owner"])).shrinks(5, 8),
    Column::optional("NAME", name).shrinks(6, 14),
    Column::left("TITLE", |row| text(&row["title"])).shrinks(1, 12).goes(4),
];

pub(super) async fn sessions(client: &Client, arguments: &ListArguments, json: bool) -> Result<(), ClientError> {
    let after = arguments
        .after
        .as_deref()
        .map(|after| format!("&after={}", encoded(after)))
        .unwrap_or_default();
    let (archived, option) = match arguments.archived {
        true => ("&archived=true", " --archived"),
        false => ("", ""),
    };
    let page: Value = client
        .get(&format!("/sessions?limit={}{after}{archived}", arguments.limit))
        .await?;
    if json {
        return say(true, &page, "");
    }
    table(&page["sessions"], &SESSIONS, json)?;
    match page["next"].as_str() {
        Some(next) => writeln!(std::io::stderr(), "more: belljar sessions{option} --after {next}").map_err(output),
        None => Ok(()),
    }
}

pub(super) async fn models(client: &Client, json: bool) -> Result<(), ClientError> {
    let answer: Value = client.get("/models").await?;
    let columns = [
        Column::left("MODEL", |row| text(&row["name"])),
        Column::left("PROVIDER", |row| text(&row["provider"])),
        Column::right("WINDOW", |row| text(&row["window"])),
        Column::left("", |row| {
            if row["default"] == true {
                "default".into()
            } else {
                String::new()
            }
        }),
    ];
    table(&answer["models"], &columns, json)
}

const fn head(by: ByArgument) -> &'static str {
    match by {
        ByArgument::Session => "SESSION",
        ByArgument::User => "USER",
        ByArgument::Day => "DAY (UTC)",
        ByArgument::Model => "MODEL",
        ByArgument::Trigger => "TRIGGER",
    }
}

/// What is shown of sums.
pub(super) fn sums(by: ByArgument) -> [Column; 6] {
    [
        Column::left(head(by), |row| called(&row["called"], &row["name"])).shrinks(2, 12),
        Column::optional("ID", |row| {
            if row["called"].is_null() {
                String::new()
            } else {
                text(&row["name"])
            }
        })
        .goes(1),
        Column::right("CALLS", |row| text(&row["calls"])),
        Column::right("TOKENS IN", tokens_in),
        Column::right("TOKENS OUT", |row| text(&row["usage"]["output"])),
        Column::right("COST", |row| money(&row["cost"])),
    ]
}

/// What a model read, however it was paid.
fn tokens_in(row: &Value) -> String {
    let parts = ["input", "cache_read", "cache_write", "cache_write_hour"];
    let parts = parts.iter().filter_map(|part| row["usage"][part].as_u64());
    parts.sum::<u64>().to_string()
}

pub(super) const CALLS: [Column; 8] = [
    Column::left("AT (UTC)", |row| time(&row["at"])),
    Column::left("USER", |row| called(&row["user_name"], &row["user"]))
        .shrinks(2, 8)
        .goes(4),
    Column::left("SESSION", session).shrinks(3, 14),
    Column::left("RUN", |row| text(&row["run"])).goes(1),
    Column::left("MODEL", |row| text(&row["model"])),
    Column::right("TOKENS IN", tokens_in),
    Column::right("TOKENS OUT", |row| text(&row["usage"]["output"])).goes(5),
    Column::right("COST", |row| money(&row["cost"])),
];

/// Each call of a model, page by page.
pub(super) async fn calls(client: &Client, session: Option<&str>, json: bool) -> Result<(), ClientError> {
    let session = match session {
        Some(session) => format!("&session={}", resolve(client, session).await?),
        None => String::new(),
    };
    let mut after = Some(0);
    while let Some(number) = after {
        let page: Value = client
            .get(&format!("/usage/calls?limit=200&after={number}{session}"))
            .await?;
        part_of_table(&page["calls"], &CALLS, json, after == Some(0))?;
        after = page["next"].as_i64();
    }
    Ok(())
}

pub(super) async fn usage(
    client: &Client,
    session: Option<&str>,
    by: Option<ByArgument>,
    json: bool,
) -> Result<(), ClientError> {
    let (by, filter) = match session {
        Some(session) => {
            let session = resolve(client, session).await?;
            (by.unwrap_or(ByArgument::Model), format!("&session={session}"))
        }
        None => (by.unwrap_or(ByArgument::Day), String::new()),
    };
    let answer: Value = client.get(&format!("/usage?by={}{filter}", by.word())).await?;
    table(&answer["sums"], &sums(by), json)
}

pub(super) async fn users(client: &Client, json: bool) -> Result<(), ClientError> {
    let answer: Value = client.get("/users").await?;
    let columns = [
        Column::left("USER", |row| text(&row["id"])),
        Column::left("NAME", |row| text(&row["name"])).shrinks(2, 12),
        Column::left("", |row| {
            if row["admin"] == true {
                "admin".into()
            } else {
                String::new()
            }
        }),
        Column::left("SINCE (UTC)", |row| time(&row["created"])).goes(1),
    ];
    table(&answer["users"], &columns, json)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_time_is_told_in_its_largest_unit() {
        let told = [0, 119_999, 120_000, 7_199_999, 7_200_000, 172_799_999, 172_800_000].map(span);
        assert_eq!(told, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]);
        assert_eq!(
            (away(&Value::Null), mebibytes(&Value::Null)),
            (String::new(), String::new())
        );
        assert_eq!(mebibytes(&json!(1_572_864)), "1.5");
    }
}
