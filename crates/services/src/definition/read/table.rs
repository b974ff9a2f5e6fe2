//! A table of a file that is read key by key.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value};
use spelling::{either, nearest};

use crate::definition::mistake::Mistake;
use crate::definition::source::{Source, below};

/// Names that mean something to JavaScript where a model would call a method.
const RESERVED: [&str; 17] = [
    "apply",
    "arguments",
    "bind",
    "call",
    "caller",
    "constructor",
    "describe",
    "hasOwnProperty",
    "isPrototypeOf",
    "length",
    "name",
    "prototype",
    "then",
    "toJSON",
    "toLocaleString",
    "toString",
    "valueOf",
];

/// Whether this can be the name of a service or a method.
pub(crate) fn is_identifier(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        && !RESERVED.contains(&name)
}

/// What can be said about a name that is none.
pub(crate) const NAME_RULE: &str = "write a lower-case letter, then letters, digits and _, at most 64; no dot, and no \
                                    name that JavaScript uses itself, such as then or constructor";

/// All mistakes of a folder.
#[derive(Default)]
pub(crate) struct Mistakes(RefCell<Vec<Mistake>>);

impl Mistakes {
    pub(crate) fn add(&self, mistake: Mistake) {
        self.0.borrow_mut().push(mistake);
    }

    pub(crate) fn extend(&self, mistakes: impl IntoIterator<Item = Mistake>) {
        self.0.borrow_mut().extend(mistakes);
    }

    pub(crate) fn into_vec(self) -> Vec<Mistake> {
        let mut mistakes = self.0.into_inner();
        mistakes.sort();
        mistakes.dedup();
        mistakes
    }
}

/// A table, and which of its keys were asked for.
pub(crate) struct Table<'s> {
    pub(crate) source: &'s Source,
    pub(crate) pointer: String,
    map: &'s Map<String, Value>,
    asked: RefCell<BTreeSet<&'static str>>,
    pub(crate) mistakes: &'s Mistakes,
}

impl<'s> Table<'s> {
    /// The table at a pointer; a mistake where there is none.
    pub(crate) fn at(source: &'s Source, pointer: String, mistakes: &'s Mistakes) -> Option<Self> {
        let Some(Value::Object(map)) = source.value.pointer(&pointer) else {
            mistakes.add(source.mistake(
                &pointer,
                format!("{} is no table", shown(&pointer)),
                "write keys and values",
            ));
            return None;
        };
        Some(Self {
            source,
            pointer,
            map,
            asked: RefCell::default(),
            mistakes,
        })
    }

    /// The pointer of a key.
    pub(crate) fn pointer(&self, key: &str) -> String {
        below(&self.pointer, key)
    }

    /// Says that something is wrong with a key.
    pub(crate) fn mistake(&self, key: &str, problem: impl Into<String>, remedy: impl Into<String>) {
        self.mistakes
            .add(self.source.mistake(&self.pointer(key), problem, remedy));
    }

