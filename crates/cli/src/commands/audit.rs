//! The audit log: a table, JSON lines, what comes next, and whether it is whole.
//!
//! The server numbers its entries without a gap; after a break the lines are asked for from the last that arrived whole. So nothing is
//! lost and nothing comes twice.

use std::io::Write;
use std::time::Duration;

use domain::{SessionId, Timestamp, UserId};
use futures::TryStreamExt;
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::Instant;
use tokio_util::io::StreamReader;

use super::lists::{money, text, time};
use super::table::{Column, last_digits, table};
use super::{encoded, output, resolve, say};
use crate::arguments::AuditArguments;
use crate::terminal::one_line;
use crate::watch::{PATIENCE, SILENCE, may_pass};
use crate::{Client, ClientError, Outcome};

/// The most entries of one page.
const PAGE: u32 = 200;
/// The longest line that is understood.
const LONGEST_LINE: u64 = 16 << 20;

/// Does what was asked of the audit log.
pub(super) async fn audit(client: &Client, arguments: &AuditArguments, json: bool) -> Result<Outcome, ClientError> {
    if arguments.verify {
        return verify(client, arguments, json).await;
    }
    let filter = filter(client, arguments).await?;
    if arguments.follow {
        let newest = page(client, &filter, None, arguments.limit.unwrap_or(10).min(PAGE)).await?;
        let mut after = 0;
        for entry in newest.iter().rev() {
            after = number(entry);
            print(entry, json)?;
        }
        lines(client, &filter, after, true, json).await?;
    } else if json && arguments.limit.is_none() {
        lines(client, &filter, 0, false, json).await?;
    } else {
        let entries = newest(client, &filter, arguments.limit.unwrap_or(50)).await?;
        table(&Value::from(entries), &COLUMNS, json)?;
    }
    Ok(Outcome::Done)
}

/// What the server is asked for, as the end of a query.
async fn filter(client: &Client, arguments: &AuditArguments) -> Result<String, ClientError> {
    let mut filter = String::new();
    let mut add = |name: &str, value: &str| filter.push_str(&format!("&{name}={}", encoded(value)));
    if let Some(session) = &arguments.session {
        add("session", &resolve(client, session).await?);
    }
    if let Some(user) = &arguments.user {
        add("user", &user_id(client, user).await?);
    }
    let texts = [
        ("action", &arguments.action),
        ("service", &arguments.service),
        ("host", &arguments.host),
    ];
    for (name, value) in texts {
        if let Some(value) = value {
            add(name, value);
        }
    }
    if let Some(decision) = arguments.decision {
        add("decision", decision.word());
    }
    for (name, moment) in [("since", &arguments.since), ("until", &arguments.until)] {
        if let Some(written) = moment {
            add(name, &moment_of(written, Timestamp::now())?.0.to_string());
        }
    }
    Ok(filter)
}

