//! What a ClientHello says besides its host: whether it has another, encrypted one.

/// `encrypted_client_hello` (RFC 9849), and `encrypted_server_name`, which came before it.
const ENCRYPTED: [u16; 2] = [0xfe0d, 0xffce];
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;

/// Whether a complete ClientHello, in as many records as it likes, has an encrypted part. None: it is not in the form of one.
pub(super) fn is_encrypted(records: &[u8]) -> Option<bool> {
    let message = joined(records)?;
    let mut hello = Reader(&message);
    if hello.number(1)? != usize::from(CLIENT_HELLO) {
        return None;
    }
    let mut hello = hello.vector(3)?;
    // Version, random.
    hello.take(2 + 32)?;
    // Session, cipher suites, compression methods.
    hello.vector(1)?;
    hello.vector(2)?;
    hello.vector(1)?;
    if hello.0.is_empty() {
        return Some(false);
    }
    let mut extensions = hello.vector(2)?;
    let mut encrypted = false;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        extensions.vector(2)?;
        encrypted |= ENCRYPTED.iter().any(|known| usize::from(*known) == kind);
    }
    Some(encrypted)
}

/// The first handshake message, taken out of its records.
fn joined(records: &[u8]) -> Option<Vec<u8>> {
    let mut records = Reader(records);
    let mut message = Vec::new();
    loop {
        if let Some([_, length @ ..]) = message.first_chunk::<4>() {
            let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            if message.len() >= 4 + length {
                message.truncate(4 + length);
                return Some(message);
            }
        }
        if records.number(1)? != usize::from(HANDSHAKE) {
            return None;
        }
        records.take(2)?;
        message.extend(records.vector(2)?.0);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of so many bytes, the highest first.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        let bytes = self.take(bytes)?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// What follows a length of so many bytes.
    fn vector(&mut self, bytes: usize) -> Option<Self> {
        let length = self.number(bytes)?;
        self.take(length).map(Reader)
    }
}
