//! Services of kind `script`.

use super::Http;

/// JavaScript between calls of an API.
#[derive(Clone, Debug)]
pub struct Script {
    /// Where its requests go, with the credential.
    pub api: Http,
    /// Where else they may go, without it: a name, and a base as the API's.
    pub hosts: Vec<(String, String)>,
    /// The text of `script.js`.
    pub source: String,
}
