//! Where one HTTP/1 request ends and the next begins, read in the one way that nobody can misunderstand.
//!
//! A request that two programs could read differently is refused (threats 33, 34, 37): two lengths, a length beside a
//! transfer coding, codings but `chunked`, folded lines, line ends without a carriage return, chunk extensions.

/// The longest line with the size of a chunk: sixteen hexadecimal digits.
const SIZE_DIGITS: usize = 16;
/// The most that trailers may have in bytes.
const TRAILERS: usize = 8 * 1024;

/// Why a byte stream is no sequence of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Malformed {
    /// The head is longer than allowed.
    TooLong,
    /// A line ends without a carriage return, or one stands alone.
    LineEnd,
    /// The request line is not a method, a target and `HTTP/1.0` or `HTTP/1.1`.
    RequestLine,
    /// A header is no name, colon and value on one line.
    Header,
    /// The length of the body is said twice, not in digits, or in two ways.
    Length,
    /// The transfer coding is something else than `chunked`.
    Coding,
    /// A chunk's size is not just hexadecimal digits, or what follows a chunk is no line end.
    Chunk,
}

impl Malformed {
    /// The same in words.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::TooLong => "the request's head is longer than allowed",
            Self::LineEnd => "a line of the request does not end with CR LF",
            Self::RequestLine => "the first line is not a method, a target and HTTP/1.1",
            Self::Header => "a header is not one line with a name, a colon and a value",
            Self::Length => "the length of the request's body is said twice, wrongly, or beside a transfer coding",
            Self::Coding => "the request's transfer coding is not exactly `chunked`",
            Self::Chunk => "a chunk of the request's body is not framed as plain chunks are",
        }
    }
}

/// Follows a connection's requests.
#[derive(Debug)]
pub(crate) struct Framing {
    place: Place,
    head_limit: usize,
    scan: Scan,
}

/// How far a head was looked at that was not complete, so that each byte of it is looked at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scan {
    /// Where its newest line begins.
    line: usize,
    /// How many of its bytes have no line end after that.
    seen: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a head, or before one.
    Head,
    /// In a body, so many bytes before its end.
    Body(u64),
    /// Before the size of a chunk.
    Size,
    /// In a chunk, so many bytes before its end.
    Chunk(u64),
    /// Before the line end after a chunk.
    ChunkEnd,
    /// In the trailers, of which so many bytes have passed.
    Trailers(usize),
    /// After a change of protocols: nothing is looked at.
    Tunnel,
}

/// How a head's body is framed.
enum Body {
    None,
    Length(u64),
    Chunked,
}

impl Framing {
    /// Before the first request; a head may have so many bytes.
    pub(crate) const fn new(head_limit: usize) -> Self {
        Self {
            place: Place::Head,
            head_limit,
            scan: Scan::START,
        }
    }

    /// From here on the bytes are another protocol's.
    pub(crate) const fn tunnel(&mut self) {
        self.place = Place::Tunnel;
    }

    /// Whether the next byte belongs to a head.
    pub(crate) fn before_head(&self) -> bool {
        self.place == Place::Head
    }

    /// How many of the next bytes may pass without being looked at.
    pub(crate) const fn open(&self) -> u64 {
        match self.place {
            Place::Body(left) | Place::Chunk(left) => left,
            Place::Tunnel => u64::MAX,
            _ => 0,
        }
    }

    /// So many bytes have passed, no more than [`Framing::open`] said.
    pub(crate) const fn passed(&mut self, bytes: u64) {
        self.place = match self.place {
            Place::Body(left) if left == bytes => Place::Head,
            Place::Body(left) => Place::Body(left - bytes),
            Place::Chunk(left) if left == bytes => Place::ChunkEnd,
            Place::Chunk(left) => Place::Chunk(left - bytes),
            place => place,
        };
    }

    /// Looks at the next bytes and says how many may pass. The rest is to be shown again, with more behind it.
    ///
    /// It stops after a request, so that what follows can be looked at in the light of the answer.
    pub(crate) fn examine(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut place = 0;
        while place < bytes.len() {
            let rest = &bytes[place..];
            let open = self.open();
            if open > 0 {
                let pass = usize::try_from(open).unwrap_or(usize::MAX).min(rest.len());
                self.passed(pass as u64);
                place += pass;
                if self.before_head() {
                    break;
                }
                continue;
            }
            let pass = match self.place {
                Place::Head => self.head(rest)?,
                Place::Size => self.size(rest)?,
                Place::ChunkEnd => self.chunk_end(rest)?,
                Place::Trailers(passed) => self.trailers(rest, passed)?,
                Place::Body(_) | Place::Chunk(_) | Place::Tunnel => 0,
            };
            place += pass;
            if pass == 0 || self.before_head() {
                break;
            }
        }
        Ok(place)
    }

