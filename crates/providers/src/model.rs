//! A model that can be asked.

use std::sync::Arc;

use bytes::Bytes;
use causes::with_causes;
use domain::{Author, Message, Price};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use llm::{CacheMarks, ChatLimit, Format, Thinking, Thoughts};
use reqwest::Url;
use secret::{Credential, Secret};
use zeroize::Zeroizing;

use crate::{ModelError, ModelProblem, ModelSettings, ProviderKind, Script};

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
    /// How its server is told the most that it may say; goes into `llm::Head`.
    pub chat_limit: ChatLimit,
    /// How much it thinks; goes into `llm::Head`.
    pub thinking: Thinking,
    /// Cache marks; go into `llm::Head`.
    pub cache: CacheMarks,
    /// Names of the models that are asked when this one fails.
    pub fallback: Vec<String>,
    /// Models of one family and format understand each other's thoughts.
    pub family: String,
    pub(crate) target: Target,
}

/// Where a model is.
#[derive(Debug)]
pub(crate) enum Target {
    Http(Box<HttpTarget>),
    Script(Arc<Script>),
}

impl Target {
    /// What the server takes: OpenAI itself and Azure's OpenAI are known by their addresses, all others take what they always did.
    fn chat_limit(&self) -> ChatLimit {
        let host = match self {
            Self::Http(http) => http.url.host_str().unwrap_or_default(),
            Self::Script(_) => "",
        };
        let is_openai = host == "api.openai.com" || host.ends_with(".api.openai.com");
        if is_openai || host.ends_with(".openai.azure.com") {
            ChatLimit::MaxCompletionTokens
        } else {
            ChatLimit::MaxTokens
        }
    }

