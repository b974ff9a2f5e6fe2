//! Refusals that say why, and what to do.

use serde::Serialize;

/// Why something was refused, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// It is no host name and no address, or an address in an odd spelling.
    InvalidHost,
    /// No rule of the installation names the host at this port.
    NoRule,
    /// The session's scope does not allow it.
    OutOfScope,
    /// The session's scope allows it once a person said yes.
    NeedsApproval,
    /// No rule for this host allows the protocol that was spoken.
    Protocol,
    /// TLS that does not say, in the clear, which host it means.
    NoServerName,
    /// TLS that means another host than the connection was opened for.
    OtherServerName,
    /// TLS whose server name is encrypted.
    EncryptedServerName,
    /// Nothing intelligible came in time.
    NothingSaid,
    /// The name looks like smuggled data.
    SuspiciousName,
    /// Too many new names in a short time.
    TooManyNames,
    /// Too many connections at once, or too many new ones in a short time.
    TooManyConnections,
    /// The session has used up what it may send or receive.
    BytesSpent,
    /// The name leads to an address that is not public.
    PrivateAddress,
    /// The name has no address, or nobody answered at it.
    Unreachable,
    /// A secret of the rule is not there.
    NoSecret,
    /// Too many certificates in a short time.
    TooManyCertificates,
    /// The client did not accept the certificate, or spoke no TLS that we know.
    Handshake,
    /// The request can be read in more than one way, or not at all.
    Malformed,
    /// The request is for another host than its connection.
    OtherHost,
    /// No rule can allow this method.
    Method,
    /// The rules for the host do not allow the request.
    NotInRule,
    /// Two rules would put a secret into the request.
    Ambiguous,
    /// The placeholder stands where no rule replaces it.
    PlaceholderUnbound,
    /// The signature that the client made is for something that the rule does not allow.
    Signature,
    /// The endpoint hands out tokens.
    TokenEndpoint,
    /// The body is longer than the rule allows.
    TooLarge,
    /// The session has too many requests under way.
    TooManyRequests,
    /// The upstream's certificate does not prove who it is.
    Untrusted,
    /// The upstream's answer cannot be passed on.
    BadAnswer,
    /// The upstream did not answer in time.
    TooSlow,
    /// The broker itself failed.
    Broken,
}

impl Code {
    /// The word that stands in answers and in the audit log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidHost => "invalid_host",
            Self::NoRule => "no_rule",
            Self::OutOfScope => "out_of_scope",
            Self::NeedsApproval => "approval_pending",
            Self::Protocol => "protocol",
            Self::NoServerName => "no_server_name",
            Self::OtherServerName => "other_server_name",
            Self::EncryptedServerName => "encrypted_server_name",
            Self::NothingSaid => "nothing_said",
            Self::SuspiciousName => "suspicious_name",
            Self::TooManyNames => "too_many_names",
            Self::TooManyConnections => "too_many_connections",
            Self::BytesSpent => "bytes_spent",
            Self::PrivateAddress => "private_address",
            Self::Unreachable => "unreachable",
            Self::NoSecret => "no_secret",
            Self::TooManyCertificates => "too_many_certificates",
            Self::Handshake => "handshake",
            Self::Malformed => "malformed",
            Self::OtherHost => "other_host",
            Self::Method => "method",
            Self::NotInRule => "not_in_rule",
            Self::Ambiguous => "ambiguous",
            Self::PlaceholderUnbound => "placeholder_unbound",
            Self::Signature => "signature",
            Self::TokenEndpoint => "token_endpoint",
            Self::TooLarge => "too_large",
            Self::TooManyRequests => "too_many_requests",
            Self::Untrusted => "untrusted",
            Self::BadAnswer => "bad_answer",
            Self::TooSlow => "too_slow",
            Self::Broken => "broken",
        }
    }
}

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, thiserror::Error)]
#[error("{reason}; {remedy}")]
pub struct Denied {
    /// Why, for programs.
    pub code: Code,
    /// The rule that decided; where none did, what was missing.
    pub rule: Option<String>,
    /// The layer of the session's scope that the rule is of; none: it is the installation's own. For the audit alone.
    #[serde(skip)]
    pub layer: Option<String>,
    /// Why, for people: what was tried, on what.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl Denied {
    /// A refusal that no rule decided.
    pub fn new(code: Code, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            code,
            rule: None,
            layer: None,
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }

    /// The same, decided by a rule.
    #[must_use]
    pub fn by(self, rule: impl Into<String>) -> Self {
        Self {
            rule: Some(rule.into()),
            ..self
        }
    }

    /// The same, the rule being of a layer of the session's scope.
    #[must_use]
    pub fn of(self, layer: impl Into<String>) -> Self {
        Self {
            layer: Some(layer.into()),
            ..self
        }
    }
}
