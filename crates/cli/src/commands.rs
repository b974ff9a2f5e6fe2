//! What each command does.

mod approvals;
mod archives;
mod audit;
mod files;
mod images;
mod lists;
mod policy;
mod run;
mod sandboxes;
mod snapshots;
mod table;
mod tokens;
mod typed;

use std::io::{IsTerminal, Write};

pub use self::files::backup;
pub use self::images::{image_uses, show_images, used_images};

use domain::SessionId;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::arguments::{ApprovalsCommand, ClientCommand, PolicyCommand, UserCommand};
use crate::output::{line, output};
use crate::render::{Paper, Render, Shown};
use crate::terminal::harmless;
use crate::watch::Watch;
use crate::{Client, ClientError, Outcome};

/// Does what was typed; `json` asks for one JSON value a line.
///
/// # Errors
/// When it could not be done; [`ClientError::outcome`] says what the shell is told.
pub async fn execute(client: &Client, command: ClientCommand, json: bool) -> Result<Outcome, ClientError> {
    match command {
        ClientCommand::Run(arguments) => return run::run(client, arguments, json).await,
        ClientCommand::Chat { session, model, scope } => {
            return run::chat(client, session.as_deref(), model.as_deref(), scope.as_deref(), json).await;
        }
        ClientCommand::Sessions(arguments) => lists::sessions(client, &arguments, json).await?,
        ClientCommand::Show { session, all } => {
            let session = resolve(client, &session).await?;
            let shown = if all { Shown::All } else { Shown::Words };
            draw(&mut Watch::new(client, &session, "0".into(), false), json, shown).await?;
        }
        ClientCommand::Events { session, after, follow } => {
            let session = resolve(client, &session).await?;
            draw(
                &mut Watch::new(client, &session, after.unwrap_or_else(|| "0".into()), follow),
                json,
                Shown::Words,
            )
            .await?;
        }
        ClientCommand::Cancel { session } => {
            let session = resolve(client, &session).await?;
            let answer: Value = client.post(&format!("/sessions/{session}/cancel"), &json!({})).await?;
            let words = if answer["cancelled"] == true {
                "cancelled"
            } else {
                "nothing was under way"
            };
            say(json, &answer, words)?;
        }
        ClientCommand::Archive { session } => {
            let session = resolve(client, &session).await?;
            let answer: Value = client.post(&format!("/sessions/{session}/archive"), &json!({})).await?;
            say(json, &answer, "archived")?;
        }
        ClientCommand::Put(arguments) => files::put(client, &arguments, json).await?,
        ClientCommand::Get(arguments) => files::get(client, &arguments, json).await?,
        ClientCommand::Files(arguments) => files::list(client, &arguments, json).await?,
        ClientCommand::Fork(arguments) => snapshots::fork(client, &arguments, json).await?,
        ClientCommand::Snapshot(command) => snapshots::snapshot(client, command, json).await?,
        ClientCommand::Models => lists::models(client, json).await?,
        ClientCommand::Sandbox(command) => return sandboxes::sandbox(client, command, json).await,
        ClientCommand::Image(command) => return images::image(client, command, json).await,
        ClientCommand::Audit(arguments) => return audit::audit(client, &arguments, json).await,
        ClientCommand::Usage {
            session, calls: true, ..
        } => lists::calls(client, session.as_deref(), json).await?,
        ClientCommand::Usage { session, by, .. } => lists::usage(client, session.as_deref(), by, json).await?,
        ClientCommand::Approvals(arguments) => match arguments.command {
            Some(ApprovalsCommand::Show { approval }) => approvals::show(client, &approval, json).await?,
            None => approvals::list(client, arguments.session.as_deref(), json).await?,
        },
        ClientCommand::Approve(arguments) => return approvals::approve(client, &arguments, json).await,
        ClientCommand::Deny { approval, reason } => {
            approvals::deny(client, &approval, reason.as_deref(), json).await?;
        }
        ClientCommand::Policy(PolicyCommand::Explain(arguments)) => {
            return policy::explain(client, &arguments, json).await;
        }
        ClientCommand::User(UserCommand::List) => lists::users(client, json).await?,
        ClientCommand::User(UserCommand::Add { name, admin }) => {
            let answer: Value = client.post("/users", &json!({ "name": name, "admin": admin })).await?;
            say(json, &answer, answer["id"].as_str().unwrap_or_default())?;
        }
        ClientCommand::User(UserCommand::Rm { user }) => {
            let user = audit::user_id(client, &user).await?;
            let request = client.request(reqwest::Method::DELETE, &format!("/users/{user}"));
            let answer: Value = client.json(request).await?;
            say(json, &answer, "removed")?;
        }
        ClientCommand::Token(command) => tokens::token(client, command, json).await?,
    }
    Ok(Outcome::Done)
}

/// The id of the session that was named by its id or by its key.
async fn resolve(client: &Client, name: &str) -> Result<String, ClientError> {
    #[derive(Deserialize)]
    struct Page {
        sessions: Vec<Named>,
    }
    if name.parse::<SessionId>().is_ok() {
        return Ok(name.to_owned());
    }
    let key = encoded(name);
    // One that was put away is somebody's still, and has its key.
    for archived in ["", "&archived=true"] {
        let page: Page = client.get(&format!("/sessions?key={key}{archived}")).await?;
        if let Some(session) = page.sessions.first() {
            return Ok(session.id.to_string());
        }
    }
    Err(ClientError::Refused {
        code: "not_found".into(),
        message: format!("there is no session {name:?}: `belljar sessions` lists them"),
    })
}

