//! Pictures, and other files that are no text.

use std::fs::File;
use std::io::{self, Read, Seek};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::{Image, ResultPart};

use crate::toolbox::words;

/// The largest picture that models take, in bytes and to a side.
const MAX_BYTES: u64 = 3_750_000;
const MAX_SIDE: u32 = 8_000;

/// The pictures that models understand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Png,
    Jpeg,
    Gif,
    Webp,
}

impl Kind {
    fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }
}

/// What kind of picture begins like this, if any.
pub(super) fn recognize(head: &[u8]) -> Option<Kind> {
    match head {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Kind::Png),
        [0xff, 0xd8, 0xff, ..] => Some(Kind::Jpeg),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Kind::Gif),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Kind::Webp),
        _ => None,
    }
}

/// What else a file may be that begins like this, in words.
pub(super) fn describe(head: &[u8]) -> &'static str {
    match head {
        [0x7f, b'E', b'L', b'F', ..] => "an ELF program",
        [b'P', b'K', 3, 4, ..] => "a ZIP archive, or an office document",
        [0x1f, 0x8b, ..] => "gzip data",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd data",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "xz data",
        [b'B', b'Z', b'h', ..] => "bzip2 data",
        [b'S', b'Q', b'L', b'i', b't', b'e', ..] => "an SQLite database",
        [b'P', b'A', b'R', b'1', ..] => "Parquet data",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "perhaps UTF-16 text",
        _ => "of unknown kind",
    }
}

/// The picture, after a line that says what it is; or why it cannot be shown.
pub(super) fn show(mut file: File, head: &[u8], kind: Kind, length: u64, name: &str) -> io::Result<Vec<ResultPart>> {
    let size = size(head, kind);
    let pixels = size.map_or(String::new(), |(width, height)| format!(", {width}×{height} pixels"));
    let about = format!("{name}: {}{pixels}, {length} bytes", kind.media_type());
    if length > MAX_BYTES || size.is_some_and(|(width, height)| width.max(height) > MAX_SIDE) {
        return Ok(words(format!(
            "{about}. It is too large to be shown (at most {MAX_BYTES} bytes and {MAX_SIDE} pixels to a side): make it \
             smaller first."
        )));
    }
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let mut parts = words(about);
    parts.push(ResultPart::Image(Image {
        media_type: kind.media_type().to_owned(),
        data: STANDARD.encode(bytes),
    }));
    Ok(parts)
}

/// Width and height, where the head tells.
fn size(head: &[u8], kind: Kind) -> Option<(u32, u32)> {
    match kind {
        Kind::Png => {
            let side = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
            Some((side(16)?, side(20)?))
        }
        Kind::Gif => {
            let side = |at: usize| Some(u32::from(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?)));
            Some((side(6)?, side(8)?))
        }
        Kind::Jpeg => jpeg_size(head),
        Kind::Webp => None,
    }
}

/// Looks for the frame header among a JPEG's segments.
fn jpeg_size(head: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| Some(u32::from(u16::from_be_bytes(head.get(at..at + 2)?.try_into().ok()?)));
    let mut at = 2;
    loop {
        if *head.get(at)? != 0xff {
            return None;
        }
        let marker = *head.get(at + 1)?;
        if matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
            return Some((word(at + 7)?, word(at + 5)?));
        }
        at += 2 + usize::try_from(word(at + 2)?).ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_known_by_their_beginning() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        png.extend_from_slice(&[0, 0, 3, 0x20, 0, 0, 2, 0x58]);
        assert_eq!(recognize(&png), Some(Kind::Png));
        assert_eq!(size(&png, Kind::Png), Some((800, 600)));
        assert_eq!(size(b"GIF89a\x05\x00\x07\x00", Kind::Gif), Some((5, 7)));
        let jpeg = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08\x01\x00\x02\x00";
        assert_eq!(recognize(jpeg), Some(Kind::Jpeg));
        assert_eq!(size(jpeg, Kind::Jpeg), Some((512, 256)));
        assert_eq!(recognize(b"RIFF\0\0\0\0WEBPVP8 "), Some(Kind::Webp));
        for other in [&b""[..], b"plain text", b"\x89PNX", b"RIFF\0\0\0\0WAVE"] {
            assert_eq!(recognize(other), None);
        }
        assert_eq!(size(b"\xff\xd8\xff", Kind::Jpeg), None);
    }
}
