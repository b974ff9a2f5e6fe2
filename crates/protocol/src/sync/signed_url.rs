//! A URL that is a key while it is good.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// A URL whose query lets whoever has it read or write one content, for some minutes. It travels on the link, and prints
/// without its query.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SignedUrl(String);

impl From<String> for SignedUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl Deref for SignedUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SignedUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.split('?').next().unwrap_or_default();
        write!(formatter, "{path}?[signature]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FromSync, Offered, SyncAnswer};

    #[test]
    fn threat_123_a_signed_url_is_in_nothing_that_is_printed() {
        let url = SignedUrl::from("/v1/objects/ab/cd?until=1&signature=5ec7e7".to_owned());
        assert_eq!(format!("{url:?}"), "/v1/objects/ab/cd?[signature]");
        let printed = [
            format!("{:?}", Offered::Upload { url: url.clone() }),
            format!(
                "{:?}",
                SyncAnswer::Fetch {
                    urls: vec![url.clone()]
                }
            ),
            format!(
                "{:?}",
                FromSync::Get {
                    number: 1,
                    url: url.clone(),
                    at: 0,
                    bytes: 1
                }
            ),
        ];
        for printed in printed {
            assert!(!printed.contains("5ec7e7"), "{printed}");
        }
        let travels = serde_json::to_string(&url).expect("it can be said");
        assert_eq!(travels, "\"/v1/objects/ab/cd?until=1&signature=5ec7e7\"");
    }
}
