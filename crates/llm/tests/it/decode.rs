//! Streams, whole and in pieces.

use llm::{DecodeError, Decoder, Format, Reply, StreamEvent, Written};
use serde_json::{Value, json};

use crate::golden::{assert_golden, files};

/// All that a stream says, and how it ends.
pub(crate) struct Heard {
    pub(crate) events: Vec<StreamEvent>,
    pub(crate) end: Result<(), DecodeError>,
    pub(crate) partial: Reply,
}

pub(crate) fn hear<'p>(format: Format, pieces: impl IntoIterator<Item = &'p [u8]>) -> Heard {
    let mut decoder = Decoder::new(format);
    let mut events = Vec::new();
    let fed = pieces
        .into_iter()
        .try_for_each(|piece| decoder.feed(piece, &mut events));
    let end = fed.and_then(|()| decoder.end(&mut events));
    Heard {
        events,
        end,
        partial: decoder.partial(),
    }
}

fn reply_json(reply: &Reply) -> Value {
    json!({
        "blocks": reply.blocks,
        "stop": reply.stop,
        "usage": reply.usage,
        "counted": format!("{:?}", reply.counted),
    })
}

fn heard_json(heard: &Heard) -> Value {
    let events: Vec<Value> = heard
        .events
        .iter()
        .map(|event| match event {
            StreamEvent::Text(text) => json!({"text": text}),
            StreamEvent::Thinking(text) => json!({"thinking": text}),
            StreamEvent::ToolCallStarted { id, name } => json!({"started": [id, name]}),
            StreamEvent::Unshown(written) => json!({"unshown": written.tokens()}),
            StreamEvent::Done(reply) => json!({"done": reply_json(reply)}),
        })
        .collect();
    match &heard.end {
        Ok(()) => json!({"events": events}),
        Err(error) => json!({"events": events, "error": error.to_string(), "partial": reply_json(&heard.partial)}),
    }
}

#[test]
fn streams_are_read_as_their_golden_files_say() {
    for format in Format::ALL {
        for file in files(&format!("decode/{}", format.as_str()), "sse") {
            let stream = std::fs::read(&file).unwrap();
            let found = heard_json(&hear(format, [&stream[..]]));
            assert_golden(
                &file.with_extension("json"),
                &format!("{}\n", serde_json::to_string_pretty(&found).unwrap()),
            );
            let failed = file.file_stem().unwrap().to_str().unwrap().starts_with("error-");
            assert_eq!(found.get("error").is_some(), failed, "{}", file.display());
        }
    }
}

#[test]
fn pieces_may_end_anywhere() {
    for format in Format::ALL {
        for file in files(&format!("decode/{}", format.as_str()), "sse") {
            let stream = std::fs::read(&file).unwrap();
            let whole = heard_json(&hear(format, [&stream[..]]));
            for size in [1, 2, 3, 7, 64] {
                assert_eq!(
                    heard_json(&hear(format, stream.chunks(size))),
                    whole,
                    "{} by {size}",
                    file.display()
                );
            }
        }
    }
}

/// Wherever a stream is cut: no panic, no `Done` that was not said, and the texts are a beginning of the whole.
#[test]
fn a_stream_may_be_cut_anywhere() {
    for format in Format::ALL {
        for file in files(&format!("decode/{}", format.as_str()), "sse") {
            let stream = std::fs::read(&file).unwrap();
            let whole = hear(format, [&stream[..]]);
            for end in 0..stream.len() {
                let heard = hear(format, [&stream[..end]]);
                assert!(
                    heard.events.len() <= whole.events.len() + 1,
                    "{} cut at {end}",
                    file.display()
                );
                let done = matches!(heard.events.last(), Some(StreamEvent::Done(_)));
                assert_eq!(done, heard.end.is_ok(), "{} cut at {end}", file.display());
            }
        }
    }
}

/// Whatever is paid for a stream that is cut was told by its events first: whoever counts them is never behind.
#[test]
fn threat_128_all_that_is_written_is_told_as_it_comes() {
    for format in Format::ALL {
        for file in files(&format!("decode/{}", format.as_str()), "sse") {
            // What the provider itself tells is none of ours.
            let stream = std::fs::read_to_string(&file).unwrap();
            let stream = stream
                .replace("output_tokens\"", "x\"")
                .replace("completion_tokens\"", "x\"")
                .into_bytes();
            for end in 0..stream.len() {
                let heard = hear(format, [&stream[..end]]);
                let mut written = Written::default();
                for event in &heard.events {
                    match event {
                        StreamEvent::Text(words) | StreamEvent::Thinking(words) => written.add(words),
                        StreamEvent::ToolCallStarted { name, .. } => written += Written::call(name),
                        StreamEvent::Unshown(more) => written += *more,
                        StreamEvent::Done(_) => {}
                    }
                }
                let paid = heard.partial.usage.output;
                // Each name, each text and all arguments of a call are rounded up by themselves, by two thirds of a token at most.
                let started = |event: &&StreamEvent| matches!(event, StreamEvent::ToolCallStarted { .. });
                let calls = heard.events.iter().filter(started).count() as u64;
                let rounded = (4 * calls + 2 * heard.partial.blocks.len() as u64).div_ceil(3);
                assert!(
                    written.tokens() + rounded >= paid,
                    "{} cut at {end}: {} of {paid} tokens were told",
                    file.display(),
                    written.tokens()
                );
            }
        }
    }
}

/// The same call, told in each provider's own way, is counted the same: a cache write must not count twice.
#[test]
fn threat_132_each_token_is_counted_once() {
    let anthropic = r#"event: message_start
data: {"message":{"usage":{"input_tokens":3,"cache_creation_input_tokens":12304,"cache_read_input_tokens":0,"output_tokens":1}}}

event: message_delta
data: {"delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":3,"cache_creation_input_tokens":12304,"cache_read_input_tokens":0,"output_tokens":550}}

event: message_stop
data: {}

"#;
    let responses = r#"event: response.completed
data: {"response":{"usage":{"input_tokens":12307,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":12304},"output_tokens":550}}}

"#;
    let chat = r#"data: {"choices":[{"finish_reason":"stop"}]}

data: {"choices":[],"usage":{"prompt_tokens":12307,"prompt_tokens_details":{"cache_write_tokens":12304},"completion_tokens":550}}

data: [DONE]

"#;
    let price = domain::Price {
        input: 3_000,
        output: 15_000,
        cache_read: 300,
        cache_write: 3_750,
        cache_write_hour: 6_000,
    };
    for (format, stream) in [
        (Format::AnthropicMessages, anthropic),
        (Format::OpenaiResponses, responses),
        (Format::OpenaiChat, chat),
    ] {
        let heard = hear(format, [stream.as_bytes()]);
        let Some(StreamEvent::Done(reply)) = heard.events.last() else {
            panic!("{format:?}: {:?}", heard.end);
        };
        assert_eq!(
            price.of(&reply.usage).to_string(),
            "$0.054399",
            "{format:?}: {:?}",
            reply.usage
        );
    }
}

/// What a provider sends back in a malformed event is quoted nowhere.
#[test]
fn threat_138_a_malformed_event_is_not_quoted() {
    let stream = "event: content_block_stop\ndata: {\"index\":\"sk-ant-api03-secret\"}\n\n";
    let error = hear(Format::AnthropicMessages, [stream.as_bytes()]).end.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
}
