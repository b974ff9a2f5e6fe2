//! What operators do about sandboxes.

use std::io::Write;

use serde_json::{Value, json};

use crate::arguments::SandboxCommand;
use crate::terminal::harmless;
use crate::{Client, ClientError, Outcome};

use super::lists::{Column, table, text, time};
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
            let answer: Value = client.get(&format!("/sandboxes/{sandbox}/logs")).await?;
            show(&answer, &answer["words"], json)?;
        }
        SandboxCommand::Rm { sandbox } => {
            let request = client.request(reqwest::Method::DELETE, &format!("/sandboxes/{sandbox}"));
            let answer: Value = client.json(request).await?;
            say(json, &answer, "removed")?;
        }
    }
    Ok(Outcome::Done)
}

async fn list(client: &Client, json: bool) -> Result<(), ClientError> {
    let answer: Value = client.get("/sandboxes").await?;
    let columns = [
        Column::left("SANDBOX", |row| text(&row["id"])),
        Column::left("SESSION", whose),
        Column::left("STATE", |row| text(&row["state"])),
        Column::left("MADE", |row| time(&row["created"])),
        Column::left("LAST USED", |row| time(&row["last_used"])),
        Column::left("KEPT UNTIL", |row| time(&row["kept_until"])),
        Column::left("IMAGE", image),
        Column::left("BUILT", |row| time(&row["image_built"])),
    ];
    table(&answer["sandboxes"], &columns, json)
}

async fn stats(client: &Client, json: bool) -> Result<(), ClientError> {
    let answer: Value = client.get("/sandboxes").await?;
    let columns = [
        Column::left("SANDBOX", |row| text(&row["id"])),
        Column::left("SESSION", whose),
        Column::left("STATE", |row| text(&row["state"])),
        Column::right("MEMORY MiB", |row| mebibytes(&row["memory_bytes"])),
        Column::right("CPU s", |row| seconds(&row["cpu_micros"])),
        Column::right("PROCESSES", |row| text(&row["processes"])),
        Column::right("DISK MiB", |row| mebibytes(&row["disk_bytes"])),
    ];
    table(&answer["sandboxes"], &columns, json)
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
    let digest: String = text(&row["image"]).chars().take(12).collect();
    match row["image_name"].as_str() {
        Some(name) => format!("{name} {digest}"),
        None => digest,
    }
}

fn mebibytes(value: &Value) -> String {
    value
        .as_u64()
        .map_or_else(String::new, |bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20)))
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
    fn a_word_stays_one_word() {
        assert_eq!(quoted("/workspace/a.txt"), "/workspace/a.txt");
        assert_eq!(quoted("two words"), "'two words'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("*"), "'*'");
        assert_eq!(quoted(""), "''");
    }
}