    /// The key, where there is one.
    pub(crate) fn key(&self) -> Option<&Credential> {
        match self {
            Self::Http(http) => http.key.as_ref().map(|(_, credential)| credential),
            Self::Script(_) => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct HttpTarget {
    pub(crate) url: Url,
    /// The values are marked as sensitive: they print as such.
    headers: HeaderMap,
    /// The key, and the header in which it travels.
    key: Option<(KeyHeader, Credential)>,
    /// What must be found in no error, the key apart.
    secrets: Vec<Secret>,
}

/// What one request carries.
pub(crate) struct Authorized {
    pub(crate) headers: HeaderMap,
    /// What must be found in no error.
    pub(crate) secrets: Vec<Secret>,
}

impl HttpTarget {
    /// The headers of the next request, with the key as it is now.
    pub(crate) fn authorized(&self, model: &str) -> Result<Authorized, ModelError> {
        let mut headers = self.headers.clone();
        let mut secrets = self.secrets.clone();
        if let Some((header, credential)) = &self.key {
            let key = credential.get().map_err(|source| ModelError::NoKey {
                model: model.to_owned(),
                source: Box::new(source),
            })?;
            let (name, value) = header.with(&key).ok_or_else(|| ModelError::BadKey {
                model: model.to_owned(),
            })?;
            headers.insert(name, value);
            secrets.push(key);
        }
        Ok(Authorized { headers, secrets })
    }
}

/// The header in which a key travels.
#[derive(Clone, Copy, Debug)]
enum KeyHeader {
    ApiKey,
    Bearer,
}

impl KeyHeader {
    /// The header; nothing where the key is empty or has letters that no header has.
    fn with(self, key: &Secret) -> Option<(HeaderName, HeaderValue)> {
        if key.expose().is_empty() {
            return None;
        }
        Some(match self {
            Self::ApiKey => (HeaderName::from_static("x-api-key"), sensitive(key.expose())?),
            Self::Bearer => {
                let value = Zeroizing::new(format!("Bearer {}", key.expose()));
                (AUTHORIZATION, sensitive(&value)?)
            }
        })
    }
}

/// Headers that the client makes itself.
const OWN_HEADERS: [&str; 6] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "accept-encoding",
];

impl Model {
    /// Checks settings. Says everything that is wrong with them at once.
    pub fn new(name: &str, settings: ModelSettings) -> Result<Self, Vec<ModelProblem>> {
        let mut check = Check {
            model: name,
            problems: Vec::new(),
        };
        let format = match settings.provider {
            ProviderKind::Anthropic | ProviderKind::Scripted => Format::AnthropicMessages,
            ProviderKind::Openai => Format::OpenaiResponses,
            ProviderKind::OpenaiChat => Format::OpenaiChat,
        };
        check.that(is_safe(name, 64, "._-"), "name", || {
            "a model's name has at most 64 letters (a–z, A–Z, digits, . _ -) and begins with a letter or digit"
                .to_owned()
        });
        let provider_name = settings.model.clone().unwrap_or_else(|| name.to_owned());
        check.that(is_safe(&provider_name, 200, "._-:/@+"), "model", || {
            format!("{provider_name:?} is not a model's name: it has at most 200 letters (a–z, A–Z, digits, . _ - : / @ +) and no \"..\"")
        });
        let price = settings.price.as_ref().and_then(|price| {
            let checked = price.checked(settings.provider);
            check.that(checked.is_some(), "price", || {
                "each price is in dollars for a million tokens, 0 or more".to_owned()
            });
            checked
        });
        let window = settings.window.unwrap_or(128_000);
        let max_output = settings.max_output.unwrap_or(8_192);
        check.that((1_024..=100_000_000).contains(&window), "window", || {
            format!("{window} is not a number of tokens that fit a window: 1024 to 100000000")
        });
        check.that((1..window).contains(&max_output), "max_output", || {
            format!("{max_output} is not from 1 to the window of {window}")
        });
        check.that(
            !matches!(settings.thinking, Thinking::Budget(_)) || settings.provider == ProviderKind::Anthropic,
            "thinking",
            || "a budget is for anthropic only; others take an effort: thinking = \"medium\"".to_owned(),
        );
        let target = match settings.provider {
            ProviderKind::Scripted => script_target(&settings, &mut check),
            ProviderKind::Anthropic | ProviderKind::Openai | ProviderKind::OpenaiChat => {
                http_target(&settings, &mut check)
            }
        };
        match target {
            Some(target) if check.problems.is_empty() => Ok(Self {
                family: settings.family.unwrap_or_else(|| provider_name.clone()),
                name: name.to_owned(),
                provider_name,
                format,
                price,
                window,
                max_output,
                chat_limit: target.chat_limit(),
                thinking: settings.thinking,
                cache: settings.cache,
                fallback: settings.fallback,
                target,
            }),
            _ => Err(check.problems),
        }
    }

    /// Whether it may think and show nothing of it: what was shown of a reply is then no measure of what it costs. Only
    /// Anthropic's can be told not to.
    #[must_use]
    pub fn may_think_unseen(&self) -> bool {
        self.format != Format::AnthropicMessages || self.thinking != Thinking::Off
    }

    /// Names what [`crate::Providers::encode`] makes for this model: models of one dialect are sent the same bytes for the
    /// same message, so stored bytes are kept under this name.
    #[must_use]
    pub fn dialect(&self) -> String {
        format!("{}/{}", self.format.as_str(), self.family)
    }

    /// What a request to this model carries for this message. `find` finds the model of a name: thoughts go to none but
    /// those of the family that had them.
    pub(crate) fn encode<'m>(&self, message: &Message, find: impl Fn(&str) -> Option<&'m Self>) -> Bytes {
        let thoughts = match &message.author {
            Author::Model { name } => {
                find(name).is_some_and(|author| author.format == self.format && author.family == self.family)
            }
            Author::User { .. } | Author::Sandbox | Author::ControlPlane => false,
        };
        llm::encode_message(
            self.format,
            if thoughts { Thoughts::Keep } else { Thoughts::Drop },
            message,
        )
    }
}

/// Collects everything that is wrong.
struct Check<'a> {
    model: &'a str,
    problems: Vec<ModelProblem>,
}

impl Check<'_> {
    fn that(&mut self, holds: bool, key: &'static str, problem: impl FnOnce() -> String) {
        if !holds {
            self.problems.push(ModelProblem {
                model: self.model.to_owned(),
                key,
                problem: problem(),
            });
        }
    }
}

/// Model names stand in JSON, in logs and, with some providers, in paths.
fn is_safe(name: &str, longest: usize, signs: &str) -> bool {
    name.len() <= longest
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || signs.contains(letter))
        && !name.contains("..")
}

fn script_target(settings: &ModelSettings, check: &mut Check<'_>) -> Option<Target> {
    let Some(path) = &settings.script else {
        check.that(false, "script", || {
            "a scripted model needs the file that it plays: script = \"answers.yaml\"".to_owned()
        });
        return None;
    };
    check.that(
        settings.base_url.is_none() && settings.api_key.is_none() && settings.headers.is_empty(),
        "base_url",
        || "a scripted model asks nobody: leave out base_url, api_key and headers".to_owned(),
    );
    match Script::read(path) {
        Ok(script) => Some(Target::Script(Arc::new(script))),
        Err(error) => {
            check.that(false, "script", || with_causes(&error));
            None
        }
    }
}

