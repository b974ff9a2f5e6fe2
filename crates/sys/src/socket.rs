//! Sockets.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Where a connection that netfilter redirected was bound for.
///
/// # Errors
/// `ENOENT` where the connection was not redirected.
pub fn original_destination(connection: impl AsFd, peer: &SocketAddr) -> io::Result<SocketAddr> {
    let socket = connection.as_fd();
    if peer.is_ipv4() {
        let address: libc::sockaddr_in = option(socket, libc::SOL_IP, libc::SO_ORIGINAL_DST)?;
        let host = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
        return Ok(SocketAddrV4::new(host, u16::from_be(address.sin_port)).into());
    }
    let address: libc::sockaddr_in6 = option(socket, libc::SOL_IPV6, libc::IP6T_SO_ORIGINAL_DST)?;
    let host = Ipv6Addr::from(address.sin6_addr.s6_addr);
    Ok(SocketAddrV6::new(host, u16::from_be(address.sin6_port), 0, address.sin6_scope_id).into())
}

/// Kernel structures that are plain numbers: any bytes of the right length are a valid value.
trait Plain: Copy {}
impl Plain for libc::sockaddr_in {}
impl Plain for libc::sockaddr_in6 {}

fn option<T: Plain>(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which is that long, and both live through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed before the kernel wrote to it, and `Plain` says that any bytes are a value of `T`.
    Ok(unsafe { value.assume_init() })
}
