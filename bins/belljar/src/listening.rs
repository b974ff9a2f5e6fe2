//! The socket of the control plane: one that whoever started this process listens on already, else one of its own.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, bail};
use listenfd::ListenFd;
use rustix::io::{FdFlags, fcntl_setfd};
use tokio::net::TcpSocket;

/// Connections that the kernel keeps until they are accepted. One more would seem open to who opened it and never be
/// answered, so it is as many as the kernel allows.
const BACKLOG: u32 = 4_096;

/// The socket that was handed over, as systemd does (`LISTEN_FDS`). To be called once, before anything is started: whatever has
/// the variables and the descriptor would have the socket.
pub(crate) fn handed() -> anyhow::Result<Option<TcpListener>> {
    let mut handed = ListenFd::from_env();
    if handed.len() > 1 {
        bail!(
            "{} sockets were handed over (LISTEN_FDS), and one is wanted: name one ListenStream in the unit of the socket",
            handed.len()
        );
    }
    let listener = handed.take_tcp_listener(0).context(
        "what was handed over (LISTEN_FDS) is no socket that listens for TCP: name an address and a port as ListenStream \
         in the unit of the socket",
    )?;
    if let Some(listener) = &listener {
        fcntl_setfd(listener, FdFlags::CLOEXEC)
            .context("cannot keep the socket that was handed over to this process")?;
        listener
            .set_nonblocking(true)
            .context("cannot use the socket that was handed over")?;
    }
    Ok(listener)
}

/// A socket that listens there. Needs a runtime.
pub(crate) fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = || {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }?;
        // Where connections of the process before still linger.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)?.into_std()
    };
    bound().with_context(|| {
        format!(
            "cannot listen on {address} (where that is taken, `ss -ltnp 'sport = :{}'` says by whom; server.listen names another address)",
            address.port()
        )
    })
}
