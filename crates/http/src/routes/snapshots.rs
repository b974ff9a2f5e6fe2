//! Snapshots of a session, going back to one, and forks.

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use control::NewFork;
use domain::{RunId, SessionId, SnapshotId, Timestamp};
use policy::Scope;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::files::archive;
use super::sessions::{self, Session};
use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::{Id, IdAndName, JsonBody};
use crate::error::ApiError;

/// What is kept of a session: its files, and how far its history had come.
#[derive(Serialize, ToSchema)]
pub(crate) struct Snapshot {
    /// Which.
    id: SnapshotId,
    /// `named`: kept until somebody removes it; `run`: made after a run, and goes when there are newer ones.
    kind: &'static str,
    /// What people call it.
    name: Option<String>,
    /// The run that had ended.
    run: Option<RunId>,
    /// How many messages had been said.
    messages: i64,
    /// When it was made.
    created: Timestamp,
    /// Bytes of its files, where that is known. Where it shares them with the session, removing it frees less.
    bytes: Option<u64>,
}

impl From<store::Snapshot> for Snapshot {
    fn from(snapshot: store::Snapshot) -> Self {
        Self {
            id: snapshot.id,
            kind: snapshot.kind.as_str(),
            name: snapshot.name,
            run: snapshot.run,
            messages: snapshot.position,
            created: snapshot.created,
            bytes: snapshot.bytes,
        }
    }
}

/// A session's snapshots.
#[derive(Serialize, ToSchema)]
pub(crate) struct Snapshots {
    /// The snapshots, newest first.
    snapshots: Vec<Snapshot>,
    /// Why none is made after each run, where none is.
    note: Option<String>,
}

/// List a session's snapshots.
#[utoipa::path(get, path = "/sessions/{session}/snapshots", tag = "snapshots", params(("session" = SessionId, Path)), responses((status = 200, description = "They are these.", body = Snapshots)))]
pub(crate) async fn list_snapshots(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
) -> Result<Json<Snapshots>, ApiError> {
    let list = doors.control.snapshots(caller.asker(), session).await?;
    Ok(Json(Snapshots {
        snapshots: list.snapshots.into_iter().map(Snapshot::from).collect(),
        note: list.note,
    }))
}

/// A snapshot that is wanted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSnapshot {
    /// What it is called.
    name: Option<String>,
}

/// Keep a session's files as they are now. Its sandbox may run.
#[utoipa::path(post, path = "/sessions/{session}/snapshots", tag = "snapshots", params(("session" = SessionId, Path)), request_body = NewSnapshot, responses((status = 200, description = "It is kept.", body = Snapshot)))]
pub(crate) async fn save_snapshot(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
    JsonBody(body): JsonBody<NewSnapshot>,
) -> Result<Json<Snapshot>, ApiError> {
    let saved = doors.control.save_snapshot(caller.asker(), session, body.name).await?;
    Ok(Json(saved.into()))
}

/// What was removed.
#[derive(Serialize, ToSchema)]
pub(crate) struct Removed {
    /// It is gone.
    removed: bool,
}

/// Remove a snapshot. Sessions that were made from it stay.
#[utoipa::path(delete, path = "/sessions/{session}/snapshots/{snapshot}", tag = "snapshots", params(("session" = SessionId, Path), ("snapshot" = String, Path, description = "Its id or name.")), responses((status = 200, description = "It is gone.", body = Removed)))]
pub(crate) async fn remove_snapshot(
    State(doors): State<Doors>,
    caller: Caller,
    IdAndName(session, snapshot): IdAndName<SessionId>,
) -> Result<Json<Removed>, ApiError> {
    let control = &doors.control;
    control.remove_snapshot(caller.asker(), session, &snapshot).await?;
    Ok(Json(Removed { removed: true }))
}

/// A snapshot's name.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewName {
    /// What it is called from now on.
    name: String,
}

/// Name a snapshot. One that was made after a run is kept from then on.
#[utoipa::path(post, path = "/sessions/{session}/snapshots/{snapshot}/name", tag = "snapshots", params(("session" = SessionId, Path), ("snapshot" = String, Path, description = "Its id or name.")), request_body = NewName, responses((status = 200, description = "It is called so.", body = Snapshot)))]
pub(crate) async fn name_snapshot(
    State(doors): State<Doors>,
    caller: Caller,
    IdAndName(session, snapshot): IdAndName<SessionId>,
    JsonBody(body): JsonBody<NewName>,
) -> Result<Json<Snapshot>, ApiError> {
    let control = &doors.control;
    let named = control.name_snapshot(caller.asker(), session, &snapshot, &body.name);
    Ok(Json(named.await?.into()))
}

/// Read the whole workspace as a snapshot has it, as an archive (tar), within a quarter of an hour. The session goes on meanwhile. Links that lead out of it, pipes, sockets, devices and set-uid bits are left out.
#[utoipa::path(get, path = "/sessions/{session}/snapshots/{snapshot}/workspace", tag = "snapshots", params(("session" = SessionId, Path), ("snapshot" = String, Path, description = "Its id or name.")),
    responses((status = 200, description = "The archive.", body = Vec<u8>, content_type = "application/x-tar")))]
pub(crate) async fn export_snapshot(
    State(doors): State<Doors>,
    caller: Caller,
    IdAndName(session, snapshot): IdAndName<SessionId>,
) -> Result<impl IntoResponse, ApiError> {
    let control = &doors.control;
    let bytes = control.export_snapshot(caller.asker(), session, &snapshot).await?;
    Ok(archive(bytes))
}

/// Take a session back to a snapshot: its files, and what was said. Refused while a run is under way.
#[utoipa::path(post, path = "/sessions/{session}/snapshots/{snapshot}/restore", tag = "snapshots", params(("session" = SessionId, Path), ("snapshot" = String, Path, description = "Its id or name.")), responses((status = 200, description = "The session.", body = Session)))]
pub(crate) async fn restore_snapshot(
    State(doors): State<Doors>,
    caller: Caller,
    IdAndName(session, snapshot): IdAndName<SessionId>,
) -> Result<Json<Session>, ApiError> {
    let control = &doors.control;
    control.rewind(caller.asker(), session, &snapshot).await?;
    let session = control.session(caller.asker(), session).await?;
    sessions::told_one(&doors, &caller, session).await
}

/// Forks that are wanted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkSession {
    /// How many (1; never more than 16).
    #[serde(default = "one")]
    count: u32,
    /// The snapshot that they begin at, by its id or name; the session as it stands where left out.
    snapshot: Option<String>,
    /// What they may not do, beside what the session may not. docs/policy.md says how it is written.
    #[schema(value_type = Option<Object>)]
    scope: Option<Scope>,
}

const fn one() -> u32 {
    1
}

/// The forks.
#[derive(Serialize, ToSchema)]
pub(crate) struct Forks {
    /// Each a session of its own.
    sessions: Vec<Session>,
}

/// Make sessions with the files and the history of one.
#[utoipa::path(post, path = "/sessions/{session}/fork", tag = "snapshots", params(("session" = SessionId, Path)), request_body = ForkSession, responses((status = 200, description = "They are there.", body = Forks)))]
pub(crate) async fn fork_session(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
    JsonBody(body): JsonBody<ForkSession>,
) -> Result<Json<Forks>, ApiError> {
    let new = NewFork {
        count: body.count,
        snapshot: body.snapshot,
        scope: body.scope,
    };
    let forks = doors.control.fork(caller.asker(), session, new).await?;
    Ok(Json(Forks {
        sessions: sessions::told(&doors, &caller, forks).await?,
    }))
}