/// The id of the user who was named by id or by name.
pub(super) async fn user_id(client: &Client, name: &str) -> Result<String, ClientError> {
    if name.parse::<UserId>().is_ok() {
        return Ok(name.to_owned());
    }
    let answer: Value = client.get("/users").await?;
    let users = answer["users"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = users.iter().find(|user| user["name"] == name);
    let id = found.and_then(|user| user["id"].as_str()).map(str::to_owned);
    id.ok_or_else(|| ClientError::Refused {
        code: "not_found".into(),
        message: format!(
            "there is no user {name:?}: `belljar user list` lists them; one who was removed is asked for by id"
        ),
    })
}

/// A moment as people write it: a date, a date and time, or how long ago it was.
fn moment_of(written: &str, now: Timestamp) -> Result<Timestamp, ClientError> {
    let unit = |letter| match letter {
        's' => Some(1_000),
        'm' => Some(60_000),
        'h' => Some(3_600_000),
        'd' => Some(86_400_000),
        _ => None,
    };
    let ago = written.char_indices().last().and_then(|(place, letter)| {
        let count = written[..place].parse::<i64>().ok().filter(|count| *count >= 0)?;
        count.checked_mul(unit(letter)?)
    });
    let date = || {
        let midnight = written
            .parse::<jiff::civil::Date>()
            .ok()?
            .to_zoned(jiff::tz::TimeZone::UTC);
        Some(midnight.ok()?.timestamp().as_millisecond())
    };
    let moment = || Some(written.parse::<jiff::Timestamp>().ok()?.as_millisecond());
    match ago {
        Some(ago) => Ok(Timestamp(now.0.saturating_sub(ago))),
        None => moment().or_else(date).map(Timestamp).ok_or_else(|| {
            ClientError::Usage(format!(
                "{written:?} is no moment: write 2026-05-01, 2026-05-01T10:00:00Z, or how long ago: 90s, 30m, 2h, 7d"
            ))
        }),
    }
}

fn number(entry: &Value) -> i64 {
    entry["number"].as_i64().unwrap_or(0)
}

/// A page of the newest entries before one.
async fn page(client: &Client, filter: &str, before: Option<i64>, limit: u32) -> Result<Vec<Value>, ClientError> {
    let before = before.map(|before| format!("&before={before}")).unwrap_or_default();
    let mut answer: Value = client.get(&format!("/audit?limit={limit}{before}{filter}")).await?;
    match answer["entries"].take() {
        Value::Array(entries) => Ok(entries),
        _ => Ok(Vec::new()),
    }
}

/// The newest entries, newest first.
async fn newest(client: &Client, filter: &str, limit: u32) -> Result<Vec<Value>, ClientError> {
    let mut entries: Vec<Value> = Vec::new();
    loop {
        let have = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let wanted = limit.saturating_sub(have).min(PAGE);
        if wanted == 0 {
            return Ok(entries);
        }
        let more = page(client, filter, entries.last().map(number), wanted).await?;
        if more.is_empty() {
            return Ok(entries);
        }
        entries.extend(more);
    }
}

/// Prints every entry after one, the oldest first, and what comes later where that is wanted.
async fn lines(client: &Client, filter: &str, mut after: i64, follow: bool, json: bool) -> Result<(), ClientError> {
    let mut broken_since = None;
    loop {
        let mut lines = join(client, filter, after, follow, &mut broken_since).await?;
        loop {
            let line = match tokio::time::timeout(SILENCE, next_line(&mut lines)).await {
                Ok(Ok(Some(line))) => line,
                Ok(Ok(None)) if !follow => return Ok(()),
                // Ended, broken or silent: after the last whole line again.
                _ => break,
            };
            broken_since = None;
            if let Ok(entry) = serde_json::from_str::<Value>(&line) {
                after = number(&entry);
                print(&entry, json)?;
            }
        }
        broken_since.get_or_insert_with(Instant::now);
    }
}

type Lines = Box<dyn AsyncBufRead + Send + Unpin>;

/// Asks for the lines until they come or patience ends.
async fn join(
    client: &Client,
    filter: &str,
    after: i64,
    follow: bool,
    broken_since: &mut Option<Instant>,
) -> Result<Lines, ClientError> {
    let mut pause = Duration::from_millis(50);
    loop {
        let path = format!("/audit/stream?after={after}&follow={follow}{filter}");
        match client.send(client.request(Method::GET, &path)).await {
            Ok(response) => return Ok(lines_of(response)),
            Err(error @ ClientError::Refused { .. }) if !may_pass(&error) => return Err(error),
            // Who never got through is told why at once.
            Err(error) => match broken_since {
                Some(since) if since.elapsed() < PATIENCE => {}
                _ => return Err(error),
            },
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(3));
    }
}

fn lines_of(response: Response) -> Lines {
    let bytes = response.bytes_stream().map_err(std::io::Error::other);
    Box::new(BufReader::new(Box::pin(StreamReader::new(bytes))))
}

/// The next line; nothing at the end. One that was cut is an error, and is asked for again.
async fn next_line(lines: &mut Lines) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    lines.take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => String::from_utf8(line).map(Some).map_err(std::io::Error::other),
        Some(_) => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

/// What is shown of an entry.
pub(super) const COLUMNS: [Column; 9] = [
    Column::right("#", |row| text(&row["number"])),
    Column::left("WHEN (UTC)", |row| time(&row["at"])),
    Column::left("WHO", who).shrinks(6, 12),
    Column::left("WHAT", |row| text(&row["action"])).shrinks(8, 12),
    Column::left("TO", target).shrinks(7, 12),
    Column::optional("DECISION", |row| text(&row["decision"])),
    Column::optional("RULE", |row| text(&row["rule"]))
        .shrinks(3, 16)
        .goes(5),
    Column::optional("COST", |row| {
        if row["cost"].is_null() {
            String::new()
        } else {
            money(&row["cost"])
        }
    })
    .goes(4),
    Column::optional("DETAIL", |row| {
        if row["detail"].is_null() {
            String::new()
        } else {
            row["detail"].to_string()
        }
    })
    .shrinks(1, 24)
    .goes(2),
];

/// Who did it: a person, or a session and its owner.
fn who(row: &Value) -> String {
    let who = thing(&row["actor"], &row["actor_name"]);
    match row["user_name"].as_str() {
        Some(owner) if who.starts_with("session ") => format!("{who} of {owner}"),
        _ => who,
    }
}

/// An actor or a subject: a user's name, a session's key; of what has neither enough of its id.
fn thing(word: &Value, name: &Value) -> String {
    let word = word.as_str().unwrap_or_default();
    let Some((kind, id)) = word.split_once(':') else {
        return word.to_owned();
    };
    match name.as_str() {
        Some(name) if kind == "user" => name.to_owned(),
        Some(name) => format!("{kind} {name}"),
        None if id.parse::<SessionId>().is_ok() => format!("{kind} {}", last_digits(&id.into())),
        None => word.to_owned(),
    }
}

/// What an entry is about: the method or the host where there is one.
fn target(row: &Value) -> String {
    let (service, host) = (row["service"].as_str(), row["host"].as_str());
    match (service, host) {
        (Some(service), _) => match row["detail"]["method"].as_str() {
            Some(method) => format!("{service}.{method}"),
            None => service.to_owned(),
        },
        (None, Some(host)) => match row["detail"]["port"].as_u64() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        },
        (None, None) => thing(&row["subject"], &row["subject_name"]),
    }
}

