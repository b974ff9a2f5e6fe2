//! Server-sent events out of pieces of any size.

/// The longest event that is accepted: a Responses stream repeats the whole reply in its last event.
const LIMIT: usize = 16 << 20;

/// One event of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SseEvent<'a> {
    /// Its `event:` field; empty where there was none.
    pub name: &'a str,
    /// Its `data:` lines, joined by line feeds.
    pub data: &'a str,
}

/// What is no event stream.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SseError {
    /// An event is longer than any that a model sends.
    #[error("an event of the stream is longer than {limit} bytes")]
    TooLong {
        /// The most that is accepted.
        limit: usize,
    },
    /// An event's text is not UTF-8.
    #[error("an event of the stream is not UTF-8")]
    NotText,
}

/// Takes a stream of bytes apart into events, wherever its pieces end. Lines end with LF, CR or CRLF; comments and unknown
/// fields are skipped; an event that the stream's end cuts off is none.
#[derive(Debug)]
pub struct SseParser {
    limit: usize,
    begun: bool,
    after_carriage_return: bool,
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
}

impl Default for SseParser {
    fn default() -> Self {
        Self::with_limit(LIMIT)
    }
}

impl SseParser {
    /// A parser that refuses events longer than this many bytes.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self {
            limit,
            begun: false,
            after_carriage_return: false,
            line: Vec::new(),
            name: Vec::new(),
            data: Vec::new(),
            has_data: false,
        }
    }

    /// Takes the next piece of the stream and gives each event that it completes to `each`, in order. After an error
    /// nothing more is to be fed.
    pub fn feed<E: From<SseError>>(
        &mut self,
        mut piece: &[u8],
        mut each: impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.after_carriage_return && !piece.is_empty() {
            self.after_carriage_return = false;
            piece = piece.strip_prefix(b"\n").unwrap_or(piece);
        }
        while let Some(end) = piece.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, rest) = piece.split_at(end);
            piece = &rest[1..];
            if rest[0] == b'\r' {
                self.after_carriage_return = piece.is_empty();
                piece = piece.strip_prefix(b"\n").unwrap_or(piece);
            }
            if self.line.is_empty() {
                self.take_line(line, &mut each)?;
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.take_line(&whole, &mut each)?;
                whole.clear();
                self.line = whole;
            }
        }
        self.line.extend_from_slice(piece);
        Ok(self.check_length(self.line.len())?)
    }

    fn take_line<E: From<SseError>>(
        &mut self,
        mut line: &[u8],
        each: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.begun {
            self.begun = true;
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        self.check_length(line.len())?;
        if line.is_empty() {
            return self.give(each);
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = colon.map_or((line, &b""[..]), |colon| (&line[..colon], &line[colon + 1..]));
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            _ => {}
        }
        Ok(())
    }

    fn give<E: From<SseError>>(&mut self, each: &mut impl FnMut(SseEvent<'_>) -> Result<(), E>) -> Result<(), E> {
        if self.has_data {
            let (Ok(name), Ok(data)) = (std::str::from_utf8(&self.name), std::str::from_utf8(&self.data)) else {
                return Err(SseError::NotText.into());
            };
            each(SseEvent { name, data })?;
        }
        self.name.clear();
        self.data.clear();
        self.has_data = false;
        Ok(())
    }

    fn check_length(&self, more: usize) -> Result<(), SseError> {
        if self.data.len() + more > self.limit {
            return Err(SseError::TooLong { limit: self.limit });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&[u8]]) -> Result<Vec<(String, String)>, SseError> {
        let mut parser = SseParser::with_limit(64);
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece, |event| {
                events.push((event.name.to_owned(), event.data.to_owned()));
                Ok::<_, SseError>(())
            })?;
        }
        Ok(events)
    }

    const STREAM: &[u8] =
        "\u{feff}: hello\r\nevent: a\r\ndata: one\r\ndata:  two\r\nretry: 5\r\n\r\nid: 3\n\ndata\n\ndata: ü\r\rdata: cut"
            .as_bytes();

    #[test]
    fn lines_comments_and_fields_follow_the_standard() {
        let expected = [("a", "one\n two"), ("", ""), ("", "ü")].map(|(name, data)| (name.to_owned(), data.to_owned()));
        assert_eq!(events(&[STREAM]).unwrap(), expected);
    }

    #[test]
    fn pieces_may_end_anywhere() {
        let whole = events(&[STREAM]).unwrap();
        for border in 0..=STREAM.len() {
            let (head, tail) = STREAM.split_at(border);
            assert_eq!(events(&[head, b"", tail]).unwrap(), whole, "border at {border}");
        }
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(events(&bytes).unwrap(), whole);
    }

    #[test]
    fn what_is_too_long_or_no_text_is_refused() {
        let long = vec![b'x'; 65];
        let too_long = Err(SseError::TooLong { limit: 64 });
        assert_eq!(events(&[b"data: ", &long]), too_long);
        assert_eq!(events(&[&b"data: 0123456789012345\n".repeat(4)]), too_long);
        assert_eq!(events(&[b"data: \xff\n\n"]), Err(SseError::NotText));
    }
}
