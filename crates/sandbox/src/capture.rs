//! How connections and questions of a sandbox reach its runtime.
//!
//! Every address routes to the sandbox itself. A TCP connection to any address but 127.0.0.0/8 and ::1 arrives at
//! [`TCP_PORT`] on loopback, where the runtime listens on 127.0.0.1 and on ::1; `SO_ORIGINAL_DST` says where it was bound
//! for. (A connection made to that port itself has no other original address: it is refused.) A UDP datagram to port 53 of
//! any address arrives at [`DNS_ADDRESS`] or [`DNS_ADDRESS_V6`]. All other UDP is refused at once, everything else dropped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where captured TCP connections arrive, on 127.0.0.1 and ::1.
pub const TCP_PORT: u16 = 1;

/// Where the runtime is a proxy (HTTP and SOCKS5) for programs that insist on one, on 127.0.0.1 and ::1.
pub const PROXY_PORT: u16 = 3128;

/// The port at which the runtime answers DNS questions.
pub const DNS_PORT: u16 = 53;

/// The address at which the runtime answers DNS questions, and what /etc/resolv.conf names. Outside 127/8, where the
/// user's own servers live; inside the range that synthetic addresses are taken from, which must leave it out.
pub const DNS_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// The same for questions that were sent over IPv6.
pub const DNS_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfdbe, 0x11a6, 0x0a12, 0, 0, 0, 0, 1);

/// First address and prefix length of the range of synthetic addresses.
pub const SYNTHETIC_V4: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);

/// First address and prefix length of the IPv6 range of synthetic addresses.
pub const SYNTHETIC_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfdbe, 0x11a6, 0x0a12, 0, 0, 0, 0, 0), 64);

/// Names of a session that may have a synthetic address.
pub const NAMES: u32 = 10_000;

/// The addresses before this one are the resolver's own.
const FIRST: u32 = 16;

/// The two addresses of one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Synthetic {
    /// The one that IPv4 knows.
    pub v4: Ipv4Addr,
    /// The one that IPv6 knows.
    pub v6: Ipv6Addr,
}

impl Synthetic {
    /// The addresses with this number, counted from 0.
    #[must_use]
    pub fn of(number: u32) -> Self {
        let offset = number + FIRST;
        Self {
            v4: (u32::from(SYNTHETIC_V4.0) + offset).into(),
            v6: (u128::from(SYNTHETIC_V6.0) + u128::from(offset)).into(),
        }
    }

    /// The number that has this address; none where no name can have it.
    #[must_use]
    pub fn number(address: IpAddr) -> Option<u32> {
        let offset = match address.to_canonical() {
            IpAddr::V4(address) => u32::from(address).checked_sub(u32::from(SYNTHETIC_V4.0))?,
            IpAddr::V6(address) => u32::try_from(u128::from(address).checked_sub(u128::from(SYNTHETIC_V6.0))?).ok()?,
        };
        offset.checked_sub(FIRST).filter(|number| *number < NAMES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_its_addresses_and_no_other_address_has_one() {
        for number in [0, 1, 255, NAMES - 1] {
            let addresses = Synthetic::of(number);
            assert_eq!(Synthetic::number(addresses.v4.into()), Some(number));
            assert_eq!(Synthetic::number(addresses.v6.into()), Some(number));
            assert!([18, 19].contains(&addresses.v4.octets()[1]), "{addresses:?}");
        }
        let beyond = Synthetic::of(NAMES);
        for address in [
            "198.18.0.1",
            "93.184.216.34",
            "0.0.0.0",
            "::1",
            "fdbe:11a6:a12::1",
            "ffff::",
        ] {
            assert_eq!(Synthetic::number(address.parse().unwrap()), None, "{address}");
        }
        assert_eq!(Synthetic::number(beyond.v4.into()), None);
    }
}
