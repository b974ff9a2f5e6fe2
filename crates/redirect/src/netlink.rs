//! Talking to the kernel about networks.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::NETFILTER;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};

use crate::RedirectError;
use crate::message::HEADER;

/// A request, which is to be acknowledged.
pub(crate) const ACKNOWLEDGE: u16 = 0x1 | 0x4;
/// A request that needs no acknowledgement.
pub(crate) const REQUEST: u16 = 0x1;
/// It is to be made.
pub(crate) const CREATE: u16 = 0x400;
/// It must not be there yet.
pub(crate) const EXCLUSIVE: u16 = 0x200;

const ERROR: u16 = 2;

/// A conversation with one part of the kernel.
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    pub(crate) fn of_routes() -> Result<Self, RedirectError> {
        Self::open(None)
    }

    pub(crate) fn of_rules() -> Result<Self, RedirectError> {
        Self::open(Some(NETFILTER))
    }

    fn open(protocol: Option<Protocol>) -> Result<Self, RedirectError> {
        let opened = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol);
        opened.map(Self).map_err(|error| RedirectError::Socket(error.into()))
    }

    /// Says some messages at once, of which so many are to be acknowledged. The kernel has answered when it has been told.
    pub(crate) fn say(&self, messages: &[u8], acknowledgements: usize) -> io::Result<()> {
        rustix::io::write(&self.0, messages)?;
        let mut missing = acknowledgements;
        while missing > 0 {
            let mut answer = vec![0; 16 << 10];
            let (length, _) = recv(&self.0, answer.as_mut_slice(), RecvFlags::DONTWAIT)?;
            answer.truncate(length);
            missing = missing.saturating_sub(acknowledged(&answer)?);
        }
        Ok(())
    }
}

/// How many acknowledgements there are; the first error, if there is one among them.
fn acknowledged(mut answers: &[u8]) -> io::Result<usize> {
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is no acknowledgement");
    let mut count = 0;
    while !answers.is_empty() {
        let length = answers.first_chunk().ok_or_else(odd)?;
        let length = usize::try_from(u32::from_ne_bytes(*length)).map_err(|_| odd())?;
        let is_error = answers.get(4..6) == Some(&ERROR.to_ne_bytes()[..]);
        let code = answers.get(HEADER..HEADER + 4).filter(|_| is_error).ok_or_else(odd)?;
        match i32::from_ne_bytes(code.try_into().map_err(|_| odd())?) {
            0 => count += 1,
            code => return Err(io::Error::from_raw_os_error(-code)),
        }
        answers = answers.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(count)
}
