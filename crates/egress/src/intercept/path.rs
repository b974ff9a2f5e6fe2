//! Paths of requests, and patterns for them.

use std::fmt;

use percent_encoding::percent_decode_str;
use serde::Deserialize;

/// A path as every server reads it: decoded, with nothing in it that some resolve and others do not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Segments(Vec<String>);

impl Segments {
    /// Reads a path as it was sent. None if servers could read it differently: `.` and `..`, separators and control
    /// characters in disguise, empty segments but the last, broken encodings.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let rest = path.strip_prefix('/')?;
        let mut segments = Vec::new();
        let mut parts = rest.split('/').peekable();
        while let Some(part) = parts.next() {
            if part.is_empty() && (parts.peek().is_some() || (segments.is_empty() && !rest.is_empty())) {
                return None;
            }
            if !is_encoded_well(part) {
                return None;
            }
            let decoded = percent_decode_str(part).decode_utf8().ok()?.into_owned();
            let plain = decoded.split(';').next().unwrap_or_default();
            if matches!(plain, "." | "..")
                || decoded.contains(|letter: char| "/\\%".contains(letter) || letter.is_control())
            {
                return None;
            }
            segments.push(decoded);
        }
        Some(Self(segments))
    }

    /// The same without what stands behind a `;` in each segment, which some servers do not take for a part of it.
    pub(crate) fn without_parameters(&self) -> Self {
        let plain = |segment: &String| segment.split(';').next().unwrap_or_default().to_owned();
        Self(self.0.iter().map(plain).collect())
    }

    pub(crate) fn as_slice(&self) -> &[String] {
        &self.0
    }
}

fn is_encoded_well(part: &str) -> bool {
    let bytes = part.as_bytes();
    bytes.iter().enumerate().all(|(place, &byte)| {
        byte != b'%'
            || bytes
                .get(place + 1..place + 3)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// A pattern for paths: `/repos/acme/*/issues` (`*` is one whole segment), `/v1/**` (everything below).
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct PathPattern {
    text: String,
    segments: Vec<String>,
    below: bool,
}

/// A text is no pattern for paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PathPatternError {
    /// It does not begin with `/`, or has a query.
    #[error("a path begins with / and has no ? or #")]
    NoPath,
    /// It holds what no request may hold.
    #[error("a path has no empty, . or .. segments and is written decoded or encoded as a client sends it")]
    Unclear,
    /// A star is not a segment of its own, or `**` is not the last.
    #[error("* stands for one whole segment, ** for everything below and only at the end")]
    Star,
}

impl PathPattern {
    /// Reads a pattern.
    pub fn parse(text: &str) -> Result<Self, PathPatternError> {
        if !text.starts_with('/') || text.contains(['?', '#']) {
            return Err(PathPatternError::NoPath);
        }
        let (start, below) = match text.strip_suffix("/**") {
            Some("") => ("/", true),
            Some(start) => (start, true),
            None => (text, false),
        };
        let Segments(mut segments) = Segments::parse(start).ok_or(PathPatternError::Unclear)?;
        if below && start == "/" {
            segments.clear();
        }
        if segments.iter().any(|segment| segment != "*" && segment.contains('*')) {
            return Err(PathPatternError::Star);
        }
        Ok(Self {
            text: text.to_owned(),
            segments,
            below,
        })
    }

    /// Whether a path is one of those.
    pub(crate) fn matches(&self, path: &Segments) -> bool {
        let path = path.as_slice();
        let long_enough = if self.below {
            path.len() > self.segments.len()
        } else {
            path.len() == self.segments.len()
        };
        long_enough
            && self
                .segments
                .iter()
                .zip(path)
                .all(|(pattern, segment)| pattern == segment || (pattern == "*" && !segment.is_empty()))
    }
}

impl TryFrom<String> for PathPattern {
    type Error = PathPatternError;

    fn try_from(text: String) -> Result<Self, PathPatternError> {
        Self::parse(&text)
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        let pattern = PathPattern::parse(pattern).unwrap();
        Segments::parse(path).is_some_and(|path| pattern.matches(&path))
    }

    #[test]
    fn a_star_is_one_segment_and_two_are_all_below() {
        assert!(matches("/a/*/c", "/a/b/c"));
        assert!(matches("/a/*", "/a/b%20c"));
        assert!(matches("/a/**", "/a/b"));
        assert!(matches("/a/**", "/a/b/c/"));
        assert!(matches("/**", "/"));
        assert!(matches("/**", "/x/y"));
        assert!(matches("/", "/"));
        assert!(matches("/a/", "/a/"));
        for (pattern, path) in [
            ("/a/*/c", "/a/c"),
            ("/a/*/c", "/a/b/b/c"),
            ("/a/*", "/a/"),
            ("/a/*", "/a"),
            ("/a/**", "/a"),
            ("/a", "/a/"),
            ("/a", "/A"),
            ("/a", "/ab"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
        for wrong in ["a", "/a*", "/**/b", "/a?b", "/a/../b", "//a"] {
            assert!(PathPattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_servers_read_differently_is_no_path() {
        for path in [
            "",
            "*",
            "a",
            "//",
            "//a",
            "/a//b",
            "/./a",
            "/a/..",
            "/a/%2e%2E/b",
            "/a%2fb",
            "/a%5Cb",
            "/a\\b",
            "/a%00",
            "/a%0a",
            "/a%2",
            "/a%zz",
            "/..;/a",
            "/%252e",
            "/%ff",
        ] {
            assert_eq!(Segments::parse(path), None, "{path}");
        }
        assert!(Segments::parse("/a/").is_some());
    }
}
