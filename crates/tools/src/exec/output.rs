//! What a process that runs code says: what the code wrote, and behind a mark what came of it.

use crate::Files;
use crate::bounded::Collector;

/// The longest shape that is told of a value.
const MAX_SHAPE: usize = 600;

/// What came of the code.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It returned this: JSON, or where that is too long its shape, its beginning, and where all of it is.
    Value(String),
    Nothing,
    Error(String),
}

/// Parts the output while it comes in.
pub(super) struct Output<'a> {
    mark: Vec<u8>,
    console: Collector<'a>,
    /// The end of what came in, where it may be the beginning of the mark.
    held: Vec<u8>,
    state: State,
    /// The outcome's first line, without its end: a word, a colon, and a value's shape or an error's beginning.
    head: Vec<u8>,
    /// What follows it.
    outcome: Collector<'a>,
}

#[derive(PartialEq, Eq)]
enum State {
    Console,
    Head,
    Outcome,
}

impl<'a> Output<'a> {
    pub(super) fn new(files: &'a Files, name: &str, mark: &str, limit: usize) -> Self {
        let half = (limit / 2).saturating_sub(100);
        Self {
            mark: format!("\x1e{mark}:").into_bytes(),
            console: Collector::clean(files, format!("{name}.txt"), half),
            held: Vec::new(),
            state: State::Console,
            head: Vec::new(),
            outcome: Collector::raw(files, format!("{name}.json"), half.saturating_sub(MAX_SHAPE)),
        }
    }

    /// Takes more; answers with what the code wrote of it.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        if self.state != State::Console {
            self.push_outcome(bytes);
            return String::new();
        }
        let mut bytes = [std::mem::take(&mut self.held).as_slice(), bytes].concat();
        if let Some(at) = bytes.windows(self.mark.len()).position(|window| window == self.mark) {
            let outcome = bytes.split_off(at);
            self.state = State::Head;
            self.push_outcome(&outcome[self.mark.len()..]);
            return self.console.push(&bytes);
        }
        // The mark may have been cut in two.
        let longest = bytes.len().min(self.mark.len() - 1);
        let begun = (1..=longest)
            .rev()
            .find(|length| bytes.ends_with(&self.mark[..*length]))
            .unwrap_or(0);
        self.held = bytes.split_off(bytes.len() - begun);
        self.console.push(&bytes)
    }

    fn push_outcome(&mut self, mut bytes: &[u8]) {
        if self.state == State::Head {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            self.head.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            let Some(end) = end else { return };
            self.state = State::Outcome;
            bytes = &bytes[end + 1..];
        }
        self.outcome.push(bytes);
    }

    /// Ends it: what the code wrote, and what came of it, if that was said.
    pub(super) fn finish(mut self) -> (String, Option<Said>) {
        let held = std::mem::take(&mut self.held);
        self.console.push(&held);
        let console = self.console.finish().text;
        if self.state == State::Console {
            return (console, None);
        }
        let head = String::from_utf8_lossy(&self.head).into_owned();
        let outcome = self.outcome.finish();
        let (word, rest) = head.split_once(':').unwrap_or((&head, ""));
        let said = match word {
            "value" if outcome.whole => Said::Value(outcome.text),
            "value" => {
                let end = rest.floor_char_boundary(MAX_SHAPE.min(rest.len()));
                Said::Value(format!(
                    "[the returned value is too long to be shown: {}]\n{}",
                    &rest[..end],
                    outcome.text
                ))
            }
            "nothing" => Said::Nothing,
            _ if outcome.text.is_empty() => Said::Error(cleaned(rest)),
            _ => Said::Error(cleaned(&format!("{rest}\n{}", outcome.text))),
        };
        (console, Some(said))
    }
}

/// An error's text comes from the code as much as its output does.
fn cleaned(text: &str) -> String {
    let mut cleaner = crate::bounded::Cleaner::default();
    cleaner.push(text.as_bytes()) + &cleaner.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    fn said(output: &str, piece: usize) -> (String, Option<Said>) {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings::sandbox(vec![], [].into());
        settings.workspace = folder.path().to_owned();
        let files = Files::open(&settings).unwrap();
        let mut parts = Output::new(&files, "x", "abcd", 4_000);
        let live: String = output.as_bytes().chunks(piece).map(|bytes| parts.push(bytes)).collect();
        let (console, said) = parts.finish();
        assert!(console.starts_with(&live), "{console:?} {live:?}");
        (console, said)
    }

    #[test]
    fn console_and_outcome_are_parted_wherever_the_pipe_cuts() {
        for piece in [1, 2, 3, 5, 1_000] {
            let value = |json: &str| Some(Said::Value(json.to_owned()));
            assert_eq!(
                said("hi\n\x1eabcd:value:number\n42", piece),
                ("hi\n".to_owned(), value("42"))
            );
            assert_eq!(
                said("no end\x1eabcd:value:{a}\n{\"a\":\"\\n\"}", piece).1,
                value("{\"a\":\"\\n\"}")
            );
            assert_eq!(said("\x1eabcd:nothing", piece), (String::new(), Some(Said::Nothing)));
            let error = Said::Error("TypeError: x\n  at 1".to_owned());
            assert_eq!(
                said("a\x1eabcd:error:TypeError: x\n  at 1", piece),
                ("a".to_owned(), Some(error))
            );
            assert_eq!(
                said("\x1eabc is not the mark\x1e", piece),
                ("abc is not the mark".to_owned(), None)
            );
        }
    }

    #[test]
    fn a_value_that_is_too_long_shows_its_shape() {
        let text = format!("\x1eabcd:value:array of 9999 × number\n[{}]", "1,".repeat(9_999));
        let (_, Some(Said::Value(value))) = said(&text, 100) else {
            panic!("no value")
        };
        assert!(
            value.starts_with("[the returned value is too long to be shown: array of 9999 × number]\n[1,1,"),
            "{value}"
        );
        assert!(value.contains("/workspace/.belljar/x.json"), "{value}");
    }
}
