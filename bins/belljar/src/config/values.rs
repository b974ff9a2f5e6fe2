//! From entries to values: each is checked against its key's kind, and what is wrong is noted, not thrown.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use domain::Money;
use secret::Reference;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::keys::{self, Kind};
use super::raw::{Entry, Mistake, Place, Raw, Value, line_of};

/// Reads values out of what was written, and keeps the mistakes.
pub(crate) struct Reader {
    raw: Raw,
}

impl Reader {
    pub(crate) fn new(raw: Raw) -> Self {
        Self { raw }
    }

    /// The mistakes, in the order of their lines, and the warnings.
    pub(crate) fn finish(self) -> (Vec<Mistake>, Vec<Mistake>) {
        let line = |mistake: &Mistake| match &mistake.place {
            Place::Line(line) => (0, *line),
            Place::Environment(_) => (1, 0),
            Place::Nowhere => (2, 0),
        };
        let mut mistakes = self.raw.mistakes;
        mistakes.sort_by_key(line);
        let mut warnings = self.raw.warnings;
        warnings.sort_by_key(line);
        (mistakes, warnings)
    }

    /// The names and places of the tables of a section such as `models.*`.
    pub(crate) fn tables(&self, section: &str) -> BTreeMap<String, Place> {
        self.raw.tables.get(section).cloned().unwrap_or_default()
    }

    /// The tables of a section that is read whole, as their own type says; what is wrong is noted with its line.
    pub(crate) fn whole<T: DeserializeOwned>(&mut self, section: &str) -> BTreeMap<String, T> {
        let mut values = BTreeMap::new();
        let mut mistakes = Vec::new();
        let text = &self.raw.text;
        for (name, place) in self.tables(section) {
            let parents = section.trim_end_matches(".*").split('.');
            match read_whole(text, parents.chain([name.as_str()])) {
                Some(Ok(value)) => {
                    values.insert(name, value);
                }
                Some(Err(error)) => {
                    let place = error
                        .span()
                        .map_or(place, |span| Place::Line(line_of(text, span.start)));
                    let path = section.replace('*', &name);
                    mistakes.push((place, format!("{path}: {}", without_value(error.message()))));
                }
                // What is no table was refused before.
                None => {}
            }
        }
        for (place, text) in mistakes {
            self.note(place, text);
        }
        values
    }

    /// Notes a mistake about a key.
    pub(crate) fn mistake(&mut self, path: &str, text: impl Into<String>) {
        let place = self.place(path);
        self.note(place, text);
    }

    /// Notes a mistake at a place.
    pub(crate) fn note(&mut self, place: Place, text: impl Into<String>) {
        self.raw.mistakes.push(Mistake {
            place,
            text: text.into(),
        });
    }

