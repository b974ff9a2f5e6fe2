//! Sandboxes.

use axum::Json;
use axum::extract::State;
use control::{ControlError, RemovedSandboxes, SandboxEntry};
use domain::{ExternalKey, ResultPart, SandboxId, SessionId, Timestamp};
use serde::{Deserialize, Serialize};
use store::Names;
use utoipa::ToSchema;

use super::Done;
use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::{Id, JsonBody};
use crate::error::ApiError;

/// A sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct Sandbox {
    /// Which.
    id: SandboxId,
    /// The session it works for.
    session: SessionId,
    /// What its owner calls that session.
    session_key: Option<ExternalKey>,
    /// `running`, `frozen` or `dead`.
    state: String,
    /// Why it is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// It was made ahead, and waits for a session: the one that it names does not exist.
    warm: bool,
    /// It builds an image: the session that it names does not exist.
    builder: bool,
    /// The digest of the image that it was made from.
    image: String,
    /// That image's name; null where it is not there any more.
    image_name: Option<String>,
    /// When that image was built; null where it is not there any more.
    image_built: Option<Timestamp>,
    /// When it was made.
    created: Timestamp,
    /// When it was last used; null where no session uses it.
    last_used: Option<Timestamp>,
    /// Until when programs in the background keep it awake; null where none does.
    kept_until: Option<Timestamp>,
    /// What it holds in memory; null where nobody knows.
    memory_bytes: Option<u64>,
    /// Processor time since it was made, in microseconds.
    cpu_micros: Option<u64>,
    /// Processes and threads.
    processes: Option<u32>,
    /// What its session has on disk.
    disk_bytes: Option<u64>,
}

impl Sandbox {
    fn of(entry: SandboxEntry, names: &Names) -> Self {
        let reason = entry.reason().map(str::to_owned);
        let SandboxEntry {
            status,
            usage,
            warm,
            image,
            last_used,
            kept_until,
        } = entry;
        let (image_name, image_built) = image.map(|image| (image.name, image.built)).unzip();
        Self {
            id: status.id,
            session: status.session,
            session_key: names.session(status.session),
            state: super::word(&status.state),
            reason,
            warm,
            builder: status.builder,
            image_name,
            image_built,
            image: status.image.to_string(),
            created: status.created,
            last_used,
            kept_until,
            memory_bytes: usage.map(|usage| usage.memory_bytes),
            cpu_micros: usage.map(|usage| usage.cpu_micros),
            processes: usage.map(|usage| usage.pids),
            disk_bytes: usage.map(|usage| usage.disk_bytes),
        }
    }
}

/// What a sandbox's runtime said.
#[derive(Serialize, ToSchema)]
pub(crate) struct Words {
    /// Its last words, which come out of the sandbox.
    words: String,
}

/// A command.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Command {
    /// One program that only looks, and its arguments, as the agent's `safebash` takes them: no shell.
    #[serde(default)]
    command: String,
}

/// What a command said.
#[derive(Serialize, ToSchema)]
pub(crate) struct Ran {
    /// Its output, and how it ended where it ended badly.
    output: String,
    /// It could not be run, or ended badly.
    failed: bool,
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
    let sessions = sandboxes.iter().map(|entry| entry.status.session).collect();
    let names = doors.names(&caller, Vec::new(), sessions).await?;
    Ok(Json(Sandboxes {
        sandboxes: sandboxes.into_iter().map(|entry| Sandbox::of(entry, &names)).collect(),
    }))
}

/// Read what a sandbox's runtime said last. Admins only.
#[utoipa::path(get, path = "/sandboxes/{sandbox}/logs", tag = "sandboxes", params(("sandbox" = SandboxId, Path)), responses((status = 200, description = "Its last words.", body = Words)))]
pub(crate) async fn read_words(
    State(doors): State<Doors>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
) -> Result<Json<Words>, ApiError> {
    known_to(&caller, sandbox)?;
    let words = doors.control.sandbox_words(caller.asker(), sandbox).await?;
    Ok(Json(Words { words }))
}

/// Run a program that only looks in a session's sandbox, which is made or woken for it. Admins only; audited.
#[utoipa::path(post, path = "/sessions/{session}/exec", tag = "sandboxes", request_body = Command, params(("session" = SessionId, Path)), responses((status = 200, description = "What it said.", body = Ran)))]
pub(crate) async fn run_command(
    State(doors): State<Doors>,
    caller: Caller,
    Id(session): Id<SessionId>,
    JsonBody(Command { command }): JsonBody<Command>,
) -> Result<Json<Ran>, ApiError> {
    let result = doors.control.run_in_sandbox(caller.asker(), session, &command).await?;
    let words = result.content.into_iter().map(|part| match part {
        ResultPart::Text { text } => text,
        ResultPart::Image(_) => "[image]".to_owned(),
    });
    Ok(Json(Ran {
        output: words.collect(),
        failed: result.is_error,
    }))
}

/// Remove a sandbox. Its session goes on in another; its files stay. Admins only.
#[utoipa::path(delete, path = "/sandboxes/{sandbox}", tag = "sandboxes", params(("sandbox" = SandboxId, Path)), responses((status = 200, description = "It is done.", body = Done)))]
pub(crate) async fn remove_sandbox(
    State(doors): State<Doors>,
    caller: Caller,
    Id(sandbox): Id<SandboxId>,
) -> Result<Json<Done>, ApiError> {
    known_to(&caller, sandbox)?;
    doors.control.remove_sandbox(caller.asker(), sandbox).await?;
    Ok(Done::JSON)
}

/// What became of all sandboxes.
#[derive(Serialize, ToSchema)]
pub(crate) struct RemovedAll {
    /// Those that are gone.
    removed: usize,
    /// Those that could not be removed; the control plane's log says why.
    left: usize,
    /// Runs that were under way, and go on in new ones.
    runs: usize,
}

impl From<RemovedSandboxes> for RemovedAll {
    fn from(RemovedSandboxes { removed, left, runs }: RemovedSandboxes) -> Self {
        Self { removed, left, runs }
    }
}

/// Remove every sandbox: of sessions, whose files stay and whose runs go on in new ones, made ahead, and of builds, which are tried again.
/// None is made before somebody needs one. Admins only; audited.
#[utoipa::path(delete, path = "/sandboxes", tag = "sandboxes", responses((status = 200, description = "What became of them.", body = RemovedAll)))]
pub(crate) async fn remove_sandboxes(State(doors): State<Doors>, caller: Caller) -> Result<Json<RemovedAll>, ApiError> {
    Ok(Json(doors.control.remove_sandboxes(caller.asker()).await?.into()))
}

/// Sandboxes are no user's: for all but admins they do not exist.
fn known_to(caller: &Caller, sandbox: SandboxId) -> Result<(), ControlError> {
    if caller.asker().is_admin() {
        return Ok(());
    }
    Err(ControlError::NotFound {
        kind: "sandbox",
        name: sandbox.to_string(),
    })
}
