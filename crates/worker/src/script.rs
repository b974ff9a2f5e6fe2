//! Scripts, and what they may ask for.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A script to run once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScriptJob {
    /// JavaScript: the body of an asynchronous function, which sees its arguments as `args` and returns its result.
    pub source: String,
    /// What `args` is.
    pub arguments: Value,
    /// The asynchronous functions that the script finds and the parent answers, such as `fetch`. Each name is an identifier.
    pub functions: Vec<String>,
    /// What it may use up.
    pub limits: ScriptLimits,
}

/// What a script may use up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScriptLimits {
    /// From start to end, what it waits for included.
    pub time: Duration,
    /// Memory that its values take, in bytes.
    pub memory_bytes: u64,
    /// Work, in units of about ten thousand steps of the engine; a second is a thousand of them or more.
    pub fuel: u64,
    /// Its result as JSON, in bytes.
    pub output_bytes: u64,
    /// Calls of functions that the parent answers.
    pub calls: u32,
}

impl Default for ScriptLimits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            memory_bytes: 64 << 20,
            fuel: 50_000,
            output_bytes: 4 << 20,
            calls: 200,
        }
    }
}

/// What a script came to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScriptResult {
    /// What it returned; null where it returned nothing.
    pub value: Value,
}

/// A script called a function that the parent answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FetchRequest {
    /// The function's name, one of [`ScriptJob::functions`].
    pub name: String,
    /// Its arguments as JSON. They are what an untrusted party wrote.
    pub arguments: Vec<Value>,
}

/// Answers what scripts ask for.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// Answers one call; several of one script may be under way at once. An `Err` is thrown in the script as an `Error` with
    /// that message, so it must not hold a secret.
    async fn fetch(&self, request: FetchRequest) -> Result<Value, String>;
}
