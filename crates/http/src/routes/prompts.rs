//! Prompts, and stopping what they began.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use control::NewPrompt;
use domain::{Block, Delivery, EventNumber, ExternalKey, Image, RunId, SessionId};
use policy::Scope;
use serde::{Deserialize, Serialize};
use store::{Joined, Target};
use utoipa::ToSchema;

use super::Done;
use super::sessions::ClientDoor;
use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::{Id, JsonBody, LARGEST_PROMPT};
use crate::error::ApiError;

/// A job for the agent.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prompt {
    /// What to do.
    text: String,
    /// Pictures that belong to it.
    #[serde(default)]
    images: Vec<Image>,
    /// The model that is to answer; the default one where left out.
    model: Option<String>,
    /// How it meets a run that is under way.
    #[serde(default)]
    delivery: Delivery,
    /// Where the request comes from.
    #[serde(default)]
    door: ClientDoor,
    /// What the session may not do from now on, whatever else it might: it takes away and never adds. docs/policy.md says how it is written.
    #[schema(value_type = Option<Object>)]
    scope: Option<Scope>,
}

/// How a prompt was met.
#[derive(Serialize, ToSchema)]
pub(crate) struct Accepted {
    /// The session.
    session: SessionId,
    /// The run that answers.
    run: RunId,
    /// `started`, `queued` or `steered`.
    joined: &'static str,
    /// Runs that it interrupted.
    interrupted: Vec<RunId>,
    /// The event after which everything about it comes: watch from here.
    #[schema(value_type = i64)]
    after: EventNumber,
    /// It was sent before with the same Idempotency-Key, and is not done twice.
    repeated: bool,
}

/// Give the agent a job. It is stored before it is acknowledged, and done whatever happens to this process. With the header
/// `Idempotency-Key` it may be sent again without being done twice.
#[utoipa::path(post, path = "/sessions/{session}/prompts", tag = "sessions", request_body = Prompt,
    params(("session" = SessionId, Path), ("Idempotency-Key" = Option<String>, Header, description = "Names this request; 200 bytes at most.")),
    responses((status = 200, description = "It is accepted.", body = Accepted)))]
pub(crate) async fn prompt(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<Prompt, LARGEST_PROMPT>,
) -> Result<Json<Accepted>, ApiError> {
    let request_key = match headers.get("idempotency-key") {
        Some(key) => {
            let key = key
                .to_str()
                .map_err(|_| ApiError::invalid("the Idempotency-Key is not plain text"))?;
            Some(key.to_owned())
        }
        None => None,
    };
    // Read before, so that a watcher from here misses nothing of what the prompt does.
    let before = doors.control.session(caller.asker(), session).await?.events;
    let images = body.images.into_iter().map(Block::Image);
    let accepted = doors
        .control
        .prompt(
            caller.asker(),
            NewPrompt {
                target: Target::Session(session),
                door: body.door.into(),
                caller: Some(caller.0.trigger.clone()),
                blocks: std::iter::once(Block::Text { text: body.text }).chain(images).collect(),
                delivery: body.delivery,
                request_key,
                model: body.model,
                scope: body.scope,
            },
        )
        .await?;
    let after = match accepted.events.first() {
        Some(event) => event.number - 1,
        // A repeat: its events may be anywhere.
        None if accepted.repeated => 0,
        None => before,
    };
    Ok(Json(Accepted {
        session: accepted.session,
        run: accepted.run,
        joined: match accepted.joined {
            Joined::Started => "started",
            Joined::Queued => "queued",
            Joined::Steered => "steered",
        },
        interrupted: accepted.interrupted,
        after,
        repeated: accepted.repeated,
    }))
}

/// A prompt that somebody is about to send.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckPrompt {
    /// The session that it is for.
    session: Option<SessionId>,
    /// The session that it is for, by its key; one is made later where there is none. A new one where both are left out.
    key: Option<ExternalKey>,
    /// What to do, where that is known already.
    text: Option<String>,
    /// The model that is to answer; the default one where left out.
    model: Option<String>,
    /// How it is going to meet a run that is under way.
    #[serde(default)]
    delivery: Delivery,
    /// Where the request comes from.
    #[serde(default)]
    door: ClientDoor,
    /// What the session may not do from then on.
    #[schema(value_type = Option<Object>)]
    scope: Option<Scope>,
}

/// Say whether a prompt would be accepted, as far as that can be known before, and do nothing: so that no session is made for a mistake.
#[utoipa::path(post, path = "/prompts/check", tag = "sessions", request_body = CheckPrompt, responses((status = 200, description = "It would be accepted.", body = Done)))]
pub(crate) async fn check_prompt(
    State(doors): State<Doors>,
    caller: Caller,
    JsonBody(body): JsonBody<CheckPrompt, LARGEST_PROMPT>,
) -> Result<Json<Done>, ApiError> {
    let owner = caller.0.user.id;
    let target = match (body.session, body.key) {
        (Some(session), None) => Target::Session(session),
        (None, Some(key)) => Target::Key { owner, key },
        (None, None) => Target::New { owner },
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid(
                "a prompt is for one session: name it by its id, or by its key",
            ));
        }
    };
    // Of words that are not known yet nothing is wrong.
    let text = body.text.unwrap_or_else(|| "…".to_owned());
    let prompt = NewPrompt {
        delivery: body.delivery,
        model: body.model,
        scope: body.scope,
        ..NewPrompt::words(target, body.door.into(), text)
    };
    doors.control.check_prompt(caller.asker(), &prompt).await?;
    Ok(Done::JSON)
}

/// What was stopped.
#[derive(Serialize, ToSchema)]
pub(crate) struct Cancelled {
    /// False where nothing was under way.
    cancelled: bool,
}

/// Stop what a session is doing. Every process of every tool call is killed.
#[utoipa::path(post, path = "/sessions/{session}/cancel", tag = "sessions", params(("session" = SessionId, Path)), responses((status = 200, description = "It is stopped.", body = Cancelled)))]
pub(crate) async fn cancel(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
) -> Result<Json<Cancelled>, ApiError> {
    let reason = format!("stopped by {}", caller.0.user.name);
    let ended = doors.control.cancel(caller.asker(), session, &reason).await?;
    Ok(Json(Cancelled {
        cancelled: ended.is_some(),
    }))
}
