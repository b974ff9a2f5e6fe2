//! A secret for whoever uses it again and again.

use std::fmt;
use std::sync::Arc;

use crate::{Reference, Secret, Source, Unresolved};

/// A secret for whoever uses it again and again: asked for anew each time, unless it was given as it is.
#[derive(Clone)]
pub struct Credential(Held);

#[derive(Clone)]
enum Held {
    Given(Secret),
    Asked {
        reference: Reference,
        source: Arc<dyn Source>,
    },
}

impl Credential {
    /// What `reference` leads to, asked of `source` at each use.
    #[must_use]
    pub fn asked(reference: Reference, source: Arc<dyn Source>) -> Self {
        Self(Held::Asked { reference, source })
    }

    /// The secret as it is now, for one use.
    ///
    /// # Errors
    /// Its reference leads nowhere.
    pub fn get(&self) -> Result<Secret, Unresolved> {
        match &self.0 {
            Held::Given(secret) => Ok(secret.clone()),
            Held::Asked { reference, source } => source.secret(reference),
        }
    }
}

impl From<Secret> for Credential {
    fn from(secret: Secret) -> Self {
        Self(Held::Given(secret))
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Held::Given(secret) => write!(formatter, "{secret}"),
            Held::Asked { reference, .. } => write!(formatter, "{reference}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_credential_prints_its_reference_and_never_its_secret() {
        let reference: Reference = "store:crm".parse().expect("a reference");
        let source = BTreeMap::from([(reference.clone(), Secret::new("hunter2"))]);
        let credential = Credential::asked(reference, Arc::new(source));
        assert_eq!(credential.get().expect("it is there").expose(), "hunter2");
        assert_eq!(format!("{credential:?}"), "store:crm");
        assert_eq!(format!("{:?}", Credential::from(Secret::new("hunter2"))), "[secret]");
    }
}
