//! Giving the agent a job and watching it.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use domain::{Event, RunId, RunState, SessionId};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::arguments::RunArguments;
use crate::render::{Paper, Render, Shown};
use crate::watch::{self, Meaning, Watch};
use crate::{Client, ClientError, Outcome};

use super::approvals::Asking;
use super::typed::Typed;
use super::{Named, files};

/// Pauses between tries of a request grow up to this; a minute in all.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Words that somebody has still to say.
const NOT_KNOWN_YET: &str = "";

/// How a prompt was met.
#[derive(Deserialize)]
struct Accepted {
    run: RunId,
    /// Watch from here to see all of what follows.
    after: i64,
    /// It had arrived before.
    repeated: bool,
}

/// One prompt.
#[derive(Clone, Copy)]
struct Prompt<'a> {
    text: &'a str,
    model: Option<&'a str>,
    delivery: domain::Delivery,
    scope: Option<&'a Value>,
}

pub(super) async fn run(client: &Client, arguments: RunArguments, json: bool) -> Result<Outcome, ClientError> {
    let text = match arguments.prompt.as_deref() {
        None | Some("-") => from_stdin()?,
        Some(text) => text.to_owned(),
    };
    if text.trim().is_empty() {
        return Err(ClientError::Usage("the prompt is empty: say what is to be done".into()));
    }
    let scope = arguments.scope.as_deref().map(read_scope).transpose()?;
    // No session is made for what cannot be read.
    let mut uploads = Vec::with_capacity(arguments.file.len());
    for file in &arguments.file {
        uploads.push(files::Upload::open(file, None).await?);
    }
    let prompt = Prompt {
        text: &text,
        model: arguments.model.as_deref(),
        delivery: arguments.delivery.into(),
        scope: scope.as_ref(),
    };
    // Nor for what would be refused.
    check(client, arguments.session.as_deref(), &prompt).await?;
    // Before any file is copied or anything is said.
    let session = open(client, arguments.session.as_deref(), scope.as_ref()).await?;
    for upload in uploads {
        upload.send(client, &session).await?;
    }
    if arguments.detach {
        let answer: Value = client
            .post(&format!("/sessions/{session}/prompts"), &body(&prompt))
            .await?;
        super::say(json, &answer, &session)?;
        return Ok(Outcome::Done);
    }
    let outcome = prompt_and_watch(client, &session, &prompt, json, &mut Typed::default()).await?;
    if !json && arguments.session.is_none() {
        say_how_to_go_on(&session);
    }
    Ok(outcome)
}

/// To be said of a session that nobody named.
fn say_how_to_go_on(session: &str) {
    // Nobody is hurt if this cannot be written.
    let _ = writeln!(
        std::io::stderr(),
        "session {session}\n  go on: belljar run --session {session} \"…\"\n  its files: belljar files {session}, \
         belljar get {session} FILE"
    );
}

pub(super) async fn chat(
    client: &Client,
    named: Option<&str>,
    model: Option<&str>,
    scope: Option<&Path>,
    json: bool,
) -> Result<Outcome, ClientError> {
    let scope = scope.map(read_scope).transpose()?;
    let prompt = Prompt {
        text: NOT_KNOWN_YET,
        model,
        delivery: domain::Delivery::Restart,
        scope: scope.as_ref(),
    };
    check(client, named, &prompt).await?;
    // It is made with the first words: whoever says none has none.
    let mut session: Option<String> = None;
    let person = std::io::stdin().is_terminal();
    let mut typed = Typed::default();
    let mut outcome = Outcome::Done;
    loop {
        if person {
            let mut notes = std::io::stderr();
            write!(notes, "› ")
                .and_then(|()| notes.flush())
                .map_err(super::output)?;
        }
        let Some(line) = typed.line().await else {
            if let Some(session) = session.filter(|_| !json && named.is_none()) {
                say_how_to_go_on(&session);
            }
            return Ok(outcome);
        };
        if line.trim().is_empty() {
            continue;
        }
        let opened = match session {
            Some(session) => session,
            None => open(client, named, scope.as_ref()).await?,
        };
        let prompt = Prompt { text: &line, ..prompt };
        outcome = prompt_and_watch(client, &opened, &prompt, json, &mut typed).await?;
        session = Some(opened);
    }
}

