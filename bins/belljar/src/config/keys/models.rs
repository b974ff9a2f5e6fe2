//! The keys of models.

use super::{Kind, Section, key, unset};

/// `[models.NAME]`
pub(super) const MODELS: Section = Section {
    name: "models.*",
    whole: false,
    about: "A model, by the name that people call it: [models.large], [models.local] and so on.",
    keys: &[
        unset(
            "provider",
            Kind::Word(&["anthropic", "openai", "openai-chat", "scripted"]),
            "\"anthropic\"",
            "What its API speaks: Anthropic Messages, OpenAI Responses (`openai`), or Chat Completions and all that is like it. `scripted` plays a file and needs no key. Must be given.",
        ),
        unset(
            "model",
            Kind::Text,
            "\"claude-sonnet-4-5\"",
            "The provider's own name of the model; the table's name where left out.",
        ),
        unset(
            "base_url",
            Kind::Text,
            "\"http://127.0.0.1:11434/v1\"",
            "Where its API is; the provider's own address where left out.",
        ),
        unset(
            "key",
            Kind::Reference,
            "\"env:ANTHROPIC_API_KEY\"",
            "Where its key is; asked for anew with each request.",
        ),
        unset(
            "headers",
            Kind::Texts,
            "{ \"x-team\" = \"data\" }",
            "Headers that each request carries. No secrets here.",
        ),
        unset(
            "script",
            Kind::File,
            "\"/etc/belljar/demo.yaml\"",
            "The file that a `scripted` model plays.",
        ),
        unset(
            "window",
            Kind::Whole(1_000, 100_000_000),
            "200000",
            "Tokens that its window holds. Must be given, save for `scripted`.",
        ),
        unset(
            "max_output",
            Kind::Whole(16, 10_000_000),
            "32000",
            "Tokens that one answer may have. Must be given, save for `scripted`.",
        ),
        key(
            "thinking",
            Kind::Word(&["default", "off", "low", "medium", "high"]),
            "\"default\"",
            "How hard it thinks before it speaks; by default that is left to it. `off` for models of `openai` that cannot think.",
        ),
        unset(
            "thinking_budget",
            Kind::Whole(1_024, 1_000_000),
            "8000",
            "Tokens that it may think before it speaks, in place of `thinking`: for models of `anthropic` that take a budget and no effort.",
        ),
        key(
            "cache",
            Kind::Word(&["off", "five-minutes", "hour"]),
            "\"five-minutes\"",
            "How long the provider is asked to remember prompts (Anthropic).",
        ),
        unset(
            "family",
            Kind::Text,
            "\"claude\"",
            "Models of one family understand each other's thoughts; each is one of its own where left out.",
        ),
        key(
            "plain_http",
            Kind::Flag,
            "false",
            "Lets `base_url` be plain HTTP to another machine.",
        ),
        unset(
            "fallback",
            Kind::Names,
            "[\"local\"]",
            "Models that are asked, in this order, when this one cannot answer.",
        ),
        unset(
            "price.input",
            Kind::Price,
            "3.00",
            "Input that no cache knew. A price has `input` and `output` at least.",
        ),
        unset("price.output", Kind::Price, "15.00", "Output, thinking included."),
        unset(
            "price.cache_read",
            Kind::Price,
            "0.30",
            "Input read from a cache; the price of input where left out.",
        ),
        unset(
            "price.cache_write",
            Kind::Price,
            "3.75",
            "Input written to a cache for five minutes; where left out the price of input, and a quarter more for Anthropic.",
        ),
        unset(
            "price.cache_write_hour",
            Kind::Price,
            "6.00",
            "Input written to a cache for an hour; where left out the price of input, and twice that for Anthropic.",
        ),
    ],
};