    fn head(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        if let [b'\r', b'\n', ..] = bytes {
            self.scan = Scan::START;
            return Ok(2);
        }
        let Some(end) = self.scan.lines_end(bytes)? else {
            return if bytes.len() > self.head_limit {
                Err(Malformed::TooLong)
            } else {
                Ok(0)
            };
        };
        if end > self.head_limit {
            return Err(Malformed::TooLong);
        }
        self.scan = Scan::START;
        self.place = match body_of(&bytes[..end - 4])? {
            Body::None | Body::Length(0) => Place::Head,
            Body::Length(length) => Place::Body(length),
            Body::Chunked => Place::Size,
        };
        Ok(end)
    }

    fn size(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let Some(end) = line_end(bytes)? else {
            return if bytes.len() > SIZE_DIGITS + 1 {
                Err(Malformed::Chunk)
            } else {
                Ok(0)
            };
        };
        let digits = &bytes[..end - 2];
        if digits.is_empty() || digits.len() > SIZE_DIGITS || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(Malformed::Chunk);
        }
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .ok_or(Malformed::Chunk)?;
        self.place = if size == 0 {
            Place::Trailers(0)
        } else {
            Place::Chunk(size)
        };
        Ok(end)
    }

    const fn chunk_end(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match bytes {
            [b'\r', b'\n', ..] => {
                self.place = Place::Size;
                Ok(2)
            }
            [b'\r'] => Ok(0),
            _ => Err(Malformed::Chunk),
        }
    }

    fn trailers(&mut self, bytes: &[u8], passed: usize) -> Result<usize, Malformed> {
        let Some(end) = line_end(bytes)? else {
            return if passed + bytes.len() > TRAILERS {
                Err(Malformed::TooLong)
            } else {
                Ok(0)
            };
        };
        if passed + end > TRAILERS {
            return Err(Malformed::TooLong);
        }
        if end == 2 {
            self.place = Place::Head;
        } else {
            header(&bytes[..end - 2])?;
            self.place = Place::Trailers(passed + end);
        }
        Ok(end)
    }
}

/// Where the first line ends, after its line end.
fn line_end(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(feed) = bytes.iter().position(|&byte| byte == b'\n') else {
        return Ok(None);
    };
    if feed == 0 || bytes[feed - 1] != b'\r' || bytes[..feed - 1].contains(&b'\r') {
        return Err(Malformed::LineEnd);
    }
    Ok(Some(feed + 1))
}

impl Scan {
    const START: Self = Self { line: 0, seen: 0 };

    /// Where the first empty line ends. Shown the same with more behind it, it goes on where it stopped.
    fn lines_end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let from = |place: usize| bytes.get(place..).unwrap_or_default();
        while let Some(feed) = from(self.seen).iter().position(|&byte| byte == b'\n') {
            let length = line_end(from(self.line))?;
            self.seen += feed + 1;
            self.line = self.seen;
            if length == Some(2) {
                return Ok(Some(self.seen));
            }
        }
        self.seen = bytes.len();
        Ok(None)
    }
}

/// Checks a head without its last two line ends, and says what its body is.
fn body_of(head: &[u8]) -> Result<Body, Malformed> {
    let mut lines = head
        .split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let newest = request_line(lines.next().unwrap_or_default())?;
    let mut length = None;
    let mut coded = false;
    for line in lines {
        let (name, value) = header(line)?;
        if name.eq_ignore_ascii_case(b"content-length") {
            if length.is_some() {
                return Err(Malformed::Length);
            }
            length = Some(digits(value)?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if coded || !newest || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Malformed::Coding);
            }
            coded = true;
        }
    }
    match (length, coded) {
        (Some(_), true) => Err(Malformed::Length),
        (None, true) => Ok(Body::Chunked),
        (Some(length), false) => Ok(Body::Length(length)),
        (None, false) => Ok(Body::None),
    }
}

/// Whether the version is 1.1.
fn request_line(line: &[u8]) -> Result<bool, Malformed> {
    let mut parts = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Malformed::RequestLine);
    };
    if method.is_empty() || !method.iter().all(|&byte| is_token(byte)) {
        return Err(Malformed::RequestLine);
    }
    if target.is_empty() || !target.iter().all(u8::is_ascii_graphic) {
        return Err(Malformed::RequestLine);
    }
    match version {
        b"HTTP/1.1" => Ok(true),
        b"HTTP/1.0" => Ok(false),
        _ => Err(Malformed::RequestLine),
    }
}

fn header(line: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let colon = line.iter().position(|&byte| byte == b':').ok_or(Malformed::Header)?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    let clean = |byte: &u8| *byte == b'\t' || (*byte >= 0x20 && *byte != 0x7f);
    if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) || !value.iter().all(clean) {
        return Err(Malformed::Header);
    }
    Ok((name, value))
}

