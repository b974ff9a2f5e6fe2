//! Whether what a model is told begins, byte for byte, with what it was told before: only then a provider's cache serves.

use anyhow::bail;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Where a provider should cache moves along; it is no part of what is said.
const MARK: &str = r#""cache_control":{"type":"ephemeral"}"#;

#[derive(Deserialize)]
struct Request<'body> {
    #[serde(borrow)]
    system: Option<&'body RawValue>,
    #[serde(borrow)]
    tools: Option<&'body RawValue>,
    #[serde(borrow)]
    messages: Vec<&'body RawValue>,
}

/// In per cent, the requests that begin with all of the one before; and how many requests there were.
pub(super) fn same(bodies: &[Bytes]) -> anyhow::Result<(f64, usize)> {
    let requests: Vec<Vec<String>> = bodies.iter().filter_map(|body| parts(body)).collect();
    let pairs = requests.windows(2);
    let count = pairs.len();
    if count == 0 {
        bail!("the model was asked less than twice");
    }
    let same = pairs.filter(|pair| pair[1].starts_with(&pair[0])).count();
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let share = same as f64 / count as f64 * 100.0;
    Ok((share, requests.len()))
}

/// Tools, system prompt and each message, as they were written.
fn parts(body: &[u8]) -> Option<Vec<String>> {
    let request: Request<'_> = serde_json::from_slice(body).ok()?;
    let plain = |part: &RawValue| {
        part.get()
            .replace(&format!(",{MARK}"), "")
            .replace(&format!("{MARK},"), "")
    };
    let mut parts = vec![plain(request.tools?), request.system.map(plain).unwrap_or_default()];
    parts.extend(request.messages.into_iter().map(plain));
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_before_the_end_is_seen_and_a_mark_is_not() {
        let body = |messages: &str| Bytes::from(format!(r#"{{"system":"s","tools":[1],"messages":[{messages}]}}"#));
        let marked = body(r#"{"a":1,"cache_control":{"type":"ephemeral"}}"#);
        let bodies = [marked, body(r#"{"a":1},{"b":2}"#), body(r#"{"a":1},{"b":3},{"c":4}"#)];
        assert_eq!(same(&bodies).unwrap(), (50.0, 3));
    }
}
