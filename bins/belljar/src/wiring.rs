//! Settings as the parts want them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use causes::with_causes;
use control::{Base, Files, MakeBroker, ReadSkills, Refresh};
use dial::Dialer;
use egress::{Broker, Surroundings};
use images::ImageFolder;
use lifecycle::Tasks;
use llm::{CacheMarks, Effort, Thinking};
use objects::{Objects, Tickets};
use providers::{Model, ModelSettings, ProviderKind, Providers, RetryLimits, SettingsPrice, Timeouts};
use sandbox::ImageDigest;
use secret::{Credential, Custody, Reference, Secret, Source};
use services::{Catalogue, Problem, Services, Trust};
use skills::Skill;
use store::TriggerCap;
use telemetry::Traces;
use worker::Worker;

use crate::config::{self, Prices, Provider, Settings, line_of_key};

/// How long contents stay that no file has, and how often they are looked for.
const KEPT_UNUSED: Duration = Duration::from_secs(600);
const COLLECT_EVERY: Duration = Duration::from_secs(60);

/// How long files may wait to be kept until somebody is told.
const OUTAGE_UNTOLD: Duration = Duration::from_secs(60);
/// How often sessions are looked for that sleep, and have files that are kept nowhere else.
const CATCH_UP_EVERY: Duration = Duration::from_secs(60);

