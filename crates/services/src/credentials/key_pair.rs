//! Tokens signed with a key pair, as Snowflake takes them.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};
use jiff::Timestamp;
use ring::digest;
use secret::Secret;

use super::rsa::{Key, KeyError};
use super::tokens::{Made, Slots};
use crate::{Code, Failure};

/// Says what kind of token stands in the `Authorization` header.
pub(super) const KIND_HEADER: HeaderName = HeaderName::from_static("x-snowflake-authorization-token-type");
pub(super) const KIND: HeaderValue = HeaderValue::from_static("KEYPAIR_JWT");

/// How long a token lives; Snowflake takes up to an hour.
const LIVES: Duration = Duration::from_secs(50 * 60);

/// Makes a token.
pub(super) fn make(service: &str, slots: &Slots) -> Result<Made, Failure> {
    let slot = |name: &str| slots.get(name).map(Secret::expose).unwrap_or_default();
    let who = format!("{}.{}", account(slot("account")), slot("user").to_ascii_uppercase());
    let token = slots
        .get("private_key")
        .map_or(Err(KeyError::NotPem), Key::read)
        .and_then(|key| {
            let print = STANDARD.encode(digest::digest(&digest::SHA256, &key.public_key_info()));
            let now = Timestamp::now().as_second();
            key.token(&serde_json::json!({
                "iss": format!("{who}.SHA256:{print}"),
                "sub": who,
                "iat": now,
                "exp": now + i64::try_from(LIVES.as_secs()).unwrap_or_default(),
            }))
        })
        .map_err(|error| {
            Failure::new(Code::CredentialMissing, format!("{service}: auth.private_key: {error}")).remedy(format!(
                "an administrator sets services.{service}.auth.private_key anew"
            ))
        })?;
    Ok(Made {
        token,
        lives: Some(LIVES),
    })
}

/// The account's identifier as it stands in a token: capitals, without the region.
fn account(written: &str) -> String {
    let name = if written.to_ascii_lowercase().contains(".global") {
        written.split('-').next()
    } else {
        written.split('.').next()
    };
    name.unwrap_or_default().to_ascii_uppercase()
}
