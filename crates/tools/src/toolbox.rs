//! A call comes in, a result goes out.

use std::collections::BTreeMap;

use domain::{RunLimits, ToolCall, ToolResult};
use lifecycle::Stop;

use crate::{FileError, Files, Settings};

/// Is given a tool's output as it appears, cleaned of terminal codes. It must not block; what it cannot take it drops.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// The six tools over one workspace. Calls may be made at the same time.
#[derive(Debug)]
pub struct Tools {
    files: Files,
}

impl Tools {
    /// Opens the workspace.
    ///
    /// # Errors
    /// When the workspace cannot be opened.
    pub fn new(settings: Settings) -> Result<Self, FileError> {
        Ok(Self {
            files: Files::open(&settings)?,
        })
    }

    /// The files that the tools work on, for transfers in and out.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Replaces the environment of the programs that are started from now on.
    pub fn set_environment(&self, _environment: BTreeMap<String, String>) {}

    /// A run is on: keeps one `exec` process started ahead, so that the next call does not wait for it. To be called
    /// within a tokio runtime.
    pub fn prepare(&self) {}

    /// No run is on: ends the process that was started ahead.
    pub async fn rest(&self) {}

    /// Uses a tool. Always answers: within `limits.tool_seconds` or soon after `stop`, and by then every process of the
    /// call is dead. When the future is dropped instead they die as well, a moment later.
    pub async fn use_tool(&self, call: &ToolCall, _limits: &RunLimits, _progress: Progress<'_>, _stop: &Stop) -> ToolResult {
        ToolResult::error(call.id.clone(), "not yet")
    }
}
