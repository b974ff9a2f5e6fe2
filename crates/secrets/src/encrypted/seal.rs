//! Sealing and opening: XChaCha20-Poly1305, whose nonces are long enough to be drawn.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::StoreError;

/// The key of a store.
pub(super) type Key = Zeroizing<[u8; 32]>;

const NONCE_BYTES: usize = 24;

/// A nonce and what was sealed with it, as text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Sealed(String);

/// Seals `plain` and binds it to `context`: it opens with the same key and the same context only.
pub(super) fn seal(key: &Key, context: &[u8], plain: &[u8]) -> Result<Sealed, StoreError> {
    let nonce = XNonce::try_generate().map_err(|_| StoreError::Random)?;
    let payload = Payload {
        msg: plain,
        aad: context,
    };
    // Fails for texts of hundreds of gigabytes.
    let sealed = cipher(key)
        .encrypt(&nonce, payload)
        .map_err(|_| StoreError::Value("too long"))?;
    Ok(Sealed(BASE64.encode([&nonce[..], &sealed].concat())))
}

/// What was sealed with this key in this context; nothing where it was not, or was altered since.
pub(super) fn open(key: &Key, context: &[u8], sealed: &Sealed) -> Option<Zeroizing<Vec<u8>>> {
    let bytes = BASE64.decode(&sealed.0).ok()?;
    let (nonce, sealed) = bytes.split_at_checked(NONCE_BYTES)?;
    let payload = Payload {
        msg: sealed,
        aad: context,
    };
    let plain = cipher(key).decrypt(&XNonce::try_from(nonce).ok()?, payload).ok()?;
    Some(Zeroizing::new(plain))
}

fn cipher(key: &Key) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new((&**key).into())
}
