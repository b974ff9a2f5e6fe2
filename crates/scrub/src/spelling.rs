//! The ways in which a text is usually spelled.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_encode};

/// Shorter spellings would be found everywhere.
const LEAST: usize = 4;

/// What `encodeURIComponent` and RFC 3986 leave as it is.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// What a form's encoder leaves as it is; it writes a space as `+`.
const FORM: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'*');
/// What a lenient client leaves as it is in a path or a query.
const LENIENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'%');

/// Adds every spelling of a text; the same one may come more than once.
pub(crate) fn of(text: &[u8], spellings: &mut Vec<Vec<u8>>) {
    let begin = spellings.len();
    spellings.push(text.to_vec());
    spellings.push(hex::encode(text).into_bytes());
    spellings.push(hex::encode_upper(text).into_bytes());
    base64(text, spellings);
    percent(text, spellings);
    json(text, spellings);
    spellings.push(html(text));
    let mut place = begin;
    while place < spellings.len() {
        if spellings[place].len() < LEAST {
            spellings.swap_remove(place);
        } else {
            place += 1;
        }
    }
}

/// The letters that the text alone decides, wherever it stands in what is encoded.
fn base64(text: &[u8], spellings: &mut Vec<Vec<u8>>) {
    for before in 0..3 {
        let mut padded = vec![0; before];
        padded.extend_from_slice(text);
        let from = (before * 8).div_ceil(6);
        let to = padded.len() * 8 / 6;
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let encoded = engine.encode(&padded).into_bytes();
            if from < to {
                spellings.push(encoded[from..to].to_vec());
            }
        }
    }
}

fn percent(text: &[u8], spellings: &mut Vec<Vec<u8>>) {
    for set in [NON_ALPHANUMERIC, COMPONENT, LENIENT] {
        let encoded = percent_encode(text, set).to_string();
        spellings.push(lower_after(encoded.as_bytes(), b'%', 2));
        spellings.push(encoded.into_bytes());
    }
    let form = percent_encode(text, FORM).to_string().replace("%20", "+");
    spellings.push(lower_after(form.as_bytes(), b'%', 2));
    spellings.push(form.into_bytes());
    let every: String = text.iter().map(|byte| format!("%{byte:02X}")).collect();
    spellings.push(every.to_ascii_lowercase().into_bytes());
    spellings.push(every.into_bytes());
}

fn json(text: &[u8], spellings: &mut Vec<Vec<u8>>) {
    let text = String::from_utf8_lossy(text);
    let Ok(quoted) = serde_json::to_string(&text) else {
        return;
    };
    let plain = quoted[1..quoted.len() - 1].to_owned();
    spellings.push(plain.replace('/', "\\/").into_bytes());
    // Encoders that care for HTML escape these too, in either case; others everything that is not ASCII.
    let mut careful = String::with_capacity(plain.len());
    for letter in plain.chars() {
        if matches!(letter, '<' | '>' | '&' | '\'' | '+' | '=') || !letter.is_ascii() {
            careful.push_str(&units(letter));
        } else {
            careful.push(letter);
        }
    }
    spellings.push(upper_after_u(careful.as_bytes()));
    spellings.push(careful.into_bytes());
    spellings.push(plain.into_bytes());
    let every: String = text.chars().map(units).collect();
    spellings.push(upper_after_u(every.as_bytes()));
    spellings.push(every.into_bytes());
}

fn units(letter: char) -> String {
    let mut room = [0; 2];
    letter
        .encode_utf16(&mut room)
        .iter()
        .map(|unit| format!("\\u{unit:04x}"))
        .collect()
}

fn html(text: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'&' => escaped.extend_from_slice(b"&amp;"),
            b'<' => escaped.extend_from_slice(b"&lt;"),
            b'>' => escaped.extend_from_slice(b"&gt;"),
            b'"' => escaped.extend_from_slice(b"&quot;"),
            b'\'' => escaped.extend_from_slice(b"&#39;"),
            _ => escaped.push(byte),
        }
    }
    escaped
}

/// The same, with the letters after each `mark` in lower case.
fn lower_after(text: &[u8], mark: u8, letters: usize) -> Vec<u8> {
    let mut left = 0;
    text.iter()
        .map(|&byte| {
            if byte == mark {
                left = letters;
                byte
            } else if left > 0 {
                left -= 1;
                byte.to_ascii_lowercase()
            } else {
                byte
            }
        })
        .collect()
}

/// The same, with the digits of each `\uXXXX` in upper case.
fn upper_after_u(text: &[u8]) -> Vec<u8> {
    let mut upper = text.to_vec();
    let mut place = 0;
    while place + 6 <= upper.len() {
        if &upper[place..place + 2] == b"\\u" {
            upper[place + 2..place + 6].make_ascii_uppercase();
            place += 6;
        } else if upper[place] == b'\\' {
            place += 2;
        } else {
            place += 1;
        }
    }
    upper
}
