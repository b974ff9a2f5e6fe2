//! Tokens signed with an RSA key (JWT, RS256).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::rsa::KeyPair;
use ring::signature::{KeyPair as _, RSA_PKCS1_SHA256};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use secret::Secret;
use serde_json::Value;

/// A private key.
pub(super) struct Key(KeyPair);

/// Why a text is no key that signs.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    /// It is no PEM.
    #[error(
        "it is no unencrypted private key in PEM form (`-----BEGIN PRIVATE KEY-----` or `-----BEGIN RSA PRIVATE KEY-----`)"
    )]
    NotPem,
    /// It is another kind of key.
    #[error("it is no RSA key")]
    NotRsa,
    /// It is too weak, or damaged.
    #[error("it is no usable RSA key of 2048 to 4096 bits: {0}")]
    Unusable(ring::error::KeyRejected),
    /// The signature could not be made.
    #[error("nothing could be signed with it")]
    Sign,
}

impl Key {
    /// Reads a key in PEM form.
    pub(super) fn read(pem: &Secret) -> Result<Self, KeyError> {
        let key = PrivateKeyDer::from_pem_slice(pem.expose().as_bytes()).map_err(|_| KeyError::NotPem)?;
        match &key {
            PrivateKeyDer::Pkcs8(key) => KeyPair::from_pkcs8(key.secret_pkcs8_der()),
            PrivateKeyDer::Pkcs1(key) => KeyPair::from_der(key.secret_pkcs1_der()),
            _ => return Err(KeyError::NotRsa),
        }
        .map(Self)
        .map_err(KeyError::Unusable)
    }

    /// A signed token with these claims.
    pub(super) fn token(&self, claims: &Value) -> Result<Secret, KeyError> {
        let head = serde_json::json!({ "alg": "RS256", "typ": "JWT" });
        let mut text = URL_SAFE_NO_PAD.encode(head.to_string());
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(claims.to_string(), &mut text);
        let mut signature = vec![0; self.0.public().modulus_len()];
        self.0
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
            .map_err(|_| KeyError::Sign)?;
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut text);
        Ok(Secret::new(text))
    }

    /// The public key as a SubjectPublicKeyInfo in DER (RFC 5280).
    pub(super) fn public_key_info(&self) -> Vec<u8> {
        // The algorithm rsaEncryption, without parameters.
        const RSA: [u8; 15] = [
            0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
        ];
        let mut bits = vec![0];
        bits.extend_from_slice(self.0.public_key().as_ref());
        let mut info = RSA.to_vec();
        info.extend(element(0x03, &bits));
        element(0x30, &info)
    }
}

/// A DER element.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
    let mut element = vec![tag];
    match length[..] {
        [] => element.push(0),
        [short] if short < 0x80 => element.push(short),
        _ => {
            // At most eight bytes.
            element.push(0x80 | u8::try_from(length.len()).unwrap_or_default());
            element.extend(length);
        }
    }
    element.extend_from_slice(content);
    element
}
