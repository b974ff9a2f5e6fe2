//! What needs no key and no network to be read: variables and files.

use secret::{Reference, Secret, Source, Unresolved};

use crate::{Environment, file};

/// Variables and files. Passphrases and logins of the other sources come from here, so that none waits for itself.
#[derive(Clone, Debug)]
pub struct Local {
    environment: Environment,
}

impl Local {
    /// Files, and these variables.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment }
    }
}

impl Source for Local {
    fn secret(&self, reference: &Reference) -> Result<Secret, Unresolved> {
        match reference {
            Reference::Environment(name) => self.environment.secret(reference, name),
            Reference::File(path) => file::secret(reference, path),
            Reference::Store(_) | Reference::Vault { .. } => Err(Unresolved::unusable(
                reference,
                "what opens a store or a vault cannot lie in one",
                "write env:NAME or file:/path here",
            )),
        }
    }
}
