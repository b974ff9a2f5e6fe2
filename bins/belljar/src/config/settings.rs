//! The configuration as the programs use it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use domain::{Money, Placement, RunLimits};

use super::raw::{Mistake, Place, Raw};
use super::values::{Reader, Reference};

/// Everything that can be set. Holds no secret: only where secrets are.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) server: Server,
    pub(crate) sandbox: Sandbox,
    pub(crate) run: RunLimits,
    pub(crate) budget: Budget,
    pub(crate) models: BTreeMap<String, Model>,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) listen: SocketAddr,
    pub(crate) data: PathBuf,
    pub(crate) user: String,
    pub(crate) log_json: bool,
    pub(crate) log_level: String,
    pub(crate) drain: Duration,
    /// The model of sessions that name none.
    pub(crate) model: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    /// The OCI runtime's command.
    pub(crate) runtime: String,
    /// The program that is PID 1.
    pub(crate) program: Option<PathBuf>,
    pub(crate) run: PathBuf,
    pub(crate) image: String,
    pub(crate) placement: Placement,
    pub(crate) cpu_millis: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) processes: u32,
    pub(crate) disk_bytes: u64,
    pub(crate) freeze_after: Duration,
    pub(crate) remove_after: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) run: Option<Money>,
    pub(crate) session: Option<Money>,
    pub(crate) user: Option<Money>,
    pub(crate) day: Option<Money>,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) provider: Provider,
    /// The provider's own name of it.
    pub(crate) name: String,
    pub(crate) base_url: Option<String>,
    pub(crate) key: Option<Reference>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) script: Option<PathBuf>,
    pub(crate) price: Option<Prices>,
    pub(crate) thinking: String,
    pub(crate) cache: String,
    pub(crate) family: Option<String>,
    pub(crate) plain_http: bool,
    pub(crate) window: u64,
    pub(crate) max_output: u64,
    pub(crate) fallback: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Provider {
    Anthropic,
    OpenAi,
    OpenAiChat,
    Scripted,
}

/// Dollars for a million tokens, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prices {
    pub(crate) input: i64,
    pub(crate) output: i64,
    pub(crate) cache_read: Option<i64>,
    pub(crate) cache_write: Option<i64>,
    pub(crate) cache_write_hour: Option<i64>,
}

/// What a configuration came to: settings where nothing is wrong, else every mistake; and warnings in any case.
pub(crate) struct Checked {
    pub(crate) settings: Result<Settings, Vec<Mistake>>,
    pub(crate) warnings: Vec<Mistake>,
}

/// Checks what was written.
pub(crate) fn check(raw: Raw) -> Checked {
    let mut reader = Reader::new(raw);
    let settings = settings(&mut reader);
    let (mistakes, warnings) = reader.finish();
    let settings = match settings {
        Some(settings) if mistakes.is_empty() => Ok(settings),
        _ => Err(mistakes),
    };
    Checked { settings, warnings }
}

/// All settings. Every part is read even where one before it was wrong, so that all mistakes are found at once.
fn settings(reader: &mut Reader) -> Option<Settings> {
    let server = server(reader);
    let sandbox = sandbox(reader);
    let run = run(reader);
    let budget = Budget {
        run: reader.dollars("budget.run"),
        session: reader.dollars("budget.session"),
        user: reader.dollars("budget.user"),
        day: reader.dollars("budget.day"),
    };
    let capped = [budget.run, budget.session, budget.user, budget.day]
        .iter()
        .any(Option::is_some);
    let models = models(reader, capped);
    let mut settings = Settings {
        server: server?,
        sandbox: sandbox?,
        run: run?,
        budget,
        models,
    };
    choose_default_model(reader, &mut settings);
    Some(settings)
}

