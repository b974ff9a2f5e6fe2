//! Whether connections of a sandbox can be captured.

use causes::with_causes;
use redirect::Redirect;
use sandbox::capture;

use super::Machine;
use super::attempt::{Lack, OrLacking};

/// The rules can be laid down in a network of this thread's own.
pub(super) fn network(_machine: &Machine) -> Result<String, Lack> {
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
    redirect::lay(&redirect).map_err(|error| {
        Lack::lacking(
            with_causes(&error),
            "load what captures connections: `modprobe --all nf_tables nft_nat nft_redir nft_ct nft_reject`; a kernel that does not have them is built with \
             NF_TABLES, NFT_NAT, NFT_REDIR, NFT_CT and NFT_REJECT",
        )
    })?;
    Ok("network namespaces with rules that capture every connection work".to_owned())
}
