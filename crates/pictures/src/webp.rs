//! WebP: chunks, each with its length; the first says the sides in one of three ways.

use crate::{CUT, Reader, Sides};

pub(crate) fn sides(bytes: &[u8]) -> Sides {
    let mut reader = Reader::new(bytes);
    reader.take(4)?;
    let length = reader.length(u32::from_le_bytes)?;
    let mut reader = Reader::new(reader.bytes.get(..length).ok_or(CUT)?);
    reader.take(4)?;
    let (mut sides, mut has_pixels) = (None, false);
    while !reader.bytes.is_empty() {
        let kind: [u8; 4] = reader.array()?;
        let length = reader.length(u32::from_le_bytes)?;
        let chunk = reader.take(length)?;
        if length % 2 == 1 && !reader.bytes.is_empty() {
            reader.take(1)?;
        }
        has_pixels |= matches!(&kind, b"VP8 " | b"VP8L" | b"ANMF");
        if sides.is_none() {
            let mut chunk = Reader::new(chunk);
            sides = Some(match &kind {
                b"VP8 " => with_loss(&mut chunk)?,
                b"VP8L" => without_loss(&mut chunk)?,
                b"VP8X" => extended(&mut chunk)?,
                _ => return Err("it does not begin with a picture"),
            });
        }
    }
    match sides {
        Some(sides) if has_pixels => Ok(sides),
        _ => Err("it has no pixel"),
    }
}

fn with_loss(chunk: &mut Reader<'_>) -> Sides {
    chunk.take(3)?;
    if chunk.array()? != [0x9d, 0x01, 0x2a] {
        return Err("its first frame is no whole picture");
    }
    // The two highest bits of each say how to enlarge it.
    let mut side = || chunk.array().map(|bytes| u32::from(u16::from_le_bytes(bytes) & 0x3fff));
    Ok((side()?, side()?))
}

fn without_loss(chunk: &mut Reader<'_>) -> Sides {
    if chunk.byte()? != 0x2f {
        return Err("its pixels do not begin as they should");
    }
    let bits = u32::from_le_bytes(chunk.array()?);
    Ok(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
}

fn extended(chunk: &mut Reader<'_>) -> Sides {
    chunk.take(4)?;
    let mut side = || {
        chunk
            .array()
            .map(|[low, middle, high]| u32::from_le_bytes([low, middle, high, 0]) + 1)
    };
    Ok((side()?, side()?))
}
