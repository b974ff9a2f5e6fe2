//! Variables that the program was started with.

use std::collections::BTreeMap;

use secret::{Reference, Secret, Unresolved};

/// Variables that hold secrets, as they were when the program started. Later changes of a process's environment reach nobody.
#[derive(Clone, Default, Debug)]
pub struct Environment(BTreeMap<String, Secret>);

impl Environment {
    /// The variable's value.
    pub(crate) fn secret(&self, reference: &Reference, name: &str) -> Result<Secret, Unresolved> {
        let Some(value) = self.0.get(name) else {
            return Err(Unresolved::absent(
                reference,
                "the program was started without this variable",
                format!("set {name} for `belljar up` or `belljar serve` and start it again"),
            ));
        };
        let text = value.expose().trim();
        if text.is_empty() {
            return Err(Unresolved::unusable(
                reference,
                "the variable is set and empty",
                format!("give {name} a value and start Belljar again"),
            ));
        }
        Ok(Secret::new(text))
    }
}

impl FromIterator<(String, Secret)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, Secret)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}
