//! Events as a person likes to read them: the answer as it is written, tools one line each, thinking folded to a line.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};

use domain::{
    ApprovalState, Block, Delta, Event, Message, MessageId, Money, NumberedEvent, ResultPart, Role, Timestamp,
    ToolCallId, Usage,
};
use serde_json::Value;

use crate::terminal::{harmless, one_line};
use crate::watch::{Meaning, Seen};

#[cfg(test)]
mod tests;

/// Where output goes, and what it may look like.
pub(crate) struct Paper {
    /// The answer.
    pub(crate) out: Box<dyn Write + Send>,
    /// Everything about it.
    pub(crate) notes: Box<dyn Write + Send>,
    /// `out` is a terminal: untrusted text is made harmless.
    pub(crate) out_terminal: bool,
    /// `notes` is a terminal: lines that come and go, and colours.
    pub(crate) notes_terminal: bool,
    /// Colours are wanted.
    pub(crate) colours: bool,
}

impl Paper {
    /// Stdout and stderr.
    pub(crate) fn standard() -> Self {
        let notes_terminal = io::stderr().is_terminal();
        Self {
            out: Box::new(io::stdout()),
            notes: Box::new(io::stderr()),
            out_terminal: io::stdout().is_terminal(),
            notes_terminal,
            colours: notes_terminal && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    /// Stdout alone, for a history: all of it is what was asked for.
    pub(crate) fn page() -> Self {
        let terminal = io::stdout().is_terminal();
        Self {
            out: Box::new(io::stdout()),
            notes: Box::new(io::stdout()),
            out_terminal: terminal,
            notes_terminal: terminal,
            colours: terminal && std::env::var_os("NO_COLOR").is_none(),
        }
    }
}

/// What is drawn of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shown {
    /// Answers, as they are awaited.
    Answers,
    /// Prompts too: a history is shown.
    Words,
    /// And what each tool was given and answered.
    All,
}

/// Lines of what a tool answered that are drawn.
const RESULT_LINES: usize = 40;

/// Draws events.
pub(crate) struct Render {
    paper: Paper,
    json: bool,
    shown: Shown,
    /// Bytes of each open message's text that were written.
    written: HashMap<MessageId, u64>,
    /// The last thing on `out` was no line feed.
    in_line: bool,
    /// A line that goes away with the next is on `notes`.
    passing: bool,
    tools: HashMap<ToolCallId, Tool>,
    totals: Totals,
}

struct Tool {
    name: String,
    target: String,
    began: Timestamp,
}

#[derive(Default)]
struct Totals {
    cost: Money,
    usage: Usage,
    calls: u32,
    estimated: bool,
}

impl Render {
    pub(crate) fn new(paper: Paper, json: bool, shown: Shown) -> Self {
        Self {
            paper,
            json,
            shown,
            written: HashMap::new(),
            in_line: false,
            passing: false,
            tools: HashMap::new(),
            totals: Totals::default(),
        }
    }

    /// Draws what was seen.
    pub(crate) fn draw(&mut self, seen: &Seen) -> io::Result<()> {
        if self.json {
            writeln!(self.paper.out, "{}", seen.raw)?;
            return self.paper.out.flush();
        }
        match &seen.meaning {
            Some(Meaning::Event(event)) => self.event(event)?,
            Some(Meaning::Delta(delta)) => self.delta(delta)?,
            None => {}
        }
        self.paper.out.flush()?;
        self.paper.notes.flush()
    }

    /// Says what the work came to: money, tokens, time.
    pub(crate) fn bill(&mut self, took: std::time::Duration) -> io::Result<()> {
        if self.json || self.totals.calls == 0 {
            return Ok(());
        }
        let Totals {
            cost,
            usage,
            calls,
            estimated,
        } = &self.totals;
        let about = if *estimated { "about " } else { "" };
        let bill = format!(
            "{about}{cost} · {calls} model {} · {} tokens in, {} out · {:.1} s",
            if *calls == 1 { "call" } else { "calls" },
            usage.total_input(),
            usage.output,
            took.as_secs_f64()
        );
        self.note("2", &bill)
    }

    /// A line about the work.
    pub(crate) fn note(&mut self, colour: &str, line: &str) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        self.begin_note()?;
        self.coloured(colour, line)?;
        writeln!(self.paper.notes)
    }

