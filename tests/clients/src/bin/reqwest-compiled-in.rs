//! Asks for a URL, and trusts the authorities that it was compiled with: those of webpki-roots, and the test's, which signs for
//! what the servers of a test show.

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

static AUTHORITY: &[u8] = include_bytes!(env!("CLIENT_AUTHORITY"));

fn main() {
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    roots
        .add(CertificateDer::from(AUTHORITY))
        .expect("the test's authority");
    let provider = rustls::crypto::ring::default_provider().into();
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = reqwest::blocking::Client::builder()
        .tls_backend_preconfigured(tls)
        .build();
    let url = std::env::args().nth(1).expect("a URL");
    match client
        .and_then(|client| client.get(url).send())
        .and_then(reqwest::blocking::Response::text)
    {
        Ok(text) => print!("{text}"),
        Err(error) => print!("{error:?}"),
    }
}
