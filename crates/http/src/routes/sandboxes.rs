//! Sandboxes.

use axum::Json;
use axum::extract::State;
use control::ControlError;
use domain::{SandboxId, SessionId};
use serde::Serialize;
use utoipa::ToSchema;

use super::Done;
use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::Id;
use crate::error::ApiError;

/// A sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct Sandbox {
    /// Which.
    id: SandboxId,
    /// The session it works for.
    session: SessionId,
    /// Its state.
    state: String,
    /// What it holds in memory; null where nobody knows.
    memory_bytes: Option<u64>,
}

/// Sandboxes.
#[derive(Serialize, ToSchema)]
pub(crate) struct Sandboxes {
    /// All there are.
    sandboxes: Vec<Sandbox>,
}

/// List sandboxes. Admins only.
#[utoipa::path(get, path = "/sandboxes", tag = "sandboxes", responses((status = 200, description = "All there are.", body = Sandboxes)))]
pub(crate) async fn list_sandboxes(State(doors): State<Doors>, caller: Caller) -> Result<Json<Sandboxes>, ApiError> {
    let sandboxes = doors.control.sandboxes(caller.asker()).await?;
    let sandboxes = sandboxes.into_iter().map(|sandbox| Sandbox {
        id: sandbox.status.id,
        session: sandbox.status.session,
        state: super::word(&sandbox.status.state),
        memory_bytes: sandbox.usage.as_ref().map(|usage| usage.memory_bytes),
    });
    Ok(Json(Sandboxes {
        sandboxes: sandboxes.collect(),
    }))
}

/// Remove a sandbox. Its session goes on in another; its files stay. Admins only.
#[utoipa::path(delete, path = "/sandboxes/{sandbox}", tag = "sandboxes", params(("sandbox" = SandboxId, Path)), responses((status = 200, description = "It is done.", body = Done)))]
pub(crate) async fn remove_sandbox(
    State(doors): State<Doors>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
) -> Result<Json<Done>, ApiError> {
    if !caller.asker().is_admin() {
        // Sandboxes are no user's: for others they do not exist.
        return Err(ControlError::NotFound {
            kind: "sandbox",
            name: sandbox.to_string(),
        }
        .into());
    }
    doors.control.remove_sandbox(caller.asker(), sandbox).await?;
    Ok(Done::JSON)
}
