//! All services there are.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::Service;

/// All services there are, by name.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    services: BTreeMap<String, Service>,
}

/// Something that is wrong with a definition.
#[derive(Clone, PartialEq, Eq, Debug)]
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

impl Catalogue {
    /// The service of this name.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.get(name)
    }

    /// Every service, by name.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(formatter, ":{line}")?;
        }
        write!(formatter, ": {}; {}", self.problem, self.remedy)
    }
}
