//! Settings, and everything that is wrong with them.

use domain::Price;
use llm::{ChatLimit, Effort, Thinking};
use providers::{Model, ModelSettings, ProviderKind, Providers, ProvidersError, RetryLimits, SettingsPrice, Timeouts};
use secret::Secret;

use crate::model;

#[test]
fn a_model_is_what_its_settings_say() {
    let settings = ModelSettings {
        model: Some("claude-x".to_owned()),
        api_key: Some(Secret::new("k").into()),
        price: Some(SettingsPrice {
            input: 3.0,
            output: 15.0,
            cache_read: Some(0.3),
            cache_write: None,
            cache_write_hour: None,
        }),
        thinking: Thinking::Effort(Effort::Medium),
        ..ModelSettings::new(ProviderKind::Anthropic)
    };
    let model = model("best", settings);
    assert_eq!(
        (model.name.as_str(), model.provider_name.as_str()),
        ("best", "claude-x")
    );
    assert_eq!(model.thinking, Thinking::Effort(Effort::Medium));
    let price = Price {
        input: 3_000,
        output: 15_000,
        cache_read: 300,
        cache_write: 3_750,
        cache_write_hour: 6_000,
    };
    assert_eq!(model.price, Some(price));
}

#[test]
fn every_mistake_is_told_at_once() {
    let settings = ModelSettings {
        model: Some("no model".to_owned()),
        base_url: Some("http://example.com/?a=b".to_owned()),
        api_key: Some(Secret::new("line\nfeed").into()),
        price: Some(SettingsPrice {
            input: -1.0,
            output: 1.0,
            cache_read: None,
            cache_write: None,
            cache_write_hour: None,
        }),
        window: Some(10),
        max_output: Some(0),
        thinking: Thinking::Budget(5),
        headers: [("Host".to_owned(), Secret::new("x"))].into(),
        script: Some("a.yaml".into()),
        ..ModelSettings::new(ProviderKind::Openai)
    };
    let problems = Model::new("-m", settings).unwrap_err();
    let keys: Vec<&str> = problems.iter().map(|problem| problem.key).collect();
    let expected = [
        "name",
        "model",
        "price",
        "window",
        "max_output",
        "thinking",
        "script",
        "base_url",
        "base_url",
        "api_key",
        "headers",
    ];
    assert_eq!(keys, expected, "{problems:?}");
    assert!(!format!("{problems:?}").contains("feed"), "{problems:?}");
}

#[test]
fn plain_http_stays_on_this_machine() {
    let at = |url: &str, allow_plain_http| {
        let settings = ModelSettings {
            base_url: Some(url.to_owned()),
            allow_plain_http,
            ..ModelSettings::new(ProviderKind::OpenaiChat)
        };
        Model::new("m", settings)
    };
    for url in [
        "http://127.0.0.1:8000",
        "http://localhost:11434/v1",
        "http://[::1]:1/",
        "https://models.example/v1",
    ] {
        assert!(at(url, false).is_ok(), "{url}");
    }
    for url in [
        "http://10.0.0.1/",
        "http://127.0.0.1.example/",
        "http://localhost.example",
        "ftp://localhost",
        "nowhere",
        "https://me:pw@models.example",
    ] {
        let problems = at(url, false).unwrap_err();
        assert!(
            problems
                .iter()
                .all(|problem| problem.key == "base_url" && !problem.to_string().contains("pw")),
            "{url}"
        );
    }
    assert!(at("http://10.0.0.1/", true).is_ok());
}

#[test]
fn openai_and_azure_are_told_the_most_in_the_field_that_their_newer_models_take() {
    let limit = |base_url: Option<&str>| {
        let settings = ModelSettings {
            base_url: base_url.map(str::to_owned),
            api_key: Some(Secret::new("k").into()),
            ..ModelSettings::new(ProviderKind::OpenaiChat)
        };
        model("m", settings).chat_limit
    };
    for url in [
        None,
        Some("https://api.openai.com/v1"),
        Some("https://API.OpenAI.com"),
        Some("https://eu.api.openai.com/v1"),
        Some("https://ours.openai.azure.com/openai/v1"),
    ] {
        assert_eq!(limit(url), ChatLimit::MaxCompletionTokens, "{url:?}");
    }
    for url in [
        "http://localhost:11434/v1",
        "http://127.0.0.1:8000",
        "https://models.example/api.openai.com",
        "https://api.openai.com.example",
        "https://notapi.openai.com.example/v1",
        "https://openai.azure.com.example",
    ] {
        assert_eq!(limit(Some(url)), ChatLimit::MaxTokens, "{url}");
    }
}

#[test]
fn a_fallback_must_be_there() {
    let named = |name: &str, fallback: &[&str]| {
        let settings = ModelSettings {
            base_url: Some("http://localhost".to_owned()),
            fallback: fallback.iter().map(|&name| name.to_owned()).collect(),
            ..ModelSettings::new(ProviderKind::OpenaiChat)
        };
        model(name, settings)
    };
    let new = |models| Providers::new(models, Timeouts::default(), RetryLimits::default());
    let error = new(vec![named("a", &["b", "c"]), named("c", &[]), named("c", &[])]).unwrap_err();
    assert!(matches!(error, ProvidersError::Settings(_)));
    assert_eq!(
        error.to_string(),
        "models.a.fallback: there is no model \"b\"\nmodels.c.name: two models have this name"
    );
    let providers = new(vec![named("a", &["b", "a", "b"]), named("b", &["a"])]).unwrap();
    let chain: Vec<String> = providers
        .chain("a")
        .unwrap()
        .iter()
        .map(|model| model.name.clone())
        .collect();
    assert_eq!(chain, ["a", "b"]);
}
