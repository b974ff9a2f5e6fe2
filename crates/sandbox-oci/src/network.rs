//! A network namespace with nothing but loopback, in which every address leads to the runtime.
//!
//! It is made and configured out here and only joined by the sandbox, so nothing inside has a right over it. It has no
//! name: this process holds it by a descriptor until the sandbox's processes do. All of them are alike, so one is kept
//! ready, as making one costs more than all the rest that we do ourselves.

mod netlink;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use sandbox::{ProviderError, capture};
use sys::namespace::{Own, leave};

use crate::attempt::Attempt;

/// A configured network namespace.
#[derive(Debug)]
pub(crate) struct Network(OwnedFd);

impl Network {
    /// A path that names it for other processes of root, as long as this is held.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
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
    netlink::configure_loopback().attempt(|| "configure the loopback of a network namespace".into())?;
    // A thread's own view: /proc/sys/net is that of whoever opens it.
    let lowest_port = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    fs::write(lowest_port, "0").attempt(|| format!("write {lowest_port}"))?;
    let complaint = filter().attempt(|| "run nft in a network namespace".into())?;
    if let Some(complaint) = complaint {
        return Err(ProviderError::Machine {
            lacks: format!(
                "nft refused the rules that capture connections; needs nftables 1.0 and a kernel with NF_TABLES, NFT_NAT and NFT_REDIR: {complaint}"
            ),
        });
    }
    let namespace = File::open("/proc/thread-self/ns/net").attempt(|| "open a network namespace".into())?;
    Ok(Network(namespace.into()))
}

/// Lays down the rules; gives what nft says against them.
fn filter() -> io::Result<Option<String>> {
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = nft.stdin.take() {
        input.write_all(rules().as_bytes())?;
    }
    let output = nft.wait_with_output()?;
    if output.status.success() {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// UDP is refused where it arrives, not where it leaves: so a sender is told by ICMP, as any closed port would, and falls
/// back; refused where it leaves it would fail with EPERM, which programs take for their own fault.
fn rules() -> String {
    let (tcp, dns) = (capture::TCP_PORT, capture::DNS_PORT);
    let (dns_v4, dns_v6) = (capture::DNS_ADDRESS, capture::DNS_ADDRESS_V6);
    format!(
        "table inet belljar {{
            chain capture {{
                type nat hook output priority -100; policy accept;
                ip daddr 127.0.0.0/8 return
                ip6 daddr ::1 return
                meta l4proto tcp redirect to :{tcp}
                meta nfproto ipv4 udp dport 53 dnat ip to {dns_v4}:{dns}
                meta nfproto ipv6 udp dport 53 dnat ip6 to [{dns_v6}]:{dns}
            }}
            chain guard {{
                type filter hook output priority 0; policy drop;
                ct state established,related accept
                ip daddr 127.0.0.0/8 accept
                ip6 daddr ::1 accept
                meta l4proto udp accept
            }}
            chain refuse {{
                type filter hook input priority 0; policy accept;
                ct state established,related accept
                ip daddr 127.0.0.0/8 accept
                ip6 daddr ::1 accept
                ip daddr {dns_v4} udp dport {dns} accept
                ip6 daddr {dns_v6} udp dport {dns} accept
                meta l4proto udp reject with icmpx port-unreachable
            }}
        }}\n"
    )
}
