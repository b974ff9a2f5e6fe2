//! Whether connections of a sandbox can be captured.

use std::path::Path;

use super::Machine;
use super::attempt::{Lack, OrLacking};

/// The kinds of rules that capture a sandbox's connections.
const RULES: &str = "table inet doctor {
    chain capture {
        type nat hook output priority -100; policy accept;
        meta l4proto tcp redirect to :1
        meta nfproto ipv4 udp dport 53 dnat ip to 127.0.0.1:53
        meta nfproto ipv6 udp dport 53 dnat ip6 to [::1]:53
    }
    chain guard {
        type filter hook output priority 0; policy drop;
        ct state established,related accept
        meta l4proto udp reject with icmpx port-unreachable
    }
}
";

/// The rules can be laid down in a network of this thread's own.
pub(super) fn network(machine: &Machine) -> Result<String, Lack> {
    sys::namespace::leave(sys::namespace::Own::Network).or_lacking(
        "no network namespace can be made",
        "run this as root, on a kernel with CONFIG_NET_NS",
    )?;
    let kernel =
        "needed: nftables 1.0 and a kernel with NF_TABLES, NFT_NAT, NFT_REDIR and NFT_REJECT (modprobe nf_tables)";
    let nft = Path::new("nft");
    machine
        .run(nft, &["-f", "-"], RULES)
        .map_err(|failed| failed.lack(nft, "nftables", kernel))?;
    let kept = machine
        .run(nft, &["list", "ruleset"], "")
        .map_err(|failed| failed.lack(nft, "nftables", kernel))?;
    if !kept.contains("redirect to :1") {
        return Err(Lack::lacking("nft accepted rules and forgot them", kernel));
    }
    Ok("network namespaces with rules that capture every connection work".to_owned())
}
