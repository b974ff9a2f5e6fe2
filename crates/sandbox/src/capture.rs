//! How connections and questions of a sandbox reach its runtime.
//!
//! Every address routes to the sandbox itself. A TCP connection to any address but 127.0.0.0/8 and ::1 arrives at
//! [`TCP_PORT`] on loopback, where the runtime listens on 127.0.0.1 and on ::1; `SO_ORIGINAL_DST` says where it was bound
//! for. (A connection made to that port itself has no other original address: it is refused.) A UDP datagram to port 53 of
//! any address arrives at [`DNS_ADDRESS`] or [`DNS_ADDRESS_V6`]. All other UDP is refused at once, everything else dropped.

use std::net::{Ipv4Addr, Ipv6Addr};

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
