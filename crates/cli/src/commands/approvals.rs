//! What the agent wants a person to approve, and their answers.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};

use domain::{ApprovalAnswer, ApprovalId, Event};
use serde_json::{Value, json};

use super::lists::session as session_of;
use super::table::{Column, last_digits, table};
use super::typed::Typed;
use super::{output, resolve, say};
use crate::arguments::ApproveArguments;
use crate::render::{Render, exact};
use crate::terminal::{harmless, one_line};
use crate::{Client, ClientError, Outcome};

pub(super) async fn list(client: &Client, session: Option<&str>, json: bool) -> Result<(), ClientError> {
    let path = match session {
        Some(session) => format!("/approvals?session={}", resolve(client, session).await?),
        None => "/approvals".to_owned(),
    };
    let answer: Value = client.get(&path).await?;
    table(&answer["approvals"], &COLUMNS, json)
}

pub(super) const COLUMNS: [Column; 6] = [
    Column::left("APPROVAL", |row| last_digits(&row["id"])),
    Column::left("SESSION", session_of).shrinks(4, 14),
    Column::left("OWNER", |row| word(row, "owner_name")).shrinks(3, 8),
    Column::left("KIND", |row| {
        let proposal = if row["proposal"] == true { " (access)" } else { "" };
        format!("{}{proposal}", word(row, "kind"))
    }),
    Column::left("SUBJECT", |row| word(row, "subject")).shrinks(5, 14),
    Column::left("WHY", |row| word(row, "reason")).shrinks(1, 16).goes(2),
];

/// The id of the approval that is meant: by all of it, or by its last digits, as they are listed.
async fn found(client: &Client, named: &str) -> Result<ApprovalId, ClientError> {
    if let Ok(id) = named.parse() {
        return Ok(id);
    }
    let answer: Value = client.get("/approvals?limit=200").await?;
    let rows = answer["approvals"].as_array().into_iter().flatten();
    let mut meant = rows.filter_map(|row| row["id"].as_str().filter(|id| id.ends_with(named)));
    match (meant.next().and_then(|id| id.parse().ok()), meant.next()) {
        (Some(id), None) => Ok(id),
        _ => Err(ClientError::Refused {
            code: "not_found".into(),
            message: format!("no approval {named:?} is waited for: `belljar approvals` lists those that are"),
        }),
    }
}

fn word(row: &Value, name: &str) -> String {
    row[name].as_str().unwrap_or_default().to_owned()
}

/// Shows one whole.
pub(super) async fn show(client: &Client, approval: &str, json: bool) -> Result<(), ClientError> {
    let (approval, asked) = find(client, approval).await?;
    if json {
        return say(json, &asked, "");
    }
    let mut out = std::io::stdout().lock();
    for name in ["id", "session", "kind", "subject", "reason", "state"] {
        writeln!(out, "{name}: {}", harmless(&word(&asked, name))).map_err(output)?;
    }
    writeln!(out, "request:").map_err(output)?;
    tell(&mut out, &asked).map_err(output)?;
    if asked["state"] == "pending" {
        writeln!(out, "to approve this and nothing else: {}", command(approval, &asked)).map_err(output)?;
    }
    Ok(())
}

/// Shows the whole request and approves that very one: where somebody says yes to it, or has seen it before.
pub(super) async fn approve(client: &Client, arguments: &ApproveArguments, json: bool) -> Result<Outcome, ClientError> {
    let (approval, asked) = find(client, &arguments.approval).await?;
    let sha256 = word(&asked, "sha256");
    if !json {
        tell(&mut std::io::stderr().lock(), &asked).map_err(output)?;
    }
    match &arguments.hash {
        Some(seen) if !sha256.starts_with(seen.as_str()) => {
            return Err(ClientError::Usage(format!(
                "what is asked has the hash {}, and not {seen}: `belljar approvals show {approval}` shows it",
                beginning(&sha256)
            )));
        }
        Some(_) => {}
        // What is over is refused with the reason.
        None if asked["state"] != "pending" => {}
        None if json || !person() => {
            return Err(ClientError::Usage(format!(
                "nobody is at a terminal to be shown what is approved: look at it with `belljar approvals show {approval}`, \
                 and say so with --hash and the beginning of its hash"
            )));
        }
        None => {
            let mut typed = Typed::default();
            typed.forget();
            let mut notes = std::io::stderr();
            let asking = write!(notes, "approve it? y: yes · anything else: not now ");
            asking.and_then(|()| notes.flush()).map_err(output)?;
            let line = typed.line().await.unwrap_or_default();
            if !matches!(line.trim(), "y" | "yes") {
                say(json, &asked, "not answered: it still waits, and `belljar deny` says no")?;
                return Ok(Outcome::Failed);
            }
        }
    }
    let answer = if arguments.always {
        ApprovalAnswer::Always
    } else {
        ApprovalAnswer::Once
    };
    let decided = decide(client, approval, answer, arguments.reason.as_deref(), &sha256).await?;
    say(json, &decided, &word(&decided, "state").replace('_', " "))?;
    Ok(Outcome::Done)
}

