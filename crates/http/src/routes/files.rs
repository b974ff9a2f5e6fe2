//! Files of a session's workspace, as streams. They are read and written by the sandbox's own runtime.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use bytes::Bytes;
use control::FileStream;
use domain::{SessionId, Timestamp};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::{Id, Query};
use crate::error::ApiError;

/// How long a body may bring nothing before it is given up.
const SILENCE: Duration = Duration::from_secs(60);

/// A place in the workspace.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Place {
    /// Relative to the workspace.
    #[serde(default)]
    path: String,
}

/// A file or folder of the workspace.
#[derive(Serialize, ToSchema)]
pub(crate) struct File {
    /// Relative to the workspace.
    path: String,
    /// `file`, `folder`, `link` or `special`.
    kind: String,
    /// Its length.
    bytes: u64,
    /// When it was changed.
    changed: Timestamp,
}

/// What is below a folder.
#[derive(Serialize, ToSchema)]
pub(crate) struct Files {
    /// The files and folders.
    files: Vec<File>,
}

/// List a folder of the workspace, and what is below it.
#[utoipa::path(get, path = "/sessions/{session}/files", tag = "files", params(("session" = SessionId, Path), Place), responses((status = 200, description = "What is there.", body = Files)))]
pub(crate) async fn list_files(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
    Query(place): Query<Place>,
) -> Result<Json<Files>, ApiError> {
    let entries = doors.control.files(caller.asker(), session, &place.path).await?;
    let files = entries.into_iter().map(|entry| File {
        path: entry.path,
        kind: super::word(&entry.kind),
        bytes: entry.bytes,
        changed: Timestamp(entry.changed),
    });
    Ok(Json(Files { files: files.collect() }))
}

/// Read a file of the workspace.
#[utoipa::path(get, path = "/sessions/{session}/file", tag = "files", params(("session" = SessionId, Path), Place),
    responses((status = 200, description = "Its bytes.", body = Vec<u8>, content_type = "application/octet-stream")))]
pub(crate) async fn read_file(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
    Query(place): Query<Place>,
) -> Result<impl IntoResponse, ApiError> {
    let bytes = doors.control.download(caller.asker(), session, &place.path).await?;
    // Untrusted bytes on the API's own origin: to be saved, never to be shown or run.
    let headers = [
        (CONTENT_TYPE, "application/octet-stream"),
        (CONTENT_DISPOSITION, "attachment"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, Body::from_stream(bytes)))
}

/// What was written.
#[derive(Serialize, ToSchema)]
pub(crate) struct Written {
    /// The file.
    path: String,
}

/// Write a file of the workspace. It stands in its place whole, or not at all; folders on the way are made.
#[utoipa::path(put, path = "/sessions/{session}/file", tag = "files", params(("session" = SessionId, Path), Place),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = 200, description = "It is there.", body = Written)))]
pub(crate) async fn write_file(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
    Query(place): Query<Place>,
    request: Request,
) -> Result<Json<Written>, ApiError> {
    let pieces = arriving(request);
    doors
        .control
        .upload(caller.asker(), session, &place.path, pieces)
        .await?;
    Ok(Json(Written { path: place.path }))
}

/// A body as it arrives; one that brings nothing for too long is given up.
fn arriving(request: Request) -> BoxStream<'static, std::io::Result<Bytes>> {
    let pieces = request
        .into_body()
        .into_data_stream()
        .map_err(std::io::Error::other)
        .boxed();
    let pieces = futures::stream::unfold(Some(pieces), |pieces| async {
        let mut pieces = pieces?;
        match tokio::time::timeout(SILENCE, pieces.next()).await {
            Ok(Some(piece)) => Some((piece, Some(pieces))),
            Ok(None) => None,
            Err(_) => Some((Err(std::io::Error::from(std::io::ErrorKind::TimedOut)), None)),
        }
    });
    pieces.boxed()
}

/// Read the whole workspace as an archive (tar). Links that lead out of it, pipes, sockets, devices and set-uid bits are left out.
#[utoipa::path(get, path = "/sessions/{session}/workspace", tag = "files", params(("session" = SessionId, Path)),
    responses((status = 200, description = "The archive.", body = Vec<u8>, content_type = "application/x-tar")))]
pub(crate) async fn export_files(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
) -> Result<impl IntoResponse, ApiError> {
    let bytes = doors.control.export(caller.asker(), session).await?;
    Ok(archive(bytes))
}

/// A workspace on its way.
pub(crate) fn archive(bytes: FileStream) -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, "application/x-tar"),
        (CONTENT_DISPOSITION, "attachment"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, Body::from_stream(bytes))
}

/// What was taken in.
#[derive(Serialize, ToSchema)]
pub(crate) struct Imported {
    /// It is the workspace now.
    imported: bool,
}

/// Put what is in an archive (tar) in the workspace's place: all of it, or nothing. Refused while a run is under way.
#[utoipa::path(put, path = "/sessions/{session}/workspace", tag = "files", params(("session" = SessionId, Path)),
    request_body(content = Vec<u8>, content_type = "application/x-tar"), responses((status = 200, description = "It is there.", body = Imported)))]
pub(crate) async fn import_files(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
    request: Request,
) -> Result<Json<Imported>, ApiError> {
    let archive = arriving(request);
    doors.control.import(caller.asker(), session, archive).await?;
    Ok(Json(Imported { imported: true }))
}
