//! Whether connections of a sandbox can be captured.

use std::fs;

use causes::with_causes;
use redirect::{Redirect, RedirectError};
use rustix::io::Errno;
use sandbox::capture;

use super::Machine;
use super::attempt::{Lack, OrLacking};

/// From which port on everybody may listen. Opened in a thread's own network it is that network's.
const LOWEST_PORT: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// The rules can be laid down in a network of this thread's own, and everybody may listen at every port of it.
pub(super) fn network(machine: &Machine) -> Result<String, Lack> {
    sys::namespace::leave(sys::namespace::Own::Network).or_lacking(
        "no network namespace can be made",
        "run this as root (`sudo belljar doctor`), on a kernel with CONFIG_NET_NS",
    )?;
    let redirect = Redirect {
        tcp_port: capture::TCP_PORT,
        resolver_v4: capture::DNS_ADDRESS,
        resolver_v6: capture::DNS_ADDRESS_V6,
        resolver_port: capture::DNS_PORT,
    };
    redirect::lay(&redirect).map_err(|error| Lack::lacking(with_causes(&error), mend(&error)))?;
    // An engine sees to it itself.
    if machine.command.is_some() {
        fs::write(LOWEST_PORT, "0").or_lacking(
            &format!("{LOWEST_PORT} cannot be written to"),
            "as root, `mount -o remount,bind,rw /proc/sys`; in a container, run this with all rights (`docker run --privileged …`)",
        )?;
    }
    Ok("network namespaces with rules that capture every connection work".to_owned())
}

fn mend(error: &RedirectError) -> &'static str {
    let (RedirectError::Socket(cause)
    | RedirectError::Loopback(cause)
    | RedirectError::Rules(cause)
    | RedirectError::Rights(cause)) = error;
    match error {
        _ if Errno::from_io_error(cause) == Some(Errno::PERM) => {
            "run this as root with the right to administer networks (in a container: `docker run --privileged …`)"
        }
        RedirectError::Loopback(_) => {
            "sandboxes need IPv6 for themselves: take ipv6.disable=1 out of /etc/default/grub, then `update-grub && reboot`; a kernel \
             that does not have it is built with IPV6"
        }
        _ => {
            "load what captures connections: `modprobe --all nf_tables nft_chain_nat nft_nat nft_redir nft_ct nft_reject_inet`; a kernel \
             that does not have them is built with NF_TABLES, NFT_NAT, NFT_REDIR, NFT_CT and NFT_REJECT"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_fault_has_a_remedy_of_its_own() {
        let unsupported = || io::Error::from(Errno::OPNOTSUPP);
        for (error, command) in [
            (RedirectError::Loopback(Errno::PERM.into()), "docker run --privileged"),
            (RedirectError::Loopback(unsupported()), "update-grub"),
            (RedirectError::Rules(unsupported()), "modprobe --all nf_tables"),
        ] {
            assert!(mend(&error).contains(command), "{error}");
        }
    }
}
