//! What kind of place an address is, told from its bits.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What kind of place an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Reachable from everywhere, by everybody.
    Public,
    /// 10/8, 172.16/12, 192.168/16.
    Private,
    /// fc00::/7.
    UniqueLocal,
    /// 100.64/10, shared by a carrier's customers; tailnets use it too.
    Shared,
    /// 127/8 and ::1.
    Loopback,
    /// 169.254/16 and fe80::/10.
    LinkLocal,
    /// Where clouds hand out credentials to whoever asks.
    Metadata,
    /// 0/8 and ::, which connect to this machine.
    Unspecified,
    /// 224/4 and ff00::/8.
    Multicast,
    /// Reserved for examples.
    Documentation,
    /// 198.18/15 and 2001:2::/48; sandboxes use it for their synthetic addresses.
    Benchmark,
    /// Whatever else is not for use on the public network.
    Reserved,
}

/// Services that hand out credentials or configuration of the machine, in the words of the clouds that have them.
const METADATA: [IpAddr; 8] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

impl Class {
    /// The class of an address. One that carries another (IPv4-mapped, NAT64, 6to4, Teredo…) is judged by what it carries.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if METADATA.contains(&address) {
            return Self::Metadata;
        }
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => {
                // Teredo carries two: it is public where both are.
                let mut classes = carried(address).map(|address| Self::of(address.into())).peekable();
                let first = classes.peek().copied();
                let inside = classes.find(|class| *class != Self::Public);
                inside.or(first).unwrap_or_else(|| of_v6(address))
            }
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Public => "public",
            Self::Private => "private",
            Self::UniqueLocal => "unique-local",
            Self::Shared => "shared",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Unspecified => "unspecified",
            Self::Multicast => "multicast",
            Self::Documentation => "documentation",
            Self::Benchmark => "benchmark",
            Self::Reserved => "reserved",
        })
    }
}

fn of_v4(address: Ipv4Addr) -> Class {
    match address.octets() {
        [0, ..] => Class::Unspecified,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Class::Private,
        [100, 64..=127, ..] => Class::Shared,
        [127, ..] => Class::Loopback,
        [169, 254, ..] => Class::LinkLocal,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Class::Documentation,
        [192, 0, 0, _] | [192, 88, 99, _] | [240..=255, ..] => Class::Reserved,
        [198, 18..=19, ..] => Class::Benchmark,
        [224..=239, ..] => Class::Multicast,
        _ => Class::Public,
    }
}

fn of_v6(address: Ipv6Addr) -> Class {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Class::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => Class::Loopback,
        [0xfc00..=0xfdff, ..] => Class::UniqueLocal,
        [0xfe80..=0xfebf, ..] => Class::LinkLocal,
        [0xff00..=0xffff, ..] => Class::Multicast,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Class::Documentation,
        [0x2001, 2, 0, ..] => Class::Benchmark,
        // IETF protocol assignments; Teredo, among them, carries an address and was judged by it.
        [0x2001, 0..=0x1ff, ..] => Class::Reserved,
        [0x2000..=0x3fff, ..] => Class::Public,
        _ => Class::Reserved,
    }
}

/// The IPv4 addresses that an IPv6 address carries: none, one, or Teredo's server and client.
fn carried(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    let (first, second) = match [a, b, c, d, e, f] {
        // ::1 and :: are themselves; the rest of ::/96 is the old "IPv4-compatible" form.
        [0, 0, 0, 0, 0, 0] if g == 0 && h <= 1 => (None, None),
        // Compatible, mapped, translated, NAT64.
        [0, 0, 0, 0, 0, 0 | 0xffff] | [0, 0, 0, 0, 0xffff, 0] | [0x64, 0xff9b, 0, 0, 0, 0] => (Some(v4(g, h)), None),
        // 6to4.
        [0x2002, ..] => (Some(v4(b, c)), None),
        // Teredo hides the client's address by inverting it.
        [0x2001, 0, ..] => (Some(v4(c, d)), Some(v4(!g, !h))),
        // ISATAP, which any prefix may have: one that is not public is judged by itself.
        [_, _, _, _, 0 | 0x200, 0x5efe] if of_v6(address) == Class::Public => (Some(v4(g, h)), None),
        _ => (None, None),
    };
    first.into_iter().chain(second)
}

#[cfg(test)]
mod tests;
