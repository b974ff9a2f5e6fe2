//! The few words of rtnetlink that a loopback needs.

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sandbox::capture;

/// The loopback is the first interface of every namespace.
const LOOPBACK: u32 = 1;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const NLMSG_ERROR: u16 = 2;
const REQUEST_AND_ACKNOWLEDGE: u16 = 0x1 | 0x4;
const CREATE: u16 = 0x400;
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
const HEADER: usize = 16;

/// Brings loopback up, gives it the resolver's IPv6 address, and makes every address of both versions its own.
pub(super) fn configure_loopback() -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    tell(&socket, RTM_NEWLINK, 0, &up())?;
    tell(&socket, RTM_NEWADDR, CREATE, &address(capture::DNS_ADDRESS_V6))?;
    for (family, scope) in [(V4, SCOPE_HOST), (V6, SCOPE_UNIVERSE)] {
        tell(&socket, RTM_NEWROUTE, CREATE, &everything_is_local(family, scope))?;
    }
    Ok(())
}

/// `struct ifinfomsg`.
fn up() -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [LOOPBACK, INTERFACE_UP, INTERFACE_UP] {
        body.extend(word.to_ne_bytes());
    }
    body
}

/// `struct ifaddrmsg` and the address, twice.
fn address(address: Ipv6Addr) -> Vec<u8> {
    let mut body = vec![V6, 128, IFA_F_NODAD, SCOPE_UNIVERSE];
    body.extend(LOOPBACK.to_ne_bytes());
    for kind in [IFA_LOCAL, IFA_ADDRESS] {
        attribute(&mut body, kind, &address.octets());
    }
    body
}

/// `struct rtmsg` of a route for a prefix of no length.
fn everything_is_local(family: u8, scope: u8) -> Vec<u8> {
    let mut body = vec![family, 0, 0, 0, TABLE_LOCAL, PROTOCOL_BOOT, scope, ROUTE_LOCAL];
    body.extend(0_u32.to_ne_bytes());
    attribute(&mut body, RTA_OIF, &LOOPBACK.to_ne_bytes());
    body
}

/// Every value given here is a multiple of four long, so nothing needs padding.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
}

fn tell(socket: &OwnedFd, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags | REQUEST_AND_ACKNOWLEDGE).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    rustix::io::write(socket, &message)?;

    let mut answer = [0; 1024];
    let length = rustix::io::read(socket, &mut answer)?;
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is no acknowledgement");
    let answer = answer.get(..length).ok_or_else(odd)?;
    let is_error = answer.get(4..6) == Some(&NLMSG_ERROR.to_ne_bytes()[..]);
    let code = answer.get(HEADER..HEADER + 4).filter(|_| is_error).ok_or_else(odd)?;
    match i32::from_ne_bytes(code.try_into().map_err(|_| odd())?) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}
