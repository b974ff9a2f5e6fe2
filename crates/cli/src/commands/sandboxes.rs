//! What operators do about sandboxes.

use std::io::Write;

use domain::SandboxId;
use reqwest::Method;
use serde_json::{Value, json};

use crate::arguments::SandboxCommand;
use crate::terminal::{harmless, one_line};
use crate::{Client, ClientError, Outcome};

use super::lists::{away, digits, mebibytes, nothing, text};
use super::table::{Column, last_digits, table};
use super::{agreed, counted, output, resolve, say};

pub(super) async fn sandbox(client: &Client, command: SandboxCommand, json: bool) -> Result<Outcome, ClientError> {
    match command {
        SandboxCommand::List => listed(client, &LIST, json).await?,
        SandboxCommand::Stats => listed(client, &STATS, json).await?,
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
        SandboxCommand::Rm { sandbox: None, yes, .. } => return remove_all(client, yes, json).await,
        SandboxCommand::Rm {
            sandbox: Some(sandbox), ..
        } => {
            let sandbox = found(client, &sandbox).await?;
            let request = client.request(Method::DELETE, &format!("/sandboxes/{sandbox}"));
            let answer: Value = client.json(request).await?;
            say(json, &answer, "removed")?;
        }
    }
    Ok(Outcome::Done)
}

const LIST: [Column; 9] = [
    Column::left("SANDBOX", |row| last_digits(&row["id"])),
    Column::left("SESSION", whose),
    Column::optional("NAME", |row| text(&row["session_key"]))
        .shrinks(5, 8)
        .goes(8),
    Column::left("STATE", state).shrinks(6, 8),
    Column::right("AGE", |row| away(&row["created"])).goes(4),
    Column::right("UNUSED", |row| away(&row["last_used"])).goes(9),
    Column::optional("KEPT FOR", |row| away(&row["kept_until"])).goes(7),
    Column::left("IMAGE", image).shrinks(2, 12).goes(3),
    Column::optional("IMAGE AGE", |row| away(&row["image_built"])).goes(1),
];

/// How each is, the list says too.
const STATS: [Column; 8] = [
    Column::left("SANDBOX", |row| last_digits(&row["id"])),
    Column::left("SESSION", whose),
    Column::optional("NAME", |row| text(&row["session_key"]))
        .shrinks(5, 8)
        .goes(8),
    Column::left("STATE", state).shrinks(1, 8).goes(3),
    Column::right("MEMORY MiB", |row| mebibytes(&row["memory_bytes"])),
    Column::right("CPU s", |row| seconds(&row["cpu_micros"])),
    Column::right("PROCESSES", |row| text(&row["processes"])).goes(2),
    Column::right("DISK MiB", |row| mebibytes(&row["disk_bytes"])),
];

async fn listed(client: &Client, columns: &[Column], json: bool) -> Result<(), ClientError> {
    let answer: Value = client.get("/sandboxes").await?;
    let rows = &answer["sandboxes"];
    let words = "no session has a sandbox now: it gets one when it is used (`belljar sessions` says how each one's is)";
    if nothing(rows, words, json)? {
        return Ok(());
    }
    table(rows, columns, json)
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

/// Removes every sandbox, if whoever sits at the terminal agrees.
async fn remove_all(client: &Client, yes: bool, json: bool) -> Result<Outcome, ClientError> {
    let listed: Value = client.get("/sandboxes").await?;
    let count = listed["sandboxes"].as_array().map_or(0, Vec::len);
    if !yes && count > 0 {
        let question = format!(
            "remove {}? What runs in them ends; sessions and their files stay.",
            counted(count as u64, "sandbox", "sandboxes")
        );
        if !agreed(&question)? {
            return Ok(Outcome::Failed);
        }
    }
    // Also where there is none: none is to be made.
    let answer: Value = client.json(client.request(Method::DELETE, "/sandboxes")).await?;
    let number = |name: &str| answer[name].as_u64().unwrap_or_default();
    let mut words = format!("removed {}", counted(number("removed"), "sandbox", "sandboxes"));
    if number("runs") > 0 {
        let runs = counted(number("runs"), "run", "runs");
        words.push_str(&format!(
            "\nnot ended: {runs} under way, for which sandboxes are made anew (`belljar sessions` shows whose, `belljar cancel SESSION` ends one)"
        ));
    }
    if number("left") > 0 {
        words.push_str(&format!(
            "\n{} could not be removed: the control plane's log says why",
            number("left")
        ));
    }
    say(json, &answer, &words)?;
    Ok(if number("left") > 0 {
        Outcome::Failed
    } else {
        Outcome::Done
    })
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

/// Of many seconds, whole ones.
fn seconds(value: &Value) -> String {
    value
        .as_u64()
        .map_or_else(String::new, |micros| match micros as f64 / 1e6 {
            few if few < 1e3 => format!("{few:.2}"),
            many => format!("{many:.0}"),
        })
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
    use domain::Timestamp;

    use super::super::table::drawn;
    use super::*;

    #[test]
    fn a_row_says_what_a_sandbox_is_and_whose() {
        let mut row = json!({ "id": "0192f0c1-2d3e-7abc-8def-0123456789ab", "session": "s", "state": "frozen" });
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
    }

    #[test]
    fn tables_fit_a_terminal_and_keep_what_names_a_session_and_its_sandbox() {
        let row = |state: &str, reason: Option<&str>| {
            json!({
                "id": "0192f0c1-2d3e-7abc-8def-0123456789ab", "session": "0192f0c1-2d3e-7abc-8def-ba9876543210",
                "state": state, "reason": reason, "created": 0, "last_used": 0, "kept_until": Timestamp::now().0 + 10_000_000,
                "image": "ab".repeat(32), "image_name": "belljar-base", "image_built": 0,
                "memory_bytes": 3_u64 << 40, "cpu_micros": 600_000_000_000_u64, "processes": 12_345, "disk_bytes": 9_u64 << 30,
            })
        };
        let plain = row("starting", None);
        let dead = row("dead", Some("its first process ended, and nobody knows why it did"));
        for (columns, kept, all) in [
            (
                &LIST[..],
                "SANDBOX SESSION STATE UNUSED KEPT FOR",
                "SANDBOX SESSION STATE AGE UNUSED KEPT FOR IMAGE IMAGE AGE",
            ),
            (
                &STATS[..],
                "SANDBOX SESSION MEMORY MiB CPU s DISK MiB",
                "SANDBOX SESSION STATE MEMORY MiB CPU s PROCESSES DISK MiB",
            ),
        ] {
            let heads = |lines: &[String]| lines[0].split_whitespace().collect::<Vec<_>>().join(" ");
            let rows = [plain.clone(), dead.clone()];
            let narrow = drawn(&rows, columns, Some(80));
            assert!(narrow.iter().all(|line| line.chars().count() <= 80), "{narrow:#?}");
            assert_eq!(heads(&narrow), kept);
            for line in &narrow[1..] {
                assert!(
                    line.starts_with("0123456789ab  0192f0c1-2d3e-7abc-8def-ba9876543210  "),
                    "{line}"
                );
            }
            for wide in [None, Some(200)] {
                let lines = drawn(&rows, columns, wide);
                assert_eq!(heads(&lines), all);
                assert!(
                    lines[2].contains("dead: its first process ended, and nobody"),
                    "{lines:#?}"
                );
            }
        }
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
