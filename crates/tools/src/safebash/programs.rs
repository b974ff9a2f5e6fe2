//! The table of programs and flags, and whether a command keeps to it.
//!
//! The table is data (`programs.txt`). A word of a command is read here just as the program will read it, or the command is
//! refused: a long flag must be written in full, a flag's value must stand where the program looks for it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

static TABLE: LazyLock<BTreeMap<&str, Grammar>> = LazyLock::new(|| parse(include_str!("programs.txt")));

/// What may follow a program's name.
#[derive(Debug, Default)]
struct Grammar {
    flags: BTreeMap<&'static str, Value>,
    always: Vec<&'static str>,
    shape: Shape,
    operands: Operands,
    one_is_an_answer: bool,
}

/// Whether a flag takes a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    No,
    One,
    Two,
    /// Joined to the flag, or none.
    Joined,
}

/// How flags are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Shape {
    /// Single letters may be joined, the last with its value.
    #[default]
    Letters,
    /// Single letters may be joined, but one with a value stands alone.
    Apart,
    /// Whole words after a single hyphen.
    Words,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Operands {
    #[default]
    Any,
    Most(usize),
    /// They begin with a plus.
    Plus,
    /// Two, the last a hyphen.
    ToOutput,
}

/// A command that keeps to the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command<'a> {
    pub(super) name: &'a str,
    pub(super) arguments: Vec<String>,
    /// Exit code 1 is no failure.
    pub(super) one_is_an_answer: bool,
}

/// A command that does not.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{name:?} is not one of the programs that safebash runs ({there}); use exec for anything else")]
    Program { name: String, there: String },
    #[error("git is run with one of these sub-commands first: {there}; to change a repository use exec")]
    SubCommand { there: String },
    #[error("{flag} is not among the flags that {program} may be given here{hint}")]
    Flag {
        program: String,
        flag: String,
        hint: String,
    },
    #[error("{flag} of {program} needs {wanted}")]
    Value {
        program: String,
        flag: String,
        wanted: &'static str,
    },
    #[error("{program} {rule}")]
    Operands { program: String, rule: String },
}

/// Whether a command keeps to the table, and what is then run.
pub(super) fn check(words: &[String]) -> Result<Command<'_>, Refused> {
    let (name, rest) = words.split_first().ok_or_else(|| unknown(""))?;
    let (program, rest) = if name == "git" {
        let sub = rest.first().map_or("", String::as_str);
        (format!("git {sub}"), rest.get(1..).unwrap_or_default())
    } else {
        (name.clone(), rest)
    };
    let Some(grammar) = TABLE.get(program.as_str()) else {
        return Err(if name == "git" {
            unknown_sub_command()
        } else {
            unknown(name)
        });
    };
    grammar.check(&program, rest)?;
    let mut arguments: Vec<String> = program.split(' ').skip(1).map(str::to_owned).collect();
    arguments.extend(grammar.always.iter().map(|word| (*word).to_owned()));
    arguments.extend(rest.iter().cloned());
    Ok(Command {
        name,
        arguments,
        one_is_an_answer: grammar.one_is_an_answer,
    })
}

fn unknown(name: &str) -> Refused {
    let mut there: Vec<&str> = TABLE.keys().filter(|name| !name.contains(' ')).copied().collect();
    there.push("git");
    Refused::Program {
        name: name.chars().take(80).collect(),
        there: there.join(" "),
    }
}

fn unknown_sub_command() -> Refused {
    let there: Vec<&str> = TABLE.keys().filter_map(|name| name.strip_prefix("git ")).collect();
    Refused::SubCommand { there: there.join(" ") }
}

impl Grammar {
    fn check(&self, program: &str, words: &[String]) -> Result<(), Refused> {
        let (mut operands, mut words) = (Vec::new(), words.iter());
        while let Some(word) = words.next() {
            let values = match word.as_str() {
                "-" => {
                    operands.push(word);
                    0
                }
                "--" if self.shape != Shape::Words => {
                    operands.extend(words.by_ref());
                    0
                }
                flag if flag.starts_with('-') => self.flag(program, flag)?,
                _ => {
                    operands.push(word);
                    0
                }
            };
            for _ in 0..values {
                words.next().ok_or_else(|| Refused::Value {
                    program: program.to_owned(),
                    flag: word.clone(),
                    wanted: "a value after it",
                })?;
            }
        }
        self.check_operands(program, &operands)
    }

