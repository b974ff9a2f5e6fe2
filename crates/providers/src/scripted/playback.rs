//! An answer of a script as a stream of bytes.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use domain::{MessageId, Usage};
use llm::Format;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::file::{Fault, Step};
use super::request::Request;
use super::template::{fill, fill_value};
use super::told;

/// How many letters of text our own count takes for a token: what a model may say is cut there.
const LETTERS: u64 = 3;
/// Longer than anybody waits.
const FOREVER: Duration = Duration::from_secs(86_400 * 365);

/// What a step says to a request, its templates filled.
pub(super) struct Speech {
    pub(super) thinking: String,
    pub(super) text: String,
    /// Id, name and arguments of each call.
    pub(super) calls: Vec<(String, String, String)>,
    pub(super) usage: Usage,
    /// Why it stops, as Anthropic says it.
    pub(super) stop: &'static str,
    pub(super) delay: Duration,
    pause: Duration,
    piece: usize,
}

impl Speech {
    pub(super) fn of(step: &Step, request: &Request) -> Result<Self, String> {
        let said = |text: &Option<String>| text.as_deref().map_or(Ok(String::new()), |text| fill(text, request));
        let mut calls = Vec::with_capacity(step.tools.len());
        for tool in &step.tools {
            let arguments = match &tool.raw {
                Some(raw) => raw.clone(),
                None => {
                    let input = tool
                        .input
                        .iter()
                        .map(|(key, value)| Ok::<_, String>((key.clone(), fill_value(value, request)?)));
                    Value::Object(input.collect::<Result<_, _>>()?).to_string()
                }
            };
            calls.push((format!("call_{}", MessageId::new()), tool.name.clone(), arguments));
        }
        let mut speech = Self {
            thinking: said(&step.thinking)?,
            text: said(&step.text)?,
            stop: if calls.is_empty() { "end_turn" } else { "tool_use" },
            calls,
            usage: Usage::default(),
            delay: Duration::from_millis(step.delay_ms),
            pause: Duration::from_millis(step.pause_ms),
            piece: step.piece,
        };
        speech.usage = step
            .usage
            .unwrap_or_default()
            .or_counted(request.length as u64 / 4, speech.count());
        speech.obey(request.max_tokens);
        Ok(speech)
    }

    fn count(&self) -> u64 {
        let calls = self
            .calls
            .iter()
            .map(|(_, name, arguments)| llm::count_text(name) + llm::count_text(arguments) + 8);
        llm::count_text(&self.thinking) + llm::count_text(&self.text) + calls.sum::<u64>()
    }

    /// Says no more than it may, as a model does.
    fn obey(&mut self, max_tokens: u64) {
        if self.usage.output <= max_tokens {
            return;
        }
        let letters = usize::try_from(max_tokens.saturating_mul(LETTERS)).unwrap_or(usize::MAX);
        let cut = |text: &mut String, room: usize| {
            let end = text.char_indices().nth(room).map_or(text.len(), |(end, _)| end);
            text.truncate(end);
        };
        cut(&mut self.thinking, letters);
        cut(&mut self.text, letters.saturating_sub(self.thinking.chars().count()));
        self.calls.clear();
        self.stop = "max_tokens";
        self.usage.output = max_tokens;
        self.usage.thinking = self.usage.thinking.min(max_tokens);
    }

    /// The pieces of a text, each with the pause before it.
    pub(super) fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = (Duration, &'t str)> {
        let pause = self.pause;
        let pause = move |place: usize| if place == 0 { Duration::ZERO } else { pause };
        pieces(text, self.piece)
            .enumerate()
            .map(move |(place, piece)| (pause(place), piece))
    }

    pub(super) fn play(&self, fault: Option<&Fault>, format: Format, streams: bool) -> Playback {
        let mut playback = Playback::default();
        if fault.is_some_and(|fault| fault.silent) {
            playback.pieces.push_back((FOREVER, Bytes::new()));
        }
        let counts = fault.is_none_or(|fault| !fault.no_usage);
        if streams {
            let told = told::stream(self, format, counts);
            for (place, (delay, event)) in told.events.iter().enumerate() {
                if place == told.words && fault.is_some_and(|fault| fault.malformed) {
                    playback.pieces.push_back((
                        Duration::ZERO,
                        Bytes::from_static(b"event: content_block_start\ndata: {\"index\":\n\n"),
                    ));
                }
                playback.say(*delay, format, event);
            }
            if format == Format::OpenaiChat {
                playback
                    .pieces
                    .push_back((Duration::ZERO, Bytes::from_static(b"data: [DONE]\n\n")));
            }
        } else {
            let whole = told::whole(self, format, counts).to_string();
            playback.pieces.push_back((self.delay, whole.into()));
        }
        if let Some(length) = fault.and_then(|fault| fault.cut_after) {
            playback.cut_after(length);
        }
        playback
    }
}

/// A text in pieces of so many letters.
fn pieces(text: &str, letters: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = rest.char_indices().nth(letters).map_or(rest.len(), |(end, _)| end);
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Bytes that are yet to come, each piece so long after the one before.
#[derive(Debug, Default)]
pub(crate) struct Playback {
    pieces: VecDeque<(Duration, Bytes)>,
    due: Option<Instant>,
}

impl Playback {
    /// The body of an answer that is an error.
    pub(super) fn error(message: &str) -> Self {
        let body = json!({"type": "error", "error": {"type": "scripted", "message": message}}).to_string();
        Self {
            pieces: VecDeque::from([(Duration::ZERO, Bytes::from(body))]),
            due: None,
        }
    }

    /// The next piece; `None` at the end. Safe to drop and call again.
    pub(crate) async fn piece(&mut self) -> Option<Bytes> {
        let (delay, _) = self.pieces.front()?;
        if !delay.is_zero() {
            sleep_until(*self.due.get_or_insert_with(|| Instant::now() + *delay)).await;
        }
        self.due = None;
        let (_, mut piece) = self.pieces.pop_front()?;
        // What comes at once comes in one piece.
        if self.pieces.front().is_some_and(|(delay, _)| delay.is_zero()) {
            let mut joined = piece.to_vec();
            while let Some((_, more)) = self.pieces.pop_front_if(|(delay, _)| delay.is_zero()) {
                joined.extend_from_slice(&more);
            }
            piece = joined.into();
        }
        Some(piece)
    }

    fn say(&mut self, delay: Duration, format: Format, event: &Value) {
        let said = match format {
            Format::AnthropicMessages | Format::OpenaiResponses => {
                let kind = event["type"].as_str().unwrap_or_default();
                format!("event: {kind}\ndata: {event}\n\n")
            }
            Format::OpenaiChat => format!("data: {event}\n\n"),
        };
        self.pieces.push_back((delay, said.into()));
    }

    fn cut_after(&mut self, length: usize) {
        let mut room = length;
        self.pieces.retain_mut(|(_, piece)| {
            piece.truncate(room);
            room -= piece.len();
            !piece.is_empty()
        });
    }
}
