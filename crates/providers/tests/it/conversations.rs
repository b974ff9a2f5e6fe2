//! Conversations that real providers would accept.

use domain::{Block, Image, ResultPart, Role, ToolCallId, ToolResult, Usage};
use llm::{ChatLimit, Format};
use protocol::StopReason;
use providers::ProviderKind;
use serde_json::json;
use testkit::model_server::{Answer, ModelServer, Speech};

use crate::{ask, at, message, model, of_format, only, prompt, providers};

/// A long tool loop with thoughts, parallel calls and pictures: each request is one that the provider accepts, and begins
/// as the one before.
#[tokio::test]
async fn a_long_conversation_is_accepted_in_every_format() {
    for format in Format::ALL {
        let server = ModelServer::start().await;
        let providers = only(&server, of_format(format));
        let mut messages = vec![prompt("Look at everything.")];
        for turn in 0..6 {
            let thought = Speech {
                thinking: Some(format!("thought {turn}")),
                cached: 100,
                ..Speech::text("I look at it.")
            };
            let speech = thought
                .call(&format!("call_{turn}_a"), "read", &json!({"path": "a"}))
                .call(&format!("call_{turn}_b"), "read", &json!({"path": "b"}));
            server.next(Answer::Say(speech));
            let heard = ask(&providers, "m", &messages).await;
            let reply = heard.end.unwrap();
            assert_eq!(heard.text, "I look at it.");
            assert_eq!(reply.stop, StopReason::ToolUse);
            assert_eq!(
                reply.usage,
                Usage {
                    input: 10,
                    cache_read: 100,
                    output: 5,
                    ..Usage::default()
                }
            );
            let results = reply.blocks.iter().filter_map(|block| match block {
                Block::ToolUse(call) => Some(Block::ToolResult(ToolResult {
                    id: call.id.clone(),
                    content: vec![
                        ResultPart::Text {
                            text: "found".to_owned(),
                        },
                        ResultPart::Image(Image {
                            media_type: "image/png".to_owned(),
                            data: "iVBORw0KGgo=".to_owned(),
                        }),
                    ],
                    is_error: turn == 3,
                })),
                _ => None,
            });
            let results = results.collect();
            messages.push(message(Role::Assistant, "m", reply.blocks));
            messages.push(message(Role::User, "", results));
            if turn == 4 {
                messages.push(prompt("And hurry."));
            }
        }
        let heard = ask(&providers, "m", &messages).await;
        assert_eq!(heard.end.unwrap().stop, StopReason::EndTurn);
        server.assert_nothing_refused();
        let sent: Vec<String> = server
            .received()
            .iter()
            .map(|received| String::from_utf8(received.bytes.to_vec()).unwrap())
            .collect();
        assert_eq!(sent.len(), 7);
        for pair in sent.windows(2) {
            let [before, after] =
                [&pair[0], &pair[1]].map(|body| body.replace(r#","cache_control":{"type":"ephemeral"}"#, ""));
            let end = before.rfind("],\"max_").unwrap();
            assert!(after.starts_with(&before[..end]), "{format:?}: {before}\n{after}");
        }
        // Thoughts go back as they came, with what proves that they are the model's.
        let proof = match format {
            Format::AnthropicMessages => "c2lnbmVk",
            Format::OpenaiResponses => "c2VhbGVk",
            Format::OpenaiChat => "thought 0",
        };
        assert!(
            sent[6].contains("thought 0") && sent[6].contains(proof),
            "{format:?}: {}",
            sent[6]
        );
    }
}

/// Another model goes on with a conversation: what it is sent holds no thought of the first.
#[tokio::test]
async fn a_fallback_of_another_format_goes_on_without_foreign_thoughts() {
    let server = ModelServer::start().await;
    for first in Format::ALL {
        for second in Format::ALL {
            let mut one = at(&server, of_format(first));
            one.fallback = vec!["two".to_owned()];
            let mut two = at(&server, of_format(second));
            two.model = Some("fake-2".to_owned());
            let providers = providers(vec![model("one", one), model("two", two)]);
            let mut messages = vec![prompt("Go.")];
            let speech = Speech {
                thinking: Some("a private thought".to_owned()),
                ..Speech::text("So.")
            };
            server.next(Answer::Say(speech.call("call:1", "read", &json!({}))));
            let reply = ask(&providers, "one", &messages).await.end.unwrap();
            messages.push(message(Role::Assistant, "one", reply.blocks));
            messages.push(message(
                Role::User,
                "",
                vec![Block::ToolResult(ToolResult::text(
                    ToolCallId("call:1".to_owned()),
                    "x",
                ))],
            ));
            let mut heard = None;
            server.next(Answer::status(400));
            for model in providers.chain("one").unwrap() {
                let attempt = ask(&providers, &model.name, &messages).await;
                match &attempt.end {
                    Err(error) if error.next_model_may_help() => {}
                    _ => {
                        heard = Some((model.name.clone(), attempt.end.unwrap()));
                        break;
                    }
                }
            }
            assert_eq!(heard.unwrap().0, "two");
            let last = server.received().pop().unwrap();
            let sent = String::from_utf8(last.bytes.to_vec()).unwrap();
            assert!(
                !sent.contains("private thought") && !sent.contains("c2lnbmVk") && !sent.contains("c2VhbGVk"),
                "{sent}"
            );
        }
    }
    server.assert_nothing_refused();
}

/// What one kind of server takes the other refuses, so each must be asked in its own way.
#[tokio::test]
async fn both_kinds_of_chat_servers_accept_what_they_are_sent() {
    for (limit, is_openai) in [(ChatLimit::MaxTokens, false), (ChatLimit::MaxCompletionTokens, true)] {
        let server = ModelServer::start().await;
        if is_openai {
            server.act_as_openai();
        }
        for told in [ChatLimit::MaxTokens, ChatLimit::MaxCompletionTokens] {
            let mut model = model("m", at(&server, ProviderKind::OpenaiChat));
            // Its address says otherwise: no packet leaves this machine.
            model.chat_limit = told;
            let heard = ask(&providers(vec![model]), "m", &[prompt("Go.")]).await;
            assert_eq!(heard.end.is_ok(), told == limit, "{told:?} to {limit:?}");
        }
    }
}

/// The fake provider is worth something only if it refuses.
#[tokio::test]
async fn a_call_without_a_result_is_refused_by_every_provider() {
    let server = ModelServer::start().await;
    for format in Format::ALL {
        let providers = only(&server, of_format(format));
        let call = domain::ToolCall {
            id: ToolCallId("c1".to_owned()),
            name: "read".to_owned(),
            input: json!({}),
        };
        let messages = [
            prompt("Go."),
            message(Role::Assistant, "m", vec![Block::ToolUse(call)]),
            prompt("And?"),
        ];
        let error = ask(&providers, "m", &messages).await.end.unwrap_err();
        assert!(error.to_string().contains("refused the request (400)"), "{error}");
    }
}
