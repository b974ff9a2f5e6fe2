//! A session's history as a model is told of it: verified once when it is read, extended by what is stored, joined by copying.

use std::sync::Arc;

use bytes::Bytes;
use domain::{Block, Message};
use llm::{Head, Opening};
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
    counted: Option<Count>,
}

/// What a provider counted.
#[derive(Clone, Debug)]
struct Count {
    /// Who: another model may count the same otherwise.
    model: Arc<Model>,
    /// How the request began.
    opening: Arc<Opening>,
    /// The lines that stood in it, and the reply.
    lines: usize,
    /// The tokens of all that.
    tokens: u64,
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
        self.counted.as_ref().map_or(0, |count| count.lines)
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

    /// Takes note of what the model's provider counted: the whole input up to the last line, which is the reply itself.
    pub(crate) fn counted(&mut self, model: &Arc<Model>, opening: Arc<Opening>, input: u64, output: u64) {
        self.counted = Some(Count {
            model: Arc::clone(model),
            opening,
            lines: self.lines.len(),
            tokens: input.saturating_add(output).saturating_add(REPLY_SLACK),
        });
    }

    /// The most tokens that the input of this model can be.
    pub(crate) fn bound(&self, model: &Arc<Model>, head: &Head<'_>) -> u64 {
        self.tokens(model, head, |line| line.bound, llm::head_bound(head))
    }

    /// Tokens that the input of this model likely has.
    pub(crate) fn likely(&self, model: &Arc<Model>, head: &Head<'_>) -> u64 {
        self.tokens(model, head, Line::likely, llm::head_bound(head).div_ceil(3))
    }

    fn tokens(&self, model: &Arc<Model>, head: &Head<'_>, of: impl Fn(&Line) -> u64, beginning: u64) -> u64 {
        let count = self.counted.as_ref().filter(|count| Arc::ptr_eq(&count.model, model));
        let (lines, known) = match count {
            Some(count) if *count.opening == *head.opening => (count.lines, count.tokens),
            // How the request began then is among what was counted, and may be less than how it begins now.
            Some(count) => (count.lines, count.tokens.saturating_add(beginning)),
            None => (0, beginning),
        };
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

#[cfg(test)]
mod tests {
    use llm::{CacheMarks, Format};
    use protocol::ToolChoice;
    use providers::{ModelSettings, ProviderKind, RetryLimits, Timeouts};

    use super::*;
    use crate::masks::Secrecy;
    use crate::turns::head;

    fn model(name: &str) -> Model {
        let mut settings = ModelSettings::new(ProviderKind::Anthropic);
        settings.api_key = Some(secret::Secret::new("none").into());
        settings.window = Some(200_000);
        settings.max_output = Some(8_000);
        settings.family = Some("claude".to_owned());
        Model::new(name, settings).unwrap()
    }

    #[test]
    fn what_a_provider_counted_bounds_no_other_model_and_no_longer_beginning() {
        let models = vec![model("small"), model("large")];
        let providers = Providers::new(models, Timeouts::default(), RetryLimits::default()).unwrap();
        let known = |name: &str| Arc::clone(&providers.chain(name).unwrap()[0]);
        let (small, large) = (known("small"), known("large"));
        let line = Line {
            position: 1,
            bytes: Bytes::from_static(b"{}"),
            bound: 50_000,
            calls: false,
        };
        let mut history = Cached {
            model: Arc::clone(&small),
            providers,
            masks: Secrecy::new(Vec::new()).masks(),
            bytes: line.size(),
            lines: vec![line],
            last: 1,
            counted: None,
        };
        let opening = |system: &str| {
            let cache = CacheMarks::default();
            Arc::new(Opening::new(Format::AnthropicMessages, "claude", system, &[], cache))
        };
        let (brief, long) = (opening("Help."), opening(&"Help them. ".repeat(1_000)));
        let bound = |history: &Cached, model: &Arc<Model>, opening: &Opening| {
            let head = head(opening, model, &ToolChoice::Auto, 100);
            (history.bound(model, &head), llm::head_bound(&head))
        };
        let (whole, beginning) = bound(&history, &small, &brief);
        assert_eq!(whole, 50_000 + beginning, "nobody has counted");
        history.counted(&small, Arc::clone(&brief), 1_000, 10);
        assert_eq!(bound(&history, &small, &brief).0, 1_010 + REPLY_SLACK);
        let (whole, beginning) = bound(&history, &small, &long);
        assert_eq!(whole, 1_010 + REPLY_SLACK + beginning, "it begins otherwise now");
        let (whole, beginning) = bound(&history, &large, &brief);
        assert_eq!(whole, 50_000 + beginning, "another model's provider has not counted");
    }
}
