//! Names of hosts in one form, and patterns for them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use idna::AsciiDenyList;

use crate::PatternError;

/// The longest name that DNS knows, as text, and the longest part between two dots (RFC 1035, section 2.3.4).
const LONGEST: usize = 253;
const LONGEST_LABEL: usize = 63;

/// Why a text is no host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostError {
    /// Something else than letters, digits, hyphens and dots, in whatever script.
    #[error("a host's name has letters, digits, hyphens and dots only")]
    Letters,
    /// A part between dots that is empty or too long, or begins or ends with a hyphen; or a name that is too long.
    #[error("a host's name has at most 253 letters, in parts of 1 to 63 that neither begin nor end with a hyphen")]
    Parts,
    /// An address, where a name is wanted, or in a spelling that programs understand differently.
    #[error("that is an address, not a name; an address is written 192.0.2.1 or [2001:db8::1]")]
    Address,
}

/// The name of a host, in one form: ASCII, lower case, no root dot. Two names that mean the same host in DNS are equal.
/// What was checked is what is dialled: whoever connects uses this text and not the one it came from.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Host(String);

impl Host {
    /// Reads a name. Other scripts become their ASCII form (UTS 46), so that look-alikes are what they are.
    ///
    /// # Errors
    /// When it is no name, or an address in any spelling.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.len() > 4 * LONGEST {
            return Err(HostError::Parts);
        }
        let ascii = idna::domain_to_ascii_cow(text.as_bytes(), AsciiDenyList::STD3).map_err(|_| HostError::Letters)?;
        let name = ascii.strip_suffix('.').unwrap_or(&ascii);
        if name.len() > LONGEST || !name.split('.').all(is_label) {
            return Err(
                if name.contains(|letter: char| letter != '.' && letter != '-' && !letter.is_ascii_alphanumeric()) {
                    HostError::Letters
                } else {
                    HostError::Parts
                },
            );
        }
        if name.rsplit('.').next().is_some_and(is_number) {
            return Err(HostError::Address);
        }
        Ok(Self(name.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.len() <= LONGEST_LABEL
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|byte| byte == b'-' || byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

/// A last part that makes programs read the whole as an IPv4 address: `127.1`, `2130706433`, `0x7f000001`.
fn is_number(label: &str) -> bool {
    let digits = label.bytes().all(|byte| byte.is_ascii_digit());
    let hexadecimal = label
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    digits || hexadecimal
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl AsRef<str> for Host {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        Self::parse(text)
    }
}

/// What a connection is for: a name, or an address as it stands.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Destination {
    /// A name.
    Name(Host),
    /// An address; an IPv4 address in an IPv6 one is that IPv4 address.
    Address(IpAddr),
}

impl Destination {
    /// Reads a name or an address, an IPv6 address with or without brackets.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .filter(|inner| inner.contains(':'));
        if let Ok(address) = bare.unwrap_or(text).parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        Host::parse(text).map(Self::Name)
    }

    /// The name, if it is one.
    #[must_use]
    pub const fn name(&self) -> Option<&Host> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }
}

impl fmt::Display for Destination {
    /// An IPv6 address stands in brackets, so that a port can follow.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(formatter),
            Self::Address(IpAddr::V4(address)) => address.fmt(formatter),
            Self::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]"),
        }
    }
}

/// The ports of a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Ports {
    /// 80 and 443, where none is said.
    Web,
    /// This one.
    One(u16),
    /// Each.
    All,
}

impl Ports {
    /// Whether a port is among them.
    #[must_use]
    pub const fn contain(self, port: u16) -> bool {
        match self {
            Self::Web => matches!(port, 80 | 443),
            Self::One(one) => one == port,
            Self::All => true,
        }
    }

    const fn meet(self, other: Self) -> bool {
        match (self, other) {
            (Self::All, _) | (_, Self::All) | (Self::Web, Self::Web) => true,
            (ports, Self::One(port)) | (Self::One(port), ports) => ports.contain(port),
        }
    }

