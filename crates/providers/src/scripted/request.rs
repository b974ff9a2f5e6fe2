//! What a script wants to know of a request.

use std::fmt;

use llm::Format;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A request as a script sees it.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    /// Counts the model's answers since the last words of a person, this one included.
    pub(super) turn: u32,
    /// The last words of a person.
    pub(super) prompt: String,
    /// The texts of the last results, in the order of the calls.
    pub(super) results: Vec<String>,
    pub(super) max_tokens: u64,
    /// Bytes of the request.
    pub(super) length: usize,
}

/// An entry of a conversation, in whatever language.
enum Entry {
    Person(String),
    Model,
    Results(Vec<String>),
}

#[derive(Deserialize)]
struct Body {
    #[serde(alias = "max_completion_tokens", alias = "max_output_tokens")]
    max_tokens: u64,
    /// Of the Responses format: `input`.
    #[serde(alias = "input", deserialize_with = "messages")]
    messages: Vec<Message>,
}

/// A message, or an item of the Responses format.
#[derive(Default, Deserialize)]
struct Message {
    #[serde(default)]
    role: String,
    #[serde(default)]
    r#type: String,
    #[serde(default, deserialize_with = "parts")]
    content: Vec<Part>,
    #[serde(default)]
    output: Option<Value>,
}

#[derive(Default, Deserialize)]
struct Part {
    r#type: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    content: Option<Value>,
}

impl Request {
    pub(super) fn parse(body: &[u8], format: Format) -> Result<Self, String> {
        let length = body.len();
        let body: Body =
            serde_json::from_slice(body).map_err(|error| format!("the request cannot be read: {error}"))?;
        let entries: Vec<Entry> = match format {
            Format::AnthropicMessages => body.messages.iter().flat_map(anthropic).collect(),
            Format::OpenaiChat => body.messages.iter().filter_map(chat).collect(),
            Format::OpenaiResponses => body.messages.iter().filter_map(responses).collect(),
        };
        let prompt = entries.iter().rposition(|entry| matches!(entry, Entry::Person(_)));
        let since = prompt.map_or(0, |place| place + 1);
        // Words and calls of one answer may be entries of their own.
        let answers = (since..entries.len()).filter(|place| {
            let is_model = |place: usize| matches!(entries.get(place), Some(Entry::Model));
            is_model(*place) && (format != Format::OpenaiResponses || !is_model(*place + 1))
        });
        let turn = u32::try_from(answers.count()).unwrap_or(u32::MAX).saturating_add(1);
        Ok(Self {
            turn,
            prompt: match prompt.map(|place| &entries[place]) {
                Some(Entry::Person(words)) => words.clone(),
                _ => String::new(),
            },
            results: last_results(&entries),
            max_tokens: body.max_tokens,
            length,
        })
    }
}

/// The results that stand together, and last.
fn last_results(entries: &[Entry]) -> Vec<String> {
    let is_results = |entry: &&Entry| matches!(entry, Entry::Results(_));
    let mut last: Vec<&Entry> = entries
        .iter()
        .rev()
        .skip_while(|entry| !is_results(entry))
        .take_while(is_results)
        .collect();
    last.reverse();
    let results = last.into_iter().filter_map(|entry| match entry {
        Entry::Results(results) => Some(results.iter().cloned()),
        Entry::Person(_) | Entry::Model => None,
    });
    results.flatten().collect()
}

fn anthropic(message: &Message) -> Vec<Entry> {
    if message.role == "assistant" {
        return vec![Entry::Model];
    }
    let results = message.content.iter().filter(|part| part.r#type == "tool_result");
    let results: Vec<String> = results.map(|part| told(part.content.as_ref())).collect();
    let mut entries = Vec::new();
    if !results.is_empty() {
        entries.push(Entry::Results(results));
    }
    if message.content.iter().any(|part| part.r#type == "text") {
        entries.push(Entry::Person(words(&message.content)));
    }
    entries
}

fn chat(message: &Message) -> Option<Entry> {
    match message.role.as_str() {
        "user" => Some(Entry::Person(words(&message.content))),
        "assistant" => Some(Entry::Model),
        "tool" => Some(Entry::Results(vec![words(&message.content)])),
        _ => None,
    }
}

fn responses(item: &Message) -> Option<Entry> {
    match (item.r#type.as_str(), item.role.as_str()) {
        ("message" | "", "user") => Some(Entry::Person(words(&item.content))),
        ("message" | "", "system" | "developer") | ("additional_tools", _) => None,
        (kind, _) if kind.ends_with("_output") => Some(Entry::Results(vec![told(item.output.as_ref())])),
        _ => Some(Entry::Model),
    }
}

fn words(parts: &[Part]) -> String {
    let texts: Vec<&str> = parts
        .iter()
        .filter(|part| matches!(part.r#type.as_str(), "text" | "input_text" | "output_text"))
        .map(|part| part.text.as_str())
        .collect();
    texts.join("\n")
}

/// The words of a result: a text, or a list of parts.
fn told(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        content => {
            let parts = content.and_then(Value::as_array).into_iter().flatten();
            let texts: Vec<&str> = parts.filter_map(|part| part.get("text")?.as_str()).collect();
            texts.join("\n")
        }
    }
}

/// A list, where a text alone stands for a list of one.
struct OrText<T>(fn(String) -> T);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OrText<T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list or a text")
    }

    fn visit_unit<E>(self) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_str<E>(self, text: &str) -> Result<Vec<T>, E> {
        Ok(vec![(self.0)(text.to_owned())])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(list)
    }
}

fn text_part(text: String) -> Part {
    Part {
        r#type: "text".to_owned(),
        text,
        content: None,
    }
}

fn parts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Part>, D::Error> {
    deserializer.deserialize_any(OrText(text_part))
}

fn messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Message>, D::Error> {
    let message = |text| Message {
        role: "user".to_owned(),
        content: vec![text_part(text)],
        ..Message::default()
    };
    deserializer.deserialize_any(OrText(message))
}