fn digits(value: &[u8]) -> Result<u64, Malformed> {
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
        return Err(Malformed::Length);
    }
    Ok(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows bytes in pieces and says how many requests ended.
    fn follow(bytes: &[u8], piece: usize) -> Result<(usize, bool), Malformed> {
        let mut framing = Framing::new(1000);
        let mut held: Vec<u8> = Vec::new();
        let mut ends = 0;
        for piece in bytes.chunks(piece) {
            held.extend_from_slice(piece);
            loop {
                let was_line = framing.before_head() && held.starts_with(b"\r\n");
                let passed = framing.examine(&held)?;
                if passed == 0 {
                    break;
                }
                held.drain(..passed);
                ends += usize::from(framing.before_head() && !was_line);
            }
        }
        Ok((ends, framing.before_head() && held.is_empty()))
    }

    #[test]
    fn requests_are_told_apart_however_they_arrive() {
        let bytes =
            b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\n\r\n\r\nxGET /b HTTP/1.1\r\nhost: h\r\n\r\n\
            PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n\
            GET / HTTP/1.0\r\n\r\n";
        for piece in 1..bytes.len() {
            assert_eq!(follow(bytes, piece), Ok((4, true)), "in pieces of {piece}");
        }
    }

    #[test]
    fn threat_033_what_can_be_read_in_two_ways_is_refused() {
        let head = |lines: &str| format!("POST / HTTP/1.1\r\nhost: h\r\n{lines}\r\n\r\n").into_bytes();
        let cases: Vec<(Vec<u8>, Malformed)> = vec![
            (
                head("content-length: 5\r\ntransfer-encoding: chunked"),
                Malformed::Length,
            ),
            (
                head("transfer-encoding: chunked\r\ncontent-length: 5"),
                Malformed::Length,
            ),
            (head("content-length: 5\r\ncontent-length: 5"), Malformed::Length),
            (head("content-length: 5, 5"), Malformed::Length),
            (head("content-length: +5"), Malformed::Length),
            (head("content-length: 0x5"), Malformed::Length),
            (head("content-length:"), Malformed::Length),
            (head("content-length: 99999999999999999999"), Malformed::Length),
            (head("transfer-encoding: xchunked"), Malformed::Coding),
            (head("transfer-encoding: gzip, chunked"), Malformed::Coding),
            (head("transfer-encoding: identity"), Malformed::Coding),
            (
                head("transfer-encoding: chunked\r\ntransfer-encoding: chunked"),
                Malformed::Coding,
            ),
            (head("transfer-encoding : chunked"), Malformed::Header),
            (head("transfer-encoding:\x0bchunked"), Malformed::Header),
            (head(" folded: line"), Malformed::Header),
            (head("x: a\r\n\tb"), Malformed::Header),
            (head("no colon"), Malformed::Header),
            (head("x: a\0b"), Malformed::Header),
            (b"GET / HTTP/1.1\nhost: h\n\n".to_vec(), Malformed::LineEnd),
            (b"GET / HTTP/1.1\r\nhost: h\n\r\n".to_vec(), Malformed::LineEnd),
            (b"GET / HTTP/1.1\r\nx: a\rb\r\n\r\n".to_vec(), Malformed::LineEnd),
            (b"GET  / HTTP/1.1\r\n\r\n".to_vec(), Malformed::RequestLine),
            (b"GET / HTTP/1.1 \r\n\r\n".to_vec(), Malformed::RequestLine),
            (b"GET /\0 HTTP/1.1\r\n\r\n".to_vec(), Malformed::RequestLine),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), Malformed::RequestLine),
            (b"GET /\r\n\r\n".to_vec(), Malformed::RequestLine),
            (
                b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
                Malformed::Coding,
            ),
        ];
        for (bytes, why) in cases {
            for piece in [1, 7, bytes.len()] {
                assert_eq!(follow(&bytes, piece), Err(why), "{}", String::from_utf8_lossy(&bytes));
            }
        }
    }

    #[test]
    fn threat_033_chunks_are_plain_or_refused() {
        let start = "POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";
        for chunks in [
            "5;a=b\r\nhello\r\n0\r\n\r\n",
            "5 \r\nhello\r\n0\r\n\r\n",
            "0x5\r\nhello\r\n0\r\n\r\n",
            "-5\r\nhello\r\n0\r\n\r\n",
            "\r\nhello\r\n0\r\n\r\n",
            "5\r\nhelloo\r\n0\r\n\r\n",
            "11111111111111111\r\n",
            "0\r\n folded\r\n\r\n",
        ] {
            let bytes = format!("{start}{chunks}");
            for piece in [1, bytes.len()] {
                assert!(
                    matches!(
                        follow(bytes.as_bytes(), piece),
                        Err(Malformed::Chunk | Malformed::Header)
                    ),
                    "{chunks:?}"
                );
            }
        }
    }

    #[test]
    fn each_byte_of_a_head_is_looked_at_once() {
        let mut framing = Framing::new(1000);
        assert_eq!(framing.examine(b"GET / HTTP/1.1\r\nx: y"), Ok(0));
        assert_eq!(framing.scan, Scan { line: 16, seen: 20 });
        assert_eq!(framing.examine(b"GET / HTTP/1.1\r\nx: y\r\n\r\n"), Ok(24));
        assert_eq!(framing.scan, Scan::START);
    }

    #[test]
    fn a_head_without_end_is_refused() {
        let endless = [b"GET / HTTP/1.1\r\nx: ".to_vec(), vec![b'a'; 2000]].concat();
        assert_eq!(follow(&endless, 100), Err(Malformed::TooLong));
    }
}
