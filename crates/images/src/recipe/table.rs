//! A table of a recipe, read key by key: what is wrong is noted with its line and what to write instead, and reading goes on.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::Range;

use spelling::{either, nearest};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The keys that stand before the first table.
const FIRST_KEYS: [&str; 4] = ["description", "date", "remove", "refresh"];

/// A text, and where it stands.
pub(crate) type Text = Spanned<String>;

/// All that is wrong with a recipe.
pub(crate) struct Faults<'t> {
    text: &'t str,
    /// Each with its line; of the recipe as a whole it is 0.
    found: RefCell<Vec<(usize, String)>>,
    /// The lines that are not even TOML: whatever else seems wrong with one of them is not, and what lacks may stand there.
    torn: RefCell<Vec<usize>>,
}

impl<'t> Faults<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Self {
            text,
            found: RefCell::default(),
            torn: RefCell::default(),
        }
    }

    /// Says what is wrong at a place, and what to write there.
    pub(crate) fn add(&self, place: &Range<usize>, words: impl Display) {
        let line = self.line(place);
        if !self.torn.borrow().contains(&line) {
            self.tell(line, words);
        }
    }

    fn line(&self, place: &Range<usize>) -> usize {
        let before = self.text.as_bytes().iter().take(place.start);
        before.filter(|byte| **byte == b'\n').count() + 1
    }

    fn tell(&self, line: usize, words: impl Display) {
        self.found.borrow_mut().push((line, format!("line {line}: {words}")));
    }

    /// The same of the recipe as a whole.
    pub(crate) fn add_whole(&self, words: impl Display) {
        self.found.borrow_mut().push((0, words.to_string()));
    }

    /// Takes what is TOML of a text; what is not is a fault.
    pub(crate) fn parse(&self) -> Spanned<DeTable<'t>> {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            let line = self.line(&error.span().unwrap_or_default());
            match error.message() {
                "duplicate key" => self.tell(line, "this key stands there twice: keep one of the two"),
                message => self.tell(
                    line,
                    format_args!("this is not TOML ({message}): write key = value, and texts in quotes"),
                ),
            }
            self.torn.borrow_mut().push(line);
        }
        document
    }

    /// Whether nothing is wrong.
    pub(crate) fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// All of them, in the order of their lines.
    pub(crate) fn finish(self) -> Vec<String> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(line, _)| *line);
        let mut faults: Vec<String> = found.into_iter().map(|(_, words)| words).collect();
        faults.dedup();
        faults
    }
}

/// A table, and which of its keys were asked for.
pub(crate) struct Table<'d> {
    /// What it is called, `debian`; nothing for the whole recipe.
    name: String,
    pub(crate) place: Range<usize>,
    entries: &'d DeTable<'d>,
    asked: RefCell<Vec<&'static str>>,
    faults: &'d Faults<'d>,
}

impl<'d> Table<'d> {
    pub(crate) fn of(document: &'d Spanned<DeTable<'d>>, faults: &'d Faults<'d>) -> Self {
        Self::at(String::new(), 0..0, document.get_ref(), faults)
    }

    fn at(name: String, place: Range<usize>, entries: &'d DeTable<'d>, faults: &'d Faults<'d>) -> Self {
        Self {
            name,
            place,
            entries,
            asked: RefCell::default(),
            faults,
        }
    }