    fn event(&mut self, event: &NumberedEvent) -> io::Result<()> {
        match &event.event {
            Event::Message { message } => self.message(message)?,
            Event::ToolStarted { call, name, input } => {
                let tool = Tool {
                    name: one_line(name, 20),
                    target: target(input),
                    began: event.at,
                };
                self.pass(&format!("{} {}", tool.name, tool.target))?;
                self.tools.insert(call.clone(), tool);
            }
            Event::ToolEnded {
                call,
                is_error,
                summary,
            } => {
                let tool = self.tools.remove(call);
                self.tool_line(tool, event.at, *is_error, summary)?;
            }
            Event::Usage {
                usage, cost, estimated, ..
            } => {
                let totals = &mut self.totals;
                totals.cost = totals.cost.plus(*cost);
                totals.calls += 1;
                totals.estimated |= *estimated;
                totals.usage.input += usage.input;
                totals.usage.cache_read += usage.cache_read;
                totals.usage.cache_write += usage.cache_write;
                totals.usage.cache_write_hour += usage.cache_write_hour;
                totals.usage.output += usage.output;
            }
            Event::Run { state, reason, .. } if state.is_final() && state.as_str() != "done" => {
                let reason = reason
                    .as_deref()
                    .map(|reason| format!(": {}", one_line(reason, 400)))
                    .unwrap_or_default();
                self.note("31", &format!("{}{reason}", state.as_str()))?;
            }
            Event::ModelRetry { model, reason } => {
                self.note(
                    "33",
                    &format!(
                        "{} failed, trying again: {}",
                        one_line(model, 60),
                        one_line(reason, 200)
                    ),
                )?;
            }
            Event::Compacted { .. } => self.note("2", "the older part of the conversation was summarised")?,
            Event::Rewound { .. } => self.note(
                "33",
                "the session went back to a snapshot: what was said since is part of it no longer",
            )?,
            Event::FilesGone { snapshot } => {
                self.note(
                    "31",
                    &format!("the files of snapshot {snapshot} are gone: the session goes on with those it has"),
                )?;
            }
            Event::Forked { parent, .. } => self.note("2", &format!("a fork of session {parent}"))?,
            Event::Sandbox { state, reason } => match reason {
                Some(reason) => self.note("33", &format!("sandbox {state}: {}", one_line(reason, 200)))?,
                None => self.pass(&format!("sandbox {state}"))?,
            },
            Event::Files { state, reason } => match reason {
                Some(reason) => self.note(
                    "33",
                    &format!("files {}: {}", one_line(state, 20), one_line(reason, 300)),
                )?,
                None => self.pass(&format!("files {}", one_line(state, 20)))?,
            },
            Event::ServiceCalled {
                service,
                method,
                status,
                code,
                ..
            } => {
                let called = format!("{}.{}", one_line(service, 60), one_line(method, 60));
                match code {
                    Some(code) => self.note("33", &format!("  ✗ {called}: {} ({status})", one_line(code, 60)))?,
                    None => self.pass(&called)?,
                }
            }
            Event::ModelCalled {
                model,
                status,
                code,
                cost,
                ..
            } => {
                let model = one_line(model, 60);
                match code {
                    Some(code) => self.note("33", &format!("  ✗ model {model}: {} ({status})", one_line(code, 60)))?,
                    None => self.pass(&format!("model {model}, for a program: {cost}"))?,
                }
            }
            Event::EgressDenied {
                host, reason, protocol, ..
            } if protocol == "dns" => {
                let (host, reason) = (one_line(host, 100), one_line(reason, 200));
                self.note(
                    "33",
                    &format!("  ✗ the name {host} is not known in the sandbox: {reason}"),
                )?;
            }
            Event::EgressDenied { host, port, reason, .. } => {
                let line = format!(
                    "  ✗ no way out to {}:{port}: {}",
                    one_line(host, 100),
                    one_line(reason, 200)
                );
                self.note("33", &line)?;
            }
            Event::ApprovalRequested {
                kind,
                subject,
                request,
                reason,
                ..
            } => {
                let line = format!("  ? may it: {} {}", kind.as_str(), one_line(subject, 200));
                self.note("33", &line)?;
                self.note("2", &format!("    {}", one_line(reason, 400)))?;
                for line in exact(request) {
                    self.note("0", &format!("    {line}"))?;
                }
            }
            Event::ApprovalDecided {
                subject,
                state,
                by,
                reason,
                ..
            } => {
                let by = by.as_deref().map(|by| format!(" by {}", one_line(by, 60)));
                let reason = reason.as_deref().map(|reason| format!(": {}", one_line(reason, 400)));
                let line = format!(
                    "  {} {} {}{}{}",
                    if matches!(state, ApprovalState::ApprovedOnce | ApprovalState::ApprovedAlways) {
                        "✓"
                    } else {
                        "✗"
                    },
                    one_line(subject, 200),
                    state.as_str().replace('_', " "),
                    by.unwrap_or_default(),
                    reason.unwrap_or_default()
                );
                self.note("33", &line)?;
            }
            Event::Run { .. } | Event::MessageOpened { .. } => {}
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Delta) -> io::Result<()> {
        match delta {
            Delta::Text { message, offset, text } => self.text(*message, *offset, text),
            Delta::Thinking { .. } => self.pass("thinking"),
            Delta::ToolProgress { call, text } => self.progress(call, text),
        }
    }

    /// The last thing that a tool's program has said while it works.
    fn progress(&mut self, call: &ToolCallId, text: &str) -> io::Result<()> {
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
        let line = self.tools.get(call).zip(last);
        let line = line.map(|(tool, last)| format!("{}: {last}", tool.name));
        line.map_or(Ok(()), |line| self.pass(&line))
    }

    /// A whole message: what was not written yet of an answer; a prompt where prompts are drawn.
    fn message(&mut self, message: &Message) -> io::Result<()> {
        let texts = message.blocks.iter().filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            _ => None,
        });
        let whole: String = texts.collect();
        match message.role {
            Role::Assistant => {
                self.text(message.id, 0, &whole)?;
                self.written.remove(&message.id);
                self.end_line()?;
                if message.interrupted {
                    self.note("33", "interrupted")?;
                }
            }
            Role::User if self.shown != Shown::Answers && !whole.is_empty() => {
                self.end_passing()?;
                for line in harmless(whole.trim_end()).lines() {
                    writeln!(self.paper.out, "> {line}")?;
                }
            }
            Role::User => {}
        }
        if self.shown == Shown::All {
            for block in &message.blocks {
                self.used(block)?;
            }
        }
        Ok(())
    }

    /// What a tool was given, whole; what it answered, as far as it is worth a look.
    fn used(&mut self, block: &Block) -> io::Result<()> {
        let lines = match block {
            Block::ToolUse(call) => {
                let mut lines = vec![format!("  {}", one_line(&call.name, 60))];
                lines.extend(exact(&call.input).into_iter().map(|line| format!("    {line}")));
                lines
            }
            Block::ToolResult(result) => {
                let texts = result.content.iter().filter_map(|part| match part {
                    ResultPart::Text { text } => Some(text.trim_end().lines()),
                    ResultPart::Image(_) => None,
                });
                let all: Vec<&str> = texts.flatten().collect();
                let shown = all.iter().take(RESULT_LINES);
                let mut lines: Vec<String> = shown
                    .map(|line| format!("  | {}", one_line(line, 400).trim_end()))
                    .collect();
                if all.len() > RESULT_LINES {
                    lines.push(format!("  | … {} more lines", all.len() - RESULT_LINES));
                }
                lines
            }
            Block::Text { .. } | Block::Image(_) | Block::Thinking { .. } => Vec::new(),
        };
        if !lines.is_empty() {
            self.begin_note()?;
        }
        for line in lines {
            writeln!(self.paper.out, "{line}")?;
        }
        Ok(())
    }

    /// A piece of an answer that begins at a byte of it; what was written before is not written again.
    fn text(&mut self, message: MessageId, offset: u64, text: &str) -> io::Result<()> {
        let written = self.written.entry(message).or_default();
        let known = usize::try_from(written.saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(new) = text.get(known..).filter(|new| !new.is_empty()) else {
            return Ok(());
        };
        *written = offset + text.len() as u64;
        let new = new.to_owned();
        self.end_passing()?;
        if self.paper.out_terminal {
            self.paper.out.write_all(harmless(&new).as_bytes())?;
        } else {
            self.paper.out.write_all(new.as_bytes())?;
        }
        self.in_line = !new.ends_with('\n');
        Ok(())
    }

    fn tool_line(&mut self, tool: Option<Tool>, ended: Timestamp, is_error: bool, summary: &str) -> io::Result<()> {
        let Some(tool) = tool else { return Ok(()) };
        let milliseconds = ended.0.saturating_sub(tool.began.0).max(0);
        let took = if milliseconds < 1_000 {
            format!("{milliseconds} ms")
        } else {
            format!("{:.1} s", milliseconds as f64 / 1_000.0)
        };
        self.begin_note()?;
        write!(self.paper.notes, "  ")?;
        self.coloured(if is_error { "31" } else { "32" }, if is_error { "✗" } else { "✓" })?;
        write!(self.paper.notes, " ")?;
        self.coloured("1", &tool.name)?;
        write!(self.paper.notes, " {} ", tool.target)?;
        self.coloured("2", &took)?;
        if is_error {
            write!(self.paper.notes, " failed: {}", one_line(summary, 160))?;
        }
        writeln!(self.paper.notes)
    }

    /// A line that goes away when something is said; on a terminal only.
    fn pass(&mut self, what: &str) -> io::Result<()> {
        if !self.paper.notes_terminal || self.in_line {
            return Ok(());
        }
        self.end_passing()?;
        let line = format!("  … {}", one_line(what, 70));
        self.coloured("2", &line)?;
        self.passing = true;
        Ok(())
    }

    fn end_passing(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.passing) {
            write!(self.paper.notes, "\r\u{1b}[K")?;
            self.paper.notes.flush()?;
        }
        Ok(())
    }

    fn begin_note(&mut self) -> io::Result<()> {
        self.end_passing()?;
        self.end_line()
    }

    fn end_line(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.in_line) {
            writeln!(self.paper.out)?;
            self.paper.out.flush()?;
        }
        Ok(())
    }

    fn coloured(&mut self, colour: &str, text: &str) -> io::Result<()> {
        if self.paper.colours {
            write!(self.paper.notes, "\u{1b}[{colour}m{text}\u{1b}[0m")
        } else {
            write!(self.paper.notes, "{text}")
        }
    }
}