    fn ask(&self, key: &'static str) -> Option<&'s Value> {
        self.asked.borrow_mut().insert(key);
        self.map.get(key)
    }

    /// Whether a key is there.
    pub(crate) fn has(&self, key: &'static str) -> bool {
        self.ask(key).is_some()
    }

    /// Any value.
    pub(crate) fn value(&self, key: &'static str) -> Option<&'s Value> {
        self.ask(key)
    }

    fn wrong(&self, key: &str, wanted: &str) {
        self.mistake(
            key,
            format!("{} is not {wanted}", shown(&self.pointer(key))),
            format!("write {wanted}"),
        );
    }

    /// A text that is not empty.
    pub(crate) fn text(&self, key: &'static str) -> Option<&'s str> {
        match self.ask(key)? {
            Value::String(text) if !text.trim().is_empty() => Some(text),
            _ => {
                self.wrong(key, "a text");
                None
            }
        }
    }

    /// A text that must be there; `example` is what could be written.
    pub(crate) fn required(&self, key: &'static str, example: &str) -> Option<&'s str> {
        if !self.has(key) {
            let problem = format!(
                "{}{key} is missing",
                if self.pointer.is_empty() {
                    String::new()
                } else {
                    format!("{}: ", shown(&self.pointer))
                }
            );
            self.mistakes.add(
                self.source
                    .mistake(&self.pointer, problem, format!("write {key} = {example}")),
            );
            return None;
        }
        self.text(key)
    }

    /// One of some words.
    pub(crate) fn word(&self, key: &'static str, words: &[&'static str]) -> Option<&'static str> {
        let text = self.text(key)?;
        let found = words.iter().find(|word| **word == text).copied();
        if found.is_none() {
            let hint = nearest(text, words.iter().copied())
                .map_or_else(String::new, |word| format!(" (did you mean {word}?)"));
            self.mistake(
                key,
                format!("{} is {text:?}", shown(&self.pointer(key))),
                format!("write {}{hint}", either(words.iter().copied())),
            );
        }
        found
    }

    /// True or false.
    pub(crate) fn flag(&self, key: &'static str) -> Option<bool> {
        match self.ask(key)? {
            Value::Bool(flag) => Some(*flag),
            _ => {
                self.wrong(key, "true or false");
                None
            }
        }
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn whole(&self, key: &'static str, least: u64, most: u64) -> Option<u64> {
        let number = self.ask(key)?.as_u64().filter(|number| (least..=most).contains(number));
        if number.is_none() {
            self.wrong(key, &format!("a whole number from {least} to {most}"));
        }
        number
    }

    /// A duration such as `20s`, from a millisecond to ten minutes.
    pub(crate) fn duration(&self, key: &'static str) -> Option<Duration> {
        let units = [("ms", 1), ("s", 1_000), ("m", 60_000)];
        let found = self
            .ask(key)?
            .as_str()
            .and_then(|text| quantity(text, &units))
            .filter(|ms| (1..=600_000).contains(ms));
        if found.is_none() {
            self.wrong(key, "a duration such as \"20s\", at most \"10m\"");
        }
        found.map(Duration::from_millis)
    }

    /// A size such as `8MiB`, from a byte to a gibibyte.
    pub(crate) fn size(&self, key: &'static str) -> Option<u64> {
        let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
        let found = self
            .ask(key)?
            .as_str()
            .and_then(|text| quantity(text, &units))
            .filter(|size| (1..=1 << 30).contains(size));
        if found.is_none() {
            self.wrong(key, "a size such as \"8MiB\", at most \"1GiB\"");
        }
        found
    }

    /// A list of texts; one text is a list of one.
    pub(crate) fn texts(&self, key: &'static str) -> Vec<&'s str> {
        let texts = match self.ask(key) {
            None => return Vec::new(),
            Some(Value::String(text)) => Some(vec![text.as_str()]),
            Some(Value::Array(items)) => items.iter().map(Value::as_str).collect(),
            Some(_) => None,
        };
        texts.unwrap_or_else(|| {
            self.wrong(key, "a list of texts");
            Vec::new()
        })
    }

    /// A table of texts.
    pub(crate) fn pairs(&self, key: &'static str) -> Vec<(&'s str, &'s str)> {
        let pairs = match self.ask(key) {
            None => return Vec::new(),
            Some(Value::Object(map)) => map
                .iter()
                .map(|(name, text)| Some((name.as_str(), text.as_str()?)))
                .collect(),
            Some(_) => None,
        };
        pairs.unwrap_or_else(|| {
            self.wrong(key, "a table of texts");
            Vec::new()
        })
    }

    /// A table below this one.
    pub(crate) fn table(&self, key: &'static str) -> Option<Table<'s>> {
        self.ask(key)?;
        Table::at(self.source, self.pointer(key), self.mistakes)
    }

    /// The names of everything in it, whatever they are.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'s str> + use<'s> {
        self.map.keys().map(String::as_str)
    }

    /// Says of every key that nobody asked for that it is unknown.
    pub(crate) fn finish(self) {
        let asked = self.asked.take();
        for key in self.map.keys().filter(|key| !asked.contains(key.as_str())) {
            let remedy = match nearest(key, asked.iter().copied()) {
                Some(known) => format!("did you mean {known}?"),
                None => format!("write {}, or take it away", either(asked.iter().copied())),
            };
            self.mistake(key, format!("unknown key {}", shown(&self.pointer(key))), remedy);
        }
    }
}

/// A pointer as people write it: `methods.find.query`.
pub(crate) fn shown(pointer: &str) -> String {
    if pointer.is_empty() {
        return "the file".into();
    }
    pointer[1..].replace('/', ".").replace("~1", "/").replace("~0", "~")
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (_, unit) = units.iter().find(|(name, _)| *name == &text[digits..])?;
    text[..digits].parse::<u64>().ok()?.checked_mul(*unit)
}
