//! Encrypted connections to servers that begin in the clear.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::{Code, Failure};

/// Encrypts connections to one host, whose certificate and name are verified.
#[derive(Clone)]
pub(super) struct Encryption {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Encryption {
    /// None where the host's name can stand in no certificate.
    pub(super) fn new(mut config: ClientConfig, host: &str) -> Option<Self> {
        // What HTTP agrees on means nothing to a database.
        config.alpn_protocols.clear();
        Some(Self {
            connector: Arc::new(config).into(),
            name: ServerName::try_from(host.to_owned()).ok()?,
        })
    }

    pub(super) async fn encrypt(self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name, stream).await
    }
}

/// The failure that an error of TLS means, if it is one.
pub(super) fn certificate(service: &str, host: &str, error: &(dyn std::error::Error + 'static)) -> Option<Failure> {
    let mut next = Some(error);
    while let Some(error) = next {
        let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let found = carried
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
            .or_else(|| error.downcast_ref());
        if let Some(rustls::Error::InvalidCertificate(why)) = found {
            return Some(
                Failure::new(
                    Code::BadCertificate,
                    format!("{service}: the certificate of {host} is not good: {why}"),
                )
                .remedy("the database's owner renews it; an authority of your own is made known to this machine's trust store"),
            );
        }
        next = error.source();
    }
    None
}
