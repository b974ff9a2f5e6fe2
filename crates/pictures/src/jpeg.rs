//! JPEG: segments, each with its length; a frame says the sides, however much stands before it, and pixels go on to the end.

use crate::{CUT, Reader, Sides};

const END: [u8; 2] = [0xff, 0xd9];

pub(crate) fn sides(bytes: &[u8]) -> Sides {
    let mut reader = Reader::new(bytes);
    reader.take(2)?;
    let mut sides = None;
    loop {
        if reader.byte()? != 0xff {
            return Err("what should be a marker is none");
        }
        let mut marker = reader.byte()?;
        while marker == 0xff {
            marker = reader.byte()?;
        }
        // These stand alone.
        if matches!(marker, 0x01 | 0xd0..=0xd7) {
            continue;
        }
        if marker == END[1] {
            return Err("it has no pixel");
        }
        let length = usize::from(u16::from_be_bytes(reader.array()?));
        let segment = reader.take(length.checked_sub(2).ok_or("a segment is shorter than its length")?)?;
        match marker {
            0xc4 | 0xc8 | 0xcc => {}
            0xc0..=0xcf => {
                let mut frame = Reader::new(segment);
                frame.take(1)?;
                let height = u16::from_be_bytes(frame.array()?);
                let width = u16::from_be_bytes(frame.array()?);
                sides = Some((width.into(), height.into()));
            }
            0xda => {
                let sides = sides.ok_or("its pixels come before its sides")?;
                let is_whole = reader.bytes.windows(2).rev().any(|pair| pair == END);
                return if is_whole { Ok(sides) } else { Err(CUT) };
            }
            _ => {}
        }
    }
}
