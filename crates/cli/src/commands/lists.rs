//! What there is, in tables.

use std::io::Write;

use domain::{Money, Timestamp, TokenId};
use serde_json::{Value, json};

use crate::arguments::{ByArgument, ListArguments, TokenCommand};
use crate::{Client, ClientError};

use super::audit::user_id;
use super::table::{Column, part_of_table, table};
use super::{encoded, output, resolve, say};

/// A moment in UTC, as people write it.
pub(super) fn moment(at: Option<Timestamp>) -> String {
    let at = at.and_then(|at| jiff::Timestamp::from_millisecond(at.0).ok());
    at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
        .unwrap_or_default()
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

pub(super) fn time(value: &Value) -> String {
    moment(value.as_i64().map(Timestamp))
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

pub(super) async fn sessions(client: &Client, arguments: &ListArguments, json: bool) -> Result<(), ClientError> {
    let after = arguments
        .after
        .as_deref()
        .map(|after| format!("&after={}", encoded(after)))
        .unwrap_or_default();
    let page: Value = client
        .get(&format!("/sessions?limit={}{after}", arguments.limit))
        .await?;
    if json {
        return say(true, &page, "");
    }
    let columns = [
        Column::left("SESSION", |row| text(&row["id"])),
        Column::left("RUN", |row| text(&row["run"]["state"])),
        Column::left("SANDBOX", |row| text(&row["sandbox"]["state"])),
        Column::left("LAST PROMPT (UTC)", |row| time(&row["active"])),
        Column::left("NAME", |row| text(&row["key"])),
        Column::left("TITLE", |row| text(&row["title"])),
    ];
    table(&page["sessions"], &columns, json)?;
    match page["next"].as_str() {
        Some(next) => writeln!(std::io::stderr(), "more: belljar sessions --after {next}").map_err(output),
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

/// What a model read, however it was paid.
fn tokens_in(row: &Value) -> String {
    let parts = ["input", "cache_read", "cache_write", "cache_write_hour"];
    let parts = parts.iter().filter_map(|part| row["usage"][part].as_u64());
    parts.sum::<u64>().to_string()
}

/// Each call of a model, page by page.
pub(super) async fn calls(client: &Client, session: Option<&str>, json: bool) -> Result<(), ClientError> {
    let session = match session {
        Some(session) => format!("&session={}", resolve(client, session).await?),
        None => String::new(),
    };
    let columns = [
        Column::left("AT", |row| time(&row["at"])),
        Column::left("SESSION", |row| text(&row["session"])),
        Column::left("RUN", |row| text(&row["run"])),
        Column::left("MODEL", |row| text(&row["model"])),
        Column::right("TOKENS IN", tokens_in),
        Column::right("TOKENS OUT", |row| text(&row["usage"]["output"])),
        Column::right("COST", |row| money(&row["cost"])),
    ];
    let mut after = Some(0);
    while let Some(number) = after {
        let page: Value = client
            .get(&format!("/usage/calls?limit=200&after={number}{session}"))
            .await?;
        part_of_table(&page["calls"], &columns, json, after == Some(0))?;
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
    let by = |usual: &'static str| by.map_or(usual, ByArgument::word);
    let filter = match session {
        Some(session) => format!("?session={}&by={}", resolve(client, session).await?, by("model")),
        None => format!("?by={}", by("day")),
    };
    let answer: Value = client.get(&format!("/usage{filter}")).await?;
    let columns = [
        Column::left("", |row| text(&row["name"])),
        Column::right("CALLS", |row| text(&row["calls"])),
        Column::right("TOKENS IN", tokens_in),
        Column::right("TOKENS OUT", |row| text(&row["usage"]["output"])),
        Column::right("COST", |row| money(&row["cost"])),
    ];
    table(&answer["sums"], &columns, json)
}

pub(super) async fn users(client: &Client, json: bool) -> Result<(), ClientError> {
    let answer: Value = client.get("/users").await?;
    let columns = [
        Column::left("USER", |row| text(&row["id"])),
        Column::left("NAME", |row| text(&row["name"])),
        Column::left("", |row| {
            if row["admin"] == true {
                "admin".into()
            } else {
                String::new()
            }
        }),
        Column::left("SINCE (UTC)", |row| time(&row["created"])),
    ];
    table(&answer["users"], &columns, json)
}

pub(super) async fn tokens(client: &Client, command: TokenCommand, json: bool) -> Result<(), ClientError> {
    match command {
        TokenCommand::List => {
            let mut answer: Value = client.get("/tokens").await?;
            if !json {
                // They are all of one person's.
                let me: Value = client.get("/me").await?;
                for token in answer["tokens"].as_array_mut().into_iter().flatten() {
                    token["user"] = me["name"].clone();
                }
            }
            let columns = [
                Column::left("TOKEN", |row| text(&row["id"])),
                Column::left("FOR", |row| text(&row["label"])),
                Column::left("USER", |row| text(&row["user"])),
                Column::left("SINCE (UTC)", |row| time(&row["created"])),
                Column::left("STATE", |row| {
                    if row["revoked"].is_null() {
                        "good".into()
                    } else {
                        "revoked".into()
                    }
                }),
            ];
            table(&answer["tokens"], &columns, json)
        }
        TokenCommand::Add { label, user } => {
            let user = match &user {
                Some(user) => Some(user_id(client, user).await?),
                None => None,
            };
            let answer: Value = client.post("/tokens", &json!({ "label": label, "user": user })).await?;
            say(json, &answer, answer["secret"].as_str().unwrap_or_default())
        }
        TokenCommand::Revoke { token } => {
            if token.parse::<TokenId>().is_err() {
                return Err(ClientError::Usage(format!(
                    "{token:?} is no token's id: `belljar token list` shows the ids, and what each token is for"
                )));
            }
            let request = client.request(reqwest::Method::DELETE, &format!("/tokens/{}", encoded(&token)));
            let answer: Value = client.json(request).await?;
            say(json, &answer, "revoked")
        }
    }
}

#[cfg(test)]
mod tests {
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
