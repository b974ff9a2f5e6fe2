//! From a name to addresses, once.

use std::net::IpAddr;
use std::sync::OnceLock;

use async_trait::async_trait;
use hickory_resolver::net::NetError;
use hickory_resolver::{TokioResolver, config::LookupIpStrategy};

/// Asks somebody for the addresses of a name. A trait because tests must answer without a network.
#[async_trait]
pub trait Resolve: Send + Sync + 'static {
    /// All addresses of a name (lower case, no dot at its end). Not empty.
    ///
    /// # Errors
    /// When there are none, or nobody could say.
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError>;
}

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The name does not exist, or has no address.
    #[error("{name} has no address")]
    NoAddress {
        /// The name.
        name: String,
    },
    /// Nobody answered, or the answer was of no use.
    #[error("ask the name servers of /etc/resolv.conf for {name}")]
    Unanswered {
        /// The name.
        name: String,
        /// What happened.
        #[source]
        source: Box<NetError>,
    },
    /// There is nobody to ask.
    #[error("read the name servers from /etc/resolv.conf")]
    NoServers(#[source] Box<NetError>),
}

/// Asks the machine's own name servers, as /etc/hosts and /etc/resolv.conf name them. Answers are kept as long as they say.
#[derive(Default)]
pub struct SystemResolver {
    /// Made at the first question: it needs the running reactor.
    resolver: OnceLock<TokioResolver>,
}

impl SystemResolver {
    fn resolver(&self) -> Result<&TokioResolver, ResolveError> {
        if let Some(resolver) = self.resolver.get() {
            return Ok(resolver);
        }
        let made = TokioResolver::builder_tokio().and_then(|mut builder| {
            builder.options_mut().ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
            builder.build()
        });
        let made = made.map_err(|error| ResolveError::NoServers(Box::new(error)))?;
        Ok(self.resolver.get_or_init(|| made))
    }
}

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        // The dot at the end: the name as it was checked, and never with a search domain behind it.
        let answer = self.resolver()?.lookup_ip(format!("{name}.")).await;
        match answer {
            Ok(answer) => Ok(answer.iter().collect()),
            Err(error) if error.is_no_records_found() => Err(ResolveError::NoAddress { name: name.to_owned() }),
            Err(error) => Err(ResolveError::Unanswered {
                name: name.to_owned(),
                source: Box::new(error),
            }),
        }
    }
}
