//! What requests carry.

use domain::{Author, Block, Message, MessageId, Role, Timestamp, ToolCall, ToolCallId, ToolDefinition, ToolResult};
use llm::{CacheMarks, ChatLimit, Effort, Format, Head, Opening, Thinking, Thoughts, encode_message, request_body};
use protocol::ToolChoice;
use serde_json::{Value, json};

use crate::golden::{assert_golden, files, folder};

pub(crate) fn message(role: Role, blocks: Vec<Block>) -> Message {
    Message {
        id: MessageId::new(),
        role,
        author: Author::ControlPlane,
        blocks,
        interrupted: false,
        at: Timestamp(0),
    }
}

pub(crate) fn text(text: &str) -> Block {
    Block::Text { text: text.to_owned() }
}

fn tools() -> Vec<ToolDefinition> {
    vec![
        ToolDefinition {
            name: "read".to_owned(),
            description: "Reads a file.".to_owned(),
            input_schema: json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}),
        },
        ToolDefinition {
            name: "exec".to_owned(),
            description: "Runs JavaScript.".to_owned(),
            input_schema: json!({"type": "object"}),
        },
    ]
}

fn opening(format: Format, cache: CacheMarks) -> Opening {
    Opening::new(format, "some-model", "You work in a jar.\nBe brief.", &tools(), cache)
}

fn head<'a>(opening: &'a Opening, tool_choice: &'a ToolChoice) -> Head<'a> {
    Head {
        opening,
        tool_choice,
        max_tokens: 4_096,
        chat_limit: ChatLimit::MaxTokens,
        thinking: Thinking::Effort(Effort::Medium),
    }
}

/// Each kind of server: its format, and how it is told the most that may be said.
const SERVERS: [(Format, ChatLimit); 4] = [
    (Format::AnthropicMessages, ChatLimit::MaxTokens),
    (Format::OpenaiResponses, ChatLimit::MaxTokens),
    (Format::OpenaiChat, ChatLimit::MaxTokens),
    (Format::OpenaiChat, ChatLimit::MaxCompletionTokens),
];

/// Each golden conversation, message by message and as a request, in each format.
#[test]
fn conversations_are_encoded_as_their_golden_files_say() {
    for file in files("messages", "json") {
        let case = file.file_stem().unwrap().to_str().unwrap();
        let source = std::fs::read_to_string(&file).unwrap();
        let messages: Vec<Value> = serde_json::from_str(&source).unwrap();
        for format in Format::ALL {
            let encoded: Vec<_> = messages
                .iter()
                .filter(|entry| entry["for"].is_null() || entry["for"] == format.as_str())
                .map(|entry| {
                    let role = serde_json::from_value(entry["role"].clone()).unwrap();
                    let blocks = serde_json::from_value(entry["blocks"].clone()).unwrap();
                    encode_message(format, Thoughts::Keep, &message(role, blocks))
                })
                .collect();
            let mut golden: String = encoded
                .iter()
                .map(|bytes| format!("{}\n", std::str::from_utf8(bytes).unwrap()))
                .collect();
            let body = request_body(
                &head(&opening(format, CacheMarks::FiveMinutes), &ToolChoice::Auto),
                encoded.iter().map(|bytes| &bytes[..]),
            );
            let body: Value = serde_json::from_slice(&body).expect("a request is JSON");
            golden.push_str(&serde_json::to_string_pretty(&body).unwrap());
            golden.push('\n');
            assert_golden(
                &folder()
                    .join("encode")
                    .join(format.as_str())
                    .join(format!("{case}.txt")),
                &golden,
            );
        }
    }
}

