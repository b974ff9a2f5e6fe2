//! The tool `edit`.

use std::io::{Read, Write};
use std::sync::Arc;

use serde::Deserialize;
use similar::TextDiff;

use crate::toolbox::{Answer, Bounds, beside, words};
use crate::write::counted;
use crate::{FileError, Files, Tools};

/// The largest file that is edited.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// The most places that are named when there are too many.
const MAX_PLACES: usize = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    path: String,
    old: String,
    new: String,
    #[serde(default)]
    all: bool,
}

/// An edit was not made; the file is as it was.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EditError {
    #[error("`old` is empty: give the text to replace, or use write for a new file")]
    Nothing,
    #[error("`old` and `new` are the same: nothing would change")]
    Same,
    #[error("{path} is larger than {MAX_BYTES} bytes: change it with exec")]
    TooLarge { path: String },
    #[error("{path} is not UTF-8 text: change it with exec")]
    NotText { path: String },
    #[error("`old` does not occur in {path}{hint}")]
    NotFound { path: String, hint: String },
    #[error(
        "`old` occurs {count} times in {path}, at lines {lines}: add lines around it until it is unique, or set `all` to \
         replace every one"
    )]
    Ambiguous { path: String, count: usize, lines: String },
}

/// Replaces a text that occurs once, or every occurrence, and shows the difference.
pub(crate) async fn edit(tools: &Tools, arguments: Arguments, bounds: Bounds<'_>) -> Answer {
    bounds.tell("changing", &arguments.path);
    let files = Arc::clone(&tools.files);
    let alone = Arc::clone(&tools.changes).lock_owned().await;
    let most = bounds.output_bytes;
    beside(move || {
        // Held until the work is done, whoever still waits for it.
        let _alone = alone;
        let Arguments { path, old, new, all } = arguments;
        let before = text_of(&files, &path)?;
        let (after, count) = replace(&path, &before, &old, &new, all)?;
        let created = files.create(&path)?;
        created
            .file()
            .write_all(after.as_bytes())
            .map_err(|error| FileError::io("write", &path, error))?;
        created.commit()?;
        let head = format!("Edited {path}: {} replaced.\n", counted(count, "place"));
        let difference = difference(&before, &after, most.saturating_sub(head.len() + 100));
        Ok(words(format!("{head}{difference}")))
    })
    .await
}

fn text_of(files: &Files, path: &str) -> Result<String, crate::toolbox::Failure> {
    let mut bytes = Vec::new();
    files
        .read(path)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| FileError::io("read", path, error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(EditError::TooLarge { path: path.to_owned() }.into());
    }
    String::from_utf8(bytes).map_err(|_| EditError::NotText { path: path.to_owned() }.into())
}

/// The text after the edit, and how many places were replaced.
fn replace(path: &str, text: &str, old: &str, new: &str, all: bool) -> Result<(String, usize), EditError> {
    if old.is_empty() {
        return Err(EditError::Nothing);
    }
    if old == new {
        return Err(EditError::Same);
    }
    let places: Vec<usize> = occurrences(text, old);
    match places.len() {
        0 => Err(EditError::NotFound {
            path: path.to_owned(),
            hint: hint(text, old),
        }),
        1 => Ok((text.replacen(old, new, 1), 1)),
        count if all => Ok((text.replace(old, new), count)),
        count => {
            let mut lines: Vec<String> = places
                .iter()
                .take(MAX_PLACES)
                .map(|at| line_of(text, *at).to_string())
                .collect();
            if count > MAX_PLACES {
                lines.push("…".to_owned());
            }
            Err(EditError::Ambiguous {
                path: path.to_owned(),
                count,
                lines: lines.join(", "),
            })
        }
    }
}

/// Where a text occurs, overlapping occurrences included: `aa` is ambiguous in `aaa`.
fn occurrences(text: &str, old: &str) -> Vec<usize> {
    let first = old.chars().next().map_or(1, char::len_utf8);
    let mut places = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(old) {
        places.push(from + at);
        from += at + first;
    }
    places
}

/// What may have gone wrong with a text that does not occur.
fn hint(text: &str, old: &str) -> String {
    if text.contains('\r') && text.contains(&old.replace('\n', "\r\n")) {
        return ": its lines end with \\r\\n, write them so in `old` and `new`".to_owned();
    }
    let wanted: Vec<&str> = old.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let Some(first) = wanted.first() else {
        return String::new();
    };
    let near = lines.iter().enumerate().position(|(at, line)| {
        line == first && {
            let mut rest = lines[at..].iter().filter(|line| !line.is_empty());
            wanted.iter().all(|wanted| rest.next() == Some(wanted))
        }
    });
    if let Some(at) = near {
        return format!(
            ": line {} differs from it in blanks only; read the file and copy them exactly",
            at + 1
        );
    }
    match lines.iter().position(|line| line == first) {
        Some(at) => format!(
            ": its first line is line {}, but what follows differs; read the file again",
            at + 1
        ),
        None => ": read the file and copy the text exactly".to_owned(),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The unified difference, cut where it is too long.
fn difference(before: &str, after: &str, most: usize) -> String {
    let mut text = TextDiff::from_lines(before, after)
        .unified_diff()
        .context_radius(2)
        .missing_newline_hint(false)
        .to_string();
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push_str("\n[… the rest of the difference is left out …]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unique_text_is_replaced() {
        assert_eq!(
            replace("f", "one two", "two", "2", false).unwrap(),
            ("one 2".to_owned(), 1)
        );
        assert_eq!(replace("f", "a a a", "a", "b", true).unwrap(), ("b b b".to_owned(), 3));
    }

    #[test]
    fn an_ambiguous_text_is_refused_with_its_lines() {
        let error = replace("f.txt", "x\nhit\ny\nhit\n", "hit", "z", false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("occurs 2 times in f.txt, at lines 2, 4:"), "{error}");
        assert!(matches!(
            replace("f", "aaa", "aa", "b", false),
            Err(EditError::Ambiguous { count: 2, .. })
        ));
    }

    #[test]
    fn what_does_not_occur_is_explained() {
        for (text, old, words) in [
            ("  indented\n", "indented\n  more", "its first line is line 1"),
            ("x\n    a\n    b\n", "  a\n  b", "line 2 differs from it in blanks only"),
            ("a\r\nb\r\n", "a\nb", "\\r\\n"),
            ("a", "b", "copy the text exactly"),
        ] {
            let error = replace("f", text, old, "new", false).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(replace("f", "a", "", "b", false), Err(EditError::Nothing));
        assert_eq!(replace("f", "a", "a", "a", false), Err(EditError::Same));
    }

    #[test]
    fn the_difference_is_unified_and_bounded() {
        let text = difference("a\nb\nc\n", "a\nB\nc\n", 1_000);
        assert_eq!(text, "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
        let long = difference("", &"line\n".repeat(1_000), 200);
        assert!(long.len() < 300 && long.contains("left out"), "{long}");
    }
}
