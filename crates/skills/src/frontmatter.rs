//! The head of a `SKILL.md`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What stands between the two `---` of a `SKILL.md`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Frontmatter {
    /// Its name; should equal the folder's.
    pub name: Option<String>,
    /// What it is for and when to use it.
    pub description: Option<String>,
    /// Under what terms it may be used.
    pub license: Option<String>,
    /// What it needs of the machine.
    pub compatibility: Option<String>,
    /// Whatever else its author says of it.
    pub metadata: BTreeMap<String, serde_yaml_ng::Value>,
    /// Tools that it expects.
    #[serde(rename = "allowed-tools")]
    pub allowed_tools: Option<serde_yaml_ng::Value>,
    /// Keys that the format does not know.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, serde_yaml_ng::Value>,
    /// The head was no YAML until unquoted colons were quoted.
    #[serde(skip)]
    pub mended: bool,
}

/// A text has no head that can be read.
#[derive(Debug, thiserror::Error)]
pub enum FrontmatterError {
    /// It does not begin with one.
    #[error("there is no head: a SKILL.md begins with a line `---`, keys such as `name: …`, and a second line `---`")]
    Missing,
    /// It does not end.
    #[error("the head does not end: a second line `---` is missing")]
    Unfinished,
    /// It is no YAML, even after mending.
    #[error("the head cannot be read as YAML")]
    Yaml(#[source] serde_yaml_ng::Error),
}

impl Frontmatter {
    /// Parts a `SKILL.md` into its head and its body.
    ///
    /// # Errors
    /// When there is no head, or it cannot be read even after unquoted values were quoted.
    pub fn parse(text: &str) -> Result<(Self, &str), FrontmatterError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let rest = text
            .strip_prefix("---")
            .and_then(|rest| rest.trim_start_matches([' ', '\t', '\r']).strip_prefix('\n'))
            .ok_or(FrontmatterError::Missing)?;
        let (head, body) = split_at_fence(rest).ok_or(FrontmatterError::Unfinished)?;
        if head.trim().is_empty() {
            return Ok((Self::default(), body));
        }
        let front = match serde_yaml_ng::from_str::<Self>(head) {
            Ok(front) => front,
            Err(error) => Self {
                mended: true,
                ..serde_yaml_ng::from_str(&quote_values(head)).map_err(|_| FrontmatterError::Yaml(error))?
            },
        };
        Ok((front, body))
    }
}

/// The text before the line `---`, and after it.
fn split_at_fence(text: &str) -> Option<(&str, &str)> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some((&text[..at], &text[at + line.len()..]));
        }
        at += line.len();
    }
    None
}

/// Quotes the plain one-line values, in which authors like to forget that `: ` and ` #` mean something.
fn quote_values(head: &str) -> String {
    let mut mended = String::with_capacity(head.len() + 16);
    for line in head.lines() {
        let plain = line.split_once(": ").filter(|(key, value)| {
            let value = value.trim();
            !key.trim().is_empty()
                && key
                    .trim()
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
                && !value.is_empty()
                && !value.starts_with(['"', '\'', '|', '>', '[', '{', '&', '*'])
        });
        match plain {
            Some((key, value)) => {
                mended.push_str(key);
                mended.push_str(": '");
                mended.push_str(&value.trim().replace('\'', "''"));
                mended.push('\'');
            }
            None => mended.push_str(line),
        }
        mended.push('\n');
    }
    mended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_body_are_parted() {
        let (front, body) = Frontmatter::parse(
            "---\nname: a\ndescription: >\n  Folded\n  text.\nmetadata:\n  version: 1.2\n---\n# Body\n---\n",
        )
        .unwrap();
        assert_eq!(front.name.as_deref(), Some("a"));
        assert_eq!(front.description.as_deref(), Some("Folded text.\n"));
        assert_eq!(body, "# Body\n---\n");
        assert!(!front.mended);
    }

    #[test]
    fn unquoted_colons_are_mended() {
        let (front, _) =
            Frontmatter::parse("---\r\nname: a\r\ndescription: Use when: it's asked # for\r\n---\r\nBody").unwrap();
        assert_eq!(front.description.as_deref(), Some("Use when: it's asked # for"));
        assert!(front.mended);
    }

    #[test]
    fn what_has_no_head_is_refused_in_words() {
        for (text, words) in [
            ("# Title", "there is no head"),
            ("", "there is no head"),
            ("---\nname: a\n", "does not end"),
            ("---\n{[\n---\n", "as YAML"),
        ] {
            let error = Frontmatter::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
