//! The certificates of one session: signed for a host when it is first needed, by a key that no other session has.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use policy::Destination;
use rcgen::{CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::{Authorities, AuthorityError, after, date};
use crate::session::Bucket;
use crate::{Code, Denied};

/// How long a certificate counts, and how much of that must be left for it to be used.
const LIFE: SignedDuration = SignedDuration::from_hours(7 * 24);
const LEFT: SignedDuration = SignedDuration::from_hours(24);
/// Certificates that a session keeps; the one made first goes first.
const KEPT: usize = 128;
/// Certificates that a session gets at once, and then each second.
const BURST: u32 = 64;
const PER_SECOND: f64 = 1.0;
/// A common name is no longer than this (RFC 5280, appendix A); the names that count stand elsewhere.
const COMMON_NAME: usize = 64;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
enum LeafError {
    #[error("who signs is not at hand")]
    Authority(#[from] AuthorityError),
    #[error("sign a certificate")]
    Signing(#[from] rcgen::Error),
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
    #[error("the host has a name that no certificate can hold")]
    Name,
}

pub(crate) struct Leaves(Mutex<State>);

struct State {
    /// Made with the first certificate.
    key: Option<Arc<KeyPair>>,
    made: HashMap<Destination, Leaf>,
    bucket: Bucket,
}

struct Leaf {
    config: Arc<ServerConfig>,
    ends: Timestamp,
}

impl Default for Leaves {
    fn default() -> Self {
        Self(Mutex::new(State {
            key: None,
            made: HashMap::new(),
            bucket: Bucket::new(BURST, PER_SECOND),
        }))
    }
}

impl Leaves {
    /// How to serve TLS to the session in the name of a host.
    pub(crate) fn server(
        &self,
        host: &Destination,
        authorities: &Authorities,
        now: Timestamp,
    ) -> Result<Arc<ServerConfig>, Denied> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = state.made.get(host)
            && leaf.ends.duration_since(now) > LEFT
        {
            return Ok(Arc::clone(&leaf.config));
        }
        if !state.bucket.take() {
            return Err(Denied::new(
                Code::TooManyCertificates,
                format!("{host} is not read: this session asks for too many hosts that are"),
                "wait a minute",
            ));
        }
        let leaf = state.make(host, authorities, now).map_err(|error| {
            tracing::error!(%host, error = causes::with_causes(&error), "a certificate could not be made");
            Denied::new(
                Code::Broken,
                format!("{host} is not reached: the broker could not make a certificate for it"),
                "tell whoever runs this installation: the log says why",
            )
        })?;
        if state.made.len() >= KEPT
            && let Some(first) = state
                .made
                .iter()
                .min_by_key(|(_, leaf)| leaf.ends)
                .map(|(host, _)| host.clone())
        {
            state.made.remove(&first);
        }
        let config = Arc::clone(&leaf.config);
        state.made.insert(host.clone(), leaf);
        Ok(config)
    }
}

#[cfg(test)]
impl Leaves {
    pub(super) fn kept(&self) -> usize {
        self.0.lock().unwrap().made.len()
    }

    pub(super) fn key(&self) -> Vec<u8> {
        let state = self.0.lock().unwrap();
        state.key.as_ref().unwrap().public_key_raw().to_vec()
    }
}

impl State {
    fn make(&mut self, host: &Destination, authorities: &Authorities, now: Timestamp) -> Result<Leaf, LeafError> {
        let authority = authorities.signing(now)?;
        let key = match &self.key {
            Some(key) => Arc::clone(key),
            None => Arc::clone(self.key.insert(Arc::new(KeyPair::generate()?))),
        };
        let ends = after(now, LIFE).min(authority.ends());
        let certificate = parameters(host, now, ends)?.signed_by(&*key, &authority.issuer)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = PrivateKeyDer::try_from(key.serialize_der()).map_err(|_| LeafError::Name)?;
        let private = provider.key_provider.load_private_key(private)?;
        let certified = Arc::new(CertifiedKey::new(vec![certificate.der().clone()], private));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Only {
                host: host.clone(),
                certified,
            }));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Leaf {
            config: Arc::new(config),
            ends,
        })
    }
}

fn parameters(host: &Destination, now: Timestamp, ends: Timestamp) -> Result<CertificateParams, LeafError> {
    let mut parameters = CertificateParams::default();
    let mut name = DistinguishedName::new();
    let text = host.to_string();
    name.push(
        rcgen::DnType::CommonName,
        if text.len() <= COMMON_NAME {
            text.as_str()
        } else {
            "Belljar egress"
        },
    );
    parameters.distinguished_name = name;
    parameters.subject_alt_names = vec![match host {
        Destination::Name(name) => SanType::DnsName(name.as_str().try_into().map_err(|_| LeafError::Name)?),
        Destination::Address(address) => SanType::IpAddress(*address),
    }];
    parameters.not_before = date(after(now, -super::BEFORE));
    parameters.not_after = date(ends);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.use_authority_key_identifier_extension = true;
    Ok(parameters)
}

/// The certificate of one host, for those that mean this host.
struct Only {
    host: Destination,
    certified: Arc<CertifiedKey>,
}

impl fmt::Debug for Only {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Only({})", self.host)
    }
}

impl ResolvesServerCert for Only {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let meant = match (&self.host, hello.server_name()) {
            (Destination::Name(host), Some(name)) => policy::Host::parse(name).is_ok_and(|name| name == *host),
            (Destination::Address(_), None) => true,
            _ => false,
        };
        meant.then(|| Arc::clone(&self.certified))
    }
}