fn http_target(settings: &ModelSettings, check: &mut Check<'_>) -> Option<Target> {
    check.that(settings.script.is_none(), "script", || {
        "only a model with provider = \"scripted\" plays a file".to_owned()
    });
    check.that(
        settings.api_key.is_some() || settings.base_url.is_some(),
        "api_key",
        || "the provider wants a key: key = \"env:NAME_OF_A_VARIABLE\"".to_owned(),
    );
    let url = endpoint(settings, check);
    let key = settings
        .api_key
        .clone()
        .map(|credential| (header(settings.provider), credential));
    if let Some((header, credential)) = &key {
        // One that cannot be had now is told when it is needed, or by whoever follows references at the start.
        let fits = credential.get().map_or(true, |key| header.with(&key).is_some());
        check.that(fits, "api_key", || {
            "is empty, or has letters that no key has (a line break at its end?)".to_owned()
        });
    }
    let (headers, secrets) = headers(settings, check);
    Some(Target::Http(Box::new(HttpTarget {
        url: url?,
        headers,
        key,
        secrets,
    })))
}

/// The address that is asked: the base address, `/v1` where it has no path of its own, and the format's endpoint.
fn endpoint(settings: &ModelSettings, check: &mut Check<'_>) -> Option<Url> {
    let (home, endpoint) = match settings.provider {
        ProviderKind::Anthropic | ProviderKind::Scripted => ("https://api.anthropic.com", "messages"),
        ProviderKind::Openai => ("https://api.openai.com", "responses"),
        ProviderKind::OpenaiChat => ("https://api.openai.com", "chat/completions"),
    };
    let base = settings.base_url.as_deref().unwrap_or(home);
    let Ok(mut url) = Url::parse(base) else {
        // It may hold a password: it is not repeated.
        check.that(false, "base_url", || format!("is no address; one looks like {home}"));
        return None;
    };
    let problems = check.problems.len();
    check.that(
        url.username().is_empty() && url.password().is_none(),
        "base_url",
        || "has a name or password in it: put the key into api_key or headers".to_owned(),
    );
    check.that(url.query().is_none() && url.fragment().is_none(), "base_url", || {
        "has a query or fragment, which would be lost".to_owned()
    });
    match url.scheme() {
        "https" => {}
        "http" => check.that(settings.allow_plain_http || is_this_machine(&url), "base_url", || {
            "is plain HTTP to another machine, where everybody on the way reads prompts and key: use https, or set allow_plain_http = true".to_owned()
        }),
        _ => check.that(false, "base_url", || "begins with neither https:// nor http://".to_owned()),
    }
    let path = url.path().trim_end_matches('/');
    let version = match settings.provider {
        ProviderKind::Anthropic if !path.ends_with("/v1") => "/v1",
        _ if path.is_empty() => "/v1",
        _ => "",
    };
    let path = format!("{path}{version}/{endpoint}");
    url.set_path(&path);
    (check.problems.len() == problems).then_some(url)
}

fn is_this_machine(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        let address = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

fn header(provider: ProviderKind) -> KeyHeader {
    match provider {
        ProviderKind::Anthropic => KeyHeader::ApiKey,
        ProviderKind::Openai | ProviderKind::OpenaiChat | ProviderKind::Scripted => KeyHeader::Bearer,
    }
}

fn headers(settings: &ModelSettings, check: &mut Check<'_>) -> (HeaderMap, Vec<Secret>) {
    let mut headers = HeaderMap::new();
    let mut secrets = Vec::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if settings.provider == ProviderKind::Anthropic {
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    for (name, value) in &settings.headers {
        let parsed = name
            .parse::<HeaderName>()
            .ok()
            .filter(|name| !OWN_HEADERS.contains(&name.as_str()));
        match (parsed, sensitive(value.expose())) {
            (Some(name), Some(value)) => {
                headers.insert(name, value);
            }
            _ => check.that(false, "headers", || {
                format!("{name:?} is no header that can be set, or its value no header's value")
            }),
        }
        secrets.push(value.clone());
    }
    (headers, secrets)
}

fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}
