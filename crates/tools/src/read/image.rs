//! Pictures, and other files that are no text.

use std::fs::File;
use std::io::{self, Read, Seek};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::{Image, ResultPart};
use pictures::{Kind, MAX_BYTES};

use crate::toolbox::words;

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
pub(super) fn show(mut file: File, kind: Kind, length: u64, name: &str) -> io::Result<Vec<ResultPart>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    // One byte more, which says that it is too large.
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    let picture = match pictures::look(&bytes) {
        Ok(picture) => picture,
        Err(error) => {
            return Ok(words(format!(
                "{name}: {kind}, {length} bytes, cannot be shown: {error}. Use exec to work with it."
            )));
        }
    };
    let (width, height) = (picture.width, picture.height);
    let mut parts = words(format!("{name}: {kind}, {width}×{height} pixels, {length} bytes"));
    parts.push(ResultPart::Image(Image {
        media_type: kind.media_type().to_owned(),
        data: STANDARD.encode(bytes),
    }));
    Ok(parts)
}