/// Draws on stdout and stderr what happens in this same process.
pub struct Screen {
    render: Render,
    number: i64,
}

impl Screen {
    /// Stdout and stderr; `json` asks for one JSON value a line.
    #[must_use]
    pub fn standard(json: bool) -> Self {
        Self {
            render: Render::new(Paper::standard(), json, Shown::Answers),
            number: 0,
        }
    }

    /// Draws an event of this moment.
    ///
    /// # Errors
    /// Nobody reads what is written.
    pub fn event(&mut self, event: Event) -> io::Result<()> {
        self.number += 1;
        let (number, at) = (self.number, Timestamp::now());
        self.draw(Meaning::Event(Box::new(NumberedEvent { number, at, event })))
    }

    /// Draws a piece of what is being said.
    ///
    /// # Errors
    /// As [`Screen::event`].
    pub fn delta(&mut self, delta: Delta) -> io::Result<()> {
        self.draw(Meaning::Delta(delta))
    }

    /// Says something about the work.
    ///
    /// # Errors
    /// As [`Screen::event`].
    pub fn note(&mut self, words: &str) -> io::Result<()> {
        self.render.note("33", &one_line(words, 1_000))
    }

    /// Says what the work came to since the last bill.
    ///
    /// # Errors
    /// As [`Screen::event`].
    pub fn bill(&mut self, took: std::time::Duration) -> io::Result<()> {
        self.render.bill(took)?;
        self.render.totals = Totals::default();
        Ok(())
    }

