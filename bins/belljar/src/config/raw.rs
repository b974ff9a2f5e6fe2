//! From text to entries: which keys stand where. What their values mean is asked later.

use std::collections::BTreeMap;
use std::fmt;

use spelling::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{self, RENAMED, Renamed, SECTIONS};

/// Where a value was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A line of the file, from 1.
    Line(usize),
    /// An environment variable.
    Environment(String),
    /// Nowhere: something is missing.
    Nowhere,
}

/// A thing that is wrong with the configuration, or soon will be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mistake {
    /// Where.
    pub(crate) place: Place,
    /// What, and what to write instead.
    pub(crate) text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Line(line) => write!(formatter, "line {line}: {}", self.text),
            Place::Environment(name) => write!(formatter, "{name}: {}", self.text),
            Place::Nowhere => formatter.write_str(&self.text),
        }
    }
}

/// A value as it was written.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Text(String),
    Flag(bool),
    /// A number, in its digits.
    Number(String),
    Texts(BTreeMap<String, String>),
    /// Names and numbers, in their digits.
    Numbers(BTreeMap<String, String>),
    Names(Vec<String>),
    /// Anything that no key wants, by its kind.
    Other(&'static str),
}

/// A value and its place.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    pub(crate) place: Place,
}

/// What was written, key by key.
#[derive(Default)]
pub(crate) struct Raw {
    pub(crate) entries: BTreeMap<Vec<String>, Entry>,
    /// The names of the tables of which there may be many, by section (`models.*`), each with its place.
    pub(crate) tables: BTreeMap<&'static str, BTreeMap<String, Place>>,
    /// What was read, for tables that are read whole.
    pub(crate) text: String,
    pub(crate) mistakes: Vec<Mistake>,
    pub(crate) warnings: Vec<Mistake>,
}

/// Variables that begin with `BELLJAR_` and are not keys.
const OTHER_VARIABLES: &[&str] = &["BELLJAR_CONFIG", "BELLJAR_URL", "BELLJAR_TOKEN"];

/// How variables begin that are for Belljar's own scripts.
const SCRIPTS: [&str; 3] = ["BELLJAR_TEST_", "BELLJAR_DEMO_", "BELLJAR_BENCH_"];

impl Raw {
    /// Takes a file's text and the environment's variables. `renamed` is what has a new name.
    pub(crate) fn read(text: &str, environment: &[(String, String)], renamed: &[Renamed]) -> Self {
        let mut raw = Self {
            text: text.to_owned(),
            ..Self::default()
        };
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let place = error
                .span()
                .map_or(Place::Nowhere, |span| Place::Line(line_of(text, span.start)));
            raw.mistakes.push(Mistake {
                place,
                text: format!("this is not TOML: {}", error.message()),
            });
        }
        raw.walk(text, document.get_ref(), &mut Vec::new(), renamed);
        raw.take_environment(environment);
        raw
    }

    /// The same, with the renamed keys of this release.
    pub(crate) fn of(text: &str, environment: &[(String, String)]) -> Self {
        Self::read(text, environment, RENAMED)
    }

    fn walk(&mut self, text: &str, table: &DeTable<'_>, path: &mut Vec<String>, renamed: &[Renamed]) {
        for (name, value) in table {
            let place = Place::Line(line_of(text, name.span().start));
            path.push(name.get_ref().to_string());
            self.visit(text, value, place, path, renamed);
            path.pop();
        }
    }

    fn visit(
        &mut self,
        text: &str,
        value: &Spanned<DeValue<'_>>,
        place: Place,
        path: &mut Vec<String>,
        renamed: &[Renamed],
    ) {
        let written = path.join(".");
        let new_path = renamed.iter().find(|renamed| renamed.old == written).map(|renamed| {
            self.warnings.push(Mistake {
                place: place.clone(),
                text: format!(
                    "{written} is now called {}; the old name goes with the next release",
                    renamed.new
                ),
            });
            renamed.new.split('.').map(str::to_owned).collect::<Vec<String>>()
        });
        let path = new_path.as_ref().unwrap_or(path);
        let among = keys::table_of(path);
        if let (Some(section), Some(name)) = (among, path.last()) {
            let tables = self.tables.entry(section.name).or_default();
            tables.insert(name.clone(), place.clone());
        }
        if among.is_some_and(|section| section.whole) && matches!(value.get_ref(), DeValue::Table(_)) {
            // Its own types check it.
        } else if keys::find(path).is_some() {
            let entry = Entry {
                value: plain(value.get_ref()),
                place: place.clone(),
            };
            if self.entries.insert(path.clone(), entry).is_some() {
                let text = format!("{} is given twice, by its old name and its new one", path.join("."));
                self.mistakes.push(Mistake { place, text });
            }
        } else if !keys::is_table(path) {
            self.mistakes.push(Mistake {
                place,
                text: unknown(&path.join("."), &known_names(path)),
            });
        } else if let DeValue::Table(table) = value.get_ref() {
            self.walk(text, table, &mut path.clone(), renamed);
        } else {
            let text = format!("{} is a table: write [{}]", path.join("."), path.join("."));
            self.mistakes.push(Mistake { place, text });
        }
    }

    /// `BELLJAR_SERVER_LISTEN` stands for `server.listen`. Tables of which there may be many are not for the environment: their names may be anything.
    fn take_environment(&mut self, environment: &[(String, String)]) {
        for (name, value) in environment.iter().filter(|(name, _)| name.starts_with("BELLJAR_")) {
            if OTHER_VARIABLES.contains(&name.as_str()) || SCRIPTS.iter().any(|start| name.starts_with(start)) {
                continue;
            }
            let place = Place::Environment(name.clone());
            match variables().find(|(variable, _)| variable == name) {
                Some((_, path)) => {
                    let value = match keys::find(&path).map(|key| key.kind) {
                        Some(kind) if is_number(kind) => Value::Number(value.clone()),
                        _ => Value::Text(value.clone()),
                    };
                    self.entries.insert(path, Entry { value, place });
                }
                None => {
                    let known: Vec<String> = variables()
                        .map(|(variable, _)| variable)
                        .chain(OTHER_VARIABLES.iter().map(|name| (*name).to_owned()))
                        .collect();
                    let text = unknown(name, &known);
                    self.mistakes.push(Mistake { place, text });
                }
            }
        }
    }
}

