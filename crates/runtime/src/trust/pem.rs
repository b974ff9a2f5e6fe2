//! Certificates as text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The certificates of a text and nothing else of it; none where it has none. A key that was sent by mistake goes nowhere.
pub(super) fn certificates(text: &str) -> Option<String> {
    let mut certificates = String::new();
    for block in blocks(text) {
        certificates += BEGIN;
        certificates.push('\n');
        let lines = STANDARD.encode(block);
        for line in lines.as_bytes().chunks(64) {
            certificates += std::str::from_utf8(line).ok()?;
            certificates.push('\n');
        }
        certificates += END;
        certificates.push('\n');
    }
    Some(certificates).filter(|certificates| !certificates.is_empty())
}

/// The certificates of a text, as bytes (DER). What cannot be read is left out.
pub(super) fn blocks(text: &str) -> Vec<Vec<u8>> {
    let block = |rest: &str| {
        let (body, _) = rest.split_once(END)?;
        let body: String = body.split_ascii_whitespace().collect();
        STANDARD.decode(body).ok().filter(|block| !block.is_empty())
    };
    text.split(BEGIN).skip(1).filter_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_taken_out_of_a_text_and_keys_are_not() {
        let text = "words\n-----BEGIN CERTIFICATE-----\nAAEC\nAwQ=\n-----END CERTIFICATE-----\n\
                    -----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n\
                    -----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert_eq!(blocks(text), [[0, 1, 2, 3, 4]]);
        assert_eq!(
            certificates(text).unwrap(),
            "-----BEGIN CERTIFICATE-----\nAAECAwQ=\n-----END CERTIFICATE-----\n"
        );
        assert_eq!(certificates("none"), None);
        assert_eq!(certificates("-----BEGIN CERTIFICATE-----\nAAEC"), None);
    }
}
