//! What a rule is made of: expressions, each of which looks at a packet or decides what becomes of it.

use crate::message::Body;

/// Expressions, in the order in which the kernel carries them out. One that does not hold ends the rule.
pub(super) type Rule = Vec<Expression>;

/// A name that the kernel knows, and what it is told.
#[derive(Clone)]
pub(super) struct Expression(&'static str, Vec<(u16, Value)>);

#[derive(Clone)]
enum Value {
    Number(u32),
    Byte(u8),
    /// Bytes to compare with, or to load.
    Data(Vec<u8>),
    Verdict(i32),
}

const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;

/// Registers, of 16 bytes; the first decides.
const DECISION: u32 = 0;
const FIRST: u32 = 1;
const SECOND: u32 = 2;

const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const CT_STATE: u32 = 0;
/// Bits of what is known of a connection: established, related.
const KNOWN: u32 = 2 | 4;
const NAT_DESTINATION: u32 = 1;
const REJECT_ICMPX: u32 = 2;
const PORT_UNREACHABLE: u8 = 1;

/// A version of IP.
#[derive(Clone, Copy)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    const fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// Where the destination stands in the header.
    const fn destination(self) -> u32 {
        match self {
            Self::V4 => 16,
            Self::V6 => 24,
        }
    }
}

/// What a packet carries.
#[derive(Clone, Copy)]
pub(super) enum Packet {
    Tcp = 6,
    Udp = 17,
}

/// What becomes of a packet.
#[derive(Clone, Copy)]
pub(super) enum Verdict {
    Accept = 1,
    Return = -5,
}

/// Packets of this version.
pub(super) fn from_family(family: Family) -> Rule {
    let load = Expression(
        "meta",
        vec![(1, Value::Number(FIRST)), (2, Value::Number(META_NFPROTO))],
    );
    vec![load, compare(EQUAL, &[family.number()])]
}

/// Packets to an address that begins with these bytes.
pub(super) fn for_address(family: Family, begins: &[u8]) -> Rule {
    let mut rule = from_family(family);
    rule.extend([
        load(NETWORK_HEADER, family.destination(), begins.len()),
        compare(EQUAL, begins),
    ]);
    rule
}

/// Packets that carry this.
pub(super) fn over(packet: Packet) -> Rule {
    let load = Expression(
        "meta",
        vec![(1, Value::Number(FIRST)), (2, Value::Number(META_L4PROTO))],
    );
    vec![load, compare(EQUAL, &[packet as u8])]
}

/// Packets to this port.
pub(super) fn for_port(port: u16) -> Rule {
    vec![load(TRANSPORT_HEADER, 2, 2), compare(EQUAL, &port.to_be_bytes())]
}

/// Packets of connections that are known are let through.
pub(super) fn accept_known() -> Rule {
    let state = Expression("ct", vec![(1, Value::Number(FIRST)), (2, Value::Number(CT_STATE))]);
    let bits = Expression(
        "bitwise",
        vec![
            (1, Value::Number(FIRST)),
            (2, Value::Number(FIRST)),
            (3, Value::Number(4)),
            (4, Value::Data(KNOWN.to_ne_bytes().to_vec())),
            (5, Value::Data(vec![0; 4])),
        ],
    );
    let mut rule = vec![state, bits, compare(NOT_EQUAL, &[0; 4])];
    rule.extend(verdict(Verdict::Accept));
    rule
}

/// The rule ends here.
pub(super) fn verdict(verdict: Verdict) -> Rule {
    let decide = vec![(1, Value::Number(DECISION)), (2, Value::Verdict(verdict as i32))];
    vec![Expression("immediate", decide)]
}

/// They go to this port of the same machine.
pub(super) fn redirect_to(port: u16) -> Rule {
    vec![
        set(FIRST, &port.to_be_bytes()),
        Expression("redir", vec![(1, Value::Number(FIRST))]),
    ]
}

/// They go to this port of this address.
pub(super) fn lead_to(family: Family, address: &[u8], port: u16) -> Rule {
    let nat = vec![
        (1, Value::Number(NAT_DESTINATION)),
        (2, Value::Number(family.number().into())),
        (3, Value::Number(FIRST)),
        (5, Value::Number(SECOND)),
    ];
    vec![
        set(FIRST, address),
        set(SECOND, &port.to_be_bytes()),
        Expression("nat", nat),
    ]
}

/// Their sender is told that nobody listens.
pub(super) fn refuse() -> Rule {
    let reject = vec![(1, Value::Number(REJECT_ICMPX)), (2, Value::Byte(PORT_UNREACHABLE))];
    vec![Expression("reject", reject)]
}

fn load(header: u32, offset: u32, length: usize) -> Expression {
    // An address at most.
    let length = u32::try_from(length).unwrap_or(16);
    let place = [FIRST, header, offset, length];
    Expression("payload", (1..).zip(place.map(Value::Number)).collect())
}

fn compare(how: u32, bytes: &[u8]) -> Expression {
    let what = vec![
        (1, Value::Number(FIRST)),
        (2, Value::Number(how)),
        (3, Value::Data(bytes.to_vec())),
    ];
    Expression("cmp", what)
}

fn set(register: u32, bytes: &[u8]) -> Expression {
    Expression(
        "immediate",
        vec![(1, Value::Number(register)), (2, Value::Data(bytes.to_vec()))],
    )
}

/// The expressions of a rule, as the attribute that holds them.
pub(super) fn list(rule: Rule) -> Body {
    rule.into_iter().fold(Body::default(), |list, Expression(name, told)| {
        let told = told
            .into_iter()
            .fold(Body::default(), |body, (kind, value)| match value {
                Value::Number(number) => body.number(kind, number),
                Value::Byte(byte) => body.bytes(kind, &[byte]),
                Value::Data(bytes) => body.nested(kind, Body::default().bytes(DATA_VALUE, &bytes)),
                Value::Verdict(code) => {
                    let verdict = Body::default().number(VERDICT_CODE, code.cast_unsigned());
                    body.nested(kind, Body::default().nested(DATA_VERDICT, verdict))
                }
            });
        let expression = Body::default()
            .text(EXPRESSION_NAME, name)
            .nested(EXPRESSION_DATA, told);
        list.nested(LIST_ELEMENT, expression)
    })
}
