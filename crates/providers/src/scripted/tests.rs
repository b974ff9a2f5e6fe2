use llm::{CacheMarks, ChatLimit, Decoder, Format, Head, Opening, Reply, StreamEvent, Thinking};
use protocol::ToolChoice;
use serde_json::{Value, json};

use super::*;

fn body(messages: &[Value], max_tokens: u64) -> Vec<u8> {
    let head = Head {
        opening: &Opening::new(Format::AnthropicMessages, "m", "", &[], CacheMarks::FiveMinutes),
        tool_choice: &ToolChoice::Auto,
        max_tokens,
        chat_limit: ChatLimit::MaxTokens,
        thinking: Thinking::Default,
    };
    let messages: Vec<Vec<u8>> = messages
        .iter()
        .map(|message| message.to_string().into_bytes())
        .collect();
    llm::request_body(&head, messages.iter().map(Vec::as_slice)).to_vec()
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": [{"type": "text", "text": text}]})
}

fn exchange(results: &[&str]) -> [Value; 2] {
    let calls: Vec<Value> = (0..results.len())
        .map(|call| json!({"type": "tool_use", "id": format!("c{call}"), "name": "exec", "input": {}}))
        .collect();
    let results: Vec<Value> = results
        .iter()
        .enumerate()
        .map(|(call, text)| {
            json!({"type": "tool_result", "tool_use_id": format!("c{call}"), "content": [{"type": "text", "text": text}]})
        })
        .collect();
    [
        json!({"role": "assistant", "content": calls}),
        json!({"role": "user", "content": results}),
    ]
}

