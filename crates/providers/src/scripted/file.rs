//! What stands in a script.

use std::collections::BTreeMap;

use domain::Usage;
use serde::Deserialize;
use serde_json::Value;

use super::request::Request;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) steps: Vec<Step>,
}

/// One answer of the model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    #[serde(default)]
    pub(super) when: When,
    #[serde(default)]
    pub(super) thinking: Option<String>,
    #[serde(default)]
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) tools: Vec<Tool>,
    #[serde(default)]
    pub(super) usage: Option<StepUsage>,
    /// Milliseconds before the first word.
    #[serde(default)]
    pub(super) delay_ms: u64,
    /// Milliseconds between two pieces of the text.
    #[serde(default)]
    pub(super) pause_ms: u64,
    /// Letters of a piece.
    #[serde(default = "default_piece")]
    pub(super) piece: usize,
    #[serde(default)]
    pub(super) fault: Option<Fault>,
}

fn default_piece() -> usize {
    40
}

/// When a step is played: where all that it says is so.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct When {
    #[serde(default)]
    turn: Option<u32>,
    #[serde(default)]
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tool {
    pub(super) name: String,
    #[serde(default)]
    pub(super) input: BTreeMap<String, Value>,
    /// Written instead of `input`, as it stands: for arguments that are no JSON.
    #[serde(default)]
    pub(super) raw: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StepUsage {
    pub(super) input: Option<u64>,
    pub(super) cache_read: u64,
    pub(super) cache_write: u64,
    pub(super) cache_write_hour: u64,
    pub(super) output: Option<u64>,
    pub(super) thinking: u64,
}

impl StepUsage {
    /// With our own count of what the script leaves out.
    pub(super) fn or_counted(self, input: u64, output: u64) -> Usage {
        Usage {
            input: self.input.unwrap_or(input),
            cache_read: self.cache_read,
            cache_write: self.cache_write,
            cache_write_hour: self.cache_write_hour,
            output: self.output.unwrap_or(output),
            thinking: self.thinking,
        }
    }
}

/// What goes wrong.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fault {
    /// An HTTP status instead of an answer.
    #[serde(default)]
    pub(super) status: Option<u16>,
    /// Seconds, beside `status`.
    #[serde(default)]
    pub(super) retry_after: Option<u64>,
    /// The stream ends after so many bytes.
    #[serde(default)]
    pub(super) cut_after: Option<usize>,
    /// An event that is no JSON follows the text.
    #[serde(default)]
    pub(super) malformed: bool,
    /// Nothing is said of tokens.
    #[serde(default)]
    pub(super) no_usage: bool,
    /// The answer never begins.
    #[serde(default)]
    pub(super) silent: bool,
    /// How many times; once where it is left out.
    #[serde(default)]
    pub(super) times: Option<u32>,
}

impl Step {
    pub(super) fn fits(&self, request: &Request) -> bool {
        self.when.turn.is_none_or(|turn| turn == request.turn)
            && self
                .when
                .text
                .as_ref()
                .is_none_or(|text| request.prompt.to_lowercase().contains(&text.to_lowercase()))
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.when.turn == Some(0) {
            return Err("turns are counted from 1".to_owned());
        }
        if self.piece == 0 {
            return Err("a piece has at least one letter".to_owned());
        }
        if self.thinking.is_none() && self.text.is_none() && self.tools.is_empty() && self.fault.is_none() {
            return Err("it says nothing: give it text, thinking, tools or a fault".to_owned());
        }
        if let Some(tool) = self
            .tools
            .iter()
            .find(|tool| tool.raw.is_some() && !tool.input.is_empty())
        {
            return Err(format!("the call of {} has both input and raw", tool.name));
        }
        if let Some(fault) = &self.fault {
            if fault.status.is_some_and(|status| !(400..600).contains(&status)) {
                return Err("the status of a fault is from 400 to 599".to_owned());
            }
            if fault.retry_after.is_some() && fault.status.is_none() {
                return Err("retry_after goes with a status".to_owned());
            }
        }
        Ok(())
    }
}
