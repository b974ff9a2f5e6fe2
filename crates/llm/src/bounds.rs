//! Upper bounds of tokens, for money that is reserved before anybody knows, and our own count where nobody will say.

use std::ops::AddAssign;

use domain::{Block, Message, ResultPart};

use crate::{Format, Head};

/// The most tokens that one picture costs an Anthropic model: 1 for each 28 × 28 patch, at most this many.
const ANTHROPIC_IMAGE: u64 = 4_784;
/// The most tokens that one picture costs an OpenAI model: the dearest of its formulas (2,833 + 5,667 for each of 8 tiles).
const OPENAI_IMAGE: u64 = 48_169;
/// What a provider adds of its own to a request: instructions on how to use tools, a date.
pub(crate) const PREAMBLE: u64 = 1_000;
/// Letters of a token, as we count.
const LETTERS: u64 = 3;
/// Letters that a tool call takes beside its name and its arguments.
const FRAME: u64 = 8 * LETTERS;

/// The most tokens that a message adds to the input, given what [`crate::encode_message`] made of it: no token is shorter
/// than a byte, and pictures are counted by formula instead of by their base64.
#[must_use]
pub fn message_bound(format: Format, message: &Message, encoded: &[u8]) -> u64 {
    let (mut pictures, mut base64) = (0_u64, 0_u64);
    let mut count = |data: &str| {
        pictures += 1;
        base64 += data.len() as u64;
    };
    for block in &message.blocks {
        match block {
            Block::Image(image) => count(&image.data),
            Block::ToolResult(result) => {
                for part in &result.content {
                    if let ResultPart::Image(image) = part {
                        count(&image.data);
                    }
                }
            }
            Block::Text { .. } | Block::Thinking { .. } | Block::ToolUse(_) => {}
        }
    }
    (encoded.len() as u64)
        .saturating_sub(base64)
        .saturating_add(pictures.saturating_mul(picture(format)))
}

/// The most tokens that one picture costs.
pub(crate) const fn picture(format: Format) -> u64 {
    match format {
        Format::AnthropicMessages => ANTHROPIC_IMAGE,
        Format::OpenaiResponses | Format::OpenaiChat => OPENAI_IMAGE,
    }
}

/// The most tokens that the system prompt and the tools add to the input.
#[must_use]
pub fn head_bound(head: &Head<'_>) -> u64 {
    (head.opening.length() as u64).saturating_add(PREAMBLE)
}

/// What a model wrote, for our own count of its tokens where its provider has not told, or not yet. Pieces that are shorter
/// than a token add up.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Written {
    ascii: u64,
    beyond: u64,
}

impl Written {
    /// This text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let mut written = Self::default();
        written.add(text);
        written
    }

    /// The beginning of a tool call: its name, its id and what frames them.
    #[must_use]
    pub fn call(name: &str) -> Self {
        let mut written = Self::of(name);
        written.ascii += FRAME;
        written
    }

    /// More text.
    pub fn add(&mut self, text: &str) {
        let ascii = text.bytes().filter(u8::is_ascii).count() as u64;
        self.ascii += ascii;
        self.beyond += text.chars().count() as u64 - ascii;
    }

    /// What is left of it without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self {
            ascii: self.ascii.saturating_sub(other.ascii),
            beyond: self.beyond.saturating_sub(other.beyond),
        }
    }

    /// Tokens, rather too many than too few: three letters to one, and every character beyond ASCII is one.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        self.ascii.div_ceil(LETTERS) + self.beyond
    }
}

impl AddAssign for Written {
    fn add_assign(&mut self, other: Self) {
        self.ascii += other.ascii;
        self.beyond += other.beyond;
    }
}

/// Our own count of tokens in what a model wrote.
#[must_use]
pub fn count_text(text: &str) -> u64 {
    Written::of(text).tokens()
}