/// Shows the whole request, and denies it.
pub(super) async fn deny(client: &Client, approval: &str, reason: Option<&str>, json: bool) -> Result<(), ClientError> {
    let (approval, asked) = find(client, approval).await?;
    if !json {
        tell(&mut std::io::stderr().lock(), &asked).map_err(output)?;
    }
    let decided = decide(client, approval, ApprovalAnswer::Deny, reason, &word(&asked, "sha256")).await?;
    say(json, &decided, &word(&decided, "state").replace('_', " "))
}

async fn find(client: &Client, named: &str) -> Result<(ApprovalId, Value), ClientError> {
    let approval = found(client, named).await?;
    Ok((approval, client.get(&format!("/approvals/{approval}")).await?))
}

/// The whole request, and how its hash begins.
fn tell(out: &mut impl Write, asked: &Value) -> std::io::Result<()> {
    for line in exact(&asked["request"]) {
        writeln!(out, "  {line}")?;
    }
    writeln!(out, "hash: {}", beginning(&word(asked, "sha256")))
}

/// How a hash begins: enough of it that no other is found which begins so by chance.
fn beginning(sha256: &str) -> &str {
    sha256.get(..16).unwrap_or(sha256)
}

/// What approves a request that was shown.
fn command(approval: ApprovalId, asked: &Value) -> String {
    let always = if asked["proposal"] == true { " --always" } else { "" };
    let hash = word(asked, "sha256");
    format!("belljar approve {approval}{always} --hash {}", beginning(&hash))
}

/// Whether somebody is there who sees what is shown, and can answer.
fn person() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

async fn decide(
    client: &Client,
    approval: ApprovalId,
    answer: ApprovalAnswer,
    reason: Option<&str>,
    seen: &str,
) -> Result<Value, ClientError> {
    let body = json!({ "decision": answer, "reason": reason, "request_sha256": seen });
    client.post(&format!("/approvals/{approval}"), &body).await
}

struct Question {
    approval: ApprovalId,
    sha256: String,
    proposal: bool,
}

/// Asks whoever sits at the terminal, one question after the other.
pub(super) struct Asking {
    /// There is somebody.
    person: bool,
    json: bool,
    questions: VecDeque<Question>,
    /// The first question is on the screen.
    shown: bool,
}

impl Asking {
    pub(super) fn new(json: bool) -> Self {
        Self {
            person: !json && person(),
            json,
            questions: VecDeque::new(),
            shown: false,
        }
    }

    /// Whether an answer is waited for.
    pub(super) fn is_open(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Takes note of what was drawn.
    pub(super) fn saw(&mut self, event: &Event, render: &mut Render) -> std::io::Result<()> {
        match event {
            Event::ApprovalRequested {
                approval,
                sha256,
                proposal,
                admins_only,
                ..
            } => {
                if self.person && !admins_only {
                    self.questions.push_back(Question {
                        approval: *approval,
                        sha256: sha256.clone(),
                        proposal: *proposal,
                    });
                } else if !self.json {
                    let (always, who) = if *proposal {
                        (" --always", "an admin: ")
                    } else {
                        ("", "")
                    };
                    let hash = beginning(sha256);
                    let line = format!(
                        "    waits for {who}`belljar approve {approval}{always} --hash {hash}`, or `belljar deny {approval} --reason …`"
                    );
                    render.note("33", &line)?;
                }
            }
            Event::ApprovalDecided { approval, .. } => {
                let first = self.questions.front().map(|question| question.approval);
                self.questions.retain(|question| question.approval != *approval);
                self.shown &= first != Some(*approval);
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts the next question on the screen, if it is not there yet. What was typed before does not answer it.
    pub(super) fn show(&mut self, typed: &mut Typed, render: &mut Render) -> std::io::Result<()> {
        if self.shown || self.questions.is_empty() {
            return Ok(());
        }
        self.shown = true;
        typed.forget();
        render.note(
            "33",
            "    approve it? y: once · a: always in this session · n, with a reason: no",
        )
    }

    /// Sends what was typed, if it is an answer.
    pub(super) async fn answer(
        &mut self,
        client: &Client,
        line: Option<String>,
        render: &mut Render,
    ) -> Result<(), ClientError> {
        let Some(question) = self.questions.front() else {
            return Ok(());
        };
        let line = line.unwrap_or_else(|| "n nobody is there to be asked".to_owned());
        let (word, reason) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
        let answer = match word {
            "y" | "yes" if !question.proposal => ApprovalAnswer::Once,
            "a" | "always" => ApprovalAnswer::Always,
            "n" | "no" => ApprovalAnswer::Deny,
            _ => {
                self.shown = false;
                return Ok(());
            }
        };
        let reason = Some(reason.trim()).filter(|reason| !reason.is_empty());
        if let Err(error) = decide(client, question.approval, answer, reason, &question.sha256).await {
            let line = format!("    {}", one_line(&error.to_string(), 300));
            render.note("31", &line).map_err(output)?;
        }
        self.questions.pop_front();
        self.shown = false;
        Ok(())
    }
}
