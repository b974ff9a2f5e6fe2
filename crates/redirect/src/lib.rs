//! A network in which every address leads to one program of its own.
//!
//! [`lay`] changes the network namespace of the calling thread: every address of both versions routes to the loopback device;
//! TCP to any address but 127.0.0.0/8 and ::1 arrives at one port, questions (UDP to port 53) at one address, all other UDP is
//! refused, everything else dropped. It is done by messages to the kernel (rtnetlink, nftables), so no program needs to be
//! there: a provider does it from outside, and where it cannot, the runtime does it in its sandbox before anything else.

mod loopback;
mod message;
mod netlink;
mod rights;
mod rules;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use rustix::thread::CapabilitySet;

/// Where a network leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redirect {
    /// The port of 127.0.0.1 and ::1 at which TCP connections arrive.
    pub tcp_port: u16,
    /// The address at which questions over IPv4 arrive.
    pub resolver_v4: Ipv4Addr,
    /// The address at which questions over IPv6 arrive; loopback is given it.
    pub resolver_v6: Ipv6Addr,
    /// The port of both at which they arrive.
    pub resolver_port: u16,
}

/// A network could not be led.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// There is no word with the kernel.
    #[error("the kernel cannot be spoken to about networks")]
    Socket(#[source] io::Error),
    /// The loopback device could not be made to own every address.
    #[error("not every address can be led to the loopback device")]
    Loopback(#[source] io::Error),
    /// The rules were refused.
    #[error(
        "the kernel refused the rules that capture connections; it needs NF_TABLES, NFT_NAT, NFT_REDIR, NFT_CT and NFT_REJECT"
    )]
    Rules(#[source] io::Error),
    /// The right to change them again could not be given up.
    #[error("the right to administer the network cannot be given up")]
    Rights(#[source] io::Error),
}

/// Leads everything in the calling thread's network namespace. Where it is led already nothing changes. Needs the right to
/// administer that namespace (`CAP_NET_ADMIN`).
///
/// # Errors
/// [`RedirectError`]; the rules are there as a whole or not at all.
pub fn lay(redirect: &Redirect) -> Result<(), RedirectError> {
    loopback::configure(redirect.resolver_v6)?;
    rules::lay(redirect)
}

/// For a first process whose provider left its network to it: where it may, it leads everything, and then gives up every right
/// but `keep`, for itself and for whatever it starts. Where it may not, the network was led from outside, and nothing happens.
///
/// To be called before the process has a second thread, and before it hears from anybody.
///
/// # Errors
/// [`RedirectError`]; the process must not go on then.
pub fn lay_and_give_up(redirect: &Redirect, keep: CapabilitySet) -> Result<(), RedirectError> {
    if !rights::may_administer().map_err(RedirectError::Rights)? {
        return Ok(());
    }
    lay(redirect)?;
    rights::keep_only(keep).map_err(RedirectError::Rights)?;
    rights::forget_rules().map_err(RedirectError::Rights)
}