fn server(reader: &mut Reader) -> Option<Server> {
    let listen = reader.listen("server.listen");
    let data = reader.path("server.data");
    let user = reader.text("server.user");
    let log = reader.text("server.log");
    let log_level = reader.text("server.log_level");
    if let Some(level) = &log_level
        && level.parse::<tracing_subscriber::filter::EnvFilter>().is_err()
    {
        reader.mistake(
            "server.log_level",
            format!("server.log_level is {level:?}: write a level such as \"info\" or \"debug\""),
        );
    }
    let drain = reader.duration("server.drain");
    let model = reader.text("server.model");
    Some(Server {
        listen: listen?,
        data: data?,
        user: user?,
        log_json: log? == "json",
        log_level: log_level?,
        drain: drain?,
        model: model.filter(|model| !model.is_empty()),
    })
}

fn sandbox(reader: &mut Reader) -> Option<Sandbox> {
    let runtime = reader.text("sandbox.runtime");
    let program = reader.path("sandbox.program");
    let run = reader.path("sandbox.run");
    let image = reader.text("sandbox.image");
    let placement = reader.text("sandbox.placement");
    let cpu = reader.thousandths("sandbox.cpu");
    if cpu.is_some_and(|cpu| !(10..=1_000_000).contains(&cpu)) {
        reader.mistake(
            "sandbox.cpu",
            "sandbox.cpu is out of range: write a number from 0.01 to 1000",
        );
    }
    let memory = reader.size("sandbox.memory");
    if memory.is_some_and(|memory| memory < 32 << 20) {
        reader.mistake(
            "sandbox.memory",
            "sandbox.memory is too little to start anything: write \"32MiB\" or more",
        );
    }
    let processes = reader.whole("sandbox.processes");
    let disk = reader.size("sandbox.disk");
    let freeze_after = reader.duration("sandbox.freeze_after");
    let remove_after = reader.duration("sandbox.remove_after");
    if freeze_after > remove_after {
        reader.mistake(
            "sandbox.freeze_after",
            "sandbox.freeze_after is longer than sandbox.remove_after: make it shorter",
        );
    }
    Some(Sandbox {
        runtime: runtime?,
        program,
        run: run?,
        image: image?,
        placement: if placement? == "sandbox" {
            Placement::Sandbox
        } else {
            Placement::ControlPlane
        },
        cpu_millis: u32::try_from(cpu?).ok()?,
        memory_bytes: memory?,
        processes: u32::try_from(processes?).ok()?,
        disk_bytes: disk?,
        freeze_after: freeze_after?,
        remove_after: remove_after?,
    })
}

fn run(reader: &mut Reader) -> Option<RunLimits> {
    let steps = reader.whole("run.steps");
    let time = reader.duration("run.time");
    let tool_time = reader.duration("run.tool_time");
    let output = reader.size("run.output");
    Some(RunLimits {
        steps: u32::try_from(steps?).ok()?,
        wall_seconds: time?.as_secs(),
        tool_seconds: tool_time?.as_secs(),
        output_bytes: usize::try_from(output?).ok()?,
    })
}

fn models(reader: &mut Reader, capped: bool) -> BTreeMap<String, Model> {
    let places = reader.models();
    let mut models = BTreeMap::new();
    for (name, place) in &places {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
        if name.is_empty() || name.len() > 60 || !name.chars().all(plain) {
            reader.note(
                place.clone(),
                format!("{name:?} is no name for a model: write letters, digits, - and _"),
            );
            continue;
        }
        if let Some(model) = model(reader, name, place, capped) {
            for other in &model.fallback {
                if !places.contains_key(other) || other == name {
                    let text = format!("models.{name}.fallback names {other:?}: name another model of this file");
                    reader.mistake(&format!("models.{name}.fallback"), text);
                }
            }
            models.insert(name.clone(), model);
        }
    }
    models
}

