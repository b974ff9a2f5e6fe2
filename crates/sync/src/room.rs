//! Room on the disk, taken before anything is fetched: what has none costs nothing.

use std::fs::File;

use protocol::Piece;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstatvfs, seek};
use rustix::io::Errno;

/// Takes room for all that stands in a file. Where less is free nothing is taken, not even for a moment: others write too.
pub(crate) fn take(file: &File, pieces: &[Piece]) -> Result<(), Errno> {
    let needed: u64 = pieces.iter().map(|piece| piece.content.bytes).sum();
    if needed > free(file) {
        return Err(Errno::NOSPC);
    }
    for (at, bytes) in ranges(pieces) {
        match fallocate(file, FallocateFlags::empty(), at, bytes) {
            Ok(()) => {}
            // A file system that takes none ahead; how much is free is all that can be known.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Gives back what nothing was written to: of a piece only what is no zero is.
pub(crate) fn give_back(file: &File, length: u64) {
    let mut at = 0;
    while at < length {
        let Ok(hole) = seek(file, SeekFrom::Hole(at)) else {
            return;
        };
        let end = match seek(file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(length),
            Err(_) => length,
        };
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if hole >= end || fallocate(file, punch, hole, end - hole).is_err() {
            return;
        }
        at = end;
    }
}

/// Bytes that are free on a file's disk. A quota may leave less.
fn free(file: &File) -> u64 {
    match fstatvfs(file) {
        // One without a size has no end.
        Ok(disk) if disk.f_blocks > 0 => disk.f_bavail.saturating_mul(disk.f_frsize),
        _ => u64::MAX,
    }
}

/// Where pieces stand, those together that touch each other: a quota says of them at once whether they fit.
fn ranges(pieces: &[Piece]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for piece in pieces {
        match ranges.last_mut() {
            Some((at, bytes)) if *at + *bytes == piece.at => *bytes += piece.content.bytes,
            _ => ranges.push((piece.at, piece.content.bytes)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::os::unix::fs::{FileExt, MetadataExt};

    use domain::ContentHash;
    use protocol::{Content, PIECE};

    use super::*;

    fn piece(at: u64, bytes: u64) -> Piece {
        let sha256 = ContentHash([0; 32]);
        Piece {
            at,
            content: Content { sha256, bytes },
        }
    }

    #[test]
    fn room_is_taken_for_what_stands_in_a_file_and_given_back_where_it_is_zero() {
        let file = tempfile::tempfile().unwrap();
        let length = 100 * PIECE;
        file.set_len(length).unwrap();
        take(
            &file,
            &[piece(PIECE, PIECE), piece(2 * PIECE, PIECE), piece(9 * PIECE, 10)],
        )
        .unwrap();
        let taken = || file.metadata().unwrap().blocks() * 512;
        assert!((2 * PIECE..3 * PIECE).contains(&taken()), "{}", taken());
        file.write_all_at(b"words", PIECE + 5_000).unwrap();
        file.write_all_at(b"end", 9 * PIECE).unwrap();
        give_back(&file, length);
        assert!(taken() < 100_000, "{}", taken());
        assert_eq!(file.metadata().unwrap().len(), length);
        let mut words = [0; 5];
        file.read_exact_at(&mut words, PIECE + 5_000).unwrap();
        assert_eq!(&words, b"words");
    }

    #[test]
    fn of_what_does_not_fit_nothing_is_taken() {
        let file = tempfile::tempfile().unwrap();
        let more = free(&file).saturating_add(1);
        let refused = take(&file, &[piece(0, PIECE), piece(PIECE, more)]);
        assert_eq!(refused, Err(Errno::NOSPC));
        assert_eq!(file.metadata().unwrap().blocks(), 0);
    }
}