    fn draw(&mut self, meaning: Meaning) -> io::Result<()> {
        let raw = match &meaning {
            Meaning::Event(event) => serde_json::to_value(event)?,
            Meaning::Delta(delta) => serde_json::to_value(delta)?,
        };
        self.render.draw(&Seen {
            raw,
            meaning: Some(meaning),
        })
    }
}

/// A request as it is, line by line: all of it, since it is what a person says yes to.
pub(crate) fn exact(request: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, value) in request.as_object().into_iter().flatten() {
        let text = match value {
            Value::String(text) => text.clone(),
            other => serde_json::to_string_pretty(other).unwrap_or_default(),
        };
        if text.contains('\n') {
            lines.push(format!("{}:", harmless(name)));
            lines.extend(text.lines().map(|line| format!("  {}", harmless(line))));
        } else {
            lines.push(format!("{}: {}", harmless(name), harmless(&text)));
        }
    }
    lines
}

/// What a call is about, in a few words: the argument that says it best.
fn target(input: &Value) -> String {
    const TELLING: [&str; 6] = ["path", "command", "name", "skill", "query", "code"];
    let told = TELLING.iter().find_map(|name| input.get(name)?.as_str());
    match told {
        Some(text) => one_line(text, 60),
        None => one_line(&input.to_string(), 60),
    }
}
