//! A model that plays a file: for demonstrations, tests and measurements without a key. docs/scripted.md describes the
//! format.
//!
//! A script answers like a provider: it reads the request's bytes, and what it says is written as a provider's stream,
//! faults included, so that everything behind it is the way of a real model. It is Anthropic's, save for programs that ask in
//! another language.

mod file;
mod playback;
mod request;
mod template;
mod told;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use llm::Format;

pub(crate) use self::playback::Playback;

use self::file::{File, Step};
use self::playback::Speech;
use self::request::Request;
use crate::transport::{Answer, Body};

/// The longest script that is read.
const LONGEST: u64 = 4 << 20;

/// A script, read and checked.
#[derive(Debug)]
pub struct Script {
    steps: Vec<Step>,
    /// How often each step's fault has struck.
    struck: Vec<AtomicU32>,
}

/// Why a file is no script.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// It cannot be read.
    #[error("cannot read the script {}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is longer than any script.
    #[error("the script {} is longer than {LONGEST} bytes", .path.display())]
    TooLong {
        /// Which.
        path: PathBuf,
    },
    /// It is not as docs/scripted.md says.
    #[error("the script {} is wrong: {problem}", .path.display())]
    Wrong {
        /// Which.
        path: PathBuf,
        /// What is wrong, and in which line.
        problem: String,
    },
}

impl Script {
    /// Reads and checks a script.
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let failed = |source| ScriptError::Read {
            path: path.to_owned(),
            source,
        };
        if std::fs::metadata(path).map_err(failed)?.len() > LONGEST {
            return Err(ScriptError::TooLong { path: path.to_owned() });
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text).map_err(|problem| ScriptError::Wrong {
            path: path.to_owned(),
            problem,
        })
    }

    /// Checks a script; what is wrong is said with its line.
    fn parse(text: &str) -> Result<Self, String> {
        let file: File = serde_yaml_ng::from_str(text).map_err(|error| located(&error))?;
        if file.steps.is_empty() {
            return Err("it has no steps".to_owned());
        }
        for (place, step) in file.steps.iter().enumerate() {
            step.check()
                .map_err(|problem| format!("step {}: {problem}", place + 1))?;
        }
        Ok(Self {
            struck: file.steps.iter().map(|_| AtomicU32::new(0)).collect(),
            steps: file.steps,
        })
    }

    /// Answers a request as a provider would. Fails in words where the script has no answer.
    pub(crate) fn play(&self, body: &[u8], format: Format, streams: bool) -> Result<Answer, String> {
        let request = Request::parse(body, format)?;
        let place = self.steps.iter().position(|step| step.fits(&request)).ok_or_else(|| {
            let prompt: String = request.prompt.chars().take(120).collect();
            format!(
                "no step of the script is for turn {} of the prompt {prompt:?}",
                request.turn
            )
        })?;
        let step = &self.steps[place];
        let speech =
            Speech::of(step, &request).map_err(|problem| format!("step {} of the script: {problem}", place + 1))?;
        let fault = step.fault.as_ref().filter(|fault| {
            let times = fault.times.unwrap_or(1);
            let strike = |struck: u32| (struck < times).then_some(struck + 1);
            self.struck[place]
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, strike)
                .is_ok()
        });
        if let Some(status) = fault.and_then(|fault| fault.status) {
            return Ok(Answer {
                status,
                retry_after: fault.and_then(|fault| fault.retry_after).map(Duration::from_secs),
                body: Body::Script(Playback::error("the script says so")),
            });
        }
        Ok(Answer {
            status: 200,
            retry_after: None,
            body: Body::Script(speech.play(fault, format, streams)),
        })
    }
}

/// The reader leaves out the line where it is the first.
fn located(error: &serde_yaml_ng::Error) -> String {
    let problem = error.to_string();
    if problem.contains(" at line ") {
        problem
    } else {
        format!("{problem} at line 1")
    }
}

#[cfg(test)]
mod tests;
