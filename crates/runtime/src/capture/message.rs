//! Just enough of DNS: one question in, one answer out. What is not a plain question is refused.

use std::net::{Ipv4Addr, Ipv6Addr};

const HEADER: usize = 12;
const LONGEST_LABEL: usize = 63;
const LONGEST_NAME: usize = 253;

const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const CLASS_INTERNET: u16 = 1;

/// How long an answer is good, in seconds. The address stays the name's for ever; the policy may change.
const TIME_TO_LIVE: u32 = 60;

/// How a question is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Code {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    V4,
    V6,
    /// Anything else: service bindings, text… No name has it.
    Other,
}

/// A question.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Question {
    /// In lower case, without a dot at its end; empty for the root.
    pub(super) name: String,
    pub(super) wanted: Wanted,
    /// The question as it came, to be repeated in the answer.
    head: [u8; 4],
    section: Vec<u8>,
}

/// What came instead of a question.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Bad {
    /// Not worth an answer: too short, or itself an answer.
    Ignore,
    /// To be answered with this.
    Answer(Vec<u8>),
}

impl Question {
    /// Reads a message.
    pub(super) fn parse(message: &[u8]) -> Result<Self, Bad> {
        let Some((header, rest)) = message.split_first_chunk::<HEADER>() else {
            return Err(Bad::Ignore);
        };
        let head = [header[0], header[1], header[2], header[3]];
        if header[2] & 0x80 != 0 {
            return Err(Bad::Ignore);
        }
        let refuse = |code| Err(Bad::Answer(reply(head, code, &[], &[])));
        if (header[2] >> 3) & 0x0f != 0 {
            return refuse(Code::NotImplemented);
        }
        if header[4..6] != [0, 1] {
            return refuse(Code::FormatError);
        }
        let Some((name, length)) = name(rest) else {
            return refuse(Code::FormatError);
        };
        let Some(&[type_high, type_low, class_high, class_low]) = rest.get(length..length + 4) else {
            return refuse(Code::FormatError);
        };
        if u16::from_be_bytes([class_high, class_low]) != CLASS_INTERNET {
            return refuse(Code::Refused);
        }
        Ok(Self {
            name,
            wanted: match u16::from_be_bytes([type_high, type_low]) {
                TYPE_A => Wanted::V4,
                TYPE_AAAA => Wanted::V6,
                _ => Wanted::Other,
            },
            head,
            section: rest[..length + 4].to_vec(),
        })
    }

    /// An answer without an address.
    pub(super) fn answer(&self, code: Code) -> Vec<u8> {
        reply(self.head, code, &self.section, &[])
    }

    /// The address that was asked for; nothing, where something else was.
    pub(super) fn address(&self, v4: Ipv4Addr, v6: Ipv6Addr) -> Vec<u8> {
        match self.wanted {
            Wanted::V4 => reply(self.head, Code::NoError, &self.section, &v4.octets()),
            Wanted::V6 => reply(self.head, Code::NoError, &self.section, &v6.octets()),
            Wanted::Other => self.answer(Code::NoError),
        }
    }
}

/// A name at the beginning of these bytes, and its length there. Compression has no place in a question, and a name of a
/// host has only letters, digits, hyphens and underscores.
fn name(bytes: &[u8]) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut at = 0;
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((name, at));
        }
        if length > LONGEST_LABEL {
            return None;
        }
        let label = bytes.get(at..at + length)?;
        if !label
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
        at += length;
        if name.len() > LONGEST_NAME {
            return None;
        }
    }
}

fn reply(head: [u8; 4], code: Code, question: &[u8], address: &[u8]) -> Vec<u8> {
    let [id_high, id_low, flags, _] = head;
    let questions = u8::from(!question.is_empty());
    let answers = u8::from(!address.is_empty());
    let mut message = vec![id_high, id_low];
    // An answer, recursion as it was desired; recursion is available.
    message.push(0x80 | (flags & 0x01));
    message.push(0x80 | code as u8);
    message.extend([0, questions, 0, answers, 0, 0, 0, 0]);
    message.extend(question);
    if answers == 1 {
        let kind = if address.len() == 4 { TYPE_A } else { TYPE_AAAA };
        // The name is the one at byte 12.
        message.extend([0xc0, 12]);
        message.extend(kind.to_be_bytes());
        message.extend(CLASS_INTERNET.to_be_bytes());
        message.extend(TIME_TO_LIVE.to_be_bytes());
        message.extend([0, if address.len() == 4 { 4 } else { 16 }]);
        message.extend(address);
    }
    message
}

#[cfg(test)]
mod tests;
