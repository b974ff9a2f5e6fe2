//! Whether it lives, and how it is.

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use utoipa::openapi::OpenApi;

use crate::api::{Doors, description};
use crate::authenticate::Caller;
use crate::error::ApiError;
use crate::metrics::{refresh_exposition, resident_bytes, sandbox_exposition, trace_exposition};

/// Whether the process lives. Open to all, and says nothing else.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "It lives.", body = String, content_type = "text/plain")))]
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Figures for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, description = "Prometheus' text format.", body = String, content_type = "text/plain")))]
pub(crate) async fn get_metrics(State(doors): State<Doors>, _: Caller) -> impl IntoResponse {
    let health = doors.control.health().await;
    let up = |words: &Option<String>| i64::from(words.is_none());
    let runs = i64::try_from(health.runs).unwrap_or(i64::MAX);
    let mut gauges = vec![
        ("belljar_runs_running", "Runs that are under way.", runs),
        ("belljar_store_up", "Whether the store answers.", up(&health.store)),
        (
            "belljar_sandboxes_up",
            "Whether the sandbox provider answers.",
            up(&health.sandboxes),
        ),
    ];
    let sandboxes = doors.control.sandbox_figures();
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    gauges.extend([
        (
            "belljar_sandboxes_running",
            "Sandboxes of sessions whose processes run.",
            count(sandboxes.running),
        ),
        (
            "belljar_sandboxes_frozen",
            "Sandboxes of sessions whose processes stand still.",
            count(sandboxes.frozen),
        ),
        (
            "belljar_sandboxes_warm",
            "Sandboxes that were made ahead and wait for a session.",
            count(sandboxes.warm),
        ),
    ]);
    gauges.push((
        "belljar_sessions_kept_bytes",
        "What sessions keep in memory for speed alone.",
        count(doors.control.kept_bytes()),
    ));
    // Without an answer nothing is said of them.
    if let Ok(behind) = doors.control.sessions_behind().await {
        gauges.push((
            "belljar_sessions_behind",
            "Sessions whose disk has files that are kept nowhere else: they wait for the place where files are kept.",
            i64::try_from(behind).unwrap_or(i64::MAX),
        ));
    }
    let traces = doors.control.trace_figures().unwrap_or_default();
    gauges.extend(resident_bytes().map(|bytes| ("process_resident_memory_bytes", "Memory in use.", bytes)));
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4")],
        doors.metrics.exposition(&gauges)
            + &sandbox_exposition(&sandboxes)
            + &trace_exposition(traces)
            + &refresh_exposition(doors.control.refresh_figures()),
    )
}

/// The OpenAPI description of this API.
#[utoipa::path(get, path = "/openapi.json", tag = "health", responses((status = 200, description = "OpenAPI 3.1.")))]
pub(crate) async fn get_description(_: Caller) -> Json<OpenApi> {
    Json(description())
}

/// There is no such path.
pub(crate) async fn unknown_path() -> ApiError {
    ApiError::no_path()
}

/// The path does not do that.
pub(crate) async fn unknown_method() -> ApiError {
    ApiError::no_method()
}
