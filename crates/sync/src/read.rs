//! A file cut into pieces.

use std::os::fd::AsFd;

use domain::ContentHash;
use protocol::{Content, PIECE, Piece};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

const AT_ONCE: usize = 64 << 10;

/// What stands in a file of this length where it is not zero. Only what the disk has is read: of a file that is mostly holes,
/// little. None: it became shorter meanwhile, or has more pieces than one file may.
pub(crate) fn pieces(file: impl AsFd, length: u64, most: usize) -> Result<Option<Vec<Piece>>, Errno> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < length {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => break,
            // A file system that knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno),
        };
        at = data / PIECE * PIECE;
        let bytes = PIECE.min(length.saturating_sub(at));
        if bytes == 0 {
            break;
        }
        match hash(&file, at, bytes)? {
            Some(Hashed::Zeros) => {}
            Some(Hashed::Bytes(sha256)) if pieces.len() < most => pieces.push(Piece {
                at,
                content: Content { sha256, bytes },
            }),
            Some(Hashed::Bytes(_)) | None => return Ok(None),
        }
        at += bytes;
    }
    Ok(Some(pieces))
}

enum Hashed {
    Zeros,
    Bytes(ContentHash),
}

/// None: the file ends before.
fn hash(file: impl AsFd, at: u64, bytes: u64) -> Result<Option<Hashed>, Errno> {
    let mut hasher = Sha256::new();
    let mut zeros = true;
    let mut buffer = vec![0; AT_ONCE];
    let mut read = 0;
    while read < bytes {
        let wanted = usize::try_from(bytes - read).unwrap_or(AT_ONCE).min(AT_ONCE);
        let count = match rustix::io::pread(&file, &mut buffer[..wanted], at + read) {
            Ok(0) => return Ok(None),
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        hasher.update(&buffer[..count]);
        zeros = zeros && is_zero(&buffer[..count]);
        read += count as u64;
    }
    Ok(Some(if zeros {
        Hashed::Zeros
    } else {
        Hashed::Bytes(ContentHash(hasher.finalize().into()))
    }))
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Whether this piece of a file is what it should be.
pub(crate) fn is(file: impl AsFd, piece: &Piece) -> bool {
    match hash(file, piece.at, piece.content.bytes) {
        Ok(Some(Hashed::Bytes(sha256))) => sha256 == piece.content.sha256,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_and_zeros_are_no_pieces_and_the_last_piece_is_as_long_as_it_is() {
        let file = tempfile::tempfile().unwrap();
        let length = 5 * PIECE + 10;
        file.set_len(length).unwrap();
        assert_eq!(pieces(&file, length, 100).unwrap(), Some(Vec::new()));
        file.write_all_at(b"x", 2 * PIECE + 7).unwrap();
        file.write_all_at(&[0; 100], 3 * PIECE).unwrap();
        file.write_all_at(b"end", 5 * PIECE + 7).unwrap();
        let found = pieces(&file, length, 100).unwrap().unwrap();
        let places: Vec<_> = found.iter().map(|piece| (piece.at, piece.content.bytes)).collect();
        assert_eq!(places, [(2 * PIECE, PIECE), (5 * PIECE, 10)]);
        assert!(found.iter().all(|piece| is(&file, piece)));
        file.write_all_at(b"y", 2 * PIECE + 7).unwrap();
        assert!(!is(&file, &found[0]));
        assert_eq!(pieces(&file, length, 1).unwrap(), None);
        assert_eq!(pieces(&file, length + 1, 100).unwrap(), None);
    }
}
