//! The few words of rtnetlink that a loopback needs.

use std::io;
use std::net::Ipv6Addr;

use crate::RedirectError;
use crate::message::{Body, message};
use crate::netlink::{ACKNOWLEDGE, CREATE, Netlink};

/// The loopback is the first interface of every namespace.
const LOOPBACK: u32 = 1;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const INTERFACE_UP: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
const RTA_OIF: u16 = 4;
const TABLE_LOCAL: u8 = 255;
const PROTOCOL_BOOT: u8 = 3;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_HOST: u8 = 254;
const ROUTE_LOCAL: u8 = 2;
const V4: u8 = 2;
const V6: u8 = 10;

/// Brings loopback up, gives it the resolver's IPv6 address, and makes every address of both versions its own.
pub(crate) fn configure(resolver: Ipv6Addr) -> Result<(), RedirectError> {
    let kernel = Netlink::of_routes()?;
    let tell = |kind, flags, body: Body| match kernel.say(&message(kind, ACKNOWLEDGE | flags, &body), 1) {
        // It was done before.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        told => told.map_err(RedirectError::Loopback),
    };
    tell(RTM_NEWLINK, 0, up())?;
    tell(RTM_NEWADDR, CREATE, address(resolver))?;
    for (family, scope) in [(V4, SCOPE_HOST), (V6, SCOPE_UNIVERSE)] {
        tell(RTM_NEWROUTE, CREATE, everything_is_local(family, scope))?;
    }
    Ok(())
}

/// `struct ifinfomsg`.
fn up() -> Body {
    let words = [0, LOOPBACK, INTERFACE_UP, INTERFACE_UP];
    Body::new(&words.map(u32::to_ne_bytes).concat())
}

/// `struct ifaddrmsg` and the address, twice.
fn address(address: Ipv6Addr) -> Body {
    let mut fixed = vec![V6, 128, IFA_F_NODAD, SCOPE_UNIVERSE];
    fixed.extend(LOOPBACK.to_ne_bytes());
    let octets = address.octets();
    Body::new(&fixed).bytes(IFA_LOCAL, &octets).bytes(IFA_ADDRESS, &octets)
}

/// `struct rtmsg` of a route for a prefix of no length.
fn everything_is_local(family: u8, scope: u8) -> Body {
    let mut fixed = vec![family, 0, 0, 0, TABLE_LOCAL, PROTOCOL_BOOT, scope, ROUTE_LOCAL];
    fixed.extend(0_u32.to_ne_bytes());
    Body::new(&fixed).bytes(RTA_OIF, &LOOPBACK.to_ne_bytes())
}
