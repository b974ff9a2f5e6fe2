//! The rules, as nftables takes them over netlink (`linux/netfilter/nf_tables.h`, `nfnetlink.h`).
//!
//! In the words of `nft`:
//!
//! ```text
//! table inet belljar {
//!     chain capture {
//!         type nat hook output priority -100; policy accept;
//!         ip daddr 127.0.0.0/8 return
//!         ip6 daddr ::1 return
//!         meta l4proto tcp redirect to :TCP
//!         meta nfproto ipv4 udp dport 53 dnat ip to V4:PORT
//!         meta nfproto ipv6 udp dport 53 dnat ip6 to [V6]:PORT
//!     }
//!     chain guard {
//!         type filter hook output priority 0; policy drop;
//!         ct state established,related accept
//!         ip daddr 127.0.0.0/8 accept
//!         ip6 daddr ::1 accept
//!         meta l4proto udp accept
//!     }
//!     chain refuse {
//!         type filter hook input priority 0; policy accept;
//!         ct state established,related accept
//!         ip daddr 127.0.0.0/8 accept
//!         ip6 daddr ::1 accept
//!         ip daddr V4 udp dport PORT accept
//!         ip6 daddr V6 udp dport PORT accept
//!         meta l4proto udp reject with icmpx port-unreachable
//!     }
//! }
//! ```
//!
//! UDP is refused where it arrives, not where it leaves: so a sender is told by ICMP, as any closed port would, and falls
//! back; refused where it leaves it would fail with EPERM, which programs take for their own fault.

mod expression;

use std::io;
use std::net::Ipv6Addr;

use self::expression::{
    Family, Packet, Rule, Verdict, accept_known, for_address, for_port, from_family, lead_to, over, redirect_to,
    refuse, verdict,
};
use crate::message::{Body, message};
use crate::netlink::{ACKNOWLEDGE, CREATE, EXCLUSIVE, Netlink, REQUEST};
use crate::{Redirect, RedirectError};

const NAME: &str = "belljar";

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = (SUBSYSTEM << 8) | 3;
const NEW_RULE: u16 = (SUBSYSTEM << 8) | 6;
/// Rules for both versions of IP.
const INET: u8 = 1;
const APPEND: u16 = 0x800;

const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;

const AT_INPUT: u32 = 1;
const AT_OUTPUT: u32 = 3;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;

/// The port of questions, wherever they are sent.
const QUESTIONS: u16 = 53;

/// Lays down all rules at once.
pub(crate) fn lay(redirect: &Redirect) -> Result<(), RedirectError> {
    let mut batch = Batch::default();
    batch.begin();
    batch.put(NEW_TABLE, EXCLUSIVE, Body::new(&about(INET, 0)).text(TABLE_NAME, NAME));
    for chain in chains(redirect) {
        chain.put_into(&mut batch);
    }
    batch.end();
    let laid = Netlink::of_rules()?.say(&batch.messages, batch.count);
    match laid {
        // The table is made with all its rules, or not at all.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        laid => laid.map_err(RedirectError::Rules),
    }
}

struct Chain {
    name: &'static str,
    kind: &'static str,
    hook: u32,
    priority: i32,
    policy: u32,
    rules: Vec<Rule>,
}

fn chains(redirect: &Redirect) -> [Chain; 3] {
    let (v4, v6) = (redirect.resolver_v4.octets(), redirect.resolver_v6.octets());
    let port = redirect.resolver_port;
    let to_loopback = |end: Verdict| {
        [
            [for_address(Family::V4, &[127]), verdict(end)].concat(),
            [for_address(Family::V6, &Ipv6Addr::LOCALHOST.octets()), verdict(end)].concat(),
        ]
    };
    let question = |family: Family, address: &[u8]| {
        let asked = [from_family(family), over(Packet::Udp), for_port(QUESTIONS)].concat();
        [asked, lead_to(family, address, port)].concat()
    };
    let answered = |family: Family, address: &[u8]| {
        let arrived = [for_address(family, address), over(Packet::Udp), for_port(port)].concat();
        [arrived, verdict(Verdict::Accept)].concat()
    };
    let mut capture = to_loopback(Verdict::Return).to_vec();
    capture.extend([
        [over(Packet::Tcp), redirect_to(redirect.tcp_port)].concat(),
        question(Family::V4, &v4),
        question(Family::V6, &v6),
    ]);
    let mut guard = vec![accept_known()];
    guard.extend(to_loopback(Verdict::Accept));
    let mut arriving = guard.clone();
    guard.push([over(Packet::Udp), verdict(Verdict::Accept)].concat());
    arriving.extend([
        answered(Family::V4, &v4),
        answered(Family::V6, &v6),
        [over(Packet::Udp), refuse()].concat(),
    ]);
    let chain = |name, kind, hook, priority, policy, rules| Chain {
        name,
        kind,
        hook,
        priority,
        policy,
        rules,
    };
    [
        chain("capture", "nat", AT_OUTPUT, -100, ACCEPT, capture),
        chain("guard", "filter", AT_OUTPUT, 0, DROP, guard),
        chain("refuse", "filter", AT_INPUT, 0, ACCEPT, arriving),
    ]
}

impl Chain {
    fn put_into(self, batch: &mut Batch) {
        let hook = Body::default()
            .number(HOOK_NUMBER, self.hook)
            .number(HOOK_PRIORITY, self.priority.cast_unsigned());
        let chain = Body::new(&about(INET, 0))
            .text(CHAIN_TABLE, NAME)
            .text(CHAIN_NAME, self.name)
            .nested(CHAIN_HOOK, hook)
            .number(CHAIN_POLICY, self.policy)
            .text(CHAIN_TYPE, self.kind);
        batch.put(NEW_CHAIN, 0, chain);
        for rule in self.rules {
            let rule = Body::new(&about(INET, 0))
                .text(RULE_TABLE, NAME)
                .text(RULE_CHAIN, self.name)
                .nested(RULE_EXPRESSIONS, expression::list(rule));
            batch.put(NEW_RULE, APPEND, rule);
        }
    }
}

/// Messages that take effect together.
#[derive(Default)]
struct Batch {
    messages: Vec<u8>,
    /// How many of them are to be acknowledged.
    count: usize,
}

impl Batch {
    fn begin(&mut self) {
        let body = Body::new(&about(0, SUBSYSTEM));
        self.messages.extend(message(BATCH_BEGIN, REQUEST, &body));
    }

    fn end(&mut self) {
        let body = Body::new(&about(0, SUBSYSTEM));
        self.messages.extend(message(BATCH_END, REQUEST, &body));
    }

    fn put(&mut self, kind: u16, flags: u16, body: Body) {
        self.messages.extend(message(kind, ACKNOWLEDGE | CREATE | flags, &body));
        self.count += 1;
    }
}

/// `struct nfgenmsg`.
fn about(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}
