//! A model as the configuration describes it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use domain::{Message, Price};
use llm::{CacheMarks, Format, Thinking};
use secret::Secret;
use serde::Deserialize;

/// What a `[models.<name>]` table of the configuration says. Secrets must be resolved (`env:…` replaced by its value)
/// before [`Model::new`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSettings {
    /// Who is asked, and in which language.
    pub provider: ProviderKind,
    /// The provider's name of the model; the table's name where it is left out.
    pub model: Option<String>,
    /// Where it is asked; the provider's own address where it is left out.
    pub base_url: Option<String>,
    /// The key.
    pub api_key: Option<Secret>,
    /// Headers that are sent with each request; their values are kept secret like keys.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// What it costs. Without a price it is refused where a cap exists.
    pub price: Option<SettingsPrice>,
    /// Tokens that fit its window.
    pub window: Option<u64>,
    /// The most tokens it may say in one reply.
    pub max_output: Option<u64>,
    /// Models that are asked, in this order, when this one fails.
    #[serde(default)]
    pub fallback: Vec<String>,
    /// How much it thinks.
    #[serde(default)]
    pub thinking: Thinking,
    /// How long prompts are cached.
    #[serde(default)]
    pub cache: CacheMarks,
    /// Models of one family understand each other's thoughts; each is a family of its own where it is left out.
    pub family: Option<String>,
    /// Lets `base_url` be plain HTTP to another machine.
    #[serde(default)]
    pub allow_plain_http: bool,
    /// The file that a `scripted` model plays.
    pub script: Option<PathBuf>,
}

/// Who is asked, and in which language.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderKind {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Responses.
    Openai,
    /// OpenAI Chat Completions, and all that speak it.
    OpenaiChat,
    /// A file is played.
    Scripted,
}

/// A price as people write it: US dollars for a million tokens.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsPrice {
    /// Input.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Input read from a cache; a price as for input where it is left out.
    pub cache_read: Option<f64>,
    /// Input written to a cache for five minutes; as for input where it is left out.
    pub cache_write: Option<f64>,
    /// Input written to a cache for an hour; as for `cache_write` where it is left out.
    pub cache_write_hour: Option<f64>,
}

/// A mistake in a model's settings.
#[derive(Debug, thiserror::Error)]
#[error("models.{model}.{key}: {problem}")]
pub struct ModelProblem {
    /// The model's name.
    pub model: String,
    /// The key that is wrong.
    pub key: &'static str,
    /// What is wrong, and what would be right.
    pub problem: String,
}

/// A model that can be asked.
#[derive(Debug)]
pub struct Model {
    /// Its name in the configuration.
    pub name: String,
    /// The provider's name of it; goes into `llm::Head`.
    pub provider_name: String,
    /// Its language.
    pub format: Format,
    /// What it costs.
    pub price: Option<Price>,
    /// Tokens that fit its window.
    pub window: u64,
    /// The most tokens it may say in one reply.
    pub max_output: u64,
    /// How much it thinks; goes into `llm::Head`.
    pub thinking: Thinking,
    /// Cache marks; go into `llm::Head`.
    pub cache: CacheMarks,
    /// Names of the models that are asked when this one fails.
    pub fallback: Vec<String>,
    /// Models of one family understand each other's thoughts.
    pub family: String,
}

impl Model {
    /// Checks settings. Says everything that is wrong with them at once.
    pub fn new(name: &str, settings: ModelSettings) -> Result<Self, Vec<ModelProblem>> {
        let _ = (name, settings);
        Err(Vec::new())
    }

    /// What a request to this model carries for this message; `family` tells the family of the model of that name, so that
    /// thoughts go to none that did not have them.
    #[must_use]
    pub fn encode(&self, message: &Message, family: impl Fn(&str) -> Option<String>) -> bytes::Bytes {
        let _ = (message, family);
        bytes::Bytes::new()
    }
}
