//! What the installation lets out: rules, as they are written and as they are asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use dial::{Allow, Network};
use policy::{Destination, HostPattern};
use secret::Reference;
use serde::Deserialize;

use crate::inject::{Aws, Git, Injection};
use crate::intercept::{PathPattern, TokenAnswers};
use crate::proxy::ProxySettings;
use crate::ssh::SshRule;

mod lint;

pub use lint::Mistake;

/// What a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// TLS that names its host; HTTP in it where it is intercepted.
    Https,
    /// HTTP in the clear.
    Http,
    /// SSH, of which single commands pass.
    Ssh,
    /// Anything at all but SSH. Nothing is read, so nothing but host and port is checked.
    Tcp,
}

impl Scheme {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Ssh => "ssh",
            Self::Tcp => "tcp",
        }
    }
}

/// One rule: which hosts, how they may be spoken to, and what is done on the way.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, the key that it stands under.
    #[serde(skip)]
    pub name: String,
    /// The hosts and ports that it is about.
    pub hosts: Vec<HostPattern>,
    /// What may be spoken with them.
    #[serde(default = "only_https")]
    pub schemes: Vec<Scheme>,
    /// The methods that requests may have, to the letter; every method where left out.
    pub methods: Option<Vec<String>>,
    /// The paths that requests may have; every path where left out.
    pub paths: Option<Vec<PathPattern>>,
    /// What is put into requests.
    #[serde(default)]
    pub inject: Vec<Injection>,
    /// Where its hosts serve git repositories: which, and what may be done with them. Nothing else passes then.
    pub git: Option<Git>,
    /// Where its hosts want signatures of AWS: with which keys, for what.
    pub aws: Option<Aws>,
    /// Where its hosts speak SSH: who logs in, which keys the hosts may show, and what may run.
    pub ssh: Option<SshRule>,
    /// What happens where its hosts hand out tokens; where left out, tokens are replaced if the rule puts secrets in.
    pub tokens: Option<TokenAnswers>,
    /// Where its hosts hand out tokens, beside the paths that are known to.
    pub token_paths: Option<Vec<PathPattern>>,
    /// The bytes that a request's body may have; as many as it likes where left out.
    pub body_limit: Option<u64>,
    /// Private networks that its hosts may lie in.
    #[serde(default)]
    pub networks: Vec<Network>,
    /// The proxy that leads to its hosts.
    pub proxy: Option<ProxySettings>,
}

fn only_https() -> Vec<Scheme> {
    vec![Scheme::Https]
}

impl Rule {
    /// Whether requests must be read to follow it.
    #[must_use]
    pub fn intercepts(&self) -> bool {
        self.injects()
            || self.methods.is_some()
            || self.paths.is_some()
            || self.body_limit.is_some()
            || self.token_paths.is_some()
            || !matches!(self.tokens, None | Some(TokenAnswers::Pass))
            || self.ssh.is_some()
    }

    /// Whether it puts secrets into requests.
    #[must_use]
    pub const fn injects(&self) -> bool {
        !self.inject.is_empty() || self.git.is_some() || self.aws.is_some()
    }

    /// Every reference to a secret in it.
    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        let proxy = self.proxy.iter().filter_map(|proxy| proxy.password.as_ref());
        let ssh = self.ssh.iter().map(|ssh| &ssh.secret);
        self.bound().chain(proxy).chain(ssh)
    }

    /// The references to what it puts into requests or signs them with.
    pub fn bound(&self) -> impl Iterator<Item = &Reference> {
        let git = self.git.iter().map(|git| &git.secret);
        let aws = self.aws.iter().flat_map(|aws| {
            let keys = [&aws.access_key, &aws.secret_key];
            keys.into_iter().chain(&aws.session_token)
        });
        self.inject.iter().map(Injection::reference).chain(git).chain(aws)
    }

    /// Whether it puts a secret into bodies.
    pub(crate) fn fills_body(&self) -> bool {
        self.inject
            .iter()
            .any(|injection| matches!(injection, Injection::Body { .. }))
    }

    /// The addresses that it lets be dialled: those of its networks, and those that it names as hosts.
    pub(crate) fn allow(&self) -> Allow {
        let named = self.hosts.iter().filter_map(|host| match host.destination() {
            Some(Destination::Address(address)) => Some(Network::from(*address)),
            _ => None,
        });
        Allow {
            networks: self.networks.iter().copied().chain(named).collect(),
        }
    }

    /// The most precise of its patterns that match.
    fn pattern(&self, destination: &Destination, port: Option<u16>) -> Option<&HostPattern> {
        self.hosts
            .iter()
            .filter(|host| match port {
                Some(port) => host.matches(destination, port),
                None => host.names(destination),
            })
            .max_by_key(|host| precision(host))
    }
}

/// How little else a pattern matches: a host itself before stars, and of these the longest.
fn precision(host: &HostPattern) -> (bool, usize) {
    (host.destination().is_some(), host.to_string().len())
}

/// A rule that matches, and by which of its patterns.
#[derive(Clone, Debug)]
pub(crate) struct Match {
    pub(crate) rule: Arc<Rule>,
    pub(crate) pattern: HostPattern,
}

/// All rules of an installation.
#[derive(Clone, Debug, Default)]
pub struct Rules(Vec<Arc<Rule>>);

impl Rules {
    /// Checks rules by their names.
    ///
    /// # Errors
    /// With every mistake in them.
    pub fn new(rules: BTreeMap<String, Rule>) -> Result<Self, Vec<Mistake>> {
        let rules: Vec<_> = rules.into_iter().map(|(name, rule)| Rule { name, ..rule }).collect();
        let mistakes = lint::lint(&rules);
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        Ok(Self(rules.into_iter().map(Arc::new).collect()))
    }

    /// Each rule.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// The rules that are about a destination, the most precise first, then by name; without a port, at any.
    pub(crate) fn matching(&self, destination: &Destination, port: Option<u16>) -> Vec<Match> {
        let mut matches: Vec<Match> = self
            .0
            .iter()
            .filter_map(|rule| {
                let pattern = rule.pattern(destination, port)?.clone();
                let rule = Arc::clone(rule);
                Some(Match { rule, pattern })
            })
            .collect();
        // Stable, so rules of the same precision stay in the order of their names.
        matches.sort_by_key(|found| std::cmp::Reverse(precision(&found.pattern)));
        matches
    }
}