fn from_stdin() -> Result<String, ClientError> {
    if std::io::stdin().is_terminal() {
        return Err(ClientError::Usage(
            "nothing to do: say what, as in `belljar run \"count the words in notes.txt\"`".into(),
        ));
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(ClientError::file("read", "the standard input".as_ref()))?;
    Ok(text)
}

/// A scope as it stands in a file. What may stand in it, the control plane knows.
pub(super) fn read_scope(file: &Path) -> Result<Value, ClientError> {
    let text = std::fs::read_to_string(file).map_err(ClientError::file("read", file))?;
    serde_json::from_str(&text).map_err(|error| {
        let file = file.display();
        ClientError::Usage(format!(
            "{file} is no JSON: {error}; write a scope such as {{\"tools\": {{\"exec\": false}}}}"
        ))
    })
}

/// The session that was named, made where there is none; a new one where none was named.
pub(super) async fn open(client: &Client, named: Option<&str>, scope: Option<&Value>) -> Result<String, ClientError> {
    if let Some(id) = named.filter(|name| name.parse::<SessionId>().is_ok()) {
        return Ok(id.to_owned());
    }
    let session: Named = client
        .post("/sessions", &json!({ "key": named, "door": "cli", "scope": scope }))
        .await?;
    Ok(session.id.to_string())
}

/// Asks whether a prompt would be accepted, before a session is made for it.
async fn check(client: &Client, named: Option<&str>, prompt: &Prompt<'_>) -> Result<(), ClientError> {
    let mut body = body(prompt);
    if prompt.text == NOT_KNOWN_YET {
        body["text"] = Value::Null;
    }
    if let Some(named) = named {
        let by = if named.parse::<SessionId>().is_ok() {
            "session"
        } else {
            "key"
        };
        body[by] = named.into();
    }
    let ask = async || client.post::<Value>("/prompts/check", &body).await;
    again(ask, |error| is_passing(error) && !is_not_there(error)).await?;
    Ok(())
}

fn body(prompt: &Prompt<'_>) -> Value {
    json!({
        "text": prompt.text,
        "model": prompt.model,
        "delivery": prompt.delivery,
        "door": "cli",
        "scope": prompt.scope,
    })
}

/// Sends a prompt; again where no answer came, which is safe since the request has a name of its own.
async fn send(client: &Client, session: &str, prompt: &Prompt<'_>) -> Result<Accepted, ClientError> {
    let path = format!("/sessions/{session}");
    let before: Named = again(async || client.get(&path).await, is_passing).await?;
    let (path, name) = (format!("{path}/prompts"), RunId::new().to_string());
    let send = async || {
        let request = client.request(Method::POST, &path);
        let request = request.header("idempotency-key", &name).json(&body(prompt));
        client.json::<Accepted>(request).await
    };
    let accepted = again(send, is_passing).await?;
    let after = if accepted.repeated {
        before.events
    } else {
        accepted.after
    };
    Ok(Accepted { after, ..accepted })
}

/// Makes a request that may be repeated, until it has an answer or has been tried often enough.
async fn again<T>(
    mut ask: impl AsyncFnMut() -> Result<T, ClientError>,
    may_pass: impl Fn(&ClientError) -> bool,
) -> Result<T, ClientError> {
    let mut pause = Duration::from_millis(100);
    loop {
        match ask().await {
            Err(error) if pause < LONGEST_PAUSE && may_pass(&error) => {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            answer => return answer,
        }
    }
}

/// Whether nothing listens there: whoever has only begun is told so at once.
fn is_not_there(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { source, .. } if source.is_connect())
}

/// Whether the same request may go through later.
fn is_passing(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. } | ClientError::Broken { .. }) || watch::may_pass(error)
}

/// Sends a prompt and draws what follows until its run has ended. Ctrl-C cancels the run; once more, and nobody watches.
async fn prompt_and_watch(
    client: &Client,
    session: &str,
    prompt: &Prompt<'_>,
    json: bool,
    typed: &mut Typed,
) -> Result<Outcome, ClientError> {
    let began = Instant::now();
    let accepted = send(client, session, prompt).await?;
    let mut render = Render::new(Paper::standard(), json, Shown::Answers);
    let mut watch = Watch::new(client, session, accepted.after.to_string(), true);
    let mut cancelling = false;
    let mut asking = Asking::new(json);
    let ended = loop {
        asking.show(typed, &mut render).map_err(super::output)?;
        let seen = tokio::select! {
            seen = watch.next() => seen?,
            line = typed.line(), if asking.is_open() => {
                watch.again();
                asking.answer(client, line, &mut render).await?;
                continue;
            }
            signal = tokio::signal::ctrl_c() => {
                if signal.is_err() || cancelling {
                    return Ok(Outcome::Failed);
                }
                cancelling = true;
                watch.again();
                render.note("33", "stopping (Ctrl-C again to leave)").map_err(super::output)?;
                let _: Value = client.post(&format!("/sessions/{session}/cancel"), &json!({})).await?;
                continue;
            }
        };
        let Some(seen) = seen else { continue };
        render.draw(&seen).map_err(super::output)?;
        if let Some(Meaning::Event(event)) = &seen.meaning {
            asking.saw(&event.event, &mut render).map_err(super::output)?;
        }
        if let Some(Meaning::Event(event)) = &seen.meaning
            && let Event::Run { run, state, code, .. } = &event.event
            && *run == accepted.run
            && state.is_final()
        {
            break outcome(*state, code.as_deref());
        }
    };
    render.bill(began.elapsed()).map_err(super::output)?;
    Ok(ended)
}

fn outcome(state: RunState, code: Option<&str>) -> Outcome {
    match (state, code) {
        (RunState::Done, _) => Outcome::Done,
        (_, Some(code)) => Outcome::of_code(code),
        _ => Outcome::Failed,
    }
}
