//! Chains of hashes: each link stands for its content and every link before it.

use sha2::{Digest, Sha256};

use crate::Hash;

/// The digest of some bytes.
pub(crate) fn digest(bytes: &[u8]) -> Hash {
    Hash(Sha256::digest(bytes).into())
}

/// The link of parts that follow the link before. Each part counts with its length, so that none can lend bytes to the next.
pub(crate) fn link(before: Hash, position: i64, parts: &[&[u8]]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(before.0);
    hasher.update(position.to_be_bytes());
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    Hash(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_depends_on_everything() {
        let zero = Hash::default();
        let first = link(zero, 1, &[b"ab", b"c"]);
        assert_ne!(first, link(zero, 1, &[b"a", b"bc"]));
        assert_ne!(first, link(zero, 2, &[b"ab", b"c"]));
        assert_ne!(first, link(first, 1, &[b"ab", b"c"]));
        assert_eq!(first, link(zero, 1, &[b"ab", b"c"]));
    }
}
