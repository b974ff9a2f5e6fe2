//! Packets: three bytes of length, a number, and so many bytes.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Broken;

/// A packet of this length goes on in the next; none so large is taken.
pub(super) const LARGEST: usize = (1 << 24) - 1;

/// Both directions of a connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A stream of packets.
pub(super) struct Packets {
    stream: Box<dyn Stream>,
    next: u8,
}

impl Packets {
    pub(super) fn new(stream: Box<dyn Stream>, next: u8) -> Self {
        Self { stream, next }
    }

    /// The next packet. One that tells an error is one.
    pub(super) async fn read(&mut self) -> Result<Vec<u8>, Broken> {
        let (body, next) = read(&mut self.stream).await?;
        self.next = next;
        match body.first() {
            None => Err(Broken::Nonsense("an empty packet")),
            Some(0xff) => Err(said(&body)),
            Some(_) => Ok(body),
        }
    }

    pub(super) async fn write(&mut self, body: &[u8]) -> Result<(), Broken> {
        write(&mut self.stream, self.next, body).await?;
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// The first packet of a command.
    pub(super) async fn command(&mut self, body: &[u8]) -> Result<(), Broken> {
        self.next = 0;
        self.write(body).await
    }
}

pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<(Vec<u8>, u8), Broken> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.map_err(Broken::Stream)?;
    let length = usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
    if length == LARGEST {
        return Err(Broken::TooLarge(LARGEST));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.map_err(Broken::Stream)?;
    Ok((body, head[3].wrapping_add(1)))
}

pub(super) async fn write(stream: &mut (impl AsyncWrite + Unpin), number: u8, body: &[u8]) -> Result<(), Broken> {
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() < LARGEST);
    let Some([a, b, c, _]) = length.map(u32::to_le_bytes) else {
        return Err(Broken::Stream(io::ErrorKind::InvalidInput.into()));
    };
    let mut packet = vec![a, b, c, number];
    packet.extend_from_slice(body);
    stream.write_all(&packet).await.map_err(Broken::Stream)?;
    stream.flush().await.map_err(Broken::Stream)
}

/// The error that a packet tells.
pub(super) fn said(body: &[u8]) -> Broken {
    let mut fields = Fields(&body[1..]);
    let code = fields.u16().unwrap_or_default();
    let rest = fields.0;
    // `#` and five letters of SQLSTATE.
    let message = if rest.first() == Some(&b'#') {
        rest.get(6..).unwrap_or_default()
    } else {
        rest
    };
    Broken::Said {
        code,
        message: String::from_utf8_lossy(message).into_owned(),
    }
}

/// What stands in a packet, read field by field.
pub(super) struct Fields<'p>(pub(super) &'p [u8]);

const SHORT: Broken = Broken::Nonsense("a packet that ends early");

impl<'p> Fields<'p> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'p [u8], Broken> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Broken> {
        Ok(u8::from_le_bytes(self.fixed()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, Broken> {
        Ok(u16::from_le_bytes(self.fixed()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Broken> {
        Ok(u32::from_le_bytes(self.fixed()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Broken> {
        Ok(u64::from_le_bytes(self.fixed()?))
    }

    /// A whole number of one to nine bytes.
    pub(super) fn number(&mut self) -> Result<u64, Broken> {
        match self.u8()? {
            0xfc => self.u16().map(u64::from),
            0xfd => {
                let bytes = self.take(3)?;
                Ok(u64::from(bytes[0]) | u64::from(bytes[1]) << 8 | u64::from(bytes[2]) << 16)
            }
            0xfe => self.u64(),
            small @ 0..=0xfa => Ok(small.into()),
            0xfb | 0xff => Err(Broken::Nonsense("a length that is none")),
        }
    }

    /// Bytes after their length.
    pub(super) fn bytes(&mut self) -> Result<&'p [u8], Broken> {
        let length = usize::try_from(self.number()?).map_err(|_| SHORT)?;
        self.take(length)
    }

    pub(super) fn text(&mut self) -> Result<String, Broken> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// Bytes up to a zero, which is taken too; all where there is none.
    pub(super) fn terminated(&mut self) -> &'p [u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        let taken = &self.0[..end];
        self.0 = self.0.get(end + 1..).unwrap_or_default();
        taken
    }
}
