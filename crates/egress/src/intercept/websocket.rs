//! WebSockets: the handshake is a request as any other, what follows passes, without what was put into the handshake. What the
//! client says is looked at only where its rule fills bodies in.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use scrub::Scrub;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::body::Ledger;
use super::frames::Frames;
use crate::inject::Substitute;

/// How much passes at once.
const PIECE: usize = 16 * 1024;

/// Whether a request is the handshake of a WebSocket.
pub(super) fn is_handshake<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && has_token(headers, &header::CONNECTION, "upgrade")
        && is_websocket(headers)
}

/// Whether a head agrees to become a WebSocket, and nothing else.
pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(header::UPGRADE).iter();
    let first = protocols
        .next()
        .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"));
    first && protocols.next().is_none()
}

fn has_token(headers: &HeaderMap, name: &header::HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case(token))
}

/// A WebSocket that both sides agreed to.
pub(super) struct Agreed {
    pub(super) client: OnUpgrade,
    pub(super) upstream: OnUpgrade,
    pub(super) scrub: Scrub,
    /// Where a rule fills bodies in.
    pub(super) frames: Option<Substitute>,
    pub(super) ledger: Ledger,
}

/// Where the WebSocket of a connection stands once there is one, so that whoever carries the connection carries it on.
pub(super) type Place = Arc<Mutex<Option<Agreed>>>;

/// Carries what both sides say after the handshake. Frames from a server are not masked, so their bytes can be cleaned.
pub(super) async fn carry(agreed: Agreed) {
    let Agreed {
        client,
        upstream,
        scrub,
        frames,
        mut ledger,
    } = agreed;
    let (client, upstream) = match tokio::try_join!(client, upstream) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "a connection did not become a WebSocket");
            return;
        }
    };
    let (mut from_client, mut to_client) = tokio::io::split(TokioIo::new(client));
    let (mut from_upstream, mut to_upstream) = tokio::io::split(TokioIo::new(upstream));
    let (mut sent, mut received) = (0, 0);
    let up = async {
        let mut piece = vec![0; PIECE];
        let mut frames = frames.map(Frames::new);
        loop {
            let read = from_client.read(&mut piece).await?;
            match &mut frames {
                Some(frames) if read == 0 => to_upstream.write_all(&frames.finish()).await?,
                Some(frames) => to_upstream.write_all(&frames.push(&piece[..read])).await?,
                None => to_upstream.write_all(&piece[..read]).await?,
            }
            to_upstream.flush().await?;
            if read == 0 {
                return to_upstream.shutdown().await;
            }
            sent += read as u64;
        }
    };
    let down = async {
        let mut piece = vec![0; PIECE];
        let mut cleaning = scrub.stream();
        loop {
            let read = from_upstream.read(&mut piece).await?;
            received += read as u64;
            let clean = match read {
                0 => cleaning.finish(),
                read => cleaning.push(Bytes::copy_from_slice(&piece[..read])),
            };
            to_client.write_all(&clean).await?;
            to_client.flush().await?;
            if read == 0 {
                return to_client.shutdown().await;
            }
        }
    };
    if let Err(error) = tokio::try_join!(up, down) {
        tracing::debug!(%error, "a WebSocket ended");
    }
    ledger.tunnelled(sent, received);
}
