//! A file of a definition, TOML or JSON, as one value whose every part knows its line.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

use super::mistake::Mistake;

/// The largest file of a definition, in bytes.
const MAX_FILE: u64 = 2 << 20;
/// How deep a value may be nested.
const MAX_DEPTH: usize = 64;

/// A file of a definition.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: PathBuf,
    pub(crate) value: Value,
    /// The line of each value, by its JSON pointer.
    lines: HashMap<String, usize>,
}

impl Source {
    /// Reads a file; its name says what it is.
    pub(crate) fn read(file: &Path) -> Result<Self, Vec<Mistake>> {
        let fail = |problem: String, remedy: &str| vec![whole(file, problem, remedy)];
        let size = std::fs::metadata(file).map(|about| about.len());
        if size.is_ok_and(|size| size > MAX_FILE) {
            return Err(fail(
                format!("the file is larger than {MAX_FILE} bytes"),
                "make it smaller",
            ));
        }
        let text = std::fs::read_to_string(file).map_err(|error| {
            fail(
                format!("the file cannot be read ({error})"),
                "make it a readable text in UTF-8",
            )
        })?;
        if file.extension().is_some_and(|extension| extension == "toml") {
            Self::toml(file, &text)
        } else {
            Self::json(file, &text)
        }
    }

    /// Takes TOML.
    pub(crate) fn toml(file: &Path, text: &str) -> Result<Self, Vec<Mistake>> {
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let mistake = |error: &toml::de::Error| Mistake {
                file: file.to_owned(),
                line: error.span().map(|span| line_of(text, span.start)),
                problem: "this is not TOML".into(),
                remedy: error.message().to_owned(),
            };
            return Err(errors.iter().map(mistake).collect());
        }
        let mut reading = Toml {
            file,
            text,
            lines: HashMap::from([(String::new(), 1)]),
            mistakes: Vec::new(),
        };
        let value = reading.table(table.get_ref(), "", 0);
        if reading.mistakes.is_empty() {
            Ok(Self {
                file: file.to_owned(),
                value,
                lines: reading.lines,
            })
        } else {
            Err(reading.mistakes)
        }
    }

    /// Takes JSON.
    pub(crate) fn json(file: &Path, text: &str) -> Result<Self, Vec<Mistake>> {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            vec![Mistake {
                file: file.to_owned(),
                line: Some(error.line()),
                problem: "this is not JSON".into(),
                remedy: error.to_string(),
            }]
        })?;
        let mut scan = Json {
            text: text.as_bytes(),
            at: 0,
            line: 1,
            lines: HashMap::new(),
            twice: Vec::new(),
        };
        scan.value("");
        let twice = scan.twice.iter().map(|(key, line)| Mistake {
            file: file.to_owned(),
            line: Some(*line),
            problem: format!("the key {key:?} stands twice in one object"),
            remedy: "keep one of the two".into(),
        });
        let twice: Vec<Mistake> = twice.collect();
        if twice.is_empty() {
            Ok(Self {
                file: file.to_owned(),
                value,
                lines: scan.lines,
            })
        } else {
            Err(twice)
        }
    }

    /// The line of the value at a pointer, or of the nearest around it.
    pub(crate) fn line(&self, pointer: &str) -> Option<usize> {
        let mut pointer = pointer;
        loop {
            if let Some(line) = self.lines.get(pointer) {
                return Some(*line);
            }
            pointer = &pointer[..pointer.rfind('/')?];
        }
    }

    /// A mistake at a pointer.
    pub(crate) fn mistake(&self, pointer: &str, problem: impl Into<String>, remedy: impl Into<String>) -> Mistake {
        Mistake {
            file: self.file.clone(),
            line: self.line(pointer),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

/// A mistake of a file as a whole.
pub(crate) fn whole(file: &Path, problem: impl Into<String>, remedy: &str) -> Mistake {
    Mistake {
        file: file.to_owned(),
        line: None,
        problem: problem.into(),
        remedy: remedy.into(),
    }
}

/// The pointer of a key below a pointer.
pub(crate) fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()
        .iter()
        .take(offset)
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}

struct Toml<'t> {
    file: &'t Path,
    text: &'t str,
    lines: HashMap<String, usize>,
    mistakes: Vec<Mistake>,
}