    /// A key as people write it: `debian.suite`.
    fn full(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(name, _)| name.get_ref() == key)
    }

    fn ask(&self, key: &'static str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.asked.borrow_mut().push(key);
        let mut entries = self.entries.iter();
        entries.find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    fn wrong(&self, name: &str, value: &Spanned<DeValue<'_>>, wanted: impl Display) {
        let kind = kind(value.get_ref());
        self.faults
            .add(&value.span(), format_args!("{name} is {kind}: write {wanted}"));
    }

    /// Says that a key is not there, which must be; `wanted` is what could be written.
    fn lacks(&self, key: &str, wanted: impl Display) {
        if !self.faults.torn.borrow().is_empty() {
            return;
        }
        let this = match self.name.as_str() {
            "" => "the recipe".to_owned(),
            name => format!("[{name}]"),
        };
        self.faults
            .add(&self.place, format_args!("{this} has no {key}: write {wanted}"));
    }

    fn as_text(&self, name: &str, value: &Spanned<DeValue<'_>>, example: &str) -> Option<Text> {
        match value.get_ref() {
            DeValue::String(text) => Some(Spanned::new(value.span(), text.to_string())),
            _ => {
                self.wrong(name, value, format_args!("a text, such as {example}"));
                None
            }
        }
    }

    /// A text that is not empty.
    fn as_word(&self, name: &str, value: &Spanned<DeValue<'_>>, example: &str) -> Option<Text> {
        let text = self.as_text(name, value, example)?;
        if text.get_ref().trim().is_empty() {
            self.faults
                .add(&text.span(), format_args!("{name} is empty: write {example}"));
            return None;
        }
        Some(text)
    }

    /// A text that is not empty; `example` is what could be written.
    pub(crate) fn text(&self, key: &'static str, example: &str) -> Option<Text> {
        self.as_word(&self.full(key), self.ask(key)?, example)
    }

    /// The same, which must be there.
    pub(crate) fn required(&self, key: &'static str, example: &str) -> Option<Text> {
        match self.ask(key) {
            Some(value) => self.as_word(&self.full(key), value, example),
            None => {
                self.lacks(key, format_args!("{key} = {example}"));
                None
            }
        }
    }

    /// One of some words.
    pub(crate) fn word(&self, key: &'static str, words: &[&'static str]) -> Option<&'static str> {
        let example = words.first().map(|word| format!("{word:?}"));
        let text = self.text(key, &example.unwrap_or_default())?;
        let found = words.iter().find(|word| **word == text.get_ref().as_str()).copied();
        if found.is_none() {
            let name = self.full(key);
            let meant = nearest(text.get_ref(), words.iter().copied());
            let meant = meant.map(|word| format!(" (did you mean {word:?}?)"));
            let words = format_args!(
                "{name} = {:?} is unknown: write {}{}",
                text.get_ref(),
                either(words.iter().copied()),
                meant.unwrap_or_default()
            );
            self.faults.add(&text.span(), words);
        }
        found
    }

    /// A day without an hour, which must be there.
    pub(crate) fn day(&self, key: &'static str, example: &str) -> Option<(Range<usize>, toml::value::Datetime)> {
        match self.ask(key) {
            None => self.lacks(key, format_args!("{key} = {example}")),
            Some(value) => match value.get_ref() {
                DeValue::Datetime(day) => return Some((value.span(), *day)),
                _ => self.wrong(
                    &self.full(key),
                    value,
                    format_args!("a day without quotes, such as {example}"),
                ),
            },
        }
        None
    }

    /// A whole number within bounds.
    pub(crate) fn number(&self, key: &'static str, least: u32, most: u32) -> Option<u32> {
        let (name, value) = (self.full(key), self.ask(key)?);
        let DeValue::Integer(written) = value.get_ref() else {
            self.wrong(&name, value, format_args!("a number between {least} and {most}"));
            return None;
        };
        let number = u32::from_str_radix(written.as_str(), written.radix()).ok();
        let number = number.filter(|number| (least..=most).contains(number));
        if number.is_none() {
            let words = format_args!("{name} = {written} should be between {least} and {most}");
            self.faults.add(&value.span(), words);
        }
        number
    }

    /// The same, which must be there.
    pub(crate) fn required_number(&self, key: &'static str, least: u32, most: u32, example: &str) -> Option<u32> {
        if !self.has(key) {
            self.lacks(key, format_args!("{key} = {example}"));
        }
        self.number(key, least, most)
    }

    /// A list of texts.
    pub(crate) fn texts(&self, key: &'static str, example: &str) -> Vec<Text> {
        let (name, Some(value)) = (self.full(key), self.ask(key)) else {
            return Vec::new();
        };
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong(&name, value, format_args!("a list of texts, such as [{example}]"));
            return Vec::new();
        };
        let texts = items.iter().filter_map(|item| self.as_text(&name, item, example));
        texts.collect()
    }

    /// The same, which must be there.
    pub(crate) fn required_texts(&self, key: &'static str, example: &str) -> Vec<Text> {
        if !self.has(key) {
            self.lacks(key, format_args!("{key} = [{example}]"));
        }
        self.texts(key, example)
    }

    /// A table of texts by name, in the order of the names; `example` is a value that could be written.
    pub(crate) fn pairs(&self, key: &'static str, example: &str) -> Vec<(Text, Text)> {
        let Some(table) = self.table(key) else {
            return Vec::new();
        };
        let pairs = table.entries.iter().filter_map(|(name, value)| {
            let text = self.as_text(&table.full(&shown(name.get_ref())), value, example)?;
            Some((Spanned::new(name.span(), name.get_ref().to_string()), text))
        });
        pairs.collect()
    }

    /// A table below this one.
    pub(crate) fn table(&self, key: &'static str) -> Option<Table<'d>> {
        self.as_table(self.full(key), self.ask(key)?)
    }

    /// The same, which must be there; `wanted` is what could stand in it.
    pub(crate) fn required_table(&self, key: &'static str, wanted: &str) -> Option<Table<'d>> {
        if !self.has(key) {
            self.lacks(key, format_args!("[{}] with {wanted}", self.full(key)));
        }
        self.table(key)
    }

    /// The tables of a table, which may have any names.
    pub(crate) fn named(&self, key: &'static str) -> Vec<(Text, Table<'d>)> {
        let Some(table) = self.table(key) else {
            return Vec::new();
        };
        let tables = table.entries.iter().filter_map(|(name, value)| {
            let full = table.full(&shown(name.get_ref()));
            Some((
                Spanned::new(name.span(), name.get_ref().to_string()),
                self.as_table(full, value)?,
            ))
        });
        tables.collect()
    }

    /// Tables under one name, in their order.
    pub(crate) fn tables(&self, key: &'static str) -> Vec<Table<'d>> {
        let (name, Some(value)) = (self.full(key), self.ask(key)) else {
            return Vec::new();
        };
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong(&name, value, format_args!("[[{name}]], once for each"));
            return Vec::new();
        };
        let tables = items.iter().filter_map(|item| self.as_table(name.clone(), item));
        tables.collect()
    }

    fn as_table(&self, name: String, value: &'d Spanned<DeValue<'d>>) -> Option<Table<'d>> {
        match value.get_ref() {
            DeValue::Table(entries) => Some(Self::at(name, value.span(), entries, self.faults)),
            _ => {
                self.wrong(&name, value, format_args!("[{name}] and what belongs to it below"));
                None
            }
        }
    }

    /// Says of every key that nobody asked for that it is unknown.
    pub(crate) fn finish(self) {
        let asked = self.asked.take();
        for (key, _) in self.entries {
            let name: &str = key.get_ref();
            if asked.contains(&name) {
                continue;
            }
            let remedy = match nearest(name, asked.iter().copied()) {
                Some(known) => format!("did you mean {}?", self.full(known)),
                None if FIRST_KEYS.contains(&name) => format!("{name} stands before the first table"),
                None => format!("write {}, or take it away", either(asked.iter().copied())),
            };
            let full = self.full(&shown(name));
            self.faults
                .add(&key.span(), format_args!("unknown key {full}: {remedy}"));
        }
    }
}

/// A name as it would be written in TOML.
fn shown(name: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if !name.is_empty() && name.chars().all(is_bare) {
        name.to_owned()
    } else {
        format!("{name:?}")
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
