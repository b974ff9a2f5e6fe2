//! Patterns become the names of files, as a shell would do it, beneath the session's folders only.

use protocol::FileKind;

use super::SafebashError;
use super::words::{Word, plain};
use crate::Files;

/// The most bytes that all words may become.
const MOST: usize = 64 * 1024;
/// The most names of a folder that are compared.
const MAX_NAMES: usize = 20_000;

/// Expands `*`, `?` and `[…]` outside of quotes. A pattern that stands for nothing stays as it is.
pub(super) fn expand(files: &Files, words: &[Word]) -> Result<Vec<String>, SafebashError> {
    let (mut expanded, mut bytes) = (Vec::new(), 0);
    for word in words {
        let mut names = if is_pattern(word) {
            matches(files, word)
        } else {
            Vec::new()
        };
        if names.is_empty() {
            names.push(plain(word));
        }
        bytes += names.iter().map(|name| name.len() + 1).sum::<usize>();
        if bytes > MOST {
            return Err(SafebashError::TooMany { most: MOST });
        }
        expanded.append(&mut names);
    }
    Ok(expanded)
}

fn is_pattern(word: &[(char, bool)]) -> bool {
    word.iter().any(|(c, quoted)| !quoted && matches!(c, '*' | '?' | '['))
}

/// The names that a pattern stands for, in order.
fn matches(files: &Files, word: &Word) -> Vec<String> {
    let absolute = word.first().is_some_and(|(c, _)| *c == '/');
    let mut found = vec![if absolute { "/".to_owned() } else { String::new() }];
    let parts: Vec<&[(char, bool)]> = word.split(|(c, _)| *c == '/').filter(|part| !part.is_empty()).collect();
    for (index, part) in parts.iter().enumerate() {
        let only_folders = index + 1 < parts.len();
        if !is_pattern(part) {
            let name: String = part.iter().map(|(c, _)| c).collect();
            found.iter_mut().for_each(|path| join(path, &name));
            continue;
        }
        let mut next = Vec::new();
        for path in &found {
            // Folders that cannot be listed, or are none, hold nothing.
            let entries = files
                .list_one(path, MAX_NAMES)
                .map(|(entries, _)| entries)
                .unwrap_or_default();
            for entry in entries {
                let hidden = entry.path.starts_with('.') && part.first().is_none_or(|(c, _)| *c != '.');
                let fits = !only_folders || entry.kind == FileKind::Folder;
                let name: Vec<char> = entry.path.chars().collect();
                if !hidden && fits && is_match(part, &name) {
                    let mut path = path.clone();
                    join(&mut path, &entry.path);
                    next.push(path);
                }
            }
        }
        found = next;
    }
    // A file's name is never taken for a flag.
    found
        .iter_mut()
        .filter(|path| path.starts_with('-'))
        .for_each(|path| path.insert_str(0, "./"));
    found
}

fn join(path: &mut String, name: &str) {
    if !path.is_empty() && !path.ends_with('/') {
        path.push('/');
    }
    path.push_str(name);
}

/// Whether a name matches a pattern. Takes time in proportion to both lengths at most.
fn is_match(pattern: &[(char, bool)], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last star does not match.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(('*', false)) => {
                star = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some(('[', false)) => {
                if let Some((hit, length)) = class(&pattern[p..], name[n]) {
                    if hit {
                        p += length;
                        n += 1;
                        continue;
                    }
                } else if name[n] == '[' {
                    p += 1;
                    n += 1;
                    continue;
                }
            }
            Some(('?', false)) => {
                p += 1;
                n += 1;
                continue;
            }
            Some((c, _)) if *c == name[n] => {
                p += 1;
                n += 1;
                continue;
            }
            _ => {}
        }
        match &mut star {
            Some((after, from)) => {
                *from += 1;
                (p, n) = (*after, *from);
            }
            None => return false,
        }
    }
    pattern[p..].iter().all(|part| *part == ('*', false))
}

/// Whether a character is of the class at the pattern's beginning, and how long that is; none where it does not end.
fn class(pattern: &[(char, bool)], c: char) -> Option<(bool, usize)> {
    let mut at = 1;
    let negated = matches!(pattern.get(at), Some(('!' | '^', false)));
    at += usize::from(negated);
    let (first, mut hit) = (at, false);
    loop {
        let (low, quoted) = *pattern.get(at)?;
        if low == ']' && !quoted && at > first {
            return Some((hit != negated, at + 1));
        }
        let high = match (pattern.get(at + 1), pattern.get(at + 2)) {
            (Some(('-', false)), Some((high, _))) if *high != ']' => {
                at += 2;
                *high
            }
            _ => low,
        };
        hit |= (low..=high).contains(&c);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::split;
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*", "anything", true),
            ("*.csv", "a.csv", true),
            ("*.csv", "a.csvx", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "", false),
            ("??", "ab", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]x", "]x", true),
            ("[x", "[x", true),
            ("'*'.csv", "a.csv", false),
            ("\\*a*", "*ab", true),
        ] {
            let words = split(pattern).unwrap();
            let name: Vec<char> = name.chars().collect();
            assert_eq!(is_match(&words[0], &name), expected, "{pattern} {name:?}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_long_time() {
        let words = split(&format!("{}b", "a*".repeat(200))).unwrap();
        assert!(!is_match(&words[0], &['a'; 255]));
    }
}
