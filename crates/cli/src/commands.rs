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
mod typed;

use std::io::Write;

pub use self::files::backup;
pub use self::images::{show_images, used_images};

use domain::{ApprovalAnswer, SessionId};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::arguments::{ClientCommand, PolicyCommand, UserCommand};
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
        ClientCommand::Approvals { session } => approvals::list(client, session.as_deref(), json).await?,
        ClientCommand::Approve(arguments) => {
            let answer = if arguments.always {
                ApprovalAnswer::Always
            } else {
                ApprovalAnswer::Once
            };
            approvals::answer(client, arguments.approval, answer, arguments.reason.as_deref(), json).await?;
        }
        ClientCommand::Deny { approval, reason } => {
            approvals::answer(client, approval, ApprovalAnswer::Deny, reason.as_deref(), json).await?;
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
        ClientCommand::Token(command) => lists::tokens(client, command, json).await?,
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
    let mut render = Render::new(Paper::standard(), json, shown);
    while let Some(seen) = watch.next().await? {
        render.draw(&seen).map_err(output)?;
    }
    Ok(())
}

/// Prints an answer: itself for a program, words for a person.
fn say(json: bool, answer: &Value, words: &str) -> Result<(), ClientError> {
    let line = if json {
        answer.to_string()
    } else {
        harmless(words).into_owned()
    };
    writeln!(std::io::stdout(), "{line}").map_err(output)
}

/// Nobody reads what is written.
fn output(source: std::io::Error) -> ClientError {
    ClientError::File {
        attempt: "write to",
        path: "the output".into(),
        source,
    }
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
