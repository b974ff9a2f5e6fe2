//! GIF: a screen, then blocks of which at least one is an image.

use crate::{Reader, Sides};

pub(crate) fn sides(bytes: &[u8]) -> Sides {
    let mut reader = Reader::new(bytes);
    reader.take(6)?;
    let mut side = || reader.array().map(u16::from_le_bytes);
    let sides = (side()?.into(), side()?.into());
    let [flags, _, _] = reader.array()?;
    colors(&mut reader, flags)?;
    let mut images = 0;
    loop {
        match reader.byte() {
            Ok(0x21) => {
                reader.take(1)?;
                blocks(&mut reader)?;
            }
            Ok(0x2c) => {
                let [.., flags]: [u8; 9] = reader.array()?;
                colors(&mut reader, flags)?;
                reader.take(1)?;
                blocks(&mut reader)?;
                images += 1;
            }
            // Many a file leaves out its end, and everybody reads it.
            Ok(0x3b) | Err(_) if images > 0 => return Ok(sides),
            Ok(0x3b) => return Err("it has no pixel"),
            Ok(_) => return Err("it has a block of no known kind"),
            Err(cut) => return Err(cut),
        }
    }
}

/// A table of colors, where the flags say that there is one.
fn colors(reader: &mut Reader<'_>, flags: u8) -> Result<(), &'static str> {
    if flags & 0x80 != 0 {
        reader.take(3 << ((flags & 7) + 1))?;
    }
    Ok(())
}

fn blocks(reader: &mut Reader<'_>) -> Result<(), &'static str> {
    loop {
        match reader.byte()? {
            0 => return Ok(()),
            length => reader.take(length.into())?,
        };
    }
}
