//! Sessions.

use axum::Json;
use axum::extract::State;
use domain::{Door, EventNumber, ExternalKey, RunId, RunState, SandboxId, SessionId, Timestamp, UserId};
use policy::Scope;
use serde::{Deserialize, Serialize};
use store::{Cursor, Names, SessionFilter, Target};
use utoipa::{IntoParams, ToSchema};

use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::{Id, JsonBody, Query};
use crate::error::ApiError;

/// A session.
#[derive(Serialize, ToSchema)]
pub(crate) struct Session {
    /// Which.
    id: SessionId,
    /// Whose.
    owner: UserId,
    /// What people call its owner.
    owner_name: Option<String>,
    /// What its owner calls it.
    key: Option<ExternalKey>,
    /// The session that it is a fork of.
    parent: Option<SessionId>,
    /// What that one's owner calls it.
    parent_key: Option<ExternalKey>,
    /// The door by which it was opened.
    door: Door,
    /// The first words of its first prompt.
    title: String,
    /// When it was opened.
    created: Timestamp,
    /// When it was last prompted.
    active: Timestamp,
    /// When it was archived; a prompt brings it back.
    archived: Option<Timestamp>,
    /// How many messages its history has.
    messages: i64,
    /// The number of its last event.
    #[schema(value_type = i64)]
    events: EventNumber,
    /// Its newest run.
    run: Option<SessionRun>,
    /// Its sandbox.
    sandbox: Option<SessionSandbox>,
}

/// A session's newest run.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionRun {
    /// Which.
    id: RunId,
    /// Where it stands.
    state: RunState,
}

/// A session's sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionSandbox {
    /// Which.
    id: SandboxId,
    /// Its state, as last told. `suspended`: its processes are kept; `hibernated`: they are gone.
    state: String,
}

impl Session {
    fn of(session: store::Session, names: &Names) -> Self {
        Self {
            id: session.id,
            owner: session.owner,
            owner_name: names.user(session.owner),
            key: session.key,
            parent: session.parent,
            parent_key: session.parent.and_then(|parent| names.session(parent)),
            door: session.door,
            title: session.title,
            created: session.created,
            active: session.active,
            archived: session.archived,
            messages: session.messages,
            events: session.events,
            run: session.run.map(|(id, state)| SessionRun { id, state }),
            sandbox: session.sandbox.map(|(id, state)| SessionSandbox { id, state }),
        }
    }
}

/// Sessions as the one who asks is told of them.
pub(crate) async fn told(
    doors: &Doors,
    caller: &Caller,
    sessions: Vec<store::Session>,
) -> Result<Vec<Session>, ApiError> {
    let owners = sessions.iter().map(|session| session.owner).collect();
    let parents = sessions.iter().filter_map(|session| session.parent).collect();
    let names = doors.names(caller, owners, parents).await?;
    Ok(sessions
        .into_iter()
        .map(|session| Session::of(session, &names))
        .collect())
}

pub(crate) async fn told_one(
    doors: &Doors,
    caller: &Caller,
    session: store::Session,
) -> Result<Json<Session>, ApiError> {
    let parents = session.parent.into_iter().collect();
    let names = doors.names(caller, vec![session.owner], parents).await?;
    Ok(Json(Session::of(session, &names)))
}

/// Which sessions are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListSessions {
    /// The one with this key.
    key: Option<ExternalKey>,
    /// The archived ones instead of the others.
    #[serde(default)]
    archived: bool,
    /// Of this user; admins only.
    owner: Option<UserId>,
    /// `next` of the page before.
    after: Option<String>,
    /// At most this many (50; never more than 200).
    limit: Option<u32>,
}

/// A page of sessions, last prompted first.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionPage {
    /// The sessions.
    sessions: Vec<Session>,
    /// Where the next page begins; null: there is no more.
    next: Option<String>,
}

/// List sessions.
#[utoipa::path(get, path = "/sessions", tag = "sessions", params(ListSessions), responses((status = 200, description = "A page.", body = SessionPage)))]
pub(crate) async fn list_sessions(
    State(doors): State<Doors>,
    caller: Caller,
    Query(query): Query<ListSessions>,
) -> Result<Json<SessionPage>, ApiError> {
    let after = query.after.map(|after| after.parse::<Cursor>());
    let after = after
        .transpose()
        .map_err(|error| ApiError::invalid(error.to_string()))?;
    // A key names one user's session: without another owner, the caller's own.
    let owner = query.owner.or(query.key.is_some().then_some(caller.0.user.id));
    let filter = SessionFilter {
        owner,
        key: query.key,
        archived: query.archived,
    };
    let limit = super::page_length(query.limit);
    let page = doors.control.sessions(caller.asker(), filter, after, limit).await?;
    Ok(Json(SessionPage {
        sessions: told(&doors, &caller, page.sessions).await?,
        next: page.next.map(|next| next.to_string()),
    }))
}

/// A door that comes through this API.
#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientDoor {
    /// A program.
    #[default]
    Api,
    /// The command line.
    Cli,
}

impl From<ClientDoor> for Door {
    fn from(door: ClientDoor) -> Self {
        match door {
            ClientDoor::Api => Self::Api,
            ClientDoor::Cli => Self::Cli,
        }
    }
}

/// The session that is wanted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenSession {
    /// Yours with this key, made where there is none; a new one without a key where left out.
    key: Option<ExternalKey>,
    /// Where the request comes from.
    #[serde(default)]
    door: ClientDoor,
    /// What the session may not do, whatever else it might: it takes away and never adds. docs/policy.md says how it is written.
    #[schema(value_type = Option<Object>)]
    scope: Option<Scope>,
}

/// Find a session by its key, or make one.
#[utoipa::path(post, path = "/sessions", tag = "sessions", request_body = OpenSession, responses((status = 200, description = "The session.", body = Session)))]
pub(crate) async fn open_session(
    State(doors): State<Doors>,
    caller: Caller,
    JsonBody(body): JsonBody<OpenSession>,
) -> Result<Json<Session>, ApiError> {
    let owner = caller.0.user.id;
    let target = body.key.map_or(Target::New { owner }, |key| Target::Key { owner, key });
    let (session, _) = doors
        .control
        .open_session(caller.asker(), target, body.door.into(), "", body.scope.as_ref())
        .await?;
    told_one(&doors, &caller, session).await
}

/// Look at a session.
#[utoipa::path(get, path = "/sessions/{session}", tag = "sessions", params(("session" = SessionId, Path)), responses((status = 200, description = "The session.", body = Session)))]
pub(crate) async fn get_session(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
) -> Result<Json<Session>, ApiError> {
    let session = doors.control.session(caller.asker(), session).await?;
    told_one(&doors, &caller, session).await
}

/// Put a session away. It is listed no more; a prompt brings it back.
#[utoipa::path(post, path = "/sessions/{session}/archive", tag = "sessions", params(("session" = SessionId, Path)), responses((status = 200, description = "The session.", body = Session)))]
pub(crate) async fn archive_session(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
) -> Result<Json<Session>, ApiError> {
    doors.control.archive(caller.asker(), session).await?;
    let session = doors.control.session(caller.asker(), session).await?;
    told_one(&doors, &caller, session).await
}
