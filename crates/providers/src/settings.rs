//! A model as the configuration describes it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use domain::Price;
use llm::{CacheMarks, Thinking};
use secret::{Credential, Secret};

/// What a `[models.<name>]` table of the configuration says.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// Who is asked, and in which language.
    pub provider: ProviderKind,
    /// The provider's name of the model; the table's name where it is left out.
    pub model: Option<String>,
    /// Where it is asked; the provider's own address where it is left out.
    pub base_url: Option<String>,
    /// The key, asked for anew with each request.
    pub api_key: Option<Credential>,
    /// Headers that are sent with each request; their values are kept secret like keys.
    pub headers: BTreeMap<String, Secret>,
    /// What it costs. Without a price it is refused where a cap exists.
    pub price: Option<SettingsPrice>,
    /// Tokens that fit its window; 128,000 where it is left out.
    pub window: Option<u64>,
    /// The most tokens it may say in one reply; 8,192 where it is left out.
    pub max_output: Option<u64>,
    /// Models that are asked, in this order, when this one fails.
    pub fallback: Vec<String>,
    /// How much it thinks.
    pub thinking: Thinking,
    /// How long prompts are cached.
    pub cache: CacheMarks,
    /// Models of one family and one provider kind understand each other's thoughts; each is a family of its own where it
    /// is left out.
    pub family: Option<String>,
    /// Lets `base_url` be plain HTTP to another machine.
    pub allow_plain_http: bool,
    /// The file that a `scripted` model plays.
    pub script: Option<PathBuf>,
}

impl ModelSettings {
    /// Settings that say nothing but who is asked.
    #[must_use]
    pub fn new(provider: ProviderKind) -> Self {
        Self {
            provider,
            model: None,
            base_url: None,
            api_key: None,
            headers: BTreeMap::new(),
            price: None,
            window: None,
            max_output: None,
            fallback: Vec::new(),
            thinking: Thinking::Default,
            cache: CacheMarks::default(),
            family: None,
            allow_plain_http: false,
            script: None,
        }
    }
}

/// Who is asked, and in which language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SettingsPrice {
    /// Input.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Input read from a cache; the price of input where it is left out.
    pub cache_read: Option<f64>,
    /// Input written to a cache for five minutes; where it is left out, the price of input, and a quarter more for
    /// Anthropic.
    pub cache_write: Option<f64>,
    /// Input written to a cache for an hour; where it is left out, the price of input, and twice that for Anthropic.
    pub cache_write_hour: Option<f64>,
}

impl SettingsPrice {
    /// In nano-dollars for a token, rounded up. `None` where a price is no sum of money.
    pub(crate) fn checked(&self, provider: ProviderKind) -> Option<Price> {
        let (quarter_more, twice) = match provider {
            ProviderKind::Anthropic => (1.25, 2.0),
            ProviderKind::Openai | ProviderKind::OpenaiChat | ProviderKind::Scripted => (1.0, 1.0),
        };
        Some(Price {
            input: nanos(self.input)?,
            output: nanos(self.output)?,
            cache_read: nanos(self.cache_read.unwrap_or(self.input))?,
            cache_write: nanos(self.cache_write.unwrap_or(self.input * quarter_more))?,
            cache_write_hour: nanos(self.cache_write_hour.unwrap_or(self.input * twice))?,
        })
    }
}

/// A million dollars for a million tokens is no price of this world.
const HIGHEST: f64 = 1_000_000.0;

fn nanos(dollars_per_million: f64) -> Option<i64> {
    if !(0.0..=HIGHEST).contains(&dollars_per_million) {
        return None;
    }
    // What binary fractions add to a decimal one is not rounded up.
    #[expect(clippy::cast_possible_truncation, reason = "at most 10⁹")]
    Some((dollars_per_million * 1_000.0 - 1e-6).ceil() as i64)
}

/// A mistake in a model's settings.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
#[error("models.{model}.{key}: {problem}")]
pub struct ModelProblem {
    /// The model's name.
    pub model: String,
    /// The key that is wrong.
    pub key: &'static str,
    /// What is wrong, and what would be right.
    pub problem: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_rounded_up_to_nano_dollars() {
        assert_eq!(
            [3.0, 0.3, 0.075, 0.0375, 1.1, 0.0].map(nanos),
            [3_000, 300, 75, 38, 1_100, 0].map(Some)
        );
        assert_eq!([-1.0, f64::NAN, f64::INFINITY].map(nanos), [None; 3]);
    }
}