/// A session as far as most commands care.
#[derive(Deserialize)]
struct Named {
    id: SessionId,
    /// The number of its last event.
    events: i64,
}

async fn draw(watch: &mut Watch<'_>, json: bool, shown: Shown) -> Result<(), ClientError> {
    let mut render = Render::new(Paper::page(), json, shown);
    while let Some(seen) = watch.next().await? {
        render.draw(&seen).map_err(output)?;
    }
    Ok(())
}

/// Prints an answer: itself for a program, words for a person.
fn say(json: bool, answer: &Value, words: &str) -> Result<(), ClientError> {
    if json { line(answer) } else { line(harmless(words)) }
}

/// Asks whoever sits at the terminal. Where nobody does, nothing is done that was not agreed to.
fn agreed(question: &str) -> Result<bool, ClientError> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(ClientError::Usage(format!(
            "{question} Nobody is there to be asked: say --yes"
        )));
    }
    let mut notes = std::io::stderr();
    write!(notes, "{question} [y/N] ")
        .and_then(|()| notes.flush())
        .map_err(output)?;
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(ClientError::file("read", "the standard input".as_ref()))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// A number with its noun.
fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A text as it stands in a URL.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::table::{Column, drawn};
    use super::*;
    use crate::arguments::ByArgument;

    const ID: &str = "0192f0c1-2d3e-7abc-8def-0123456789ab";

    /// Everything that a row of any list may have, and much of it.
    fn row() -> Value {
        let long = "many words, one after the other, that nobody needs to read to know what is meant by it";
        let (key, person) = ("a-session-of-ours-1795294717", "ada.lovelace@example.com");
        let people = json!({
            "id": ID, "session": ID, "parent": ID, "session_key": key, "key": key, "owner_name": person, "user_name": person,
            "called": person, "name": ID, "label": "the laptop that stands in the kitchen", "title": long, "active": 0, "created": 0,
            "sandbox": { "state": "hibernated" }, "messages": 12_345, "kind": "service", "subject": "warehouse.queryEverything",
            "reason": long,
        });
        let costs = json!({
            "at": 1_795_294_717_000_i64, "model": "claude-sonnet", "run": ID, "cost": 123_456_789_000_i64, "calls": 123_456,
            "usage": { "input": 123_456_789, "output": 12_345_678 }, "number": 1_234_567, "actor": format!("session:{ID}"),
            "action": "session_tokens.revoked", "service": "warehouse", "decision": "allow", "rule": "roles.everybody.services",
            "detail": { "method": "queryEverything", "words": long },
        });
        let images = json!({
            "image": "an-image-of-ours-with-tools", "recipe": "imported", "digest": "ab".repeat(32), "base": "cd".repeat(32),
            "built": 0, "bytes": 9_u64 << 30, "state": "building", "begun": 0, "ended": 1_000_000, "sandboxes": 12, "error": long,
        });
        let parts = [people, costs, images].into_iter();
        let members = parts.filter_map(|part| part.as_object().cloned()).flatten();
        Value::Object(members.collect())
    }

    #[test]
    fn every_table_fits_a_terminal_and_keeps_what_is_needed_to_go_on() {
        let sessions = lists::SESSIONS;
        let calls = lists::CALLS;
        let by_user = lists::sums(ByArgument::User);
        let by_model = lists::sums(ByArgument::Model);
        let tables: [(&[Column], &str); 10] = [
            (&sessions, "SESSION RUN OWNER NAME"),
            (&calls, "AT SESSION MODEL TOKENS IN COST"),
            (&by_user, "USER CALLS TOKENS IN TOKENS OUT COST"),
            (&by_model, "MODEL CALLS TOKENS IN TOKENS OUT COST"),
            (&tokens::COLUMNS, "TOKEN FOR USER SINCE STATE"),
            (&approvals::COLUMNS, "APPROVAL SESSION OWNER KIND SUBJECT"),
            (&audit::COLUMNS, "# WHEN WHO WHAT TO DECISION"),
            (&images::IMAGES, "IMAGE DIGEST AGE MiB MADE OF"),
            (&images::GENERATIONS, "IMAGE STATE BEGUN WHY"),
            (&snapshots::COLUMNS, "SNAPSHOT MADE NAME"),
        ];
        for (columns, kept) in tables {
            let row = row();
            let narrow = drawn(std::slice::from_ref(&row), columns, Some(80));
            assert!(narrow.iter().all(|line| line.chars().count() <= 80), "{narrow:#?}");
            let heads = narrow[0].replace("(UTC)", "");
            let heads = heads.split_whitespace().collect::<Vec<_>>().join(" ");
            for head in kept.split(' ') {
                assert!(heads.contains(head), "{head} is gone: {narrow:#?}");
            }
            let wide = drawn(&[row], columns, None);
            assert!(wide[0].len() >= narrow[0].len(), "{wide:#?}");
        }
    }
}
