use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::AsyncWriteExt;

use super::*;

/// The first record that a client sends which means `host`.
fn client_hello(host: &str) -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let host = ServerName::try_from(host.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), host).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// What stands in an `encrypted_client_hello`: the outer kind, a suite, an id, no key, a byte that only the server can read.
const ENCRYPTED: [u8; 11] = [0, 0, 1, 0, 1, 5, 0, 0, 0, 1, 9];

/// The same with one more extension at its end.
fn extended(mut hello: Vec<u8>, kind: u16, body: &[u8]) -> Vec<u8> {
    hello.extend(kind.to_be_bytes());
    hello.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    hello.extend(body);
    let add = |bytes: &mut [u8]| {
        let before = bytes
            .iter()
            .fold(0_usize, |number, byte| number << 8 | usize::from(*byte));
        let number = before + 4 + body.len();
        let length = bytes.len();
        bytes.copy_from_slice(&number.to_be_bytes()[8 - length..]);
    };
    // The record's length, the message's, and that of the extensions.
    add(&mut hello[3..5]);
    add(&mut hello[6..9]);
    let at = {
        let session = 9 + 2 + 32;
        let ciphers = session + 1 + usize::from(hello[session]);
        let compressions = ciphers + 2 + usize::from(hello[ciphers]) * 256 + usize::from(hello[ciphers + 1]);
        compressions + 1 + usize::from(hello[compressions])
    };
    add(&mut hello[at..at + 2]);
    hello
}

/// The same message in records of so many bytes.
fn fragmented(hello: &[u8], size: usize) -> Vec<u8> {
    hello[5..]
        .chunks(size)
        .flat_map(|chunk| [&[22, 3, 1, 0, u8::try_from(chunk.len()).unwrap()], chunk].concat())
        .collect()
}

/// What is taken from bytes that come in pieces of so many, and whether all of them are there to be passed on.
async fn spoken(bytes: &[u8], piece: usize) -> Spoken {
    let (mut near, mut far) = tokio::io::duplex(piece);
    let write = async {
        let _ = near.write_all(bytes).await;
        let _ = near.shutdown().await;
    };
    let (opening, ()) = tokio::join!(
        async {
            let opening = read(&mut far, Duration::from_secs(60)).await.unwrap();
            drop(far);
            opening
        },
        write
    );
    assert!(bytes.starts_with(&opening.bytes));
    opening.spoken
}

fn tls(server_name: Option<&str>, encrypted: bool) -> Spoken {
    Spoken::Tls {
        server_name: server_name.map(str::to_owned),
        encrypted,
    }
}

#[tokio::test]
async fn a_client_hello_says_whom_it_means_however_it_is_cut() {
    let hello = client_hello("api.bound.test");
    let expected = tls(Some("api.bound.test"), false);
    for piece in [1, 7, 4_096] {
        assert_eq!(spoken(&hello, piece).await, expected, "{piece}");
    }
    assert_eq!(spoken(&fragmented(&hello, 1), 4_096).await, expected);
    assert_eq!(spoken(&fragmented(&hello, 100), 3).await, expected);
    assert_eq!(spoken(&client_hello("192.0.2.1"), 4_096).await, tls(None, false));
}

#[tokio::test]
async fn threat_003_an_encrypted_name_is_seen() {
    let hello = client_hello("cover.test");
    assert_eq!(
        spoken(&extended(hello.clone(), 0x1234, &[]), 4_096).await,
        tls(Some("cover.test"), false)
    );
    for kind in [0xfe0d, 0xffce] {
        let hello = extended(hello.clone(), kind, &ENCRYPTED);
        assert_eq!(spoken(&hello, 4_096).await, tls(Some("cover.test"), true));
        assert_eq!(spoken(&fragmented(&hello, 50), 9).await, tls(Some("cover.test"), true));
    }
}

#[tokio::test]
async fn a_hello_that_breaks_its_rules_is_no_tls() {
    let hello = client_hello("a.test");
    let mut twice = extended(hello.clone(), 0, &[]);
    assert_eq!(spoken(&twice, 4_096).await, Spoken::BadTls, "two names");
    twice = hello.clone();
    twice[5] = 2;
    assert_eq!(spoken(&twice, 4_096).await, Spoken::BadTls, "a server's hello");
    let mut wrong = hello.clone();
    wrong[8] = wrong[8].wrapping_sub(9);
    assert_eq!(spoken(&wrong, 4_096).await, Spoken::BadTls, "lengths that disagree");
    assert_eq!(
        spoken(&hello[..hello.len() - 1], 4_096).await,
        Spoken::Nothing,
        "cut off"
    );
    // A message that is said to be 16 MB long is not waited for.
    let endless = [&[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 40_000]].concat();
    assert!(matches!(spoken(&endless, 4_096).await, Spoken::BadTls | Spoken::Other));
}

#[tokio::test]
async fn what_is_no_tls_is_http_or_something_else() {
    for (bytes, expected) in [
        ("GET / HTTP/1.1\r\n", Spoken::Http),
        ("M-SEARCH * HTTP/1.1\r\n", Spoken::Http),
        ("PRI * HTTP/2.0\r\n", Spoken::Http),
        ("get / HTTP/1.1\r\n", Spoken::Other),
        (" GET / HTTP/1.1\r\n", Spoken::Other),
        ("SSH-2.0-OpenSSH_9.2\r\n", Spoken::Other),
        ("\0\0\0\x08\x04\u{d2}\x16/", Spoken::Other),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", Spoken::Other),
        ("POS", Spoken::Nothing),
        ("", Spoken::Nothing),
    ] {
        for piece in [1, 4_096] {
            assert_eq!(spoken(bytes.as_bytes(), piece).await, expected, "{bytes:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_says_nothing_is_not_waited_for() {
    let (mut near, mut far) = tokio::io::duplex(64);
    near.write_all(b"PO").await.unwrap();
    let opening = read(&mut far, Duration::from_secs(10)).await.unwrap();
    assert_eq!(opening.spoken, Spoken::Nothing);
    assert_eq!(opening.bytes, "PO");
}
