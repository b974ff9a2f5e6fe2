//! What is wrong with a definition, and what to write instead.

use std::fmt;
use std::path::PathBuf;

/// Something that is wrong with a definition.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mistake {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; none where the file as a whole is meant.
    pub line: Option<usize>,
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(formatter, ":{line}")?;
        }
        write!(formatter, ": {}: {}", self.problem, self.remedy)
    }
}

/// The known word that a mistyped one is likely to mean.
pub(crate) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    known
        .into_iter()
        .map(|candidate| (distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| distance * 3 <= candidate.len().max(3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// How many letters must be added, removed or changed to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, candidate) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *candidate);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// `a, b or c`.
pub(crate) fn either<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}
