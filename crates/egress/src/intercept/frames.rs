//! The client's side of a WebSocket whose rule fills bodies in: the placeholder in its text becomes the secret (threat 36).
//!
//! A frame of text is held until it is there, if it is not too long; all else passes as it comes (RFC 6455, section 5.2).

use bytes::{Buf as _, Bytes, BytesMut};

use crate::inject::Substitute;

/// The longest frame that is filled in.
const WHOLE: u64 = 64 << 10;

const FINAL: u8 = 0x80;
const OPCODE: u8 = 0x0f;
const CONTINUED: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const MASKED: u8 = 0x80;

/// What a client sends, frame by frame.
pub(super) struct Frames {
    substitute: Substitute,
    held: BytesMut,
    /// Bytes of a frame that passes which are still to come.
    passing: u64,
    /// Whether the message under way is text.
    is_text: bool,
}

/// The first bytes of a frame.
struct Head {
    first: u8,
    /// Without one no server takes it.
    mask: Option<[u8; 4]>,
    /// Of the head itself.
    bytes: usize,
    length: u64,
}

impl Frames {
    pub(super) fn new(substitute: Substitute) -> Self {
        Self {
            substitute,
            held: BytesMut::new(),
            passing: 0,
            is_text: false,
        }
    }

    /// Takes a piece and gives what can be sent.
    pub(super) fn push(&mut self, piece: &[u8]) -> Bytes {
        self.held.extend_from_slice(piece);
        let mut done = BytesMut::new();
        loop {
            let pass = usize::try_from(self.passing).unwrap_or(usize::MAX).min(self.held.len());
            done.extend_from_slice(&self.held.split_to(pass));
            self.passing -= pass as u64;
            if self.passing > 0 {
                break;
            }
            let Some(head) = Head::read(&self.held) else { break };
            match head.first & OPCODE {
                TEXT => self.is_text = true,
                BINARY => self.is_text = false,
                _ => {}
            }
            let is_text = self.is_text && matches!(head.first & OPCODE, TEXT | CONTINUED);
            match head.mask {
                Some(mask) if is_text && head.first & !(FINAL | OPCODE) == 0 && head.length <= WHOLE => {
                    let whole = head.bytes + usize::try_from(head.length).unwrap_or(usize::MAX);
                    if self.held.len() < whole {
                        break;
                    }
                    let mut text = self.held.split_to(whole).split_off(head.bytes);
                    masked(&mut text, mask);
                    let mut text = BytesMut::from(self.substitute.whole(&text.freeze()));
                    masked(&mut text, mask);
                    done.extend_from_slice(&Head::write(head.first, text.len(), mask));
                    done.extend_from_slice(&text);
                }
                _ => self.passing = head.length.saturating_add(head.bytes as u64),
            }
        }
        done.freeze()
    }

    /// What was held of a frame that does not come.
    pub(super) fn finish(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

impl Head {
    /// The head at the beginning of some bytes, once it is there.
    fn read(mut bytes: &[u8]) -> Option<Self> {
        let all = bytes.len();
        let (first, second) = (bytes.try_get_u8().ok()?, bytes.try_get_u8().ok()?);
        let length = match second & !MASKED {
            126 => bytes.try_get_u16().ok()?.into(),
            127 => bytes.try_get_u64().ok()?,
            length => length.into(),
        };
        let mask = match second & MASKED {
            0 => None,
            _ => Some(bytes.try_get_u32().ok()?.to_be_bytes()),
        };
        Some(Self {
            first,
            mask,
            bytes: all - bytes.len(),
            length,
        })
    }

    fn write(first: u8, length: usize, mask: [u8; 4]) -> Vec<u8> {
        let mut head = vec![first];
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(length), _) if length < 126 => head.push(MASKED | length),
            (_, Ok(length)) => {
                head.push(MASKED | 126);
                head.extend(length.to_be_bytes());
            }
            _ => {
                head.push(MASKED | 127);
                head.extend((length as u64).to_be_bytes());
            }
        }
        head.extend(mask);
        head
    }
}

/// Puts a mask on, or takes it off.
fn masked(text: &mut [u8], mask: [u8; 4]) {
    for (letter, key) in text.iter_mut().zip(mask.iter().cycle()) {
        *letter ^= key;
    }
}

#[cfg(test)]
mod tests {
    use protocol::PLACEHOLDER;
    use secret::Secret;

    use super::*;
    use crate::inject::Escape;

    fn frame(first: u8, text: &str) -> Vec<u8> {
        let mask = [1, 2, 3, 200];
        let mut payload = text.as_bytes().to_vec();
        masked(&mut payload, mask);
        [Head::write(first, text.len(), mask), payload].concat()
    }

    #[test]
    fn threat_036_text_is_filled_in_at_every_border_and_nothing_else_is() {
        let long = format!("{PLACEHOLDER} {}", "x".repeat(70_000));
        let frames = [
            (FINAL | TEXT, PLACEHOLDER, "the secret"),
            (FINAL | BINARY, PLACEHOLDER, PLACEHOLDER),
            (TEXT, "a ", "a "),
            // A ping between the parts of a message.
            (FINAL | 9, PLACEHOLDER, PLACEHOLDER),
            (FINAL, "credential-brokered b", "the secret b"),
            (FINAL | TEXT | 0x40, PLACEHOLDER, PLACEHOLDER),
            (FINAL | TEXT, &long, &long),
            (FINAL | TEXT, "", ""),
        ];
        let all = |which: fn(&(u8, &str, &str)) -> (u8, String)| -> Vec<u8> {
            let told = frames.iter().map(which);
            told.flat_map(|(first, text)| frame(first, &text)).collect()
        };
        let sent = all(|(first, text, _)| (*first, (*text).to_owned()));
        let wanted = all(|(first, _, text)| (*first, (*text).to_owned()));
        for size in [1, 2, 7, 64, 4_096, sent.len()] {
            let mut filling = Frames::new(Substitute::new(&Secret::new("the secret"), Escape::Json));
            let mut done: Vec<u8> = sent.chunks(size).flat_map(|piece| filling.push(piece)).collect();
            done.extend(filling.finish());
            assert!(done == wanted, "in pieces of {size}");
        }
    }
}