fn is_number(kind: keys::Kind) -> bool {
    matches!(
        kind,
        keys::Kind::Whole(..) | keys::Kind::Decimal | keys::Kind::Dollars | keys::Kind::Price
    )
}

/// Every variable that stands for a key, with the key's path.
pub(crate) fn variables() -> impl Iterator<Item = (String, Vec<String>)> {
    SECTIONS
        .iter()
        .filter(|section| !section.name.contains('*'))
        .flat_map(|section| {
            section.keys.iter().map(move |key| {
                let path = vec![section.name.to_owned(), key.name.to_owned()];
                (format!("BELLJAR_{}", path.join("_").to_uppercase()), path)
            })
        })
}

/// The names that could have been meant by a path: keys and tables at the same depth, with the name of one of many tables as it was written.
fn known_names(path: &[String]) -> Vec<String> {
    let mut known = Vec::new();
    for section in SECTIONS {
        for key in section.keys {
            let whole = keys::whole_name(section, key);
            let names = whole.split('.').enumerate().map(|(depth, name)| match name {
                "*" => path.get(depth).map_or("*", String::as_str),
                name => name,
            });
            let names: Vec<&str> = names.take(path.len().max(2)).collect();
            known.push(names.join("."));
            known.push(names[0].to_owned());
        }
    }
    known
}

/// Says that a name is unknown, and the nearest that is known.
fn unknown(name: &str, known: &[String]) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(candidate) => format!("unknown key {name}: did you mean {candidate}?"),
        None => format!("unknown key {name}: docs/configuration.md lists every key"),
    }
}

fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Integer(number) if number.radix() == 10 => Value::Number(number.as_str().to_owned()),
        DeValue::Float(number) => Value::Number(number.as_str().to_owned()),
        DeValue::Table(table) => {
            let numbers = || numbers(table).map(Value::Numbers);
            let texts = texts(table).map(Value::Texts);
            texts.or_else(numbers).unwrap_or(Value::Other("a table"))
        }
        DeValue::Array(items) => {
            let names = items
                .iter()
                .map(|item| item.get_ref().as_str().map(str::to_owned))
                .collect::<Option<_>>();
            names.map_or(Value::Other("a list"), Value::Names)
        }
        other => Value::Other(match other {
            DeValue::Integer(_) => "a number that is not decimal",
            _ => "a date",
        }),
    }
}

fn texts(table: &DeTable<'_>) -> Option<BTreeMap<String, String>> {
    let entries = table.iter();
    entries
        .map(|(name, value)| Some((name.get_ref().to_string(), value.get_ref().as_str()?.to_owned())))
        .collect()
}

fn numbers(table: &DeTable<'_>) -> Option<BTreeMap<String, String>> {
    let entries = table.iter();
    entries
        .map(|(name, value)| match plain(value.get_ref()) {
            Value::Number(digits) => Some((name.get_ref().to_string(), digits)),
            _ => None,
        })
        .collect()
}

/// The line of a place in a text, from 1.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()
        .iter()
        .take(offset)
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}
