//! What this machine lacks for sandboxes, found out by trying.

use serde::Serialize;

/// What came of one trial.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was tried, in a few words.
    pub what: &'static str,
    /// How it went.
    pub verdict: Verdict,
    /// What was found, in a sentence.
    pub says: String,
    /// The command, or the deed, that mends it.
    pub mend: Option<String>,
}

/// How a trial went.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should.
    Fine,
    /// Sandboxes run, and something is worse than it could be.
    Warning,
    /// Sandboxes do not run.
    Lacking,
}
