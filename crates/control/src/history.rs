//! A session's history as a model is told of it: verified once when it is read, extended by what is stored, joined by copying.

use std::sync::Arc;

use bytes::Bytes;
use domain::{Block, Message};
use llm::Head;
use providers::{Model, Providers};
use store::{Asker, Dialect};

use crate::live::{Live, Writing};
use crate::masks::Masks;
use crate::{Control, ControlError};

/// Version of the frame in which a message's bytes are stored: a changed one makes the store render anew.
const FRAME: &str = "1";
/// How a picture begins, in each of the languages.
const PICTURES: [&str; 3] = [
    r#"{"type":"image","#,
    r#"{"type":"input_image","#,
    r#"{"type":"image_url","#,
];
/// What a provider may add to a reply that it is sent again.
const REPLY_SLACK: u64 = 64;

/// A history in memory, in one model's dialect.
#[derive(Clone, Debug)]
pub(crate) struct Cached {
    providers: Providers,
    model: Arc<Model>,
    /// What stands in no line.
    masks: Masks,
    lines: Vec<Line>,
    /// What the lines take.
    bytes: usize,
    /// The place of the newest message in the store, which may be told no longer.
    last: i64,
    /// How many of the lines the provider has counted, and the tokens it found, the head included.
    counted: Option<(usize, u64)>,
}

/// A message in the history.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Its place in the store; 0 for a summary.
    pub(crate) position: i64,
    /// What a request carries.
    pub(crate) bytes: Bytes,
    /// The most tokens that it can be.
    bound: u64,
    /// It makes calls: what follows are their results, and the two are never parted.
    pub(crate) calls: bool,
}

/// The dialect of a model's language and family.
pub(crate) fn dialect(providers: &Providers, model: &Arc<Model>) -> Dialect {
    let (providers, model) = (providers.clone(), Arc::clone(model));
    Dialect {
        name: format!("{}/{FRAME}", model.dialect()).into(),
        render: Arc::new(move |message| Line::new(&providers, &model, 0, message).frame()),
    }
}

impl Line {
    fn new(providers: &Providers, model: &Model, position: i64, message: &Message) -> Self {
        let bytes = providers.encode(model, message);
        Self {
            position,
            bound: llm::message_bound(model.format, message, &bytes),
            calls: message.blocks.iter().any(|block| matches!(block, Block::ToolUse(_))),
            bytes,
        }
    }

    #[cfg(test)]
    pub(crate) const fn of(position: i64, bytes: Bytes, bound: u64, calls: bool) -> Self {
        Self {
            position,
            bytes,
            bound,
            calls,
        }
    }

    /// The same without a secret. A mask is as long as what it covers, so the bound is the same too.
    fn masked(self, masks: &Masks) -> Self {
        Self {
            bytes: masks.bytes(self.bytes),
            ..self
        }
    }

    /// Whether a request carries a picture with it. Within a text the quotes would be escaped.
    fn shows_pictures(&self) -> bool {
        PICTURES.iter().any(|mark| {
            let mut windows = self.bytes.windows(mark.len());
            windows.any(|window| window == mark.as_bytes())
        })
    }

    fn frame(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(9 + self.bytes.len());
        frame.extend_from_slice(&self.bound.to_le_bytes());
        frame.push(u8::from(self.calls));
        frame.extend_from_slice(&self.bytes);
        frame
    }

    fn from_frame(position: i64, frame: Vec<u8>) -> Option<Self> {
        let bound = u64::from_le_bytes(*frame.first_chunk()?);
        let calls = *frame.get(8)? != 0;
        Some(Self {
            position,
            bytes: Bytes::from(frame).slice(9..),
            bound,
            calls,
        })
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }

    /// Tokens that it likely is.
    pub(crate) fn likely(&self) -> u64 {
        self.bound.div_ceil(3)
    }
}

impl Cached {
    fn speaks(&self, model: &Arc<Model>, masks: &Masks) -> bool {
        self.model.dialect() == model.dialect() && self.masks == *masks
    }

