//! Lines of a text, with their numbers.

use std::io::{self, BufRead, BufReader, Read};

/// The most bytes of one line that are shown.
const MAX_LINE: usize = 2_000;
/// What is read of a file to find out how many lines it has.
const MAX_SCANNED: u64 = 256 * 1024 * 1024;

/// Which lines are wanted, and how much fits.
#[derive(Clone, Copy)]
pub(super) struct Range {
    /// From 1.
    pub(super) first: u64,
    pub(super) count: u64,
    /// Bytes that may be shown.
    pub(super) most: usize,
}

/// The lines of a range, as many as fit, each after its number and a tab; then what there is besides.
pub(super) fn show(source: impl Read, path: &str, range: Range) -> io::Result<String> {
    let mut reader = BufReader::with_capacity(64 * 1024, source.take(MAX_SCANNED));
    let (mut text, mut line, mut number, mut scanned) = (String::new(), Vec::new(), 0_u64, 0_u64);
    let end = range.first.saturating_add(range.count);
    let (mut last, mut full, mut lossy) = (0, false, false);
    loop {
        line.clear();
        let length = read_line(&mut reader, &mut line)?;
        if length == 0 {
            break;
        }
        number += 1;
        scanned += length;
        if number < range.first || number >= end || full {
            continue;
        }
        let shown = String::from_utf8_lossy(&line);
        lossy |= matches!(shown, std::borrow::Cow::Owned(_)) && length <= MAX_LINE as u64;
        let shown = shown.trim_end_matches(['\n', '\r']);
        let cut = if length > MAX_LINE as u64 + 2 {
            format!(" [… {length} bytes in all]")
        } else {
            String::new()
        };
        let entry = format!("{number}\t{shown}{cut}\n");
        if text.len() + entry.len() > range.most {
            full = true;
            continue;
        }
        text.push_str(&entry);
        last = number;
    }
    if number == 0 {
        return Ok(format!("{path} is empty."));
    }
    let at_least = if scanned >= MAX_SCANNED { "at least " } else { "" };
    if range.first > number {
        return Ok(format!(
            "{path} has {at_least}{number} lines; there is none at {}.",
            range.first
        ));
    }
    if last < number || range.first > 1 {
        let rest = if last < number {
            format!("; go on with offset {}", last + 1)
        } else {
            String::new()
        };
        text.push_str(&format!("[lines {}–{last} of {at_least}{number}{rest}]\n", range.first));
    }
    if lossy {
        text.push_str("[not all of it is UTF-8: what is not is shown as \u{fffd}]\n");
    }
    Ok(text)
}

/// Reads a line, of which only the beginning is kept; answers with its whole length.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    let mut length = 0;
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(length);
        }
        let (piece, ended) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(at) => (&buffer[..=at], true),
            None => (buffer, false),
        };
        line.extend_from_slice(&piece[..piece.len().min(MAX_LINE.saturating_sub(line.len()))]);
        let taken = piece.len();
        length += taken as u64;
        reader.consume(taken);
        if ended {
            return Ok(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, first: u64, count: u64, most: usize) -> String {
        show(text.as_bytes(), "f", Range { first, count, most }).unwrap()
    }

    #[test]
    fn lines_have_numbers_and_the_rest_is_pointed_at() {
        assert_eq!(shown("a\nb\nc", 1, u64::MAX, 1_000), "1\ta\n2\tb\n3\tc\n");
        assert_eq!(
            shown("a\nb\r\nc\n", 2, 1, 1_000),
            "2\tb\n[lines 2–2 of 3; go on with offset 3]\n"
        );
        assert_eq!(shown("a\nb\nc\n", 3, 9, 1_000), "3\tc\n[lines 3–3 of 3]\n");
        assert_eq!(shown("a\nb\n", 5, 1, 1_000), "f has 2 lines; there is none at 5.");
        assert_eq!(shown("", 1, 1, 1_000), "f is empty.");
    }

    #[test]
    fn what_does_not_fit_is_left_for_the_next_read() {
        let text = "123456789\n".repeat(100);
        let answer = shown(&text, 1, u64::MAX, 60);
        assert_eq!(answer.lines().count(), 6, "{answer}");
        assert!(
            answer.ends_with("[lines 1–5 of 100; go on with offset 6]\n"),
            "{answer}"
        );
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_one_is_whole() {
        let answer = shown(&format!("{}\nnext\n", "x".repeat(100_000)), 1, 9, 10_000);
        assert!(
            answer.contains("[… 100001 bytes in all]\n2\tnext\n"),
            "{}",
            &answer[1_900..]
        );
    }
}
