//! A request written in the one way that both sides hash.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::{Request, SignError};

/// Every byte but the unreserved ones.
pub(crate) const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// The same for a path, whose separators stay.
const PATH: &AsciiSet = &STRICT.remove(b'/');

/// The names of the signed headers, and the text to hash. `headers` are all that will be sent.
pub(crate) fn request(
    request: &Request<'_>,
    headers: &HeaderMap,
    service: &str,
) -> Result<(String, String), SignError> {
    let usual = |name: &HeaderName| {
        *name == header::HOST || *name == header::CONTENT_TYPE || name.as_str().starts_with("x-amz-")
    };
    with(request, headers, service, usual)
}

/// The same with exactly the headers that are to be signed.
pub(crate) fn with(
    request: &Request<'_>,
    headers: &HeaderMap,
    service: &str,
    signed: impl Fn(&HeaderName) -> bool,
) -> Result<(String, String), SignError> {
    let mut names: Vec<_> = headers.keys().filter(|name| signed(name)).collect();
    names.sort_unstable_by_key(|name| name.as_str());
    let signed = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(";");

    let mut text = format!(
        "{}\n{}\n{}\n",
        request.method,
        path(request.path, service),
        query(request.query.unwrap_or_default())
    );
    for name in names {
        let mut values = Vec::new();
        for value in headers.get_all(name) {
            let value = value.to_str().map_err(|_| SignError::NotText(name.clone()))?;
            values.push(value.split_ascii_whitespace().collect::<Vec<_>>().join(" "));
        }
        let _ = writeln!(text, "{name}:{}", values.join(","));
    }
    let _ = write!(text, "\n{signed}\n{}", request.payload);
    Ok((signed, text))
}

/// S3 encodes the path once, as it is; every other service resolves it and encodes what was sent again.
fn path(sent: &str, service: &str) -> String {
    if service == "s3" {
        let plain = percent_decode_str(sent).decode_utf8_lossy();
        return or_root(utf8_percent_encode(&plain, PATH).to_string());
    }
    let mut segments: Vec<&str> = Vec::new();
    for segment in sent.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let end = if sent.ends_with('/') && !segments.is_empty() {
        "/"
    } else {
        ""
    };
    let resolved = format!("/{}{end}", segments.join("/"));
    utf8_percent_encode(&resolved, PATH).to_string()
}

fn or_root(path: String) -> String {
    if path.is_empty() { "/".to_owned() } else { path }
}

fn query(sent: &str) -> String {
    let strict = |text: &str| {
        let plain = text.replace('+', " ");
        let plain = percent_decode_str(&plain).decode_utf8_lossy();
        utf8_percent_encode(&plain, STRICT).to_string()
    };
    let mut pairs: Vec<(String, String)> = sent
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (strict(key), strict(value))
        })
        .collect();
    pairs.sort_unstable();
    let pairs: Vec<String> = pairs.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join("&")
}