    /// The messages, oldest first.
    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a message that was stored.
    pub(crate) fn push(&mut self, message: &Message) {
        self.last += 1;
        let line = Line::new(&self.providers, &self.model, self.last, message).masked(&self.masks);
        self.bytes += line.size();
        self.lines.push(line);
    }

    /// How many of the lines stood in a request that the provider answered.
    pub(crate) fn accepted(&self) -> usize {
        self.counted.map_or(0, |(lines, _)| lines)
    }

    /// The places of the messages that show pictures, after so many lines.
    pub(crate) fn pictures_since(&self, lines: usize) -> Vec<i64> {
        let newer = self.lines.iter().skip(lines);
        newer
            .filter(|line| line.shows_pictures())
            .map(|line| line.position)
            .collect()
    }

    /// Whether the message at this place shows pictures.
    pub(crate) fn shows_pictures(&self, place: i64) -> bool {
        self.lines
            .iter()
            .any(|line| line.position == place && line.shows_pictures())
    }

    /// Tells the message at this place otherwise.
    pub(crate) fn replace(&mut self, place: i64, message: &Message) {
        let told = Line::new(&self.providers, &self.model, place, message).masked(&self.masks);
        // A summary has the place of the last message that it stands for, and shows nothing.
        let lines = self.lines.iter_mut();
        for line in lines.filter(|line| line.position == place && line.shows_pictures()) {
            self.bytes = self.bytes - line.size() + told.size();
            *line = told.clone();
        }
    }

    /// Takes note of what the provider counted: the whole input up to the last line, which is the reply itself.
    pub(crate) fn counted(&mut self, input: u64, output: u64) {
        self.counted = Some((
            self.lines.len(),
            input.saturating_add(output).saturating_add(REPLY_SLACK),
        ));
    }

    /// The most tokens that the input can be.
    pub(crate) fn bound(&self, head: &Head<'_>) -> u64 {
        self.tokens(|line| line.bound, || llm::head_bound(head))
    }

    /// Tokens that the input likely has.
    pub(crate) fn likely(&self, head: &Head<'_>) -> u64 {
        self.tokens(Line::likely, || llm::head_bound(head).div_ceil(3))
    }

    fn tokens(&self, of: impl Fn(&Line) -> u64, head: impl FnOnce() -> u64) -> u64 {
        let (lines, known) = self.counted.unwrap_or_else(|| (0, head()));
        self.lines[lines.min(self.lines.len())..]
            .iter()
            .map(of)
            .fold(known, u64::saturating_add)
    }
}

impl Control {
    /// The history for this model, read from the store where memory has none.
    pub(crate) async fn history<'w>(
        &self,
        live: &Live,
        writing: &'w mut Writing,
        model: &Arc<Model>,
    ) -> Result<&'w mut Cached, ControlError> {
        let masks = self.0.secrecy.masks();
        let known = writing.take_history();
        let history = match known.filter(|history| history.speaks(model, &masks)) {
            Some(history) => history,
            None => {
                let mut history = self.read_history(live, model, masks).await?;
                for place in &writing.unseen {
                    self.leave_out(live, &mut history, *place).await?;
                }
                history
            }
        };
        let history = writing.put_history(history);
        live.keep_within_bounds();
        Ok(history)
    }

    async fn read_history(&self, live: &Live, model: &Arc<Model>, masks: Masks) -> Result<Cached, ControlError> {
        let providers = &self.0.providers;
        let stored = self
            .0
            .store
            .history(Asker::System, live.session, 0, &dialect(providers, model))
            .await?;
        let mut lines = Vec::with_capacity(stored.entries.len() + 1);
        if let Some(compaction) = &stored.compaction {
            lines.push(Line::new(providers, model, compaction.through, &compaction.summary).masked(&masks));
        }
        for entry in stored.entries {
            let line = Line::from_frame(entry.position, entry.ready)
                .ok_or_else(|| ControlError::internal("read a stored message", "its frame is too short"))?;
            lines.push(line.masked(&masks));
        }
        Ok(Cached {
            providers: providers.clone(),
            model: Arc::clone(model),
            masks,
            bytes: lines.iter().map(Line::size).sum(),
            lines,
            last: stored.last,
            counted: None,
        })
    }
}
