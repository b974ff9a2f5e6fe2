//! A call comes in, a result goes out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use causes::with_causes;
use domain::{DEEPEST, ResultPart, RunLimits, ToolCall, ToolCallId, ToolResult, is_too_deep};
use lifecycle::Stop;
use protocol::Grants;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::exec::Exec;
use crate::process::Launcher;
use crate::{FileError, Files, Settings, edit, read, safebash, skill, write};

/// Is given a tool's output as it appears, cleaned of terminal codes. It must not block; what it cannot take it drops.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// The six tools over one workspace. Calls may be made at the same time.
#[derive(Debug)]
pub struct Tools {
    pub(crate) files: Arc<Files>,
    pub(crate) launcher: Launcher,
    pub(crate) exec: Exec,
    /// Whoever changes a file reads and writes it while holding this, so that no change is lost.
    pub(crate) changes: Arc<tokio::sync::Mutex<()>>,
    pub(crate) settings: Settings,
    grants: Mutex<Arc<Grants>>,
}

/// The most characters that are told of a name.
const NAMED: usize = 200;

/// What a call may use up, and who watches it.
#[derive(Clone, Copy)]
pub(crate) struct Bounds<'a> {
    pub(crate) deadline: Instant,
    pub(crate) seconds: u64,
    pub(crate) output_bytes: usize,
    pub(crate) progress: Progress<'a>,
    pub(crate) stop: &'a Stop,
    pub(crate) call: &'a ToolCallId,
}

impl Bounds<'_> {
    /// Tells whoever watches what is being done with something that the model has named.
    pub(crate) fn tell(&self, what: &str, named: &str) {
        let named: String = named.chars().filter(|c| !c.is_control()).take(NAMED).collect();
        (self.progress)(&format!("{what} {named}\n"));
    }
}

/// What a tool says: parts of a result, or a failure in words.
pub(crate) type Answer = Result<Vec<ResultPart>, Failure>;

/// A tool could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("there is no tool {name:?}; there are read, write, edit, exec, safebash and skill")]
    NoTool { name: String },
    #[error("the arguments are not JSON but the text {text:?}: call the tool again with a JSON object")]
    NotJson { text: String },
    #[error("the arguments are nested deeper than {DEEPEST} levels: call the tool again with flatter ones")]
    TooDeep,
    #[error("the arguments do not fit")]
    Arguments(#[source] serde_json::Error),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Run(#[from] crate::process::RunError),
    #[error(transparent)]
    Read(#[from] read::ReadError),
    #[error(transparent)]
    Edit(#[from] edit::EditError),
    #[error(transparent)]
    Exec(#[from] crate::exec::ExecError),
    #[error(transparent)]
    Safebash(#[from] safebash::SafebashError),
    #[error(transparent)]
    Skill(#[from] skill::SkillError),
    #[error("the call was stopped; what it had done until then stays done")]
    Stopped,
    #[error("the tool broke down; nothing is known of what it did")]
    Broken(#[source] tokio::task::JoinError),
    /// The failure is all that the parts say.
    #[error("see the output")]
    Output(Vec<ResultPart>),
}

impl Tools {
    /// Opens the workspace.
    ///
    /// # Errors
    /// When the workspace cannot be opened.
    pub fn new(settings: Settings) -> Result<Self, FileError> {
        let files = Files::open(&settings)?;
        Ok(Self {
            launcher: Launcher::new(&settings, files.real_path(".")?),
            exec: Exec::default(),
            files: files.into(),
            changes: Arc::default(),
            settings,
            grants: Mutex::default(),
        })
    }

    /// The files that the tools work on, for transfers in and out.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Keeps from now on what stands over a program started before there is one, so that a call does not wait for it: a new
    /// one, which no program that runs or ran has seen. To be called within a tokio runtime, while none of a call runs.
    pub async fn stand_by(&self) {
        self.launcher.stand_by().await;
    }

    /// Replaces the environment of the programs that are started from now on.
    pub async fn set_environment(&self, environment: BTreeMap<String, String>) {
        self.launcher.set_environment(environment);
        self.exec.renew(self).await;
    }

    /// What calls may use from now on beside the tools; at first every skill and no service.
    pub fn grant(&self, grants: Grants) {
        *self.grants.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(grants);
    }

    pub(crate) fn grants(&self) -> Arc<Grants> {
        Arc::clone(&self.grants.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A run is on: keeps one `exec` process started ahead, so that the next call does not wait for it. To be called
    /// within a tokio runtime.
    pub fn prepare(&self) {
        self.exec.prepare(self);
    }

    /// No run is on: nothing is started ahead from now on. To be awaited until what was is dead.
    pub fn rest(&self) -> impl Future<Output = ()> + use<> {
        let (exec, launcher) = (self.exec.rest(), self.launcher.rest());
        async {
            exec.await;
            launcher.await;
        }
    }

    /// Uses a tool. Always answers: within `limits.tool_seconds` or soon after `stop`, and by then every process of the
    /// call is dead. When the future is dropped instead they die as well, a moment later.
    pub async fn use_tool(
        &self,
        call: &ToolCall,
        limits: &RunLimits,
        progress: Progress<'_>,
        stop: &Stop,
    ) -> ToolResult {
        let bounds = Bounds {
            deadline: Instant::now() + limits.tool(),
            seconds: limits.tool_seconds,
            output_bytes: limits.output_bytes,
            progress,
            stop,
            call: &call.id,
        };
        let (content, is_error) = match self.dispatch(call, bounds).await {
            Ok(content) => (content, false),
            Err(Failure::Output(content)) => (content, true),
            Err(failure) => return ToolResult::error(call.id.clone(), with_causes(&failure)),
        };
        ToolResult {
            id: call.id.clone(),
            content,
            is_error,
        }
    }

    async fn dispatch(&self, call: &ToolCall, bounds: Bounds<'_>) -> Answer {
        if bounds.stop.is_cancelled() {
            return Err(Failure::Stopped);
        }
        match call.name.as_str() {
            "read" => read::read(self, arguments(&call.input)?, bounds).await,
            "write" => write::write(self, arguments(&call.input)?, bounds).await,
            "edit" => edit::edit(self, arguments(&call.input)?, bounds).await,
            "exec" => self.exec.run(self, arguments(&call.input)?, bounds).await,
            "safebash" => safebash::run(self, arguments(&call.input)?, bounds).await,
            "skill" => skill::skill(self, arguments(&call.input)?, bounds).await,
            name => Err(Failure::NoTool {
                name: name.chars().take(100).collect(),
            }),
        }
    }
}

fn arguments<A: DeserializeOwned>(input: &Value) -> Result<A, Failure> {
    if is_too_deep(input) {
        return Err(Failure::TooDeep);
    }
    if let Value::String(text) = input {
        // Whoever hands on what a model wrote leaves it as a text where it is nested too deep.
        let too_deep = match serde_json::from_str(text) {
            Ok(written) => is_too_deep(&written),
            Err(error) => error.to_string().starts_with("recursion limit exceeded"),
        };
        if too_deep {
            return Err(Failure::TooDeep);
        }
        return Err(Failure::NotJson {
            text: text.chars().take(200).collect(),
        });
    }
    A::deserialize(input).map_err(Failure::Arguments)
}

/// Does work that may wait for the disk, beside the other calls.
pub(crate) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(Failure::Broken)?
}

/// A result of words.
pub(crate) fn words(text: impl Into<String>) -> Vec<ResultPart> {
    vec![ResultPart::Text { text: text.into() }]
}