async fn hear(script: &Script, body: &[u8]) -> Result<Reply, String> {
    let mut answer = script.play(body, Format::AnthropicMessages, true)?;
    let mut decoder = Decoder::new(Format::AnthropicMessages);
    let mut events = Vec::new();
    while let Some(piece) = answer.body.piece().await.unwrap() {
        decoder.feed(&piece, &mut events).map_err(|error| error.to_string())?;
    }
    decoder.end(&mut events).map_err(|error| error.to_string())?;
    match events.pop() {
        Some(StreamEvent::Done(reply)) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

fn said(reply: &Reply) -> String {
    serde_json::to_string(&reply.blocks).unwrap()
}

#[tokio::test]
async fn steps_are_found_by_turn_and_text() {
    let script = Script::parse(
        "steps:\n- when: { turn: 1, text: Weather }\n  tools: [{ name: exec, input: { code: '1' } }]\n- when: { turn: 2, text: weather }\n  text: second\n- when: { text: again }\n  text: always\n",
    )
    .unwrap();
    let first = hear(&script, &body(&[user("the WEATHER today")], 100)).await.unwrap();
    assert!(
        said(&first).contains(r#""name":"exec","input":{"code":"1"}"#),
        "{}",
        said(&first)
    );
    let [call, result] = exchange(&["42"]);
    let second = [user("weather"), call.clone(), result.clone()];
    assert!(said(&hear(&script, &body(&second, 100)).await.unwrap()).contains("second"));
    // A new prompt begins at turn 1, and a step with only a text is played at every turn.
    let third = [user("weather"), call.clone(), result.clone(), user("again")];
    assert!(said(&hear(&script, &body(&third, 100)).await.unwrap()).contains("always"));
    let fourth = [user("again"), call, result];
    assert!(said(&hear(&script, &body(&fourth, 100)).await.unwrap()).contains("always"));
    let error = hear(&script, &body(&[user("else")], 100)).await.unwrap_err();
    assert_eq!(error, r#"no step of the script is for turn 1 of the prompt "else""#);
}

#[tokio::test]
async fn values_come_out_of_the_last_results() {
    let script = Script::parse(
        r#"
steps:
- text: "Mean {{ result.0.json.stats.mean | fixed 2 }} of {{result.0.json.list.1}} in {{ result.1.text }}; you said {{ prompt }}."
  tools:
  - name: exec
    input: { whole: "{{ result.0.json.stats }}", part: ["is {{ result.0.json.stats.mean }}"] }
"#,
    )
    .unwrap();
    let results = [
        "starting…\n{\"stats\":{\"mean\":12.3456},\"list\":[1,\"two\"]}\nbye",
        "a file",
    ];
    let [call, result] = exchange(&results);
    let reply = hear(&script, &body(&[user("go"), call, result], 1_000)).await.unwrap();
    let said = said(&reply);
    assert!(said.contains("Mean 12.35 of two in a file; you said go."), "{said}");
    assert!(
        said.contains(r#""input":{"part":["is 12.3456"],"whole":{"mean":12.3456}}"#),
        "{said}"
    );
}

#[tokio::test]
async fn a_missing_value_is_said_in_words() {
    let cases = [
        (
            "{{ result.0.json.mean }}",
            r#"step 1 of the script: {{ result.0.json.mean }} has no value: there is no "mean" in {"sum":1}"#,
        ),
        (
            "{{ result.2.text }}",
            r#"step 1 of the script: {{ result.2.text }} has no value: there is no result "2": there are 2, counted from 0"#,
        ),
        (
            "{{ result.1.json }}",
            r#"step 1 of the script: {{ result.1.json }} has no value: the result is no JSON: "no""#,
        ),
        (
            "{{ result.0.json.sum | euro }}",
            r#"step 1 of the script: {{ result.0.json.sum | euro }}: there is no format "euro"; there is: fixed 0 … fixed 20"#,
        ),
        (
            "{{ result.1.text | fixed 1 }}",
            r#"step 1 of the script: {{ result.1.text | fixed 1 }}: "no" is no number"#,
        ),
        (
            "{{ mean }}",
            "step 1 of the script: {{ mean }} has no value: a path is prompt, turn, result.0.text or result.0.json.some.key",
        ),
        ("{{ prompt", r#"step 1 of the script: a {{ has no }}: "{{ prompt""#),
    ];
    let [call, result] = exchange(&[r#"{"sum":1}"#, "no"]);
    let body = body(&[user("go"), call, result], 100);
    for (template, expected) in cases {
        let script = Script::parse(&format!("steps: [{{ text: '{template}' }}]")).unwrap();
        assert_eq!(hear(&script, &body).await.unwrap_err(), expected);
    }
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    for (text, expected) in [
        ("steps:\n- text: a\n- txt: b\n", "line 3"),
        ("steps:\n- text: a\n  when: { turns: 1 }\n", "line 3"),
        ("steps:\n- text: a\n  fault: { cut: 1 }\n", "line 3"),
        ("stages: []\n", "line 1"),
        ("steps: []\n", "no steps"),
        ("steps:\n- text: a\n- when: { turn: 1 }\n", "step 2: it says nothing"),
        ("steps:\n- text: a\n  when: { turn: 0 }\n", "counted from 1"),
        ("steps:\n- fault: { status: 200 }\n", "400 to 599"),
    ] {
        let problem = Script::parse(text).unwrap_err();
        assert!(problem.contains(expected), "{text}: {problem}");
    }
}

#[tokio::test]
async fn a_script_says_no_more_than_it_may() {
    let script = Script::parse(
        "steps: [{ text: 'a long answer that goes on and on', tools: [{ name: exec }], usage: { output: 50 } }]",
    )
    .unwrap();
    let reply = hear(&script, &body(&[user("go")], 5)).await.unwrap();
    assert_eq!(reply.usage.output, 5);
    assert_eq!(reply.stop, protocol::StopReason::MaxTokens);
    assert_eq!(said(&reply), r#"[{"type":"text","text":"a long answer t"}]"#);
}

#[tokio::test]
async fn faults_strike_as_often_as_they_say() {
    let script = Script::parse("steps: [{ text: fine, fault: { status: 529, times: 2, retry_after: 3 } }]").unwrap();
    let body = body(&[user("go")], 100);
    for status in [529, 529, 200, 200] {
        let answer = script.play(&body, Format::AnthropicMessages, true).unwrap();
        assert_eq!(answer.status, status);
        assert_eq!(answer.retry_after.is_some(), status == 529);
    }
    for (fault, expected) in [
        ("cut_after: 400", "the stream ended before the reply was complete"),
        (
            "malformed: true",
            "an event \"content_block_start\" of the stream is JSON that ends too early at byte 9",
        ),
    ] {
        let script = Script::parse(&format!("steps: [{{ text: fine, fault: {{ {fault} }} }}]")).unwrap();
        assert_eq!(hear(&script, &body).await.unwrap_err(), expected);
        assert!(
            said(&hear(&script, &body).await.unwrap()).contains("fine"),
            "struck once"
        );
    }
    let script = Script::parse("steps: [{ text: fine, fault: { no_usage: true } }]").unwrap();
    assert_eq!(hear(&script, &body).await.unwrap().counted, llm::Counted::ByUs);
}

#[test]
fn the_examples_of_the_documentation_are_scripts() {
    let page = include_str!("../../../../docs/scripted.md");
    let examples: Vec<&str> = page
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        Script::parse(example).unwrap_or_else(|problem| panic!("{problem}\n{example}"));
    }
}

/// Words of a person, in three languages.
fn asked(format: Format, streams: bool) -> Vec<u8> {
    let key = match format {
        Format::OpenaiResponses => "input",
        Format::AnthropicMessages | Format::OpenaiChat => "messages",
    };
    json!({key: [{"role": "user", "content": "go"}], "max_tokens": 500, "stream": streams})
        .to_string()
        .into_bytes()
}

#[tokio::test]
async fn a_script_says_the_same_in_three_languages_at_once_and_as_a_stream() {
    let script = Script::parse(
        "steps:\n- thinking: Hm.\n  text: Here you are, my friend.\n  piece: 7\n  tools:\n  - { name: exec, input: { code: '1' } }\n\
         \x20 usage: { input: 70, cache_read: 20, cache_write: 10, output: 9, thinking: 2 }\n",
    )
    .unwrap();
    for format in Format::ALL {
        let mut answer = script.play(&asked(format, true), format, true).unwrap();
        let mut decoder = Decoder::new(format);
        let mut events = Vec::new();
        while let Some(piece) = answer.body.piece().await.unwrap() {
            decoder.feed(&piece, &mut events).unwrap();
        }
        let Some(StreamEvent::Done(reply)) = events.pop() else {
            panic!("{format:?}: {events:?}");
        };
        let words = said(&reply);
        for part in ["Hm.", "Here you are, my friend.", "exec", r#""code":"1""#] {
            assert!(words.contains(part), "{format:?}: {words}");
        }
        let usage = reply.usage;
        assert_eq!(
            (usage.input, usage.cache_read, usage.cache_write),
            (70, 20, 10),
            "{format:?}"
        );
        assert_eq!((usage.output, usage.thinking), (9, 2), "{format:?}");
        let mut answer = script.play(&asked(format, false), format, false).unwrap();
        let whole = answer.body.piece().await.unwrap().unwrap();
        let told = llm::whole_reply(format, &whole);
        assert_eq!(
            (told.usage, told.counted),
            (usage, llm::Counted::ByProvider),
            "{format:?}"
        );
        assert!(String::from_utf8_lossy(&whole).contains("my friend."), "{format:?}");
    }
}

#[test]
fn turns_and_results_are_read_in_three_languages() {
    let conversations = [
        (
            Format::AnthropicMessages,
            json!({"max_tokens": 9, "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "x", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "one"},
                                             {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "two"}]}]},
            ]}),
        ),
        (
            Format::OpenaiChat,
            json!({"max_completion_tokens": 9, "messages": [
                {"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "go"}]},
                {"role": "assistant", "content": null, "tool_calls": []},
                {"role": "tool", "tool_call_id": "a", "content": "one"}, {"role": "tool", "tool_call_id": "b", "content": "two"},
            ]}),
        ),
        (
            Format::OpenaiResponses,
            json!({"max_output_tokens": 9, "input": [
                {"role": "developer", "content": "be"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
                {"type": "reasoning", "summary": []}, {"type": "function_call", "call_id": "a"}, {"type": "function_call", "call_id": "b"},
                {"type": "function_call_output", "call_id": "a", "output": "one"},
                {"type": "function_call_output", "call_id": "b", "output": "two"},
            ]}),
        ),
    ];
    for (format, body) in conversations {
        let request = super::request::Request::parse(body.to_string().as_bytes(), format).unwrap();
        assert_eq!(
            (request.turn, request.prompt.as_str(), request.max_tokens),
            (2, "go", 9),
            "{format:?}"
        );
        assert_eq!(request.results, ["one", "two"], "{format:?}");
    }
}
