//! `credential-brokered`, where it stands and no rule replaces it.
//!
//! It is no secret, but it shows an upstream which secrets there are, and a request that carries it to a host that no rule
//! binds is either a mistake or an attempt. It is refused (threat 40).

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use http::HeaderValue;
use memchr::memmem;
use percent_encoding::percent_decode;
use protocol::PLACEHOLDER;

use super::Head;

/// Base64 as a server may read it: padded or not.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The part of a head where the placeholder stands, if it does.
pub(crate) fn in_head(head: &Head) -> Option<&'static str> {
    if in_text(head.path.as_bytes()) {
        return Some("path");
    }
    if head.query.as_deref().is_some_and(|query| in_text(query.as_bytes())) {
        return Some("query");
    }
    let named = head.headers.keys().any(|name| in_text(name.as_str().as_bytes()));
    (named || head.headers.values().any(in_header)).then_some("headers")
}

/// Whether a header's value has it, in a `Basic` credential too.
pub(crate) fn in_header(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    if in_text(bytes) {
        return true;
    }
    let Some((scheme, rest)) = bytes.split_at_checked(6) else {
        return false;
    };
    scheme.eq_ignore_ascii_case(b"basic ") && LENIENT.decode(rest.trim_ascii()).is_ok_and(|pair| finds(&pair))
}

/// Whether a text has it, percent-encoded or not.
fn in_text(text: &[u8]) -> bool {
    finds(text) || (text.contains(&b'%') && finds(&percent_decode(text).collect::<Vec<u8>>()))
}

fn finds(text: &[u8]) -> bool {
    memmem::find(text, PLACEHOLDER.as_bytes()).is_some()
}

/// Looks for a word in a body that comes in pieces.
pub(crate) struct Scan {
    word: &'static [u8],
    tail: Vec<u8>,
}

impl Scan {
    /// Looks for this word.
    pub(crate) const fn new(word: &'static [u8]) -> Self {
        Self { word, tail: Vec::new() }
    }

    /// Whether it has come, in this piece or across the border before it.
    pub(crate) fn found(&mut self, piece: &Bytes) -> bool {
        let keep = self.word.len() - 1;
        self.tail.extend_from_slice(&piece[..piece.len().min(keep)]);
        let finds = |text: &[u8]| memmem::find(text, self.word).is_some();
        if finds(&self.tail) || finds(piece) {
            return true;
        }
        if piece.len() >= keep {
            self.tail.clear();
            self.tail.extend_from_slice(&piece[piece.len() - keep..]);
        } else {
            let drop = self.tail.len().saturating_sub(keep);
            self.tail.drain(..drop);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threat_040_a_placeholder_is_found_across_borders_of_pieces() {
        let text = format!("{{\"key\": \"{PLACEHOLDER}\"}}").into_bytes();
        for size in 1..text.len() {
            let mut scan = Scan::new(PLACEHOLDER.as_bytes());
            let found = text
                .chunks(size)
                .any(|piece| scan.found(&Bytes::copy_from_slice(piece)));
            assert!(found, "in pieces of {size}");
        }
        let mut scan = Scan::new(PLACEHOLDER.as_bytes());
        assert!(!scan.found(&Bytes::from_static(b"credential-")));
        assert!(!scan.found(&Bytes::from_static(b" brokered")));
    }

    #[test]
    fn threat_040_a_placeholder_is_found_in_basic_and_percent() {
        let encoded = base64::engine::general_purpose::STANDARD_NO_PAD.encode(format!("me:{PLACEHOLDER}"));
        assert!(in_header(&HeaderValue::from_str(&format!("basic  {encoded}")).unwrap()));
        assert!(in_text(b"/a?b=%63redential%2Dbrokered"));
        assert!(!in_header(&HeaderValue::from_static("Basic !!!")));
    }
}
