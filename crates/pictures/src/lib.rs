//! Pictures as models take them, looked at as far as it needs to be sure that a provider can read them.
//!
//! A provider that cannot read a picture refuses the whole conversation that it stands in, each time anew. So what comes in is
//! looked at first: its kind by its bytes, its sides, and whether its parts are all there to the end. Nothing is decoded, and a
//! file that was made to fool whoever decodes it is not recognized.

mod gif;
mod jpeg;
mod png;
mod webp;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The largest picture that models take, in bytes.
pub const MAX_BYTES: usize = 3_750_000;
/// The longest side that models take, in pixels.
pub const MAX_SIDE: u32 = 8_000;

/// The kinds that models understand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Portable Network Graphics.
    Png,
    /// JPEG in its usual file.
    Jpeg,
    /// GIF, of 1987 or 1989.
    Gif,
    /// WebP, with or without loss.
    Webp,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Png, Self::Jpeg, Self::Gif, Self::Webp];

    /// Its media type.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }

    /// What kind of picture begins like this, if any.
    #[must_use]
    pub fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::Webp),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.media_type())
    }
}

/// A picture that can be shown to a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Picture {
    /// Its kind.
    pub kind: Kind,
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
}

/// Why a picture cannot be shown to a model.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PictureError {
    /// It is no picture, or one of another kind.
    #[error("it is none of image/png, image/jpeg, image/gif and image/webp")]
    Unknown,
    /// It is not what it is said to be.
    #[error("it is {found}, and said to be {told:?}")]
    Mistaken {
        /// What is said.
        told: String,
        /// What it is.
        found: Kind,
    },
    /// Its text is no base64.
    #[error("its base64 is malformed")]
    Malformed,
    /// Something is missing, or wrong.
    #[error("it is a broken {kind}: {problem}")]
    Broken {
        /// The kind that it begins as.
        kind: Kind,
        /// What is missing, or wrong.
        problem: &'static str,
    },
    /// It is larger than models take.
    #[error(
        "it is too large to be shown: {MAX_BYTES} bytes and {MAX_SIDE} pixels to a side are the most; make it smaller first"
    )]
    TooLarge,
}

/// Looks at a picture.
///
/// # Errors
/// A provider would refuse it.
pub fn look(bytes: &[u8]) -> Result<Picture, PictureError> {
    let kind = Kind::of(bytes).ok_or(PictureError::Unknown)?;
    if bytes.len() > MAX_BYTES {
        return Err(PictureError::TooLarge);
    }
    let sides = match kind {
        Kind::Png => png::sides(bytes),
        Kind::Jpeg => jpeg::sides(bytes),
        Kind::Gif => gif::sides(bytes),
        Kind::Webp => webp::sides(bytes),
    };
    let broken = |problem| PictureError::Broken { kind, problem };
    let (width, height) = sides.map_err(broken)?;
    if width == 0 || height == 0 {
        return Err(broken("it has no pixel"));
    }
    if width.max(height) > MAX_SIDE {
        return Err(PictureError::TooLarge);
    }
    Ok(Picture { kind, width, height })
}

/// Looks at a picture as it stands in a message.
///
/// # Errors
/// A provider would refuse it.
pub fn look_at_base64(media_type: &str, data: &str) -> Result<Picture, PictureError> {
    // Four letters are three bytes.
    if data.len() / 4 * 3 > MAX_BYTES + 3 {
        return Err(PictureError::TooLarge);
    }
    let bytes = STANDARD.decode(data).map_err(|_| PictureError::Malformed)?;
    let picture = look(&bytes)?;
    if picture.kind.media_type() == media_type {
        Ok(picture)
    } else {
        Err(PictureError::Mistaken {
            told: media_type.chars().take(80).collect(),
            found: picture.kind,
        })
    }
}

/// Width and height, or what is wrong.
type Sides = Result<(u32, u32), &'static str>;

const CUT: &str = "it ends too early";

/// Reads a file from its beginning to its end.
struct Reader<'b> {
    bytes: &'b [u8],
}

impl<'b> Reader<'b> {
    const fn new(bytes: &'b [u8]) -> Self {
        Self { bytes }
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], &'static str> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(CUT)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(CUT)?;
        self.bytes = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        self.array().map(|[byte]| byte)
    }

    /// A length of four bytes, as far as it can be one here.
    fn length(&mut self, of: fn([u8; 4]) -> u32) -> Result<usize, &'static str> {
        usize::try_from(of(self.array()?)).map_err(|_| CUT)
    }
}

#[cfg(test)]
mod tests;
