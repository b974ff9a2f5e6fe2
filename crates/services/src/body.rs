//! The body of an answer: bounded, unpacked, and freed of what must not come back.

use std::io::Write as _;

use bytes::{Bytes, BytesMut};
use flate2::write::MultiGzDecoder;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use scrub::Scrub;
use tokio::time::Instant;

use crate::client::Client;
use crate::{Code, Failure};

/// How many packed bytes are unpacked at once: at the worst a thousand times as many come out.
const PACKED: usize = 4 << 10;

/// What a body may be.
pub(crate) struct Bounds {
    /// Whose it is, in words.
    pub(crate) what: String,
    /// The upstream, in words.
    pub(crate) host: String,
    /// The most bytes, unpacked.
    pub(crate) bytes: u64,
    pub(crate) deadline: Instant,
}

/// A body that is still coming.
pub(crate) struct Incoming {
    response: reqwest::Response,
    client: Client,
    bounds: Bounds,
    scrub: scrub::Stream,
    packed: Option<Packed>,
    /// Bytes as they came, and unpacked.
    came: u64,
    unpacked: u64,
    ended: bool,
}

struct Packed {
    waiting: Bytes,
    decoder: MultiGzDecoder<Vec<u8>>,
}

impl Incoming {
    pub(crate) fn new(
        response: reqwest::Response,
        client: Client,
        scrub: &Scrub,
        bounds: Bounds,
    ) -> Result<Self, Failure> {
        let packed = match encoding(response.headers()) {
            Ok(gzip) => gzip.then(|| Packed {
                waiting: Bytes::new(),
                decoder: MultiGzDecoder::new(Vec::new()),
            }),
            Err(encoding) => {
                return Err(Failure::new(
                    Code::AnswerMalformed,
                    format!(
                        "{}: {} packed its answer as {encoding:?}, which was not asked for",
                        bounds.what, bounds.host
                    ),
                ));
            }
        };
        let incoming = Self {
            response,
            client,
            bounds,
            scrub: scrub.stream(),
            packed,
            came: 0,
            unpacked: 0,
            ended: false,
        };
        match incoming.announced() {
            Some(length) if length > incoming.bounds.bytes => Err(incoming.too_large()),
            _ => Ok(incoming),
        }
    }

    /// The next piece; none at the end. After a failure there is no more.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let piece = match self.unpack()? {
                Some(piece) => piece,
                None if self.ended => return Ok(None),
                None => match self.receive().await? {
                    Some(piece) if self.packed.is_none() => piece,
                    Some(piece) => {
                        if let Some(packed) = &mut self.packed {
                            packed.waiting = piece;
                        }
                        continue;
                    }
                    None => {
                        self.ended = true;
                        let rest = self.finish()?;
                        self.count(rest.len())?;
                        let mut last = BytesMut::from(&self.scrub.push(rest)[..]);
                        last.extend_from_slice(&self.scrub.finish());
                        if last.is_empty() {
                            return Ok(None);
                        }
                        return Ok(Some(last.freeze()));
                    }
                },
            };
            self.count(piece.len())?;
            let clean = self.scrub.push(piece);
            if !clean.is_empty() {
                return Ok(Some(clean));
            }
        }
    }

    /// All of it. One that comes in one piece is not copied.
    pub(crate) async fn whole(mut self) -> Result<Bytes, Failure> {
        let Some(first) = self.piece().await? else {
            return Ok(Bytes::new());
        };
        let Some(second) = self.piece().await? else {
            return Ok(first);
        };
        let expected = self
            .announced()
            .and_then(|length| usize::try_from(length).ok())
            .unwrap_or_default();
        let mut whole = BytesMut::with_capacity(expected.max(first.len() + second.len()));
        whole.extend_from_slice(&first);
        whole.extend_from_slice(&second);
        while let Some(piece) = self.piece().await? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// How many bytes the upstream says will come; it may lie. Unknown where they are packed.
    pub(crate) fn announced(&self) -> Option<u64> {
        if self.packed.is_some() {
            return None;
        }
        self.response.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, Failure> {
        let received = tokio::time::timeout_at(self.bounds.deadline, self.response.chunk()).await;
        let Bounds { what, host, .. } = &self.bounds;
        match received {
            Ok(Ok(piece)) => {
                self.came += piece.as_ref().map_or(0, |piece| piece.len() as u64);
                // Packed bytes that never become anything are bytes too.
                if self.packed.is_some() && self.came > self.bounds.bytes {
                    return Err(self.too_large());
                }
                Ok(piece)
            }
            Ok(Err(error)) => {
                let mut failure = self.client.failure(host, &error);
                failure.message = format!(
                    "{what}: {host} broke off its answer after {} bytes: {}",
                    self.came,
                    failure.message.split_once(": ").map_or("", |(_, why)| why)
                );
                Err(failure)
            }
            Err(_) => Err(Failure::new(
                Code::Timeout,
                format!(
                    "{what}: {host} did not end its answer in time; {} bytes had come",
                    self.came
                ),
            )),
        }
    }

    /// A part of what waits to be unpacked.
    fn unpack(&mut self) -> Result<Option<Bytes>, Failure> {
        let Some(packed) = &mut self.packed else {
            return Ok(None);
        };
        while !packed.waiting.is_empty() {
            let part = packed.waiting.split_to(PACKED.min(packed.waiting.len()));
            if packed.decoder.write_all(&part).is_err() {
                return Err(self.broken_packing());
            }
            let unpacked = std::mem::take(packed.decoder.get_mut());
            if !unpacked.is_empty() {
                return Ok(Some(unpacked.into()));
            }
        }
        Ok(None)
    }

    /// What is left in the packing.
    fn finish(&mut self) -> Result<Bytes, Failure> {
        let Some(packed) = &mut self.packed else {
            return Ok(Bytes::new());
        };
        if self.came > 0 && packed.decoder.try_finish().is_err() {
            return Err(self.broken_packing());
        }
        Ok(std::mem::take(packed.decoder.get_mut()).into())
    }

    fn count(&mut self, bytes: usize) -> Result<(), Failure> {
        self.unpacked += bytes as u64;
        if self.unpacked > self.bounds.bytes {
            return Err(self.too_large());
        }
        Ok(())
    }

    fn too_large(&self) -> Failure {
        let Bounds { what, host, bytes, .. } = &self.bounds;
        Failure::new(
            Code::AnswerTooLarge,
            format!("{what}: {host} answers with more than {bytes} bytes, the method's limit"),
        )
        .remedy("ask for less at once: fewer items, fewer fields, a narrower filter")
    }

    fn broken_packing(&self) -> Failure {
        let Bounds { what, host, .. } = &self.bounds;
        Failure::new(
            Code::AnswerMalformed,
            format!("{what}: {host} packed its answer so that it cannot be unpacked (gzip)"),
        )
    }
}

/// Whether a body is packed by gzip. An error names what else it is.
fn encoding(headers: &HeaderMap) -> Result<bool, String> {
    let Some(encoding) = headers.get(CONTENT_ENCODING) else {
        return Ok(false);
    };
    match encoding
        .to_str()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
        .as_str()
    {
        "gzip" | "x-gzip" => Ok(true),
        "" | "identity" => Ok(false),
        other => Err(other
            .chars()
            .filter(|letter| letter.is_ascii_graphic())
            .take(30)
            .collect()),
    }
}
