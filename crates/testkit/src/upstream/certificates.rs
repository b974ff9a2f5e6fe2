//! Certificates of upstreams.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Signs for upstreams of a test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// A new one, which nobody trusts yet.
    #[must_use]
    pub fn new() -> Self {
        Self::of(KeyPair::generate().unwrap_or_else(|error| panic!("make a key: {error}")))
    }

    /// One with the key in a file, which is made where it is not there: whoever trusted it trusts it again.
    ///
    /// # Errors
    /// When the file cannot be read or written, or holds no key.
    pub(crate) fn kept(file: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("keep a key in {}: {error}", file.display());
        let key = if file.exists() {
            let text = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
            KeyPair::from_pem(&text).map_err(|error| failed(&error))?
        } else {
            let key = KeyPair::generate().map_err(|error| failed(&error))?;
            std::fs::write(file, key.serialize_pem()).map_err(|error| failed(&error))?;
            key
        };
        Ok(Self::of(key))
    }

    fn of(key: KeyPair) -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters
            .distinguished_name
            .push(rcgen::DnType::CommonName, "Upstreams of a test");
        let issuer = CertifiedIssuer::self_signed(parameters, key);
        Self(issuer.unwrap_or_else(|error| panic!("make an authority: {error}")))
    }

    /// Its certificate, in PEM form.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Its certificate.
    #[must_use]
    pub fn der(&self) -> &rustls::pki_types::CertificateDer<'static> {
        self.0.der()
    }

    /// A server's side of TLS under these names. Names that begin with `expired.` show a certificate that has expired.
    pub(super) fn server(&self, names: &[&str]) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let certificates = Certificates {
            good: self.certificate(names, 2100),
            expired: self.certificate(names, 2002),
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap_or_else(|error| panic!("set up TLS: {error}"))
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(certificates));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }

    fn certificate(&self, names: &[&str], until: i32) -> Arc<CertifiedKey> {
        let made = || -> Result<CertifiedKey, Box<dyn std::error::Error>> {
            let key = KeyPair::generate()?;
            let mut parameters =
                CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
            parameters.not_before = rcgen::date_time_ymd(2001, 1, 1);
            parameters.not_after = rcgen::date_time_ymd(until, 1, 1);
            let certificate = parameters.signed_by(&key, &self.0)?;
            let key = PrivateKeyDer::try_from(key.serialize_der())?;
            let key = rustls::crypto::ring::sign::any_supported_type(&key)?;
            Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
        };
        Arc::new(made().unwrap_or_else(|error| panic!("make a certificate for {names:?}: {error}")))
    }
}

#[derive(Debug)]
struct Certificates {
    good: Arc<CertifiedKey>,
    expired: Arc<CertifiedKey>,
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let expired = hello.server_name().is_some_and(|name| name.starts_with("expired."));
        Some(Arc::clone(if expired { &self.expired } else { &self.good }))
    }
}