    /// Whether a key was written.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.raw.entries.contains_key(&split(path))
    }

    fn place(&self, path: &str) -> Place {
        self.raw
            .entries
            .get(&split(path))
            .map_or(Place::Nowhere, |entry| entry.place.clone())
    }

    /// What was written for a key, or its default; then the value that `parse` makes of it, or a mistake.
    fn value<T>(&mut self, path: &str, parse: impl Fn(Kind, &Value) -> Option<T>) -> Option<T> {
        let names = split(path);
        let key = keys::find(&names)?;
        let entry = match (self.raw.entries.get(&names), key.default) {
            (Some(entry), _) => entry.clone(),
            (None, Some(default)) => Entry {
                value: written(default),
                place: Place::Nowhere,
            },
            (None, None) => return None,
        };
        let value = parse(key.kind, &entry.value);
        if value.is_none() {
            let found = match &entry.value {
                Value::Text(_) if key.kind == Kind::Reference => "a text that is no reference".to_owned(),
                Value::Text(text) => format!("{text:?}"),
                Value::Flag(flag) => flag.to_string(),
                Value::Number(number) => number.clone(),
                Value::Texts(_) | Value::Numbers(_) => "a table".to_owned(),
                Value::Names(_) => "a list".to_owned(),
                Value::Other(kind) => (*kind).to_owned(),
            };
            self.note(entry.place, format!("{path} is {found}: write {}", key.kind.in_words()));
        }
        value
    }

    pub(crate) fn text(&mut self, path: &str) -> Option<String> {
        self.value(path, |kind, value| match (kind, value) {
            (Kind::Word(words), Value::Text(text)) => words.contains(&text.as_str()).then(|| text.clone()),
            (Kind::Text, Value::Text(text)) => Some(text.clone()),
            _ => None,
        })
    }

    pub(crate) fn flag(&mut self, path: &str) -> Option<bool> {
        self.value(path, |_, value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    pub(crate) fn path(&mut self, path: &str) -> Option<PathBuf> {
        self.value(path, |kind, value| match value {
            Value::Text(text) if text.starts_with('/') => Some(PathBuf::from(text)),
            Value::Text(text) if kind == Kind::File && !text.is_empty() => Some(PathBuf::from(text)),
            _ => None,
        })
    }

    pub(crate) fn listen(&mut self, path: &str) -> Option<SocketAddr> {
        self.value(path, |_, value| match value {
            Value::Text(text) => text.parse().ok(),
            _ => None,
        })
    }

    pub(crate) fn number(&mut self, path: &str) -> Option<i64> {
        self.value(path, |kind, value| match (kind, value) {
            (Kind::Whole(least, most), Value::Number(digits)) => {
                let number: i64 = digits.replace('_', "").parse().ok()?;
                (least..=most).contains(&number).then_some(number)
            }
            _ => None,
        })
    }

    /// A decimal number in thousandths.
    pub(crate) fn thousandths(&mut self, path: &str) -> Option<i64> {
        self.value(path, |_, value| decimal(value, 3))
    }

    /// An amount of dollars.
    pub(crate) fn dollars(&mut self, path: &str) -> Option<Money> {
        self.value(path, |_, value| decimal(value, 9)).map(Money)
    }

    /// Amounts of dollars by name.
    pub(crate) fn amounts(&mut self, path: &str) -> Option<BTreeMap<String, Money>> {
        self.value(path, |_, value| match value {
            Value::Numbers(numbers) => {
                let amounts = numbers.iter().map(|(name, digits)| {
                    let amount = decimal(&Value::Number(digits.clone()), 9)?;
                    Some((name.clone(), Money(amount)))
                });
                amounts.collect()
            }
            Value::Texts(none) if none.is_empty() => Some(BTreeMap::new()),
            _ => None,
        })
    }

    /// Dollars for a million tokens, as nano-dollars for one.
    pub(crate) fn price(&mut self, path: &str) -> Option<i64> {
        self.thousandths(path)
    }

    pub(crate) fn duration(&mut self, path: &str) -> Option<Duration> {
        self.value(path, |_, value| match value {
            Value::Text(text) => duration(text),
            _ => None,
        })
    }

    /// A size in bytes.
    pub(crate) fn size(&mut self, path: &str) -> Option<u64> {
        self.value(path, |_, value| match value {
            Value::Text(text) => size(text),
            _ => None,
        })
    }

    pub(crate) fn reference(&mut self, path: &str) -> Option<Reference> {
        self.value(path, |_, value| match value {
            Value::Text(text) => text.parse().ok(),
            _ => None,
        })
    }

    pub(crate) fn texts(&mut self, path: &str) -> Option<BTreeMap<String, String>> {
        self.value(path, |_, value| match value {
            Value::Texts(texts) => Some(texts.clone()),
            _ => None,
        })
    }

    pub(crate) fn names(&mut self, path: &str) -> Option<Vec<String>> {
        self.value(path, |_, value| match value {
            Value::Names(names) => Some(names.clone()),
            _ => None,
        })
    }
}

/// What stands at a path of a document, read as a type of its own.
fn read_whole<'a, T: DeserializeOwned>(
    text: &str,
    path: impl Iterator<Item = &'a str>,
) -> Option<Result<T, toml::de::Error>> {
    let (document, _) = DeTable::parse_recoverable(text);
    let mut value = Spanned::new(document.span(), DeValue::Table(document.into_inner()));
    for name in path {
        let DeValue::Table(table) = value.into_inner() else {
            return None;
        };
        let mut entries = table.into_iter();
        value = entries.find(|(key, _)| key.get_ref() == name)?.1;
    }
    matches!(value.get_ref(), DeValue::Table(_)).then(|| T::deserialize(ValueDeserializer::from(value)))
}

/// What a type says is wrong, without the text that was written: it may be a secret in the wrong place.
fn without_value(message: &str) -> String {
    match (message.find(": string \""), message.rfind("\", expected")) {
        (Some(start), Some(end)) if start < end => format!("{}: a text{}", &message[..start], &message[end + 1..]),
        _ => message.to_owned(),
    }
}

/// `models.large.price.input` as a path. Names of models hold no dot, see [`super::settings`].
fn split(path: &str) -> Vec<String> {
    path.split('.').map(str::to_owned).collect()
}

/// A default of the table of keys as a value.
fn written(default: &str) -> Value {
    match default.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(text) => Value::Text(text.to_owned()),
        None if default == "false" => Value::Flag(false),
        None => Value::Number(default.to_owned()),
    }
}

/// A decimal number, exactly, in units of 10^-places. Below zero, with an exponent or with more places: nothing.
fn decimal(value: &Value, places: usize) -> Option<i64> {
    let Value::Number(digits) = value else { return None };
    let digits = digits.replace('_', "");
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || fraction.len() > places {
        return None;
    }
    format!("{whole}{fraction:0<places$}").parse().ok()
}

fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|letter: char| !letter.is_ascii_digit())?;
    let number: u64 = text[..unit].parse().ok()?;
    let milliseconds = match &text[unit..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(milliseconds)?))
}

fn size(text: &str) -> Option<u64> {
    let unit = text.find(|letter: char| !letter.is_ascii_digit())?;
    let number: u64 = text[..unit].parse().ok()?;
    let bytes = match &text[unit..] {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(bytes).filter(|bytes| i64::try_from(*bytes).is_ok())
}
