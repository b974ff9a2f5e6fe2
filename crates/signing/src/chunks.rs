//! A body whose chunks are signed one by one, each with the signature before it (AWS's "Signature calculations: transferring
//! payload in multiple chunks").

use ring::hmac;

use crate::payload_hash;

/// Signs the chunks of one body in their order. Holds a key that is good for a day, a region and a service.
pub struct Chunks {
    key: hmac::Key,
    /// Time and scope, as each text to sign has them.
    place: String,
    /// The signature before.
    last: String,
}

impl Chunks {
    pub(crate) fn new(key: hmac::Key, at: &str, range: &str, first: String) -> Self {
        Self {
            key,
            place: format!("{at}\n{range}"),
            last: first,
        }
    }

    /// The hexadecimal signature of the next chunk; of the last one, which is empty, too.
    pub fn chunk(&mut self, data: &[u8]) -> &str {
        let hashes = format!("{}\n{}", payload_hash(b""), payload_hash(data));
        self.sign("AWS4-HMAC-SHA256-PAYLOAD", &hashes)
    }

    /// The hexadecimal signature of the trailers behind the last chunk: `name:value` and a line feed for each.
    pub fn trailers(&mut self, trailers: &[u8]) -> &str {
        let hash = payload_hash(trailers);
        self.sign("AWS4-HMAC-SHA256-TRAILER", &hash)
    }

    fn sign(&mut self, algorithm: &str, hashes: &str) -> &str {
        let text = format!("{algorithm}\n{}\n{}\n{hashes}", self.place, self.last);
        self.last = hex::encode(hmac::sign(&self.key, text.as_bytes()));
        &self.last
    }
}

#[cfg(test)]
mod tests {
    use secret::Secret;

    use super::*;
    use crate::Scope;

    /// The example of AWS's own documentation: 65 KiB of `a` in chunks of 64 KiB.
    #[test]
    fn chunks_are_signed_as_aws_publishes_it() {
        let secret = Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
        let scope = Scope {
            region: "us-east-1",
            service: "s3",
        };
        let key = crate::key(&secret, "20130524", scope);
        let mut chunks = Chunks::new(
            hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()),
            "20130524T000000Z",
            "20130524/us-east-1/s3/aws4_request",
            "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9".to_owned(),
        );
        for (bytes, signature) in [
            (
                64 << 10,
                "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
            ),
            (
                1 << 10,
                "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
            ),
            (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
        ] {
            assert_eq!(chunks.chunk(&vec![b'a'; bytes]), signature, "{bytes}");
        }
    }
}
