//! A command becomes words.
//!
//! Quotes and backslashes work as in a shell. Whatever else a shell gives a meaning is refused, so that no text means one
//! thing to its author and another to us.

/// The longest command.
const MAX_BYTES: usize = 16 * 1024;

/// A word: its characters, and of each whether it was quoted.
pub(super) type Word = Vec<(char, bool)>;

/// A command is not a plain list of words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WordsError {
    #[error("the command is empty")]
    Empty,
    #[error("the command is longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error(
        "{found:?} is shell syntax and there is no shell: one program a call, without pipes, redirections, variables or \
         substitutions. Quote the character if it is meant as it stands, make several calls at once, or use exec"
    )]
    Syntax { found: String },
    #[error("it contains the control character {0:?}; write it in exec if it is needed")]
    Control(char),
    #[error("a {0} quote is not closed")]
    Open(&'static str),
    #[error("it ends with a backslash")]
    Backslash,
}

/// Splits a command into words.
pub(super) fn split(command: &str) -> Result<Vec<Word>, WordsError> {
    if command.len() > MAX_BYTES {
        return Err(WordsError::TooLong);
    }
    if let Some(control) = command.chars().find(|c| c.is_control() && *c != '\t') {
        return Err(WordsError::Control(control));
    }
    let syntax = |found: String| Err(WordsError::Syntax { found });
    let (mut words, mut word): (Vec<Word>, Option<Word>) = (Vec::new(), None);
    let mut chars = command.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(WordsError::Open("single"))? {
                        '\'' => break,
                        c => word.push((c, true)),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(WordsError::Open("double"))? {
                        '"' => break,
                        '`' => return syntax("`".to_owned()),
                        '$' if chars.peek().is_some_and(|next| starts_expansion(*next)) => {
                            return syntax("$".to_owned());
                        }
                        '\\' => match chars.next().ok_or(WordsError::Open("double"))? {
                            c @ ('"' | '\\' | '$' | '`') => word.push((c, true)),
                            c => word.extend([('\\', true), (c, true)]),
                        },
                        c => word.push((c, true)),
                    }
                }
            }
            '\\' => {
                let c = chars.next().ok_or(WordsError::Backslash)?;
                word.get_or_insert_default().push((c, true));
            }
            ';' | '&' | '|' | '<' | '>' | '$' | '`' | '(' | ')' | '{' | '}' => return syntax(c.to_string()),
            '#' | '~' if word.is_none() => return syntax(c.to_string()),
            c if c.is_whitespace() => return syntax(c.to_string()),
            c => word.get_or_insert_default().push((c, false)),
        }
    }
    words.extend(word);
    if words.is_empty() {
        return Err(WordsError::Empty);
    }
    Ok(words)
}

/// Whether a shell would expand a `$` before this.
fn starts_expansion(next: char) -> bool {
    next.is_alphanumeric() || "_{([*@#?-$!".contains(next)
}

/// The word as plain text.
pub(super) fn plain(word: &Word) -> String {
    word.iter().map(|(c, _)| c).collect()
}