    /// How many of the next words are the flag's values.
    fn flag(&self, program: &str, word: &str) -> Result<usize, Refused> {
        if self.shape == Shape::Words {
            return match self.flags.get(word) {
                Some(Value::No) => Ok(0),
                Some(Value::One) => Ok(1),
                _ => Err(self.unknown(program, word)),
            };
        }
        if word.starts_with("--") {
            let (flag, value) = word
                .split_once('=')
                .map_or((word, None), |(flag, value)| (flag, Some(value)));
            let wanted = |wanted| Refused::Value {
                program: program.to_owned(),
                flag: flag.to_owned(),
                wanted,
            };
            return match (self.flags.get(flag), value) {
                (None, _) => Err(self.unknown(program, flag)),
                (Some(Value::No), Some(_)) => Err(wanted("no value")),
                (Some(Value::Two), Some(_)) => Err(wanted("two values after it")),
                (Some(Value::One | Value::Joined), Some(_)) | (Some(Value::No | Value::Joined), None) => Ok(0),
                (Some(Value::One), None) => Ok(1),
                (Some(Value::Two), None) => Ok(2),
            };
        }
        let letters = &word[1..];
        if letters.chars().all(|c| c.is_ascii_digit()) && self.flags.contains_key("-#") {
            return Ok(0);
        }
        for (at, letter) in letters.char_indices() {
            let flag = format!("-{letter}");
            let rest = &letters[at + letter.len_utf8()..];
            match self.flags.get(flag.as_str()) {
                None => return Err(self.unknown(program, &flag)),
                Some(Value::No) => {}
                Some(Value::One) if self.shape == Shape::Apart && letters.len() > 1 => {
                    return Err(Refused::Value {
                        program: program.to_owned(),
                        flag,
                        wanted: "to stand alone, its value in the next word",
                    });
                }
                Some(Value::One) => return Ok(usize::from(rest.is_empty())),
                Some(Value::Joined) => return Ok(0),
                Some(Value::Two) => return Err(self.unknown(program, &flag)),
            }
        }
        Ok(0)
    }

    fn unknown(&self, program: &str, flag: &str) -> Refused {
        let full: Vec<&str> = self
            .flags
            .keys()
            .filter(|known| flag.len() > 3 && known.starts_with(flag))
            .copied()
            .collect();
        let hint = if full.is_empty() {
            String::new()
        } else {
            format!("; write {} in full", full.join(" or "))
        };
        Refused::Flag {
            program: program.to_owned(),
            flag: flag.chars().take(80).collect(),
            hint,
        }
    }

    fn check_operands(&self, program: &str, operands: &[&String]) -> Result<(), Refused> {
        let rule = match self.operands {
            Operands::Most(0) if !operands.is_empty() => "only lists here: it takes flags and nothing else".to_owned(),
            Operands::Most(most) if operands.len() > most => format!("takes at most {most} of its operands here"),
            Operands::Plus if operands.iter().any(|word| !word.starts_with('+')) => {
                "takes a format that begins with +, and no date to set".to_owned()
            }
            Operands::ToOutput if operands.len() != 2 || operands[1] != "-" => {
                "takes a file and then -, for the output: it writes no file here".to_owned()
            }
            _ => return Ok(()),
        };
        Err(Refused::Operands {
            program: program.to_owned(),
            rule,
        })
    }
}

/// Reads the table. It is ours: what it cannot understand is found by a test.
fn parse(text: &'static str) -> BTreeMap<&'static str, Grammar> {
    let mut table: BTreeMap<&str, Grammar> = BTreeMap::new();
    let mut current = "";
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
    {
        let mut rest = line;
        if !line.starts_with(' ') {
            let words = if line.starts_with("git ") { 2 } else { 1 };
            let end = line.match_indices(' ').nth(words - 1).map_or(line.len(), |(at, _)| at);
            (current, rest) = line.split_at(end);
        }
        let grammar = table.entry(current).or_default();
        rest.split_whitespace().for_each(|word| grammar.add(word));
    }
    table
}

impl Grammar {
    fn add(&mut self, word: &'static str) {
        match word {
            "@exact" => self.shape = Shape::Words,
            "@apart" => self.shape = Shape::Apart,
            "@plus" => self.operands = Operands::Plus,
            "@to-output" => self.operands = Operands::ToOutput,
            "@one" => self.one_is_an_answer = true,
            word => {
                if let Some(most) = word.strip_prefix("@most=") {
                    self.operands = Operands::Most(most.parse().unwrap_or(0));
                } else if let Some(always) = word.strip_prefix('+') {
                    self.always.push(always);
                } else if let Some(flag) = word.strip_suffix("::") {
                    self.flags.insert(flag, Value::Two);
                } else if let Some(flag) = word.strip_suffix(':') {
                    self.flags.insert(flag, Value::One);
                } else if let Some(flag) = word.strip_suffix('=') {
                    self.flags.insert(flag, Value::Joined);
                } else {
                    self.flags.insert(word, Value::No);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
