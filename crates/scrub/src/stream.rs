//! A body in pieces.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::{MASK, Spellings};

/// Masks secrets in a body that comes in pieces, with as much memory as the longest spelling and one piece need.
pub struct Stream {
    spellings: Option<Arc<Spellings>>,
    held: BytesMut,
}

impl Stream {
    pub(crate) fn new(spellings: Option<Arc<Spellings>>) -> Self {
        Self {
            spellings,
            held: BytesMut::new(),
        }
    }

    /// Takes a piece and gives what is certain: all of it but an end that may be the beginning of a secret.
    pub fn push(&mut self, piece: Bytes) -> Bytes {
        let Some(spellings) = self.spellings.clone() else {
            return piece;
        };
        if self.held.is_empty() {
            let open = spellings.open(&piece, 0);
            if spellings.find(&piece, 0).is_none() {
                self.held.extend_from_slice(&piece[open..]);
                return piece.slice(..open);
            }
        }
        self.held.extend_from_slice(&piece);
        let certain = mask(&spellings, &mut self.held, false);
        self.held.split_to(certain).freeze()
    }

    /// Gives what is left at the body's end. After it the stream is as new.
    pub fn finish(&mut self) -> Bytes {
        let mut rest = std::mem::take(&mut self.held);
        if let Some(spellings) = &self.spellings {
            mask(spellings, &mut rest, true);
        }
        rest.freeze()
    }
}

/// Masks what is certain and says how far that reaches. With `whole` nothing more will come, so all of it is certain.
fn mask(spellings: &Spellings, text: &mut [u8], whole: bool) -> usize {
    let mut place = 0;
    loop {
        let open = if whole { text.len() } else { spellings.open(text, place) };
        match spellings.find(text, place) {
            Some(found) if found.start < open => {
                text[found.start..found.end].fill(MASK);
                place = found.end;
            }
            _ => return open,
        }
    }
}
