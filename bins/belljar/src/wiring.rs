//! Settings as the parts want them.

use std::path::PathBuf;

use anyhow::{Context, bail};
use causes::with_causes;
use images::Images;
use llm::{CacheMarks, Effort, Thinking};
use providers::{Model, ModelSettings, ProviderKind, Providers, RetryLimits, SettingsPrice, Timeouts};
use sandbox::ImageDigest;
use secret::Secret;

use crate::config::{self, Prices, Provider, Settings};

/// The models, their secrets fetched. Every mistake is reported at once.
pub(crate) fn models(settings: &Settings) -> anyhow::Result<Vec<Model>> {
    let mut models = Vec::new();
    let mut problems = Vec::new();
    for (name, model) in &settings.models {
        let key = match &model.key {
            Some(reference) => match config::resolve(&format!("models.{name}.key"), reference) {
                Ok(key) => Some(key),
                Err(error) => {
                    problems.push(with_causes(&error));
                    continue;
                }
            },
            None => None,
        };
        match Model::new(name, model_settings(model, key)) {
            Ok(model) => models.push(model),
            Err(wrong) => problems.extend(wrong.iter().map(ToString::to_string)),
        }
    }
    if !problems.is_empty() {
        bail!("models cannot be used:\n  {}", problems.join("\n  "));
    }
    Ok(models)
}

/// The clients of the models; at least one.
pub(crate) fn providers(settings: &Settings) -> anyhow::Result<Providers> {
    if settings.models.is_empty() {
        bail!("there is no model: add [models.NAME] to belljar.toml, as belljar.example.toml shows");
    }
    Ok(Providers::new(
        models(settings)?,
        Timeouts::default(),
        RetryLimits::default(),
    )?)
}

fn model_settings(model: &config::Model, key: Option<Secret>) -> ModelSettings {
    let mut settings = ModelSettings::new(match model.provider {
        Provider::Anthropic => ProviderKind::Anthropic,
        Provider::OpenAi => ProviderKind::Openai,
        Provider::OpenAiChat => ProviderKind::OpenaiChat,
        Provider::Scripted => ProviderKind::Scripted,
    });
    settings.model = Some(model.name.clone());
    settings.base_url.clone_from(&model.base_url);
    settings.api_key = key;
    settings.headers = model
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), Secret::new(value)))
        .collect();
    settings.price = model.price.map(price);
    settings.window = Some(model.window);
    settings.max_output = Some(model.max_output);
    settings.fallback.clone_from(&model.fallback);
    settings.thinking = match model.thinking.as_str() {
        "off" => Thinking::Off,
        "low" => Thinking::Effort(Effort::Low),
        "medium" => Thinking::Effort(Effort::Medium),
        "high" => Thinking::Effort(Effort::High),
        _ => Thinking::Default,
    };
    settings.cache = match model.cache.as_str() {
        "off" => CacheMarks::Off,
        "hour" => CacheMarks::Hour,
        _ => CacheMarks::FiveMinutes,
    };
    settings.family.clone_from(&model.family);
    settings.allow_plain_http = model.plain_http;
    settings.script.clone_from(&model.script);
    settings
}

/// Thousandths of a dollar for a million tokens, as dollars.
fn price(prices: Prices) -> SettingsPrice {
    let dollars = |thousandths: i64| thousandths as f64 / 1_000.0;
    SettingsPrice {
        input: dollars(prices.input),
        output: dollars(prices.output),
        cache_read: prices.cache_read.map(dollars),
        cache_write: prices.cache_write.map(dollars),
        cache_write_hour: prices.cache_write_hour.map(dollars),
    }
}

/// The folder of images.
pub(crate) fn images(settings: &Settings) -> Images {
    Images::open(images_folder(settings))
}

pub(crate) fn images_folder(settings: &Settings) -> PathBuf {
    settings.server.data.join("images")
}

/// The image that sandboxes start from: a digest as it is, or the newest of a recipe.
pub(crate) fn image(settings: &Settings) -> anyhow::Result<ImageDigest> {
    let wanted = &settings.sandbox.image;
    if let Ok(digest) = wanted.parse() {
        return Ok(digest);
    }
    let newest = images(settings).newest(wanted)?;
    let newest = newest.with_context(|| {
        format!("there is no image {wanted}: build it with `sudo belljar image build images/{wanted}`")
    })?;
    Ok(newest.digest)
}

/// What control is started with.
pub(crate) fn control(settings: &Settings, model: &str, image: ImageDigest) -> anyhow::Result<control::Config> {
    let mut config = control::Config::new(model, image.clone());
    config.placement = settings.sandbox.placement;
    config.limits = settings.run;
    config.caps.run = settings.budget.run;
    config.caps.session = settings.budget.session;
    config.caps.user = settings.budget.user;
    config.caps.day = settings.budget.day;
    config.system = agent::system_prompt(&catalogue(settings, &image), &[]);
    config.tools = agent::definitions().to_vec();
    config.sandbox.cpu_millis = settings.sandbox.cpu_millis;
    config.sandbox.memory_bytes = settings.sandbox.memory_bytes;
    config.sandbox.pids = settings.sandbox.processes;
    config.sandbox.disk_bytes = settings.sandbox.disk_bytes;
    config.freeze_after = settings.sandbox.freeze_after;
    config.remove_after = settings.sandbox.remove_after;
    Ok(config)
}

/// The skills that the image brings, one line each. A skill that cannot be read is left out, and the log says which.
fn catalogue(settings: &Settings, image: &ImageDigest) -> String {
    let folder = images_folder(settings).join(image.as_str()).join("rootfs/skills");
    if !folder.is_dir() {
        return String::new();
    }
    match skills::load_folder(&folder) {
        Ok((skills, findings)) => {
            for finding in findings.iter().filter(|finding| finding.is_error) {
                tracing::warn!(skill = finding.skill, "a skill is left out: {}", finding.message);
            }
            skills::catalogue(&skills)
        }
        Err(error) => {
            tracing::warn!(error = with_causes(&error), "the image's skills cannot be read");
            String::new()
        }
    }
}
