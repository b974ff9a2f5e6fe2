//! How values stand in the database: JSON with a version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::StoreError;

/// The version that this build writes; it reads every one up to it.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Written<'a, T> {
    v: u32,
    value: &'a T,
}

#[derive(Deserialize)]
struct Read<T> {
    value: T,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

/// A value as JSON with its version.
pub(crate) fn write<T: Serialize>(kind: &'static str, value: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(&Written { v: VERSION, value }).map_err(|source| corrupt(kind, source))
}

/// The value again.
pub(crate) fn read<T: DeserializeOwned>(kind: &'static str, bytes: &[u8]) -> Result<T, StoreError> {
    match serde_json::from_slice::<Read<T>>(bytes) {
        Ok(read) if bytes.starts_with(b"{\"v\":1,") => Ok(read.value),
        other => {
            let version: Version = serde_json::from_slice(bytes).map_err(|source| corrupt(kind, source))?;
            if version.v > VERSION {
                return Err(StoreError::NewerValue {
                    kind,
                    found: version.v,
                    known: VERSION,
                });
            }
            other.map(|read| read.value).map_err(|source| corrupt(kind, source))
        }
    }
}

pub(crate) fn corrupt(kind: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::Corrupt {
        kind,
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_a_newer_release_is_refused_in_words() {
        let bytes = write("event", &vec![1, 2]).unwrap();
        assert_eq!(read::<Vec<i32>>("event", &bytes).unwrap(), [1, 2]);
        let error = read::<Vec<i32>>("event", br#"{"v":2,"value":{"new":1}}"#).unwrap_err();
        assert!(error.to_string().contains("run the newer release"), "{error}");
        assert!(matches!(
            read::<Vec<i32>>("event", b"{"),
            Err(StoreError::Corrupt { .. })
        ));
    }
}
