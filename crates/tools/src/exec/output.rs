//! What a process that runs code says: what the code wrote, and behind a mark what came of it, with its length.

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
    /// So many bytes of the outcome are still to come, as far as that is known.
    left: usize,
    /// The outcome's first line, without its end: a word, a colon, and a value's shape or an error's beginning.
    head: Vec<u8>,
    /// What follows it.
    outcome: Collector<'a>,
}

#[derive(PartialEq, Eq)]
enum State {
    Console,
    Length,
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
            left: 0,
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
            self.state = State::Length;
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

    /// Whether all was said that counts.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Head | State::Outcome) && self.left == 0
    }

    fn push_outcome(&mut self, mut bytes: &[u8]) {
        while self.state == State::Length
            && let [byte, rest @ ..] = bytes
        {
            bytes = rest;
            match byte {
                b':' => self.state = State::Head,
                digit => {
                    let digit = usize::from(digit.wrapping_sub(b'0'));
                    self.left = self.left.saturating_mul(10).saturating_add(digit);
                }
            }
        }
        bytes = &bytes[..bytes.len().min(self.left)];
        self.left -= bytes.len();
        if self.state == State::Head {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            self.head.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            let Some(end) = end else { return };
            self.state = State::Outcome;
            bytes = &bytes[end + 1..];
        }
        self.outcome.push(bytes);
    }

    /// Ends it: what the code wrote, and what came of it, if that was said whole.
    pub(super) fn finish(mut self) -> (String, Option<Said>) {
        let held = std::mem::take(&mut self.held);
        self.console.push(&held);
        let is_over = self.is_over();
        let console = self.console.finish().text;
        if !is_over {
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

    /// What came of the code, as the process says it.
    fn told(outcome: &str) -> String {
        format!("\x1eabcd:{}:{outcome}", outcome.len())
    }

    #[test]
    fn console_and_outcome_are_parted_wherever_the_pipe_cuts() {
        for piece in [1, 2, 3, 5, 1_000] {
            let value = |json: &str| Some(Said::Value(json.to_owned()));
            let answer = told("value:number\n42");
            assert_eq!(said(&format!("hi\n{answer}"), piece), ("hi\n".to_owned(), value("42")));
            let with_line = told("value:{a}\n{\"a\":\"\\n\"}");
            assert_eq!(said(&format!("no end{with_line}"), piece).1, value("{\"a\":\"\\n\"}"));
            assert_eq!(said(&told("nothing"), piece), (String::new(), Some(Said::Nothing)));
            let error = told("error:TypeError: ü\n  at 1");
            assert_eq!(
                said(&format!("a{error}"), piece),
                ("a".to_owned(), Some(Said::Error("TypeError: ü\n  at 1".to_owned())))
            );
            assert_eq!(
                said("\x1eabc is not the mark\x1e", piece),
                ("abc is not the mark".to_owned(), None)
            );
            // What others write when all was said is nobody's; what was not said whole does not count.
            assert_eq!(said(&format!("{answer} and more"), piece).1, value("42"));
            assert_eq!(said(&answer[..answer.len() - 1], piece).1, None);
            for malformed in [
                "\x1eabcd:",
                "\x1eabcd:1",
                "\x1eabcd:x:value",
                "\x1eabcd:99999999999999999999999:nothing",
            ] {
                assert_eq!(said(malformed, piece), (String::new(), None), "{malformed:?}");
            }
        }
    }

    #[test]
    fn a_value_that_is_too_long_shows_its_shape() {
        let text = told(&format!("value:array of 9999 × number\n[{}]", "1,".repeat(9_999)));
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
