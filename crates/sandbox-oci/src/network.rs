//! A network namespace with nothing but loopback, in which every address leads to the runtime.
//!
//! It is made and configured out here and only joined by the sandbox, so nothing inside has a right over it. It has no
//! name: this process holds it by a descriptor until the sandbox's processes do. All of them are alike, so one is kept
//! ready, as making one costs more than all the rest that we do ourselves.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::thread;

use containers::attempt::Attempt;
use redirect::{Redirect, RedirectError};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandbox::{ProviderError, capture};
use sys::namespace::{Own, leave};

/// A configured network namespace.
#[derive(Debug)]
pub(crate) struct Network(OwnedFd);

impl Network {
    /// Moves this thread there for good, and what it starts from now on.
    pub(crate) fn enter(&self) -> Result<(), ProviderError> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .attempt(|| "enter a network namespace".into())
    }

    /// Makes one.
    pub(crate) fn make() -> Result<Self, ProviderError> {
        // A thread can leave the machine's network for good; what it starts is in its new one.
        let made = thread::Builder::new()
            .name("network".into())
            .spawn(build)
            .attempt(|| "start a thread for a network namespace".into())?;
        made.join()
            .unwrap_or_else(|_| Err(ProviderError::failed("make a network namespace", "its thread panicked")))
    }
}

/// Networks that are ready.
#[derive(Default, Debug)]
pub(crate) struct Networks(Mutex<Option<Network>>);

impl Networks {
    /// The one that is ready, or a new one.
    pub(crate) fn take(&self) -> Result<Network, ProviderError> {
        let ready = self.spare().take();
        ready.map_or_else(Network::make, Ok)
    }

    /// Makes one ready, if none is.
    pub(crate) fn prepare(&self) -> Result<(), ProviderError> {
        if self.spare().is_none() {
            let network = Network::make()?;
            *self.spare() = Some(network);
        }
        Ok(())
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Option<Network>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn build() -> Result<Network, ProviderError> {
    leave(Own::Network).map_err(|error| ProviderError::Machine {
        lacks: format!("no network namespace can be made ({error}); run as root on a kernel with CONFIG_NET_NS"),
    })?;
    let redirect = Redirect {
        tcp_port: capture::TCP_PORT,
        resolver_v4: capture::DNS_ADDRESS,
        resolver_v6: capture::DNS_ADDRESS_V6,
        resolver_port: capture::DNS_PORT,
    };
    redirect::lay(&redirect).map_err(|error| match error {
        RedirectError::Rules(source) => ProviderError::Machine {
            lacks: format!(
                "the kernel refused the rules that capture connections ({source}); it needs NF_TABLES, NFT_NAT, NFT_REDIR, \
                 NFT_CT and NFT_REJECT (modprobe nf_tables)"
            ),
        },
        error => ProviderError::failed("configure the loopback of a network namespace", error),
    })?;
    // A thread's own view: /proc/sys/net is that of whoever opens it.
    let lowest_port = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    fs::write(lowest_port, "0").attempt(|| format!("write {lowest_port}"))?;
    let namespace = File::open("/proc/thread-self/ns/net").attempt(|| "open a network namespace".into())?;
    Ok(Network(namespace.into()))
}
