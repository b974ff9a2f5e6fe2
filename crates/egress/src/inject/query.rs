//! Parameters of a query, without touching the others.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use protocol::PLACEHOLDER;
use secret::Secret;

/// Every byte but the unreserved ones of RFC 3986.
const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A text as part of a URL.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, STRICT).to_string()
}

/// Sets a parameter in place of every one of that name.
pub(crate) fn set(query: Option<&str>, name: &str, secret: &Secret) -> String {
    let mut pairs: Vec<&str> = pairs(query).filter(|pair| !is_named(pair, name)).collect();
    let set = format!("{}={}", encode(name), encode(secret.expose()));
    pairs.push(&set);
    pairs.join("&")
}

/// Replaces the placeholder in parameters of that name.
pub(crate) fn replace(query: Option<&str>, name: &str, secret: &Secret) -> String {
    let pairs: Vec<String> = pairs(query)
        .map(|pair| {
            if is_named(pair, name) {
                pair.replace(PLACEHOLDER, &encode(secret.expose()))
            } else {
                pair.to_owned()
            }
        })
        .collect();
    pairs.join("&")
}

/// Whether a parameter of that name holds the placeholder.
pub(crate) fn has(query: Option<&str>, name: &str) -> bool {
    pairs(query).any(|pair| is_named(pair, name) && pair.contains(PLACEHOLDER))
}

/// Whether there is a parameter of that name.
pub(crate) fn names(query: Option<&str>, name: &str) -> bool {
    pairs(query).any(|pair| is_named(pair, name))
}

/// Whether a parameter asks for another method, also by a name that frameworks read as `_method`: what follows a NUL, spaces
/// before it, and dots and spaces in place of `_` are nothing to PHP.
pub(crate) fn asks_for_method(query: Option<&str>) -> bool {
    pairs(query).any(|pair| {
        let name = decode(pair.split_once('=').map_or(pair, |(name, _)| name));
        let name = name.split('\0').next().unwrap_or_default().trim_start_matches(' ');
        name.replace(['.', ' '], "_") == "_method"
    })
}

/// The value of a parameter, decoded.
pub(crate) fn value(query: Option<&str>, name: &str) -> Option<String> {
    pairs(query).find(|pair| is_named(pair, name)).map(|pair| {
        let (_, value) = pair.split_once('=').unwrap_or((pair, ""));
        decode(value)
    })
}

fn pairs(query: Option<&str>) -> impl Iterator<Item = &str> {
    query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty())
}

fn is_named(pair: &str, name: &str) -> bool {
    let (written, _) = pair.split_once('=').unwrap_or((pair, ""));
    decode(written) == name
}

fn decode(text: &str) -> String {
    let spaces = text.replace('+', " ");
    percent_decode_str(&spaces).decode_utf8_lossy().into_owned()
}
