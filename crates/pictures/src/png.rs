//! PNG: chunks, each with its length, from the header to the end.

use crate::{Reader, Sides};

pub(crate) fn sides(bytes: &[u8]) -> Sides {
    let mut reader = Reader::new(bytes);
    reader.take(8)?;
    let (mut sides, mut has_pixels) = (None, false);
    loop {
        let length = reader.length(u32::from_be_bytes)?;
        let kind: [u8; 4] = reader.array()?;
        let chunk = reader.take(length)?;
        // What proves that the chunk is right.
        reader.take(4)?;
        match (&kind, sides) {
            (b"IHDR", None) if length == 13 => {
                let mut header = Reader::new(chunk);
                let mut side = || header.array().map(u32::from_be_bytes);
                sides = Some((side()?, side()?));
            }
            (_, None) => return Err("it does not begin with a header"),
            (b"IDAT", _) => has_pixels |= length > 0,
            (b"IEND", Some(sides)) if has_pixels => return Ok(sides),
            (b"IEND", _) => return Err("it has no pixel"),
            _ => {}
        }
    }
}
