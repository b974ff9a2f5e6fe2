//! Models, as the programs use them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use secret::Reference;

use super::super::raw::Place;
use super::super::values::Reader;
use super::Settings;

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
    /// Tokens that it may think, in place of `thinking`.
    pub(crate) thinking_budget: Option<u32>,
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

pub(super) fn models(reader: &mut Reader, capped: bool) -> BTreeMap<String, Model> {
    let places = reader.tables("models.*");
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
    let window = reader.number(&key("window")).or(scripted.then_some(200_000));
    let max_output = reader.number(&key("max_output")).or(scripted.then_some(8_000));
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
    let thinking_budget = thinking_budget(reader, name, provider, max_output);
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
        thinking_budget,
        cache: cache?,
        family,
        plain_http: plain_http?,
        window: u64::try_from(window?).ok()?,
        max_output: u64::try_from(max_output?).ok()?,
        fallback,
    })
}

/// A budget is for Anthropic, stands alone, and leaves room for words.
fn thinking_budget(
    reader: &mut Reader,
    name: &str,
    provider: Option<Provider>,
    max_output: Option<i64>,
) -> Option<u32> {
    let key = format!("models.{name}.thinking_budget");
    let budget = reader.number(&key)?;
    let wrong = if provider != Some(Provider::Anthropic) {
        Some("is for models of anthropic: write thinking = \"low\", \"medium\" or \"high\" instead")
    } else if reader.has(&format!("models.{name}.thinking")) {
        Some("and thinking are both given: leave one of them out")
    } else if max_output.is_some_and(|most| budget >= most) {
        Some("leaves no room for words: make it smaller than max_output")
    } else {
        None
    };
    if let Some(wrong) = wrong {
        reader.mistake(&key, format!("{key} {wrong}"));
    }
    u32::try_from(budget).ok()
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

pub(super) fn choose_default_model(reader: &mut Reader, settings: &mut Settings) {
    let known = || {
        settings
            .models
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match &settings.server.model {
        Some(model) if !reader.tables("models.*").contains_key(model) => {
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
