//! The far end.

use std::sync::Arc;

use causes::with_causes;
use dial::DialError;
use policy::Destination;
use tokio::net::TcpStream;

use super::Inner;
use crate::intercept::{Decided, Pending, Stream};
use crate::{Code, Denied, Rule};

impl Inner {
    /// Opens the way to a destination that a rule allows: resolved once, checked, and dialled where it was checked.
    pub(super) async fn dial(&self, destination: &Destination, port: u16, rule: &Rule) -> Result<TcpStream, Denied> {
        let host = match destination {
            Destination::Name(name) => name.to_string(),
            Destination::Address(address) => address.to_string(),
        };
        let proxy = match &rule.proxy {
            Some(proxy) => Some(proxy.open(&*self.secrets).map_err(|unresolved| {
                tracing::error!(
                    rule = rule.name,
                    error = with_causes(&unresolved),
                    "a proxy's password is not there"
                );
                Denied::new(
                    Code::NoSecret,
                    format!(
                        "{destination}:{port} is not reached: the password of the proxy that leads there is not there"
                    ),
                    "tell whoever runs this installation",
                )
                .by(&rule.name)
            })?),
            None => None,
        };
        let dialled = self.dialer.dial(&host, port, &rule.allow(), proxy.as_ref()).await;
        dialled.map_err(|error| refusal(&error, destination, port).by(&rule.name))
    }

    pub(super) fn dial_for(
        self: Arc<Self>,
        decided: &Decided,
        rule: &Arc<Rule>,
    ) -> Pending<Result<Box<dyn Stream>, Denied>> {
        let (destination, port, rule) = (decided.host.clone(), decided.port, Arc::clone(rule));
        Box::pin(async move {
            let stream = self.dial(&destination, port, &rule).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}

/// What the sandbox is told. Which address a name leads to is nothing for it.
fn refusal(error: &DialError, destination: &Destination, port: u16) -> Denied {
    tracing::debug!(error = with_causes(error), "an upstream could not be reached");
    match error {
        DialError::Refused { class, .. } => Denied::new(
            Code::PrivateAddress,
            format!("{destination}:{port} is not reached: it leads to a {class} address"),
            "ask whoever runs this installation to name the network in the rule's `networks`, if that is meant",
        ),
        error => Denied::new(
            Code::Unreachable,
            format!("{destination}:{port} is not reached: {}", with_causes(error)),
            "try again later",
        ),
    }
}
