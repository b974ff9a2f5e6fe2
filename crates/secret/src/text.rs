//! A text that must not be seen.

use std::fmt;

use serde::{Deserialize, Deserializer};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A text that must not be seen: it prints as `[secret]`, cannot be serialized, is compared in a time that says nothing of
/// where two of one length differ, and is wiped when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a text into custody.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text itself, for the one place that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[secret]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[secret]")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Credential;

    /// What is had once, and a second time by what can be serialized.
    trait Had<Twice> {
        fn had() {}
    }
    struct Serialized;
    impl<T: ?Sized> Had<()> for T {}
    impl<T: ?Sized + serde::Serialize> Had<Serialized> for T {}

    /// It is not known which of two is meant, and nothing compiles, where one of these can be serialized.
    const _: fn() = || {
        <Secret as Had<_>>::had();
        <Credential as Had<_>>::had();
    };

    #[test]
    fn a_secret_never_prints() {
        let secret = Secret::new("hunter2");
        assert_eq!(
            format!("{secret} {secret:?} {:?}", Some(&secret)),
            "[secret] [secret] Some([secret])"
        );
    }

    #[test]
    fn secrets_are_equal_where_their_texts_are() {
        let secret = Secret::new("hunter2");
        assert_eq!(secret, secret.clone());
        for other in ["hunter3", "hunter", "hunter22", ""] {
            assert_ne!(secret, Secret::new(other));
        }
    }
}
