//! What was injected into a request does not come back in its answer.
//!
//! A [`Scrub`] knows every usual spelling of some secrets: as it is, base64 (both alphabets, at any alignment, so inside
//! `user:password` too), hexadecimal, percent-encoded, escaped for JSON or HTML. Each occurrence is masked with as many `*`
//! as it has bytes, so lengths that were announced stay true. A [`Stream`] does it to a body in pieces, and finds what lies
//! across their borders; it holds back only what may yet become an occurrence, never more than the longest spelling. Where
//! whoever hears a text also chooses what is said, that tells how a secret goes on; there a [`Trailing`] holds back as much of
//! any text.
//!
//! What an upstream transforms in its own way (reverses, encrypts, spells letter by letter) is not found.

mod spelling;
mod stream;
mod trailing;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use aho_corasick::packed;
use aho_corasick::{AhoCorasick, MatchKind};
use bytes::{Bytes, BytesMut};
use secret::Secret;

pub use stream::Stream;
pub use trailing::Trailing;

/// What stands where a secret stood, once for each of its bytes.
const MASK: u8 = b'*';

/// Of a long secret. What is encoded as base64 has letters of its own for each three bytes.
const PART: usize = 96;

/// Finds and masks secrets. Clones share it.
#[derive(Clone)]
pub struct Scrub(Option<Arc<Spellings>>);

struct Spellings {
    list: Vec<Vec<u8>>,
    longest: usize,
    begins: [bool; 256],
    search: Search,
}

/// The first is cheap to build, which is done for each request, but not for every machine or many spellings.
enum Search {
    Packed(packed::Searcher),
    Automaton(AhoCorasick),
}

/// From where to where an occurrence reaches.
struct Occurrence {
    start: usize,
    end: usize,
}

impl Scrub {
    /// Looks for these secrets. Spellings of less than four bytes are left alone: they would be found everywhere.
    #[must_use]
    pub fn of<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let mut list = Vec::new();
        for secret in secrets {
            spelling::of(secret.expose().as_bytes(), &mut list);
        }
        list.sort_unstable();
        list.dedup();
        Self(Spellings::new(list).map(Arc::new))
    }

    /// The same for a text that comes in pieces ([`Scrub::trailing`]): of long ones each part is looked for, so that little of a
    /// text is to be held back.
    #[must_use]
    pub fn of_parts<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let mut list = Vec::new();
        for part in secrets.into_iter().flat_map(|secret| parts(secret.expose().as_bytes())) {
            let mut spellings = Vec::new();
            spelling::of(part, &mut spellings);
            // Hexadecimal is the longest that is usual; each letter escaped is found where a text comes whole.
            spellings.retain(|spelling| spelling.len() <= 2 * part.len());
            list.append(&mut spellings);
        }
        list.sort_unstable();
        list.dedup();
        Self(Spellings::new(list).map(Arc::new))
    }

    /// Looks for nothing.
    #[must_use]
    pub const fn nothing() -> Self {
        Self(None)
    }

    /// Whether there is nothing to look for, so that a body may pass as it is.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.0.is_none()
    }

    /// Masks what is in a whole text. Nothing is copied where nothing is found.
    #[must_use]
    pub fn clean(&self, whole: Bytes) -> Bytes {
        let mut stream = self.stream();
        let clean = stream.push(whole);
        let rest = stream.finish();
        if rest.is_empty() {
            return clean;
        }
        let mut joined = BytesMut::with_capacity(clean.len() + rest.len());
        joined.extend_from_slice(&clean);
        joined.extend_from_slice(&rest);
        joined.freeze()
    }

    /// Masks what is in a header's value or another short text. Nothing is copied where nothing is found.
    #[must_use]
    pub fn clean_slice<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.0 {
            Some(_) if self.is_in(text) => Cow::Owned(self.clean(Bytes::copy_from_slice(text)).to_vec()),
            _ => Cow::Borrowed(text),
        }
    }

    /// Whether one of them stands in a text.
    #[must_use]
    pub fn is_in(&self, text: &[u8]) -> bool {
        self.0
            .as_ref()
            .is_some_and(|spellings| spellings.find(text, 0).is_some())
    }

    /// Begins a text that comes in pieces, of which whoever hears it may choose what is said.
    #[must_use]
    pub fn trailing(&self) -> Trailing {
        Trailing::new(self.0.clone())
    }

    /// Begins a body that comes in pieces.
    #[must_use]
    pub fn stream(&self) -> Stream {
        Stream::new(self.0.clone())
    }
}

/// A secret in parts of [`PART`] bytes, the last of which is longer; whole where it is short, or not ASCII.
fn parts(secret: &[u8]) -> Vec<&[u8]> {
    if !secret.is_ascii() {
        return vec![secret];
    }
    let mut parts = Vec::new();
    let mut rest = secret;
    while rest.len() >= 2 * PART {
        let (part, more) = rest.split_at(PART);
        parts.push(part);
        rest = more;
    }
    parts.push(rest);
    parts
}

impl Spellings {
    fn new(list: Vec<Vec<u8>>) -> Option<Self> {
        let longest = list.iter().map(Vec::len).max()?;
        let mut begins = [false; 256];
        for spelling in &list {
            begins[usize::from(spelling[0])] = true;
        }
        let packed = packed::Config::new()
            .match_kind(packed::MatchKind::LeftmostLongest)
            .builder()
            .extend(&list)
            .build();
        let search = match packed {
            Some(searcher) => Search::Packed(searcher),
            None => Search::Automaton(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(&list)
                    .ok()?,
            ),
        };
        Some(Self {
            list,
            longest,
            begins,
            search,
        })
    }

    /// The first occurrence at or after `from`, the longest of those that begin there.
    fn find(&self, text: &[u8], from: usize) -> Option<Occurrence> {
        match &self.search {
            Search::Packed(searcher) => {
                searcher
                    .find_in(text, aho_corasick::Span::from(from..text.len()))
                    .map(|found| Occurrence {
                        start: found.start(),
                        end: found.end(),
                    })
            }
            Search::Automaton(automaton) => automaton
                .find(aho_corasick::Input::new(text).range(from..))
                .map(|found| Occurrence {
                    start: found.start(),
                    end: found.end(),
                }),
        }
    }

    /// Whether a spelling goes on after this. They are sorted: the first that is greater begins with it, or none does.
    fn is_begun(&self, beginning: &[u8]) -> bool {
        let greater = self.list.partition_point(|spelling| spelling.as_slice() <= beginning);
        self.list
            .get(greater)
            .is_some_and(|spelling| spelling.starts_with(beginning))
    }

    /// The first place at or after `from` where a spelling begins that the text breaks off; the text's end if none does.
    fn open(&self, text: &[u8], from: usize) -> usize {
        let tail = from.max((text.len() + 1).saturating_sub(self.longest));
        (tail..text.len())
            .find(|&place| {
                let rest = &text[place..];
                self.begins[usize::from(rest[0])] && self.is_begun(rest)
            })
            .unwrap_or(text.len())
    }
}

impl fmt::Debug for Scrub {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spellings = self.0.as_ref().map_or(0, |spellings| spellings.list.len());
        formatter
            .debug_struct("Scrub")
            .field("spellings", &spellings)
            .finish_non_exhaustive()
    }
}

impl Drop for Spellings {
    fn drop(&mut self) {
        for spelling in &mut self.list {
            spelling.fill(0);
        }
        std::hint::black_box(&self.list);
    }
}

#[cfg(test)]
mod tests;