/// Prints an entry as a line of its own: what comes later has no width that could be known.
fn print(entry: &Value, json: bool) -> Result<(), ClientError> {
    let mut out = std::io::stdout().lock();
    if json {
        return writeln!(out, "{entry}").map_err(output);
    }
    let cells = COLUMNS.iter().map(|column| one_line(&column.cell_of(entry), 80));
    let line = cells.filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join("  ");
    writeln!(out, "{line}").map_err(output)
}

/// Says whether the log is what was written.
async fn verify(client: &Client, arguments: &AuditArguments, json: bool) -> Result<Outcome, ClientError> {
    let noted = arguments.noted.as_ref().map_or_else(String::new, |noted| {
        format!("?number={}&hash={}", noted.number, encoded(&noted.hash))
    });
    let verdict: Value = client.get(&format!("/audit/verify{noted}")).await?;
    let broken = verdict["broken"].as_str();
    let words = match broken {
        Some(broken) => format!("broken: {broken}"),
        None => format!(
            "whole: {} entries\nnote this: {}:{}",
            verdict["entries"],
            verdict["entries"],
            text(&verdict["head"])
        ),
    };
    say(json, &verdict, &words)?;
    Ok(if broken.is_some() {
        Outcome::Failed
    } else {
        Outcome::Done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_what_is_told_by_names_and_by_the_ends_of_ids() {
        let id = "0192f0c1-2d3e-7abc-8def-0123456789ab";
        let row = |actor: String, name: Option<&str>, subject: String, subject_name: Option<&str>| {
            let row = serde_json::json!({
                "actor": actor, "actor_name": name, "subject": subject, "subject_name": subject_name, "user_name": "ada",
            });
            (who(&row), target(&row))
        };
        let (user, session, token) = (format!("user:{id}"), format!("session:{id}"), format!("token:{id}"));
        for (told, expected) in [
            (
                row(user.clone(), Some("root"), user.clone(), Some("ada")),
                ("root", "ada"),
            ),
            (
                row(session.clone(), Some("report"), session.clone(), Some("report")),
                ("session report of ada", "session report"),
            ),
            (
                row(session.clone(), None, session, None),
                ("session 0123456789ab of ada", "session 0123456789ab"),
            ),
            (
                row("system".into(), None, token, None),
                ("system", "token 0123456789ab"),
            ),
            (
                row(user, None, "image:base".into(), None),
                ("user 0123456789ab", "image:base"),
            ),
        ] {
            assert_eq!((told.0.as_str(), told.1.as_str()), expected);
        }
    }

    #[test]
    fn moments_are_dates_times_and_how_long_ago() {
        let now = Timestamp(1_000_000_000);
        for (written, expected) in [
            ("1970-01-02", 86_400_000),
            ("1970-01-01T01:00:00Z", 3_600_000),
            ("1970-01-01T02:00:00+01:00", 3_600_000),
            ("90s", 1_000_000_000 - 90_000),
            ("2h", 1_000_000_000 - 7_200_000),
            ("7d", 1_000_000_000 - 604_800_000),
        ] {
            assert_eq!(moment_of(written, now).unwrap(), Timestamp(expected), "{written}");
        }
        for written in ["", "h", "-1h", "yesterday", "2 h", "2é", "99999999999999999d"] {
            let error = moment_of(written, now).unwrap_err();
            assert!(matches!(error, ClientError::Usage(_)), "{written}: {error}");
        }
    }
}