    const fn cover(self, other: Self) -> bool {
        match (self, other) {
            (Self::All, _) | (Self::Web, Self::Web) => true,
            (_, Self::One(port)) => self.contain(port),
            _ => false,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Hosts {
    /// This one.
    One(Destination),
    /// Every name that is this one with one part more before it.
    Child(Host),
    /// Every name that is this one with one or more parts before it.
    Below(Host),
    /// Every name.
    All,
}

/// A pattern for what connections are for: `api.example.com`, `*.example.com:443`, `10.0.0.5:5432`, `[fd00::5]:*`.
///
/// `*.` is exactly one part, `**.` one or more, neither is the name itself; `**` is every name, and no address. Without a
/// port it means 80 and 443.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HostPattern {
    hosts: Hosts,
    ports: Ports,
}

impl HostPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When it is none; when its stars stand for names that different owners may register (`*.co.uk`).
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let pattern = || text.chars().take(LONGEST).collect::<String>();
        let (host, ports) = split_port(text).ok_or_else(|| PatternError::Port { pattern: pattern() })?;
        let no_host = |source| PatternError::Host {
            pattern: pattern(),
            source,
        };
        let base = |name: &str| {
            let base = Host::parse(name).map_err(no_host)?;
            if is_public_suffix(&base) {
                return Err(PatternError::PublicSuffix {
                    pattern: pattern(),
                    suffix: base.to_string(),
                });
            }
            Ok(base)
        };
        let hosts = if host == "**" {
            Hosts::All
        } else if let Some(name) = host.strip_prefix("**.") {
            Hosts::Below(base(name)?)
        } else if let Some(name) = host.strip_prefix("*.") {
            Hosts::Child(base(name)?)
        } else {
            Hosts::One(Destination::parse(host).map_err(no_host)?)
        };
        Ok(Self { hosts, ports })
    }

    /// Whether it matches what a connection is for.
    #[must_use]
    pub fn matches(&self, destination: &Destination, port: u16) -> bool {
        self.names(destination) && self.ports.contain(port)
    }

    /// Whether it matches at some port.
    #[must_use]
    pub fn names(&self, destination: &Destination) -> bool {
        let parts = |base: &Host| {
            let name = destination.name()?.as_str();
            name.strip_suffix(base.as_str())?.strip_suffix('.')
        };
        match &self.hosts {
            Hosts::One(one) => one == destination,
            Hosts::Child(base) => parts(base).is_some_and(|before| !before.contains('.')),
            Hosts::Below(base) => parts(base).is_some(),
            Hosts::All => destination.name().is_some(),
        }
    }

    /// Its ports.
    #[must_use]
    pub const fn ports(&self) -> Ports {
        self.ports
    }

    /// The one destination that it means, if it has no star.
    #[must_use]
    pub const fn destination(&self) -> Option<&Destination> {
        match &self.hosts {
            Hosts::One(one) => Some(one),
            Hosts::Child(_) | Hosts::Below(_) | Hosts::All => None,
        }
    }

    /// Whether there is anything that both match.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        let hosts = match (&self.hosts, &other.hosts) {
            (_, Hosts::One(one)) => self.names(one),
            (Hosts::One(one), _) => other.names(one),
            (Hosts::All, _) | (_, Hosts::All) => true,
            (Hosts::Child(one), Hosts::Child(other)) => one == other,
            (Hosts::Below(base), Hosts::Child(one)) | (Hosts::Child(one), Hosts::Below(base)) => is_below(base, one),
            (Hosts::Below(one), Hosts::Below(other)) => is_below(one, other) || is_below(other, one),
        };
        hosts && self.ports.meet(other.ports)
    }

    /// Whether it matches whatever `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let hosts = match (&self.hosts, &other.hosts) {
            (_, Hosts::One(destination)) => self.names(destination),
            (Hosts::All, _) => true,
            (Hosts::Child(base), Hosts::Child(other)) => base == other,
            (Hosts::Below(base), Hosts::Child(other) | Hosts::Below(other)) => is_below(base, other),
            _ => false,
        };
        hosts && self.ports.cover(other.ports)
    }
}

/// Whether a name is another one, or below it.
fn is_below(base: &Host, name: &Host) -> bool {
    let before = name.as_str().strip_suffix(base.as_str());
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Whether below this name different owners may register names of their own (<https://publicsuffix.org>).
fn is_public_suffix(name: &Host) -> bool {
    psl::suffix(name.as_str().as_bytes()).is_some_and(|suffix| suffix.is_known() && suffix == name.as_str())
}

/// Takes `:port` off a host. An IPv6 address has its port behind brackets, or none.
fn split_port(text: &str) -> Option<(&str, Ports)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((_, "")) => return Some((text, Ports::Web)),
        Some((address, rest)) => (&text[..address.len() + 2], rest.strip_prefix(':')?),
        None if text.matches(':').count() == 1 => text.split_once(':')?,
        None => return Some((text, Ports::Web)),
    };
    let ports = match port {
        "*" => Ports::All,
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ports::One(digits.parse().ok().filter(|port| *port != 0)?)
        }
        _ => return None,
    };
    Some((host, ports))
}

impl FromStr for HostPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::parse(text)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::One(destination) => write!(formatter, "{destination}")?,
            Hosts::Child(base) => write!(formatter, "*.{base}")?,
            Hosts::Below(base) => write!(formatter, "**.{base}")?,
            Hosts::All => formatter.write_str("**")?,
        }
        match self.ports {
            Ports::Web => Ok(()),
            Ports::One(port) => write!(formatter, ":{port}"),
            Ports::All => formatter.write_str(":*"),
        }
    }
}

#[cfg(test)]
mod tests;