fn model(reader: &mut Reader, name: &str, place: &Place, capped: bool) -> Option<Model> {
    let key = |key: &str| format!("models.{name}.{key}");
    let provider = match reader.text(&key("provider")).as_deref() {
        Some("anthropic") => Some(Provider::Anthropic),
        Some("openai") => Some(Provider::OpenAi),
        Some("openai-chat") => Some(Provider::OpenAiChat),
        Some("scripted") => Some(Provider::Scripted),
        _ => None,
    };
    let scripted = provider == Some(Provider::Scripted);
    let must = |reader: &mut Reader, wanted: &str, why: &str| {
        if !reader.has(&key(wanted)) {
            reader.note(place.clone(), format!("models.{name} lacks {wanted}: {why}"));
        }
    };
    must(
        reader,
        "provider",
        "write what its API speaks, such as provider = \"anthropic\"",
    );
    if scripted {
        must(reader, "script", "write the file that it plays");
    } else {
        must(reader, "window", "write how many tokens its window holds");
        must(reader, "max_output", "write how many tokens an answer may have");
    }
    let base_url = reader.text(&key("base_url"));
    if let Some(url) = &base_url
        && !reqwest::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
    {
        reader.mistake(
            &key("base_url"),
            format!("models.{name}.base_url is {url:?}: write http://… or https://…"),
        );
    }
    let price = price(reader, name, place);
    if capped && price.is_none() && !reader.has(&key("price.input")) {
        let text = format!(
            "models.{name} has no price and [budget] has a cap: write its price, such as price = {{ input = 3.00, output = 15.00 }} (0 where it is free)"
        );
        reader.note(place.clone(), text);
    }
    let headers = reader.texts(&key("headers")).unwrap_or_default();
    for (header, value) in &headers {
        let valid = reqwest::header::HeaderName::try_from(header).is_ok()
            && reqwest::header::HeaderValue::try_from(value).is_ok();
        if !valid {
            reader.mistake(
                &key("headers"),
                format!("models.{name}.headers holds {header:?}, which is no HTTP header"),
            );
        }
    }
    let window = reader.whole(&key("window")).or(scripted.then_some(200_000));
    let max_output = reader.whole(&key("max_output")).or(scripted.then_some(8_000));
    if window.is_some() && max_output >= window {
        reader.mistake(
            &key("max_output"),
            format!("models.{name}.max_output fills the whole window: make it smaller"),
        );
    }
    let name_there = reader.text(&key("model"));
    let secret = reader.reference(&key("key"));
    let script = reader.path(&key("script"));
    let thinking = reader.text(&key("thinking"));
    let cache = reader.text(&key("cache"));
    let family = reader.text(&key("family"));
    let plain_http = reader.flag(&key("plain_http"));
    let fallback = reader.names(&key("fallback")).unwrap_or_default();
    Some(Model {
        provider: provider?,
        name: name_there.unwrap_or_else(|| name.to_owned()),
        base_url,
        key: secret,
        headers,
        script,
        price,
        thinking: thinking?,
        cache: cache?,
        family,
        plain_http: plain_http?,
        window: u64::try_from(window?).ok()?,
        max_output: u64::try_from(max_output?).ok()?,
        fallback,
    })
}

fn price(reader: &mut Reader, name: &str, place: &Place) -> Option<Prices> {
    let key = |part: &str| format!("models.{name}.price.{part}");
    let part = |reader: &mut Reader, part: &str| reader.price(&key(part));
    let input = part(reader, "input");
    let output = part(reader, "output");
    let cache_read = part(reader, "cache_read");
    let cache_write = part(reader, "cache_write");
    let cache_write_hour = part(reader, "cache_write_hour");
    let any = ["input", "output", "cache_read", "cache_write", "cache_write_hour"]
        .iter()
        .any(|part| reader.has(&key(part)));
    for needed in ["input", "output"] {
        if any && !reader.has(&key(needed)) {
            reader.note(
                place.clone(),
                format!("models.{name}.price lacks {needed}: a price has input and output at least"),
            );
        }
    }
    Some(Prices {
        input: input?,
        output: output?,
        cache_read,
        cache_write,
        cache_write_hour,
    })
}

fn choose_default_model(reader: &mut Reader, settings: &mut Settings) {
    let known = || {
        settings
            .models
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match &settings.server.model {
        Some(model) if !reader.models().contains_key(model) => {
            reader.mistake(
                "server.model",
                format!("server.model names {model:?}, and the models are: {}", known()),
            );
        }
        None if settings.models.len() > 1 => {
            reader.mistake(
                "server.model",
                format!(
                    "there are several models ({}): name the default one, server.model = \"…\"",
                    known()
                ),
            );
        }
        None => settings.server.model = settings.models.keys().next().cloned(),
        Some(_) => {}
    }
}
