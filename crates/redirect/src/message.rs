//! The form of netlink messages: a header, a fixed part, attributes in attributes.

/// Length, type, flags, number, sender.
pub(crate) const HEADER: usize = 16;

/// This attribute holds others.
const NESTED: u16 = 0x8000;

/// The body of a message, or of an attribute that holds others.
#[derive(Default)]
pub(crate) struct Body(Vec<u8>);

impl Body {
    /// Begins with a message's fixed part, whose length is a multiple of four.
    pub(crate) fn new(fixed: &[u8]) -> Self {
        Self(fixed.to_vec())
    }

    /// Adds an attribute of these bytes.
    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.put(kind, value);
        self
    }

    /// Adds an attribute of text, which ends with a zero.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        let ended: Vec<u8> = value.bytes().chain([0]).collect();
        self.bytes(kind, &ended)
    }

    /// Adds an attribute of a number in network order.
    pub(crate) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds an attribute that holds others.
    pub(crate) fn nested(self, kind: u16, inner: Self) -> Self {
        self.bytes(kind | NESTED, &inner.0)
    }

    /// An attribute's length is told without what fills it up to a multiple of four.
    fn put(&mut self, kind: u16, value: &[u8]) {
        // All that is ever said here is some hundred bytes long.
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// A whole message.
pub(crate) fn message(kind: u16, flags: u16, body: &Body) -> Vec<u8> {
    let length = HEADER + body.0.len();
    let mut message = Vec::with_capacity(length);
    message.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(&body.0);
    message
}
