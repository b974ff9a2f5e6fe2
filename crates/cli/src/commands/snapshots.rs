//! Snapshots of sessions, and forks.

use std::io::Write;

use reqwest::Method;
use serde_json::{Value, json};

use crate::arguments::{ForkArguments, SnapshotCommand};
use crate::terminal::harmless;
use crate::{Client, ClientError};

use super::archives;
use super::lists;
use super::run::read_scope;
use super::table::{Column, table};
use super::{encoded, output, resolve, say};

pub(super) async fn snapshot(client: &Client, command: SnapshotCommand, json: bool) -> Result<(), ClientError> {
    match command {
        SnapshotCommand::Save { session, name } => {
            let session = resolve(client, &session).await?;
            let path = format!("/sessions/{session}/snapshots");
            let answer: Value = client.post(&path, &json!({ "name": name })).await?;
            say(json, &answer, answer["id"].as_str().unwrap_or_default())
        }
        SnapshotCommand::List { session } => list(client, &session, json).await,
        SnapshotCommand::Restore { session, snapshot } => {
            let session = resolve(client, &session).await?;
            let answer: Value = client
                .post(&format!("{}/restore", place(&session, &snapshot)), &json!({}))
                .await?;
            say(json, &answer, "the session is as it was then")
        }
        SnapshotCommand::Name {
            session,
            snapshot,
            name,
        } => {
            let session = resolve(client, &session).await?;
            let path = format!("{}/name", place(&session, &snapshot));
            let answer: Value = client.post(&path, &json!({ "name": name })).await?;
            say(json, &answer, "named")
        }
        SnapshotCommand::Export {
            session,
            file,
            snapshot,
            force,
        } => {
            let session = resolve(client, &session).await?;
            let workspace = match snapshot {
                Some(snapshot) => format!("{}/workspace", place(&session, &snapshot)),
                None => format!("/sessions/{session}/workspace"),
            };
            archives::export(client, &workspace, &file, force, json).await
        }
        SnapshotCommand::Import { session, file } => archives::import(client, &session, &file, json).await,
        SnapshotCommand::Rm { session, snapshot } => {
            let session = resolve(client, &session).await?;
            let request = client.request(Method::DELETE, &place(&session, &snapshot));
            let answer: Value = client.json(request).await?;
            say(json, &answer, "removed")
        }
    }
}

pub(super) async fn fork(client: &Client, arguments: &ForkArguments, json: bool) -> Result<(), ClientError> {
    let session = resolve(client, &arguments.session).await?;
    let scope = arguments.scope.as_deref().map(read_scope).transpose()?;
    let mut body = json!({ "count": arguments.count, "snapshot": arguments.snapshot });
    if let Some(scope) = scope {
        body["scope"] = scope;
    }
    let answer: Value = client.post(&format!("/sessions/{session}/fork"), &body).await?;
    let forks = answer["sessions"].as_array().cloned().unwrap_or_default();
    for fork in &forks {
        say(json, fork, fork["id"].as_str().unwrap_or_default())?;
    }
    Ok(())
}

pub(super) const COLUMNS: [Column; 5] = [
    Column::left("SNAPSHOT", |snapshot| lists::text(&snapshot["id"])),
    Column::left("MADE (UTC)", |snapshot| lists::time(&snapshot["created"])).goes(4),
    Column::right("MESSAGES", |snapshot| snapshot["messages"].to_string()).goes(1),
    Column::right("MiB", |snapshot| lists::mebibytes(&snapshot["bytes"])).goes(3),
    Column::left("NAME", |snapshot| match snapshot["name"].as_str() {
        Some(name) => name.to_owned(),
        None if snapshot["kind"] == "run" => "(after a run)".to_owned(),
        None => String::new(),
    })
    .shrinks(2, 16),
];

async fn list(client: &Client, session: &str, json: bool) -> Result<(), ClientError> {
    let session = resolve(client, session).await?;
    let answer: Value = client.get(&format!("/sessions/{session}/snapshots")).await?;
    let words = "nothing is kept of this session: `belljar snapshot save` keeps its files as they are now";
    if !lists::nothing(&answer["snapshots"], words, json)? {
        table(&answer["snapshots"], &COLUMNS, json)?;
    }
    if let Some(note) = answer["note"].as_str().filter(|_| !json) {
        writeln!(std::io::stderr(), "{}", harmless(note)).map_err(output)?;
    }
    Ok(())
}

fn place(session: &str, snapshot: &str) -> String {
    // A name may hold a slash, which is no part of the path.
    let snapshot = encoded(snapshot).replace('/', "%2F");
    format!("/sessions/{session}/snapshots/{snapshot}")
}
