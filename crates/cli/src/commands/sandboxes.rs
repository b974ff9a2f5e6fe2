//! What operators do about sandboxes.

use std::io::Write;

use domain::SandboxId;
use serde_json::{Value, json};

use crate::arguments::{SHORT_ID, SandboxCommand};
use crate::terminal::{harmless, one_line};
use crate::{Client, ClientError, Outcome};

use super::lists::{Column, away, digits, mebibytes, nothing, table, text};
use super::{output, resolve, say};

pub(super) async fn sandbox(client: &Client, command: SandboxCommand, json: bool) -> Result<Outcome, ClientError> {
    match command {
        SandboxCommand::List => list(client, json).await?,
        SandboxCommand::Stats => stats(client, json).await?,
        SandboxCommand::Exec { session, command } => {
            let session = resolve(client, &session).await?;
            let words: Vec<_> = command.iter().map(|word| quoted(word)).collect();
            let body = json!({ "command": words.join(" ") });
            let answer: Value = client.post(&format!("/sessions/{session}/exec"), &body).await?;
            show(&answer, &answer["output"], json)?;
            if answer["failed"] == true {
                return Ok(Outcome::Failed);
            }
        }
        SandboxCommand::Logs { sandbox } => {
            let sandbox = found(client, &sandbox).await?;
            let answer: Value = client.get(&format!("/sandboxes/{sandbox}/logs")).await?;
            show(&answer, &answer["words"], json)?;
        }
        SandboxCommand::Rm { sandbox } => {
            let sandbox = found(client, &sandbox).await?;
            let request = client.request(reqwest::Method::DELETE, &format!("/sandboxes/{sandbox}"));
            let answer: Value = client.json(request).await?;
            say(json, &answer, "removed")?;
        }
    }
    Ok(Outcome::Done)
}

async fn list(client: &Client, json: bool) -> Result<(), ClientError> {
    let columns = [
        Column::left("SANDBOX", short),
        Column::left("SESSION", whose),
        Column::left("STATE", state),
        Column::right("AGE", |row| away(&row["created"])),
        Column::right("UNUSED", |row| away(&row["last_used"])),
        Column::optional("KEPT FOR", |row| away(&row["kept_until"])),
        Column::left("IMAGE", image),
        Column::optional("IMAGE AGE", |row| away(&row["image_built"])),
    ];
    listed(client, &columns, json).await
}

async fn stats(client: &Client, json: bool) -> Result<(), ClientError> {
    let columns = [
        Column::left("SANDBOX", short),
        Column::left("SESSION", whose),
        Column::left("STATE", state),
        Column::right("MEMORY MiB", |row| mebibytes(&row["memory_bytes"])),
        Column::right("CPU s", |row| seconds(&row["cpu_micros"])),
        Column::right("PROCESSES", |row| text(&row["processes"])),
        Column::right("DISK MiB", |row| mebibytes(&row["disk_bytes"])),
    ];
    listed(client, &columns, json).await
}

async fn listed(client: &Client, columns: &[Column], json: bool) -> Result<(), ClientError> {
    let answer: Value = client.get("/sandboxes").await?;
    let rows = &answer["sandboxes"];
    let words = "no session has a sandbox now: it gets one when it is used (`belljar sessions` says how each one's is)";
    if nothing(rows, words, json)? {
        return Ok(());
    }
    table(rows, columns, json)
}

fn short(row: &Value) -> String {
    let id = text(&row["id"]);
    id.get(id.len().saturating_sub(SHORT_ID)..).unwrap_or(&id).to_owned()
}

/// The id of the sandbox that is meant: by all of it, or by its last digits, as they are listed.
async fn found(client: &Client, named: &str) -> Result<String, ClientError> {
    if named.parse::<SandboxId>().is_ok() {
        return Ok(named.to_owned());
    }
    let answer: Value = client.get("/sandboxes").await?;
    let rows = answer["sandboxes"].as_array().into_iter().flatten();
    let mut meant = rows.filter(|row| text(&row["id"]).ends_with(named));
    match (meant.next(), meant.next()) {
        (Some(row), None) => Ok(text(&row["id"])),
        _ => Err(ClientError::Refused {
            code: "not_found".into(),
            message: format!("there is no sandbox {named:?}: `belljar sandbox list` lists them"),
        }),
    }
}

/// How it is, and why, where it is dead.
fn state(row: &Value) -> String {
    match row["reason"].as_str() {
        Some(reason) => format!("{}: {}", text(&row["state"]), one_line(reason, 40)),
        None => text(&row["state"]),
    }
}

/// The session that it works for; a warm one's and a builder's is nobody's.
fn whose(row: &Value) -> String {
    if row["builder"] == true {
        return "(builds an image)".to_owned();
    }
    if row["warm"] == true {
        return "(warm)".to_owned();
    }
    text(&row["session"])
}

/// The image's name, and enough of its digest to tell one from another.
fn image(row: &Value) -> String {
    let digest = digits(&row["image"]);
    match row["image_name"].as_str() {
        Some(name) => format!("{name} {digest}"),
        None => digest,
    }
}

fn seconds(value: &Value) -> String {
    value
        .as_u64()
        .map_or_else(String::new, |micros| format!("{:.2}", micros as f64 / 1e6))
}

/// Shows words out of a sandbox: nothing in them commands a terminal.
fn show(answer: &Value, words: &Value, json: bool) -> Result<(), ClientError> {
    let mut out = std::io::stdout().lock();
    if json {
        return writeln!(out, "{answer}").map_err(output);
    }
    let words = words.as_str().unwrap_or_default();
    write!(out, "{}", harmless(words)).map_err(output)?;
    if !words.is_empty() && !words.ends_with('\n') {
        writeln!(out).map_err(output)?;
    }
    Ok(())
}

/// A word as the sandbox's splitter of words reads it back whole.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@%+,".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_a_sandbox_is_and_whose() {
        let mut row = json!({ "id": "0192f0c1-2d3e-7abc-8def-0123456789ab", "session": "s", "state": "frozen" });
        assert_eq!(short(&row), "0123456789ab");
        assert_eq!((whose(&row).as_str(), state(&row).as_str()), ("s", "frozen"));
        row["warm"] = true.into();
        row["state"] = "dead".into();
        row["reason"] = "its first process\u{1b} ended".into();
        assert_eq!(
            (whose(&row).as_str(), state(&row).as_str()),
            ("(warm)", "dead: its first process␛ ended")
        );
        row["builder"] = true.into();
        assert_eq!(whose(&row), "(builds an image)");
        row["id"] = Value::Null;
        assert_eq!(short(&row), "");
    }

    #[test]
    fn a_word_stays_one_word() {
        assert_eq!(quoted("/workspace/a.txt"), "/workspace/a.txt");
        assert_eq!(quoted("two words"), "'two words'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("*"), "'*'");
        assert_eq!(quoted(""), "''");
    }
}
