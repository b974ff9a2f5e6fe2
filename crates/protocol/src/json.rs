//! JSON that an untrusted party wrote.

use serde::de::{DeserializeOwned, Error};

/// Reads JSON of at most so many parts: commas and brackets outside of texts. Each of them becomes many times its size while it
/// is read, so that a few megabytes of nothing but them would take a gigabyte.
///
/// # Errors
/// It has more parts, or is not what is wanted.
pub fn parse<T: DeserializeOwned>(most: usize, json: &[u8]) -> Result<T, serde_json::Error> {
    if parts(json) > most {
        return Err(Error::custom(format_args!("it has more than {most} parts")));
    }
    serde_json::from_slice(json)
}

fn parts(json: &[u8]) -> usize {
    let (mut parts, mut in_text, mut escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => parts += 1,
            _ => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_swell_is_not_read() {
        let many = |count: usize| format!("[{}0]", "0,".repeat(count)).into_bytes();
        assert_eq!(parse::<Vec<u8>>(100, &many(90)).ok().map(|read| read.len()), Some(91));
        let error = parse::<Vec<u8>>(100, &many(110)).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("it has more than 100 parts"));
        // However much stands in a text, it is one part.
        let text = format!(r#"["\\\"{}"]"#, "[{,".repeat(100));
        assert_eq!(parts(text.as_bytes()), 1);
        assert!(parse::<Vec<String>>(100, text.as_bytes()).is_ok());
    }
}