#[test]
fn what_was_sent_once_is_sent_again_byte_for_byte() {
    for (format, chat_limit) in SERVERS {
        let mut history = Vec::new();
        let mut before: Option<Vec<u8>> = None;
        for turn in 0..50 {
            let id = ToolCallId(format!("call_{turn}"));
            let exchange = if turn == 0 {
                vec![message(Role::User, vec![text("begin")])]
            } else {
                let call = ToolCall {
                    id: id.clone(),
                    name: "read".to_owned(),
                    input: json!({"path": turn.to_string()}),
                };
                vec![
                    message(Role::Assistant, vec![text("I look."), Block::ToolUse(call)]),
                    message(Role::User, vec![Block::ToolResult(ToolResult::text(id, "found"))]),
                ]
            };
            history.extend(
                exchange
                    .iter()
                    .map(|message| encode_message(format, Thoughts::Keep, message)),
            );
            let (plain, marked) = (opening(format, CacheMarks::Off), opening(format, CacheMarks::Hour));
            let head = Head {
                max_tokens: 4_096 - turn,
                chat_limit,
                ..head(&plain, &ToolChoice::Auto)
            };
            let body = request_body(&head, history.iter().map(|bytes| &bytes[..]));
            let marked = Head {
                opening: &marked,
                ..head
            };
            let marked = request_body(&marked, history.iter().map(|bytes| &bytes[..]));
            let marked = String::from_utf8(marked.to_vec()).unwrap();
            let mark = r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#;
            assert!(marked.matches("cache_control").count() <= 3, "{marked}");
            assert_eq!(
                marked.replace(mark, "").as_bytes(),
                &body[..],
                "{format:?} turn {turn}: marks only add"
            );
            // Everything up to the list's end is the next request's beginning.
            let end = body.windows(2).rposition(|pair| pair == b"],").unwrap();
            let end = body[..end].to_vec();
            if let Some(before) = before.replace(messages_part(&body)) {
                assert!(body.starts_with(&before), "{format:?} turn {turn}");
                assert!(before.len() <= end.len());
            }
        }
    }
}

/// The body up to the end of its last message.
fn messages_part(body: &[u8]) -> Vec<u8> {
    let tail = [
        &b"],\"max_tokens\""[..],
        b"],\"max_output_tokens\"",
        b"],\"max_completion_tokens\"",
    ];
    let end = tail
        .iter()
        .find_map(|tail| body.windows(tail.len()).rposition(|window| window == *tail));
    body[..end.unwrap()].to_vec()
}

#[test]
fn thoughts_are_dropped_when_another_family_reads_them() {
    let signed = Block::Thinking {
        text: "secret thought".to_owned(),
        signature: Some("sig".to_owned()),
        item: None,
    };
    let item = Block::Thinking {
        text: String::new(),
        signature: None,
        item: Some(json!({"type": "reasoning", "id": "rs_1"})),
    };
    let message = message(Role::Assistant, vec![signed, item, text("answer")]);
    for format in Format::ALL {
        let bytes = encode_message(format, Thoughts::Drop, &message);
        let json = std::str::from_utf8(&bytes).unwrap();
        assert!(json.contains("answer"), "{json}");
        assert!(
            !json.contains("thought") && !json.contains("rs_1") && !json.contains("sig"),
            "{json}"
        );
    }
}

#[test]
fn what_providers_refuse_is_not_sent() {
    let empty = message(
        Role::Assistant,
        vec![
            text(" \n"),
            Block::Thinking {
                text: "cut".to_owned(),
                signature: Some("s".to_owned()),
                item: None,
            },
        ],
    );
    let call = ToolCall {
        id: ToolCallId("functions.read:0".to_owned()),
        name: "no such tool!".to_owned(),
        input: Value::String("{\"pa".to_owned()),
    };
    let wrong = message(Role::Assistant, vec![Block::ToolUse(call)]);
    for format in Format::ALL {
        assert!(encode_message(format, Thoughts::Keep, &empty).is_empty());
        let bytes = encode_message(format, Thoughts::Keep, &wrong);
        let json = std::str::from_utf8(&bytes).unwrap();
        assert!(
            json.contains("functions_read_0") && json.contains("no_such_tool_") && json.contains("malformed_arguments"),
            "{json}"
        );
    }
}

#[test]
fn settings_go_behind_the_messages() {
    let bodies: Vec<Value> = SERVERS
        .into_iter()
        .flat_map(|(format, chat_limit)| {
            let usual = opening(format, CacheMarks::FiveMinutes);
            let bare = Opening::new(format, "some-model", "", &[], CacheMarks::Off);
            [
                Head {
                    thinking: Thinking::Budget(10_000),
                    ..head(&usual, &ToolChoice::Auto)
                },
                Head {
                    thinking: Thinking::Budget(10_000),
                    max_tokens: 500,
                    ..head(&usual, &ToolChoice::None)
                },
                Head {
                    thinking: Thinking::Off,
                    ..head(&usual, &ToolChoice::Auto)
                },
                head(&usual, &ToolChoice::Required),
                head(&bare, &ToolChoice::Required),
            ]
            .map(|head| Head { chat_limit, ..head })
            .map(|head| serde_json::from_slice(&request_body(&head, [&b"{}"[..], b""])).unwrap())
        })
        .collect();
    assert_golden(
        &folder().join("settings.json"),
        &format!("{}\n", serde_json::to_string_pretty(&bodies).unwrap()),
    );
}
