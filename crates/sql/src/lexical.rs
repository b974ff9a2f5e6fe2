//! What a text may not hold, whatever a parser makes of it.
//!
//! A parser of ours and a server agree on a text only as far as they cut it into the same words. So what is a comment to one
//! and code to the other, or a quote to one and none to the other, is refused before anybody parses it; and the text that is
//! to run has no comment, no variable and no second statement at all.

use crate::Refusal;
use crate::foreign::Tongue;

/// A text, and how strictly it is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Text {
    /// As somebody wrote it: comments that are nothing else may stand in it, and a semicolon at its end.
    Written,
    /// As it is to run.
    Ready,
}

const PARAMETER: &str = "Hand the value over as a parameter, written ?";
const COMMENTS: &str = "Leave comments out";

/// Refuses a text that two might read in two ways.
pub(crate) fn check(tongue: Tongue, text: &str, kind: Text) -> Result<(), Refusal> {
    if let Some(control) = text
        .chars()
        .find(|letter| letter.is_control() && !matches!(letter, '\n' | '\r' | '\t'))
    {
        let why = format!("it holds the control character U+{:04X}", u32::from(control));
        return Err(Refusal::new(why, PARAMETER));
    }
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '\'' | '"' | '`' => quoted(tongue, rest, first)?,
            _ if is_comment(tongue, rest) && kind == Text::Ready => {
                return Err(Refusal::new("it holds what may be read as a comment", COMMENTS));
            }
            '/' if rest.starts_with("/*") => block(rest)?,
            '-' if rest.starts_with("--") => dashes(tongue, rest)?,
            '#' if tongue == Tongue::MySql => {
                return Err(Refusal::new(
                    "a comment begins with #, which not everybody reads as one",
                    COMMENTS,
                ));
            }
            '/' if tongue == Tongue::Snowflake && rest.starts_with("//") => {
                return Err(Refusal::new(
                    "a comment begins with //, which not everybody reads as one",
                    COMMENTS,
                ));
            }
            _ => plain(tongue, rest, first, kind)?,
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    Ok(())
}

fn is_comment(tongue: Tongue, rest: &str) -> bool {
    rest.starts_with("/*")
        || rest.starts_with("--")
        || (tongue == Tongue::MySql && rest.starts_with('#'))
        || (tongue == Tongue::Snowflake && rest.starts_with("//"))
}

/// How long what stands in quotes is.
fn quoted(tongue: Tongue, rest: &str, quote: char) -> Result<usize, Refusal> {
    if quote == '"' && tongue == Tongue::MySql {
        return Err(Refusal::new(
            "\"…\" is a text or a name, as the server is set",
            "Write texts in '…' and names in `…`",
        ));
    }
    if quote == '`' && tongue == Tongue::Snowflake {
        return Err(Refusal::new("` quotes nothing in Snowflake", "Write names in \"…\""));
    }
    let inner = rest.get(1..).unwrap_or_default();
    let Some(end) = inner.find(quote) else {
        return Err(Refusal::new(format!("a {quote} is not closed"), "Close it"));
    };
    let within = inner.get(..end).unwrap_or_default();
    if within.contains('\\') && tongue != Tongue::Sqlite {
        return Err(Refusal::new(
            "a backslash in quotes escapes what follows, or does not, as the server is set",
            PARAMETER,
        ));
    }
    if quote != '\'' && inner.get(end + 1..).is_some_and(|after| after.starts_with(quote)) {
        return Err(Refusal::new(
            format!("a name holds {quote}"),
            "Give it another name, in a view",
        ));
    }
    Ok(end + 2)
}

/// How long a comment is that has an end of its own.
fn block(rest: &str) -> Result<usize, Refusal> {
    let inner = rest.get(2..).unwrap_or_default();
    if inner.starts_with(['!', '+']) || inner.starts_with("M!") || inner.starts_with("m!") {
        return Err(Refusal::new("it has a comment that the server executes", COMMENTS));
    }
    let Some(end) = inner.find("*/") else {
        return Err(Refusal::new("a comment is not closed", COMMENTS));
    };
    if inner.get(..end).is_some_and(|within| within.contains("/*")) {
        return Err(Refusal::new(
            "a comment holds another, which not everybody reads so",
            COMMENTS,
        ));
    }
    Ok(end + 4)
}

/// How long a comment is that ends with its line.
fn dashes(tongue: Tongue, rest: &str) -> Result<usize, Refusal> {
    let inner = rest.get(2..).unwrap_or_default();
    let blank = inner.is_empty() || inner.starts_with([' ', '\t', '\n', '\r']);
    if tongue == Tongue::MySql && !blank {
        return Err(Refusal::new(
            "-- without a blank is two minus signs to some and a comment to others",
            "Write - -, or a blank after --",
        ));
    }
    // A carriage return ends a line for some.
    let end = inner.find(['\n', '\r']).unwrap_or(inner.len());
    if inner
        .get(end..)
        .is_some_and(|after| after.starts_with('\r') && !after.starts_with("\r\n"))
    {
        return Err(Refusal::new(
            "a carriage return ends a comment for some and not for others",
            COMMENTS,
        ));
    }
    Ok(end + 2)
}

/// One letter that is in no quotes and no comment.
fn plain(tongue: Tongue, rest: &str, first: char, kind: Text) -> Result<usize, Refusal> {
    let after = rest.get(first.len_utf8()..).unwrap_or_default();
    match first {
        '\\' => Err(Refusal::new("it has a backslash outside of quotes", PARAMETER)),
        '@' => Err(Refusal::new("it has a variable or a stage (@)", PARAMETER)),
        '$' => Err(Refusal::new(
            "it has a variable or a text in dollar signs ($)",
            PARAMETER,
        )),
        ';' if kind == Text::Ready || !after.trim().is_empty() && !is_comment(tongue, after.trim_start()) => {
            Err(Refusal::new(
                "it is more than one statement",
                "Send exactly one statement, each in a call of its own",
            ))
        }
        // Servers differ in which of them are blanks.
        _ if first.is_whitespace() && !first.is_ascii() => Err(Refusal::new(
            "it has a blank that is not the usual one",
            "Use usual blanks",
        )),
        // The name of one word is looked at whole: `$` may stand inside it.
        _ if first.is_alphanumeric() || first == '_' => {
            let end = rest.find(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == '$'));
            let end = end.unwrap_or(rest.len());
            let next = rest.get(end..).unwrap_or_default();
            let number = first.is_ascii_digit();
            if next.starts_with('\'') && !number {
                return introduced(rest.get(..end).unwrap_or_default(), end);
            }
            Ok(end)
        }
        _ => Ok(first.len_utf8()),
    }
}

/// A word right before a quote: a character set, a format, or a mistake.
fn introduced(word: &str, end: usize) -> Result<usize, Refusal> {
    if word.eq_ignore_ascii_case("x") {
        return Ok(end);
    }
    Err(Refusal::new(
        format!("{word} stands right before a quote and changes how the text is read"),
        PARAMETER,
    ))
}
