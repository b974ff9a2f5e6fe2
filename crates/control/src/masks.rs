//! Secrets of the installation: no model is sent one, whoever brought it into a conversation, and none that says one is heard.
//!
//! Messages stay in the store as they were written; what of them goes to a model is masked when it enters memory, once for each
//! message, so a turn costs no look at what was sent before and its beginning stays as it was. What a model says is masked before
//! anybody is shown it. All spellings of all secrets are one search, which is made anew when a secret has changed.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use domain::{Block, ToolCall};
use scrub::Scrub;
use secret::{Credential, Secret};
use serde_json::Value;
use tokio::time::Instant;

use crate::live::lock;

/// How old what is known of the secrets may be.
const LOOKED_EVERY: Duration = Duration::from_secs(1);
/// Shorter texts would be found where nobody meant them.
const LEAST: usize = 8;
/// Of each secret so many values are masked: the present one, and those that it had before.
const VALUES: usize = 4;

/// The secrets that there are.
pub(crate) struct Secrecy {
    credentials: Vec<Credential>,
    seen: Mutex<Seen>,
}

/// What was found at the last look.
struct Seen {
    looked: Option<Instant>,
    /// The values of each, the newest first.
    values: Vec<Vec<Secret>>,
    masks: Masks,
}

/// What is masked. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Masks {
    /// Another one where other secrets are masked.
    version: u64,
    scrub: Scrub,
    /// The same for what comes in pieces.
    in_pieces: Scrub,
}

impl Secrecy {
    pub(crate) fn new(credentials: Vec<Credential>) -> Self {
        Self {
            seen: Mutex::new(Seen {
                looked: None,
                values: vec![Vec::new(); credentials.len()],
                masks: Masks {
                    version: 0,
                    scrub: Scrub::nothing(),
                    in_pieces: Scrub::nothing(),
                },
            }),
            credentials,
        }
    }

    /// What is masked now.
    pub(crate) fn masks(&self) -> Masks {
        let mut seen = lock(&self.seen);
        if seen.looked.is_none_or(|looked| looked.elapsed() >= LOOKED_EVERY) {
            seen.look(&self.credentials);
        }
        seen.masks.clone()
    }
}

impl Seen {
    fn look(&mut self, credentials: &[Credential]) {
        self.looked = Some(Instant::now());
        let mut changed = false;
        for (credential, values) in credentials.iter().zip(&mut self.values) {
            // One that cannot be had now is what it was.
            let Ok(value) = credential.get() else { continue };
            if value.expose().len() < LEAST || values.first() == Some(&value) {
                continue;
            }
            values.retain(|known| *known != value);
            values.insert(0, value);
            values.truncate(VALUES);
            changed = true;
        }
        if changed {
            self.masks = Masks {
                version: self.masks.version + 1,
                scrub: Scrub::of(self.values.iter().flatten()),
                in_pieces: Scrub::of_parts(self.values.iter().flatten()),
            };
        }
    }
}

impl PartialEq for Masks {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

impl Masks {
    /// Whether there is nothing to mask.
    pub(crate) fn is_nothing(&self) -> bool {
        self.scrub.is_nothing()
    }

    /// Whether a secret stands in it.
    pub(crate) fn are_in(&self, bytes: &[u8]) -> bool {
        self.scrub.is_in(bytes)
    }

    /// The bytes without a secret; they keep their length.
    pub(crate) fn bytes(&self, bytes: Bytes) -> Bytes {
        if self.are_in(&bytes) {
            self.scrub.clean(bytes)
        } else {
            bytes
        }
    }

    /// The text without a secret.
    pub(crate) fn text(&self, text: String) -> String {
        if self.are_in(text.as_bytes()) {
            to_text(self.scrub.clean(text.into()))
        } else {
            text
        }
    }

    /// JSON without a secret in it, or in one of its texts: those may be JSON again, with an escape of their own.
    pub(crate) fn json(&self, json: String) -> String {
        if self.is_nothing() {
            return json;
        }
        let masked = serde_json::from_str::<Value>(&json)
            .ok()
            .and_then(|mut value| self.texts(&mut value).then(|| value.to_string()));
        self.text(masked.unwrap_or(json))
    }

    /// Masks every text of a value: whether there was a secret in one.
    fn texts(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) if self.are_in(text.as_bytes()) => {
                *text = self.text(std::mem::take(text));
                true
            }
            Value::Array(members) => {
                members
                    .iter_mut()
                    .filter_map(|member| self.texts(member).then_some(()))
                    .count()
                    > 0
            }
            Value::Object(members) => {
                members
                    .values_mut()
                    .filter_map(|member| self.texts(member).then_some(()))
                    .count()
                    > 0
            }
            _ => false,
        }
    }

    /// Words that come in pieces.
    pub(crate) fn words(&self) -> Words {
        Words(self.in_pieces.trailing())
    }

    /// What a model said, without a secret.
    pub(crate) fn said(&self, blocks: Vec<Block>) -> Vec<Block> {
        if self.is_nothing() {
            return blocks;
        }
        blocks.into_iter().map(|block| self.block(block)).collect()
    }

    fn block(&self, block: Block) -> Block {
        match block {
            Block::Text { text } => Block::Text { text: self.text(text) },
            Block::ToolUse(call) => Block::ToolUse(ToolCall {
                id: call.id,
                name: self.text(call.name),
                input: self.value(call.input),
            }),
            Block::Thinking { text, signature, item } => {
                let written = [Some(&text), signature.as_ref()];
                let is_in = |text: &String| self.are_in(text.as_bytes());
                let shows = written.into_iter().flatten().any(is_in)
                    || item
                        .as_ref()
                        .is_some_and(|item| self.are_in(item.to_string().as_bytes()));
                // A thought goes back as it was signed, or not at all.
                Block::Thinking {
                    text: self.text(text),
                    signature: signature.filter(|_| !shows),
                    item: item.filter(|_| !shows),
                }
            }
            same @ (Block::Image(_) | Block::ToolResult(_)) => same,
        }
    }

    fn value(&self, value: Value) -> Value {
        let json = value.to_string();
        if !self.are_in(json.as_bytes()) {
            return value;
        }
        let json = self.text(json);
        // Of a secret that looks like JSON itself nothing may be left that can be read.
        serde_json::from_str(&json).unwrap_or(Value::String(json))
    }
}

/// Words that come in pieces, each shown when so many have come after it that it is part of no secret.
pub(crate) struct Words(scrub::Trailing);

impl Words {
    pub(crate) fn push(&mut self, words: String) -> String {
        to_text(self.0.push(words.into()))
    }

    /// What was held back, when nothing more comes.
    pub(crate) fn finish(&mut self) -> String {
        to_text(self.0.finish())
    }
}

/// Spellings are whole letters, and so is what is left between them.
fn to_text(bytes: Bytes) -> String {
    String::from_utf8(bytes.into()).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests;