/// The models, which ask `source` for their keys with each request. Every mistake is reported at once.
pub(crate) fn models(settings: &Settings, source: &Arc<dyn Source>) -> anyhow::Result<Vec<Model>> {
    let mut models = Vec::new();
    let mut problems = Vec::new();
    for (name, model) in &settings.models {
        let key = model.key.clone();
        let key = key.map(|reference| Credential::asked(reference, Arc::clone(source)));
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
pub(crate) fn providers(settings: &Settings, source: &Arc<dyn Source>) -> anyhow::Result<Providers> {
    if settings.models.is_empty() {
        bail!("there is no model: add [models.NAME] to belljar.toml, as belljar.example.toml shows");
    }
    Ok(Providers::new(
        models(settings, source)?,
        Timeouts::default(),
        RetryLimits::default(),
    )?)
}

fn model_settings(model: &config::Model, key: Option<Credential>) -> ModelSettings {
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
    settings.thinking = match (model.thinking_budget, model.thinking.as_str()) {
        (Some(budget), _) => Thinking::Budget(budget),
        (None, "off") => Thinking::Off,
        (None, "low") => Thinking::Effort(Effort::Low),
        (None, "medium") => Thinking::Effort(Effort::Medium),
        (None, "high") => Thinking::Effort(Effort::High),
        (None, _) => Thinking::Default,
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
pub(crate) fn images(settings: &Settings) -> ImageFolder {
    ImageFolder::open(images_folder(settings))
}

pub(crate) fn images_folder(settings: &Settings) -> PathBuf {
    settings.server.data.join("images")
}

/// The image that sandboxes start from.
pub(crate) fn image(settings: &Settings) -> anyhow::Result<ImageDigest> {
    Ok(wanted(&images(settings), &settings.sandbox.image)?.0)
}

/// The image that is meant, a digest as it is or else the newest that a recipe became, and what of it is built anew from time
/// to time. One that is named by its digest stays as it is.
fn wanted(images: &ImageFolder, wanted: &str) -> anyhow::Result<(ImageDigest, Option<Refresh>)> {
    if let Ok(digest) = wanted.parse() {
        return Ok((digest, None));
    }
    let newest = images.newest_base(wanted)?;
    let newest = newest.with_context(|| {
        format!("there is no image {wanted}: build it with `sudo belljar image build images/{wanted}`")
    })?;
    let refresh = newest.knowledge()?.map(|knowledge| Refresh {
        image: wanted.to_owned(),
        knowledge,
    });
    Ok((newest.digest, refresh))
}

/// What control makes sandboxes of.
pub(crate) fn base(settings: &Settings) -> anyhow::Result<Base> {
    let (image, refresh) = wanted(&images(settings), &settings.sandbox.image)?;
    Ok(Base { image, refresh })
}

/// What says to control which skills an image brings.
pub(crate) fn reading_skills(settings: &Settings) -> Box<ReadSkills> {
    let images = images(settings);
    Box::new(move |image| skills(&images, image))
}

/// What control is started with.
pub(crate) fn control(settings: &Settings, model: &str, base: Base) -> control::Config {
    let mut config = control::Config::new(model, base);
    config.placement = settings.sandbox.placement;
    config.limits = settings.run;
    config.caps.run = settings.budget.run;
    config.caps.session = settings.budget.session;
    config.caps.user = settings.budget.user;
    config.caps.day = settings.budget.day;
    let triggers = settings.budget.triggers.iter().map(|(pattern, most)| TriggerCap {
        pattern: pattern.clone(),
        most: *most,
    });
    config.caps.triggers = triggers.collect();
    config.policies = settings.policies.clone();
    config.tools = agent::definitions().to_vec();
    config.sandbox.cpu_millis = settings.sandbox.cpu_millis;
    config.sandbox.memory_bytes = settings.sandbox.memory_bytes;
    config.sandbox.pids = settings.sandbox.processes;
    config.sandbox.disk_bytes = settings.sandbox.disk_bytes;
    config.approvals_expire = settings.approvals_expire;
    config.freeze_after = settings.sandbox.freeze_after;
    config.hibernate_after = settings.sandbox.hibernate_after;
    config.archive_after = settings.sandbox.archive_after;
    config.background_time = settings.sandbox.background_time;
    config.warm = control::WarmPool {
        least: settings.sandbox.warm_least,
        most: settings.sandbox.warm_most,
        remember: settings.sandbox.warm_remember,
    };
    config.run_snapshots = settings.sandbox.run_snapshots;
    config.sandboxes_per_user = settings.sandbox.per_user;
    config
}

/// The names of the skills that sandboxes have; none where there is no image yet.
pub(crate) fn known_skills(settings: &Settings) -> Vec<String> {
    let skills = image(settings)
        .map(|image| skills(&images(settings), &image))
        .unwrap_or_default();
    skills.into_iter().map(|skill| skill.name).collect()
}

/// The skills that an image brings. A skill that cannot be read is left out, and the log says which.
fn skills(images: &ImageFolder, image: &ImageDigest) -> Vec<Skill> {
    let Some(folder) = images.folder_in(image, "skills") else {
        return Vec::new();
    };
    match skills::load_folder(&folder) {
        Ok((skills, findings)) => {
            for finding in findings.iter().filter(|finding| finding.is_error) {
                tracing::warn!(skill = finding.skill, "a skill is left out: {}", finding.message);
            }
            skills
        }
        Err(error) => {
            tracing::warn!(error = with_causes(&error), "the image's skills cannot be read");
            Vec::new()
        }
    }
}

/// The services there are.
pub(crate) struct Outward {
    pub(crate) catalogue: Catalogue,
    /// Those that can be called.
    pub(crate) services: Services,
    /// What is wrong with the others, in words.
    pub(crate) problems: Vec<String>,
}

/// The services there are. One that cannot be called does not keep the others from it.
pub(crate) fn services(
    settings: &Settings,
    secrets: impl Into<Custody>,
    dialer: Dialer,
    tasks: &Tasks,
    file: Option<&Path>,
) -> anyhow::Result<Outward> {
    let (catalogue, mistakes) = Catalogue::load(settings.server.services.as_slice());
    let (services, problems) = Services::new(
        &catalogue,
        &settings.services,
        secrets,
        dialer,
        Trust::machine(),
        tasks.clone(),
        Worker::new(worker::Config::default()),
    )?;
    let mistakes = mistakes.iter().map(ToString::to_string);
    Ok(Outward {
        problems: mistakes
            .chain(problems.iter().map(|problem| placed(problem, settings, file)))
            .collect(),
        catalogue,
        services,
    })
}

/// What is wrong with a service, and the file and line that say so: the configuration's, or else the definition's.
pub(crate) fn placed(problem: &Problem, settings: &Settings, file: Option<&Path>) -> String {
    let line = |file: &Path, key: &str| line_of_key(&fs::read_to_string(file).ok()?, key);
    let configured = file.and_then(|file| Some((file.to_owned(), line(file, &problem.place)?)));
    let defined = || {
        let (service, key) = problem.place.strip_prefix("services.")?.split_once('.')?;
        let definition = settings.server.services.as_ref()?.join(service).join("service.toml");
        let line = line(&definition, key)?;
        Some((definition, line))
    };
    match configured.or_else(defined) {
        Some((file, line)) => format!("{}, line {line}: {problem}", file.display()),
        None => problem.to_string(),
    }
}

/// Where files of workspaces are kept; nothing where they are not.
pub(crate) fn files(settings: &Settings, own: &Path, source: &Arc<dyn Source>) -> anyhow::Result<Option<Files>> {
    let asked = |reference: &Reference| Credential::asked(reference.clone(), Arc::clone(source));
    let store = match &settings.objects.place {
        config::ObjectPlace::Nowhere => return Ok(None),
        config::ObjectPlace::Local => objects::Store::Local(own.join("objects")),
        config::ObjectPlace::S3(bucket) => objects::Store::S3(Box::new(objects::S3Settings {
            endpoint: bucket.endpoint.clone(),
            bucket: bucket.bucket.clone(),
            region: bucket.region.clone(),
            prefix: bucket.prefix.clone(),
            path_style: bucket.path_style,
            plain_http: bucket.plain_http,
            access_key: asked(&bucket.access_key),
            secret_key: asked(&bucket.secret_key),
            session_token: bucket.session_token.as_ref().map(asked),
        })),
    };
    Ok(Some(Files {
        objects: Objects::open(store)?,
        tickets: Tickets::open(&own.join("objects.key"))?,
        quota: settings.objects.quota,
        grace: KEPT_UNUSED,
        collect_every: COLLECT_EVERY,
        patience: OUTAGE_UNTOLD,
        catch_up_every: CATCH_UP_EVERY,
    }))
}

/// What makes the broker through which connections leave sandboxes. Its certificate authority is kept in `folder`.
pub(crate) fn egress(
    settings: &Settings,
    folder: PathBuf,
    source: &Arc<dyn Source>,
    dialer: Dialer,
) -> Box<MakeBroker> {
    let (config::Egress { rules, limits }, secrets) = (settings.egress.clone(), Arc::clone(source));
    Box::new(move |decide, audit, tasks| {
        let surroundings = Surroundings {
            rules,
            limits,
            decide,
            dialer,
            secrets,
            roots: Arc::new(egress::machine_roots()),
            audit,
            tasks,
            clock: egress::machine_clock(),
        };
        Broker::new(&folder, surroundings)
    })
}

/// What no model is told.
pub(crate) fn withheld(settings: &Settings, source: &Arc<dyn Source>) -> Vec<Credential> {
    let references = settings.withheld().into_iter();
    references
        .map(|reference| Credential::asked(reference, Arc::clone(source)))
        .collect()
}

/// Where traces are told.
pub(crate) fn traces(settings: &Settings, tasks: &Tasks) -> anyhow::Result<Traces> {
    match &settings.otlp {
        Some(address) => Ok(Traces::start(address, tasks)?),
        None => Ok(Traces::default()),
    }
}
