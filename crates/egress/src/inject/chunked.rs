//! A body whose chunks the client signed one by one, on its way to being signed with the real key.
//!
//! Each chunk stands in a frame, `SIZE;chunk-signature=HEX`, and its signature before its bytes, so one chunk is held at a
//! time. Signatures all have the same length: the body keeps its own.

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use signing::Chunks;

/// Bytes of a chunk, which is held until it is whole. Clients send 64 KiB to 1 MiB.
const CHUNK: usize = 4 << 20;
/// Bytes of a line: a frame, or a trailer.
const LINE: usize = 1 << 10;
/// Bytes of all trailers.
const TRAILERS: usize = 8 << 10;
const SIGNATURE: &[u8] = b"chunk-signature=";
const TRAILER_SIGNATURE: &[u8] = b"x-amz-trailer-signature:";
/// Characters of a signature.
const HEX: usize = 64;

/// Signs a body anew while it passes.
pub(crate) struct Resign {
    chunks: Chunks,
    trailing: bool,
    held: BytesMut,
    state: State,
}

enum State {
    /// A chunk's frame comes next.
    Frame,
    /// A chunk of so many bytes, whose frame began with this text.
    Chunk { size: usize, frame: Vec<u8> },
    /// Trailers, until an empty line; those so far.
    Trailers { signed: Vec<u8>, is_signed: bool },
    /// An empty line.
    End,
    /// Nothing.
    Over,
}

impl Resign {
    /// For a body with trailers behind it, or without.
    pub(crate) fn new(chunks: Chunks, trailing: bool) -> Self {
        Self {
            chunks,
            trailing,
            held: BytesMut::new(),
            state: State::Frame,
        }
    }

    /// Takes the next bytes; gives what is signed of it.
    ///
    /// # Errors
    /// With the words for what is wrong with the body.
    pub(crate) fn push(&mut self, data: &[u8]) -> Result<Bytes, &'static str> {
        self.held.extend_from_slice(data);
        let mut signed = BytesMut::new();
        while self.step(&mut signed)? {}
        Ok(signed.freeze())
    }

    /// Whether the body was whole.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Whether there may be more in what is held.
    fn step(&mut self, signed: &mut BytesMut) -> Result<bool, &'static str> {
        match &mut self.state {
            State::Over if self.held.is_empty() => Ok(false),
            State::Over => Err("something follows its last chunk"),
            State::Chunk { size, frame } => {
                if self.held.len() < *size + 2 {
                    return Ok(false);
                }
                let (size, frame) = (*size, std::mem::take(frame));
                let chunk = self.held.split_to(size + 2);
                if &chunk[size..] != b"\r\n" {
                    return Err("a chunk does not end where it says");
                }
                signed.extend_from_slice(&frame);
                signed.extend_from_slice(self.chunks.chunk(&chunk[..size]).as_bytes());
                signed.extend_from_slice(b"\r\n");
                signed.extend_from_slice(&chunk);
                self.state = State::Frame;
                Ok(true)
            }
            State::Frame | State::Trailers { .. } | State::End => {
                let end = memmem::find(&self.held, b"\r\n");
                if end.unwrap_or(self.held.len()) > LINE {
                    return Err("a line in it is too long");
                }
                let Some(end) = end else { return Ok(false) };
                let line = self.held.split_to(end + 2);
                self.line(&line[..end], signed)?;
                Ok(true)
            }
        }
    }

    fn line(&mut self, line: &[u8], signed: &mut BytesMut) -> Result<(), &'static str> {
        match &mut self.state {
            State::Frame => {
                let (size, frame) = frame(line).ok_or("a chunk has no signature")?;
                if size > CHUNK {
                    return Err("a chunk is longer than 4 MiB");
                }
                if size > 0 {
                    self.state = State::Chunk { size, frame };
                    return Ok(());
                }
                signed.extend_from_slice(&frame);
                signed.extend_from_slice(self.chunks.chunk(b"").as_bytes());
                signed.extend_from_slice(b"\r\n");
                self.state = if self.trailing {
                    State::Trailers {
                        signed: Vec::new(),
                        is_signed: false,
                    }
                } else {
                    State::End
                };
            }
            State::Trailers { signed: all, is_signed } => {
                if line.is_empty() {
                    if !*is_signed {
                        return Err("its trailers are not signed");
                    }
                    signed.extend_from_slice(b"\r\n");
                    self.state = State::Over;
                    return Ok(());
                }
                if *is_signed {
                    return Err("something follows the signature of its trailers");
                }
                if line.len() == TRAILER_SIGNATURE.len() + HEX && line.starts_with(TRAILER_SIGNATURE) {
                    *is_signed = true;
                    signed.extend_from_slice(TRAILER_SIGNATURE);
                    signed.extend_from_slice(self.chunks.trailers(all).as_bytes());
                } else {
                    let Some(colon) = memchr::memchr(b':', line) else {
                        return Err("a trailer has no value");
                    };
                    all.extend(line[..colon].to_ascii_lowercase());
                    all.push(b':');
                    all.extend(line[colon + 1..].trim_ascii());
                    all.push(b'\n');
                    if all.len() > TRAILERS {
                        return Err("its trailers are too long");
                    }
                    signed.extend_from_slice(line);
                }
                signed.extend_from_slice(b"\r\n");
            }
            State::End if line.is_empty() => {
                signed.extend_from_slice(b"\r\n");
                self.state = State::Over;
            }
            _ => return Err("something follows its last chunk"),
        }
        Ok(())
    }
}

/// A chunk's size, and its frame up to the signature.
fn frame(line: &[u8]) -> Option<(usize, Vec<u8>)> {
    let semicolon = memchr::memchr(b';', line)?;
    let (size, rest) = (&line[..semicolon], &line[semicolon + 1..]);
    let digits = std::str::from_utf8(size).ok()?;
    let is_size = !digits.is_empty() && digits.len() <= 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_signature = rest.len() == SIGNATURE.len() + HEX && rest.starts_with(SIGNATURE);
    if !is_size || !is_signature {
        return None;
    }
    let size = usize::from_str_radix(digits, 16).ok()?;
    Some((size, line[..semicolon + 1 + SIGNATURE.len()].to_vec()))
}
