//! Who sign for upstreams.

use rustls::RootCertStore;

/// The authorities that this machine trusts. Where it trusts none, hosts whose requests are read cannot be reached over
/// TLS, and the log says so.
#[must_use]
pub fn machine_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!(
            "this machine trusts no certificate authority, so egress rules that inject or restrict reach no host over https: install the package ca-certificates"
        );
    }
    roots
}
