//! The placeholder in a body becomes a secret, in a body that comes in pieces.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use memchr::memmem;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::PLACEHOLDER;
use secret::Secret;

/// How a secret must be written in a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Escape {
    None,
    Json,
    Form,
}

impl Escape {
    /// What a body of this media type needs; what programs say over a WebSocket is JSON where a secret belongs into it.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(header::SEC_WEBSOCKET_KEY) {
            return Self::Json;
        }
        let media = headers
            .get(header::CONTENT_TYPE)
            .and_then(|media| media.to_str().ok())
            .and_then(|media| media.split(';').next())
            .map(|media| media.trim().to_ascii_lowercase())
            .unwrap_or_default();
        if media == "application/json" || media.ends_with("+json") {
            Self::Json
        } else if media == "application/x-www-form-urlencoded" {
            Self::Form
        } else {
            Self::None
        }
    }
}

/// Replaces the placeholder by a secret, holding back no more than what may become one.
pub(crate) struct Substitute {
    secret: Secret,
    held: BytesMut,
}

impl Substitute {
    /// For one body.
    pub(crate) fn new(secret: &Secret, escape: Escape) -> Self {
        let written = match escape {
            Escape::None => secret.expose().to_owned(),
            Escape::Form => utf8_percent_encode(secret.expose(), NON_ALPHANUMERIC).to_string(),
            Escape::Json => {
                let quoted = serde_json::Value::from(secret.expose()).to_string();
                quoted[1..quoted.len() - 1].to_owned()
            }
        };
        Self {
            secret: Secret::new(written),
            held: BytesMut::new(),
        }
    }

    /// Takes all of a text and gives it filled in.
    pub(crate) fn whole(&mut self, text: &Bytes) -> Bytes {
        let done = self.push(text);
        [done, self.finish()].concat().into()
    }

    /// Takes a piece and gives what is certain.
    pub(crate) fn push(&mut self, piece: &Bytes) -> Bytes {
        self.held.extend_from_slice(piece);
        let mut done = BytesMut::with_capacity(self.held.len());
        while let Some(place) = memmem::find(&self.held, PLACEHOLDER.as_bytes()) {
            done.extend_from_slice(&self.held.split_to(place));
            done.extend_from_slice(self.secret.expose().as_bytes());
            let _ = self.held.split_to(PLACEHOLDER.len());
        }
        let certain = self.held.len() - open(&self.held);
        done.extend_from_slice(&self.held.split_to(certain));
        done.freeze()
    }

    /// Gives what was held back.
    pub(crate) fn finish(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

/// How long a beginning of the placeholder stands at a text's end.
fn open(text: &[u8]) -> usize {
    (1..PLACEHOLDER.len())
        .rev()
        .find(|&length| text.ends_with(&PLACEHOLDER.as_bytes()[..length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_replaced_at_every_border() {
        let text = format!("{{\"a\":\"{PLACEHOLDER}\",\"b\":\"credential-broke\",\"c\":\"{PLACEHOLDER}\"}}");
        for size in 1..text.len() {
            let mut substitute = Substitute::new(&Secret::new("x\"y"), Escape::Json);
            let mut done = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                done.extend_from_slice(&substitute.push(&Bytes::copy_from_slice(piece)));
            }
            done.extend_from_slice(&substitute.finish());
            assert_eq!(
                String::from_utf8(done).unwrap(),
                r#"{"a":"x\"y","b":"credential-broke","c":"x\"y"}"#
            );
        }
    }
}
