//! Networks that somebody who may has named.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Class;

/// The widest networks that can be named: whoever writes a wider one has not thought of what else lies in it.
const WIDEST_V4: u8 = 8;
const WIDEST_V6: u8 = 7;

/// A network, or a single address: `10.20.0.0/16`, `127.0.0.1`, `fd12::/48`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Network(IpNet);

impl Network {
    /// Whether the address lies in it, as it is written: what an address carries does not count.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Whether it is this one address and no other.
    fn is(&self, address: IpAddr) -> bool {
        self.0 == IpNet::from(address)
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self(address.to_canonical().into())
    }
}

impl From<Ipv4Net> for Network {
    fn from(network: Ipv4Net) -> Self {
        Self(network.into())
    }
}

impl From<Ipv6Net> for Network {
    fn from(network: Ipv6Net) -> Self {
        Self(network.into())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            return self.0.addr().fmt(formatter);
        }
        self.0.fmt(formatter)
    }
}

/// Why a text names no network.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadNetwork {
    /// It is neither form.
    #[error("`{0}` is no network: write 10.20.0.0/16, fd12::/48, or one address")]
    Form(String),
    /// Bits are set behind the prefix.
    #[error("`{written}` has bits behind its prefix: write {meant}")]
    Bits {
        /// As it was written.
        written: String,
        /// What it was taken for.
        meant: IpNet,
    },
    /// It holds too much.
    #[error("`{0}` is too wide: the widest networks that can be named are /8 (IPv4) and /7 (IPv6)")]
    Wide(String),
}

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(address.into());
        }
        let network: IpNet = text.parse().map_err(|_| BadNetwork::Form(text.to_owned()))?;
        let meant = network.trunc();
        if meant != network {
            let written = text.to_owned();
            return Err(BadNetwork::Bits { written, meant });
        }
        let widest = if network.addr().is_ipv4() { WIDEST_V4 } else { WIDEST_V6 };
        if network.prefix_len() < widest {
            return Err(BadNetwork::Wide(text.to_owned()));
        }
        Ok(Self(network))
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Which addresses may be dialled besides public ones.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Allow {
    /// What is named.
    pub networks: Vec<Network>,
}

impl Allow {
    /// Whether the address may be dialled.
    ///
    /// A metadata address must be named itself, not only a network around it. No name helps unspecified and multicast
    /// addresses.
    ///
    /// # Errors
    /// With its class, where it may not.
    pub fn permits(&self, address: IpAddr) -> Result<(), Class> {
        let address = address.to_canonical();
        let class = Class::of(address);
        let permitted = match class {
            Class::Public => true,
            Class::Unspecified | Class::Multicast => false,
            Class::Metadata => self.networks.iter().any(|network| network.is(address)),
            _ => self.networks.iter().any(|network| network.contains(address)),
        };
        if permitted { Ok(()) } else { Err(class) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(networks: &[&str]) -> Allow {
        Allow {
            networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_what_is_named_is_permitted_besides_public_addresses() {
        let none = Allow::default();
        assert_eq!(none.permits(address("8.8.8.8")), Ok(()));
        assert_eq!(none.permits(address("10.1.2.3")), Err(Class::Private));
        let office = allow(&["10.1.0.0/16", "fd12::/48"]);
        assert_eq!(office.permits(address("10.1.2.3")), Ok(()));
        assert_eq!(office.permits(address("::ffff:10.1.2.3")), Ok(()));
        assert_eq!(office.permits(address("10.2.2.3")), Err(Class::Private));
        assert_eq!(office.permits(address("fd12::7")), Ok(()));
        // A gateway's form of an address is another address.
        assert_eq!(office.permits(address("64:ff9b::a01:203")), Err(Class::Private));
    }

    #[test]
    fn metadata_must_be_named_itself_and_some_places_are_never_dialled() {
        let around = allow(&["169.254.0.0/16", "fd00::/8"]);
        assert_eq!(around.permits(address("169.254.1.1")), Ok(()));
        assert_eq!(around.permits(address("169.254.169.254")), Err(Class::Metadata));
        assert_eq!(around.permits(address("fd00:ec2::254")), Err(Class::Metadata));
        assert_eq!(allow(&["169.254.169.254"]).permits(address("169.254.169.254")), Ok(()));
        assert_eq!(allow(&["0.0.0.0"]).permits(address("0.0.0.0")), Err(Class::Unspecified));
        assert_eq!(
            allow(&["224.0.0.0/8"]).permits(address("224.0.0.1")),
            Err(Class::Multicast)
        );
    }

    #[test]
    fn a_network_is_written_in_one_way() {
        let text = |text: &str| text.parse::<Network>().map(|network| network.to_string());
        assert_eq!(text("10.0.0.0/8").unwrap(), "10.0.0.0/8");
        assert_eq!(text("127.0.0.1").unwrap(), "127.0.0.1");
        assert_eq!(text("::ffff:10.0.0.1").unwrap(), "10.0.0.1");
        for (written, words) in [
            ("10.0.0.1/8", "write 10.0.0.0/8"),
            ("0.0.0.0/0", "too wide"),
            ("::/0", "too wide"),
            ("0x7f000001", "is no network"),
            ("localhost", "is no network"),
        ] {
            let error = text(written).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
