//! Models over HTTP, against a provider that refuses what real ones refuse and fails when told to.

#![allow(clippy::unwrap_used, reason = "a test ends where something is amiss")]

mod conversations;
mod faults;
mod scripts;
mod secrets;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::{Author, Block, Message, MessageId, Role, Timestamp, ToolDefinition};
use llm::{CacheMarks, Format, Head, Opening, Reply, StreamEvent, Thinking};
use protocol::ToolChoice;
use providers::{Model, ModelError, ModelSettings, ModelStream, ProviderKind, Providers, RetryLimits, Timeouts};
use secret::Secret;
use serde_json::json;
use testkit::model_server::ModelServer;

/// The kinds of models that are asked over HTTP.
const KINDS: [ProviderKind; 3] = [ProviderKind::Anthropic, ProviderKind::Openai, ProviderKind::OpenaiChat];

/// No test waits for its own delays.
const AT_ONCE: RetryLimits = RetryLimits {
    retries: 2,
    first_delay: Duration::ZERO,
    longest_delay: Duration::from_secs(5),
};

fn at(server: &ModelServer, kind: ProviderKind) -> ModelSettings {
    ModelSettings {
        base_url: Some(server.base_url()),
        api_key: Some(Secret::new(server.key()).into()),
        model: Some("fake-1".to_owned()),
        ..ModelSettings::new(kind)
    }
}

fn model(name: &str, settings: ModelSettings) -> Model {
    Model::new(name, settings).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn providers(models: Vec<Model>) -> Providers {
    Providers::new(models, Timeouts::default(), AT_ONCE).unwrap()
}

/// One model, `m`, at this server.
fn only(server: &ModelServer, kind: ProviderKind) -> Providers {
    providers(vec![model("m", at(server, kind))])
}

fn tools() -> Vec<ToolDefinition> {
    vec![ToolDefinition {
        name: "read".to_owned(),
        description: "Reads a file.".to_owned(),
        input_schema: json!({"type": "object"}),
    }]
}

fn message(role: Role, author: &str, blocks: Vec<Block>) -> Message {
    Message {
        id: MessageId::new(),
        role,
        author: match role {
            Role::User => Author::ControlPlane,
            Role::Assistant => Author::Model {
                name: author.to_owned(),
            },
        },
        blocks,
        interrupted: false,
        at: Timestamp(0),
    }
}

fn prompt(text: &str) -> Message {
    message(Role::User, "", vec![Block::Text { text: text.to_owned() }])
}

fn body(providers: &Providers, model: &Model, messages: &[Message]) -> Bytes {
    let (name, cache) = (&model.provider_name, CacheMarks::FiveMinutes);
    let head = Head {
        opening: &Opening::new(model.format, name, "Be brief.", &tools(), cache),
        tool_choice: &ToolChoice::Auto,
        max_tokens: 1_000,
        chat_limit: model.chat_limit,
        thinking: Thinking::Default,
    };
    let encoded: Vec<Bytes> = messages
        .iter()
        .map(|message| providers.encode(model, message))
        .collect();
    llm::request_body(&head, encoded.iter().map(|bytes| &bytes[..]))
}

/// All that a model says to a prompt.
struct Heard {
    text: String,
    retries: Vec<String>,
    end: Result<Reply, ModelError>,
    partial: Option<Reply>,
}

async fn ask(providers: &Providers, name: &str, messages: &[Message]) -> Heard {
    testkit::within("the model's answer", async {
        let model = Arc::clone(providers.model(name).unwrap());
        let mut retries = Vec::new();
        let body = body(providers, &model, messages);
        match providers.stream(&model, body, |retry| retries.push(retry.reason)).await {
            Ok(stream) => Heard {
                retries,
                ..listen(stream).await
            },
            Err(error) => Heard {
                text: String::new(),
                retries,
                end: Err(error),
                partial: None,
            },
        }
    })
    .await
}

async fn listen(mut stream: ModelStream) -> Heard {
    let mut text = String::new();
    let end = loop {
        match stream.next().await {
            Ok(Some(StreamEvent::Text(more))) => text.push_str(&more),
            Ok(Some(StreamEvent::Done(reply))) => break Ok(reply),
            Ok(Some(StreamEvent::Thinking(_) | StreamEvent::ToolCallStarted { .. } | StreamEvent::Unshown(_))) => {}
            Ok(None) => panic!("the stream ended without a word"),
            Err(error) => break Err(error),
        }
    };
    assert!(stream.next().await.unwrap().is_none(), "nothing follows the end");
    Heard {
        text,
        retries: Vec::new(),
        end,
        partial: Some(stream.partial()),
    }
}

fn of_format(format: Format) -> ProviderKind {
    match format {
        Format::AnthropicMessages => ProviderKind::Anthropic,
        Format::OpenaiResponses => ProviderKind::Openai,
        Format::OpenaiChat => ProviderKind::OpenaiChat,
    }
}
