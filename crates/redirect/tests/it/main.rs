//! What the kernel has after rules were laid, as `nft` and `ip` read it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;

use redirect::{Redirect, RedirectError, lay, lay_and_give_up};
use rustix::net::netlink::NETFILTER;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{CapabilitySet, capabilities, capability_is_in_bounding_set, set_capabilities};
use sys::namespace::{Own, leave};

const REDIRECT: Redirect = Redirect {
    tcp_port: 1,
    resolver_v4: Ipv4Addr::new(198, 18, 0, 1),
    resolver_v6: Ipv6Addr::new(0xfdbe, 0x11a6, 0x0a12, 0, 0, 0, 0, 1),
    resolver_port: 53,
};

/// The rules as they are meant, in the words of `nft`.
const RULES: &str = "table inet belljar {
    chain capture {
        type nat hook output priority -100; policy accept;
        ip daddr 127.0.0.0/8 return
        ip6 daddr ::1 return
        meta l4proto tcp redirect to :1
        meta nfproto ipv4 udp dport 53 dnat ip to 198.18.0.1:53
        meta nfproto ipv6 udp dport 53 dnat ip6 to [fdbe:11a6:a12::1]:53
    }
    chain guard {
        type filter hook output priority 0; policy drop;
        ct state established,related accept
        ip daddr 127.0.0.0/8 accept
        ip6 daddr ::1 accept
        meta l4proto udp accept
    }
    chain refuse {
        type filter hook input priority 0; policy accept;
        ct state established,related accept
        ip daddr 127.0.0.0/8 accept
        ip6 daddr ::1 accept
        ip daddr 198.18.0.1 udp dport 53 accept
        ip6 daddr fdbe:11a6:a12::1 udp dport 53 accept
        meta l4proto udp reject with icmpx port-unreachable
    }
}
";

/// What a thread finds in a network of its own.
fn in_own_network<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(|| {
        leave(Own::Network).unwrap();
        act()
    });
    thread.join().unwrap()
}

fn said(program: &str, arguments: &[&str]) -> String {
    testkit::run(Command::new(program).args(arguments))
}

#[test]
fn the_kernel_has_the_rules_that_are_written_down() {
    let by_nft = in_own_network(|| {
        let script = format!("nft -f - <<'RULES'\n{RULES}RULES");
        said("sh", &["-c", &script]);
        said("nft", &["list", "ruleset"])
    });
    let by_us = in_own_network(|| {
        lay(&REDIRECT).unwrap();
        said("nft", &["list", "ruleset"])
    });
    assert!(by_nft.contains("redirect to :1"), "{by_nft}");
    assert_eq!(by_us, by_nft);
}

#[test]
fn every_address_is_its_own_and_a_second_time_changes_nothing() {
    let (once, twice) = in_own_network(|| {
        let look = || {
            let v4 = said("ip", &["route", "get", "203.0.113.9"]);
            let v6 = said("ip", &["-6", "route", "get", "2001:db8::9"]);
            let addresses = said("ip", &["-6", "address", "show", "lo"]);
            let rules = said("nft", &["list", "ruleset"]);
            (v4, v6, addresses, rules)
        };
        lay(&REDIRECT).unwrap();
        let once = look();
        lay(&REDIRECT).unwrap();
        (once, look())
    });
    assert!(once.0.starts_with("local 203.0.113.9 dev lo"), "{}", once.0);
    assert!(
        once.1.starts_with("local 2001:db8::9 ") && once.1.contains("dev lo"),
        "{}",
        once.1
    );
    assert!(once.2.contains("fdbe:11a6:a12::1/128"), "{}", once.2);
    assert_eq!(once, twice);
}

/// What a thread holds after it led its network, and what it can still do.
#[test]
fn threat_018_who_led_the_network_cannot_change_it_any_more() {
    let keep = CapabilitySet::KILL | CapabilitySet::SETUID;
    let (held, bounds, error, socket) = in_own_network(move || {
        lay_and_give_up(&REDIRECT, keep).unwrap();
        let bounds: Vec<&str> = CapabilitySet::all()
            .iter_names()
            .filter(|(_, right)| capability_is_in_bounding_set(*right).unwrap_or(false))
            .map(|(name, _)| name)
            .collect();
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(NETFILTER),
        );
        // Where there is no right there is nothing to do; nobody would know of a network that was not led.
        lay_and_give_up(&REDIRECT, keep).unwrap();
        (
            capabilities(None).unwrap(),
            bounds,
            lay(&REDIRECT).unwrap_err(),
            socket.unwrap_err(),
        )
    });
    assert_eq!((held.effective, held.permitted), (keep, keep));
    assert_eq!(held.inheritable, CapabilitySet::empty());
    assert_eq!(bounds, ["KILL", "SETUID"]);
    assert!(matches!(error, RedirectError::Loopback(_)), "{error:?}");
    assert_eq!(socket, rustix::io::Errno::PERM);
}

#[test]
fn who_has_no_right_is_refused() {
    let refused = in_own_network(|| {
        let mut mine = capabilities(None).unwrap();
        mine.effective -= CapabilitySet::NET_ADMIN;
        mine.permitted -= CapabilitySet::NET_ADMIN;
        set_capabilities(None, mine).unwrap();
        lay(&REDIRECT).unwrap_err()
    });
    assert!(matches!(refused, RedirectError::Loopback(_)), "{refused:?}");
}