impl Toml<'_> {
    fn table(&mut self, table: &DeTable<'_>, pointer: &str, depth: usize) -> Value {
        let mut map = Map::new();
        for (key, value) in table {
            let pointer = below(pointer, key.get_ref());
            let line = line_of(self.text, key.span().start);
            self.lines.insert(pointer.clone(), line);
            map.insert(
                key.get_ref().to_string(),
                self.value(value.get_ref(), &pointer, line, depth + 1),
            );
        }
        Value::Object(map)
    }

    fn value(&mut self, value: &DeValue<'_>, pointer: &str, line: usize, depth: usize) -> Value {
        if depth > MAX_DEPTH {
            return self.refuse(line, "this is nested too deep", "write it flatter");
        }
        match value {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Boolean(flag) => Value::Bool(*flag),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => Value::from(number),
                Err(_) => self.refuse(line, "this number is too large", "write a number of at most 18 digits"),
            },
            DeValue::Float(number) => match number.as_str().parse().ok().and_then(Number::from_f64) {
                Some(number) => Value::Number(number),
                None => self.refuse(line, "JSON has no such number", "write a finite number"),
            },
            DeValue::Datetime(_) => self.refuse(line, "JSON has no dates", "put the date in quotes"),
            DeValue::Array(items) => {
                let mut list = Vec::new();
                for (index, item) in items.iter().enumerate() {
                    let pointer = format!("{pointer}/{index}");
                    let line = line_of(self.text, item.span().start);
                    self.lines.insert(pointer.clone(), line);
                    list.push(self.value(item.get_ref(), &pointer, line, depth + 1));
                }
                Value::Array(list)
            }
            DeValue::Table(table) => self.table(table, pointer, depth),
        }
    }

    fn refuse(&mut self, line: usize, problem: &str, remedy: &str) -> Value {
        self.mistakes.push(Mistake {
            line: Some(line),
            ..whole(self.file, problem, remedy)
        });
        Value::Null
    }
}

/// Goes through JSON that was found to be good, for lines and keys that stand twice.
struct Json<'t> {
    text: &'t [u8],
    at: usize,
    line: usize,
    lines: HashMap<String, usize>,
    twice: Vec<(String, usize)>,
}

impl Json<'_> {
    fn value(&mut self, pointer: &str) {
        self.space();
        self.lines.entry(pointer.to_owned()).or_insert(self.line);
        match self.text.get(self.at) {
            Some(b'{') => self.object(pointer),
            Some(b'[') => self.array(pointer),
            Some(b'"') => {
                self.string();
            }
            _ => {
                while self.text.get(self.at).is_some_and(|byte| !b",]} \t\r\n".contains(byte)) {
                    self.at += 1;
                }
            }
        }
    }

    fn object(&mut self, pointer: &str) {
        self.at += 1;
        loop {
            self.space();
            match self.text.get(self.at) {
                Some(b'"') => {
                    let line = self.line;
                    let key = self.string();
                    let below = below(pointer, &key);
                    if self.lines.insert(below.clone(), line).is_some() {
                        self.twice.push((key, line));
                    }
                    self.space();
                    self.at += 1;
                    self.value(&below);
                }
                Some(b',') => self.at += 1,
                _ => break,
            }
        }
        self.at += 1;
    }

    fn array(&mut self, pointer: &str) {
        self.at += 1;
        let mut index = 0;
        loop {
            self.space();
            match self.text.get(self.at) {
                Some(b',') => self.at += 1,
                Some(b']') | None => break,
                Some(_) => {
                    self.value(&format!("{pointer}/{index}"));
                    index += 1;
                }
            }
        }
        self.at += 1;
    }

    fn string(&mut self) -> String {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'\\' => self.at += 1,
                b'"' => break,
                _ => {}
            }
            self.at += 1;
        }
        self.at += 1;
        let written = self.text.get(start..self.at).unwrap_or_default();
        serde_json::from_slice(written).unwrap_or_default()
    }

    fn space(&mut self) {
        while let Some(byte) = self.text.get(self.at).filter(|byte| byte.is_ascii_whitespace()) {
            self.line += usize::from(*byte == b'\n');
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_knows_its_line() {
        let source = Source::toml(Path::new("a.toml"), "a = 1\n[b]\nc = { d = 2 }\n[[e]]\nf = \"x\"\n").unwrap();
        assert_eq!(
            source.value,
            serde_json::json!({ "a": 1, "b": { "c": { "d": 2 } }, "e": [{ "f": "x" }] })
        );
        assert_eq!(
            [source.line("/b/c/d"), source.line("/e/0/f"), source.line("/a/none")],
            [Some(3), Some(5), Some(1)]
        );

        let source = Source::json(
            Path::new("a.json"),
            "{\n \"a~/\\\"\": [1,\n {\"b\": \"x, }\\\"\"}],\n \"c\": null}",
        )
        .unwrap();
        assert_eq!([source.line("/a~0~1\"/1/b"), source.line("/c")], [Some(3), Some(4)]);
    }

    #[test]
    fn what_is_no_value_is_said_with_its_line() {
        for (name, text, words) in [
            ("a.toml", "a = 1\nb = 2020-01-01\n", "a.toml:2: JSON has no dates"),
            ("a.toml", "a = 1\na = 2\n", "a.toml:2: this is not TOML"),
            ("a.toml", "a = 1\nb = inf\n", "a.toml:2: JSON has no such number"),
        ] {
            let mistakes = Source::toml(Path::new(name), text).unwrap_err();
            assert!(mistakes[0].to_string().starts_with(words), "{}", mistakes[0]);
        }
        for (text, words) in [
            ("{\n\"a\": }", "a.json:2: this is not JSON"),
            ("{\"a\": 1,\n\"a\": 2}", "a.json:2: the key \"a\" stands twice"),
        ] {
            let mistakes = Source::json(Path::new("a.json"), text).unwrap_err();
            assert!(mistakes[0].to_string().starts_with(words), "{}", mistakes[0]);
        }
    }
}
