//! Java's own format for whom it trusts: a key store of type JKS, version 2.
//!
//! Java reads it whatever type it expects. The digest at its end is checked only by who gives a password; everybody uses the
//! one that Java ships with.

use sha1::{Digest, Sha1};

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
/// An entry that is a certificate.
const TRUSTED: u32 = 2;
const PASSWORD: &str = "changeit";
/// What Sun's engineers put between the password and the content.
const SALT: &[u8] = b"Mighty Aphrodite";

/// A key store of these certificates (DER).
pub(super) fn key_store(certificates: &[Vec<u8>]) -> Vec<u8> {
    let mut store = Vec::new();
    for number in [MAGIC, VERSION, length(certificates.len())] {
        store.extend(number.to_be_bytes());
    }
    for (number, certificate) in certificates.iter().enumerate() {
        store.extend(TRUSTED.to_be_bytes());
        text(&mut store, &format!("belljar-{number}"));
        // When it was added: the same each time, so that the same certificates give the same bytes.
        store.extend(0_u64.to_be_bytes());
        text(&mut store, "X.509");
        store.extend(length(certificate.len()).to_be_bytes());
        store.extend(certificate);
    }
    let mut digest = Sha1::new();
    for unit in PASSWORD.encode_utf16() {
        digest.update(unit.to_be_bytes());
    }
    digest.update(SALT);
    digest.update(&store);
    store.extend(digest.finalize());
    store
}

/// Far below what the number can say: the text they come from is bounded.
fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn text(store: &mut Vec<u8>, text: &str) {
    store.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    store.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_the_form_that_java_reads() {
        let store = key_store(&[vec![0x30, 0x03, 1, 2, 3]]);
        assert_eq!(store[..12], [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 1]);
        assert_eq!(store[12..16], [0, 0, 0, 2]);
        assert_eq!(&store[16..27], b"\0\x09belljar-0");
        assert_eq!(&store[35..42], b"\0\x05X.509");
        assert_eq!(store[42..46], [0, 0, 0, 5]);
        assert_eq!(store.len(), 46 + 5 + 20);
    }
}
