//! The proxy of a rule, as it is written.

use dial::{Login, Proxy, ProxyKind};
use policy::Destination;
use secret::{Reference, Source, Unresolved};
use serde::{Deserialize, Deserializer};

/// A proxy that leads to a rule's hosts.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxySettings {
    /// Where it is: `http://proxy.example.com:3128` or `socks5://127.0.0.1:1055`.
    pub url: ProxyUrl,
    /// Who we are to it.
    pub user: Option<String>,
    /// Where the user's password is.
    pub password: Option<Reference>,
}

impl ProxySettings {
    /// The proxy, with its password for this one connection.
    pub(crate) fn open(&self, secrets: &dyn Source) -> Result<Proxy, Unresolved> {
        let login = match (&self.user, &self.password) {
            (Some(user), Some(password)) => Some(Login {
                user: user.clone(),
                password: secrets.secret(password)?,
            }),
            _ => None,
        };
        Ok(Proxy {
            kind: self.url.kind,
            host: self.url.host.clone(),
            port: self.url.port,
            login,
        })
    }
}

/// Where a proxy is, and what it speaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxyUrl {
    kind: ProxyKind,
    host: String,
    port: u16,
}

impl<'de> Deserialize<'de> for ProxyUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| {
            // A password may stand in it: it is not repeated.
            serde::de::Error::custom(
                "this is no proxy: write http://HOST:PORT or socks5://HOST:PORT, and user and password under keys of their own",
            )
        })
    }
}

fn parse(text: &str) -> Option<ProxyUrl> {
    let (scheme, place) = text.split_once("://")?;
    let kind = match scheme {
        "http" => ProxyKind::Http,
        "socks5" => ProxyKind::Socks5,
        _ => return None,
    };
    let (host, port) = place.strip_suffix('/').unwrap_or(place).rsplit_once(':')?;
    let host = match Destination::parse(host).ok()? {
        Destination::Name(name) => name.to_string(),
        Destination::Address(address) => address.to_string(),
    };
    let port = port.parse().ok().filter(|port| *port != 0)?;
    Some(ProxyUrl { kind, host, port })
}
