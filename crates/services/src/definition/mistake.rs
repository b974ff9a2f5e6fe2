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
