//! Commands that a rule lets run: words, as a shell would read them, and nothing that a shell would do more with.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// A command as a rule writes it: words between blanks. `*` in a word stands for any characters but `/`; a last word `**`
/// stands for any further words.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct CommandPattern {
    words: Vec<String>,
    more: bool,
}

/// Why text is no pattern of commands.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommandPatternError {
    /// It has no word.
    #[error("an empty command matches nothing: write the program, as in \"git-upload-pack acme/*\"")]
    Empty,
    /// `**` stands elsewhere.
    #[error("in the command `{0}`, `**` may only be the last word, where it stands for all further ones")]
    Stars(String),
}

impl FromStr for CommandPattern {
    type Err = CommandPatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let more = words.last().is_some_and(|last| last == "**");
        if more {
            words.pop();
        }
        if words.is_empty() {
            return Err(CommandPatternError::Empty);
        }
        if words.iter().any(|word| word.contains("**")) {
            return Err(CommandPatternError::Stars(text.to_owned()));
        }
        Ok(Self { words, more })
    }
}

impl TryFrom<String> for CommandPattern {
    type Error = CommandPatternError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for CommandPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.words.join(" "))?;
        if self.more {
            formatter.write_str(" **")?;
        }
        Ok(())
    }
}

impl CommandPattern {
    pub(super) fn matches(&self, words: &[String]) -> bool {
        let enough = words.len() == self.words.len() || self.more && words.len() > self.words.len();
        enough
            && self
                .words
                .iter()
                .zip(words)
                .all(|(pattern, word)| is_like(pattern, word))
    }
}

fn is_like(pattern: &str, word: &str) -> bool {
    if !pattern.contains('*') {
        return pattern == word;
    }
    // A star is a name: it makes no option out of a word, and leads out of no folder.
    if pattern.starts_with('*') && word.starts_with('-') {
        return false;
    }
    let mut parts = word.split('/');
    let same = pattern.split('/').all(|pattern| {
        parts.next().is_some_and(|part| {
            let fits = domain::means(pattern, part);
            fits && (!pattern.contains('*') || !matches!(part, "" | "." | ".."))
        })
    });
    same && parts.next().is_none()
}

/// The words of a command, where a shell would read the same ones and do nothing else; none where it may.
pub(super) fn words(command: &[u8]) -> Option<Vec<String>> {
    let mut letters = std::str::from_utf8(command).ok()?.chars();
    let (mut words, mut word) = (Vec::new(), None::<String>);
    while let Some(letter) = letters.next() {
        match letter {
            ' ' | '\t' => words.extend(word.take()),
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next()? {
                        end if end == letter => break,
                        '$' | '`' | '\\' | '!' if letter == '"' => return None,
                        '\n' | '\r' | '\0' => return None,
                        other => word.push(other),
                    }
                }
            }
            plain if plain.is_ascii_alphanumeric() || "_-./:@%+=,".contains(plain) => {
                word.get_or_insert_default().push(plain);
            }
            // Whatever else a shell may understand: `;`, `|`, `$`, `~`, a new line.
            _ => return None,
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, command: &str) -> bool {
        let pattern: CommandPattern = pattern.parse().unwrap();
        words(command.as_bytes()).is_some_and(|words| pattern.matches(&words))
    }

    #[test]
    fn threat_015_only_commands_that_a_shell_reads_as_the_rule_does_match() {
        let pattern = "git-upload-pack acme/*";
        for allowed in [
            "git-upload-pack 'acme/app.git'",
            "git-upload-pack acme/app",
            "git-upload-pack  \"acme/a b\"",
            "git-up'load'-pack acme/app",
        ] {
            assert!(matches(pattern, allowed), "{allowed}");
        }
        for refused in [
            "git-upload-pack 'acme/app'; id",
            "git-upload-pack acme/app\nid",
            "git-upload-pack acme/$(id)",
            "git-upload-pack \"acme/`id`\"",
            "git-upload-pack acme/app | sh",
            "git-upload-pack acme/app & id",
            "git-upload-pack acme/app > /etc/passwd",
            "git-upload-pack acme/\\..",
            "git-upload-pack acme/..",
            "git-upload-pack acme/",
            "git-upload-pack acme/a/b",
            "git-upload-pack 'acme/app",
            "git-upload-pack other/app",
            "git-upload-pack --strict acme/app",
            "git-receive-pack 'acme/app'",
            "git-upload-pack ~/acme",
            "git-upload-pack",
            "",
        ] {
            assert!(!matches(pattern, refused), "{refused}");
        }
        assert!(!matches("run *", "run --evil"), "a star makes no option");
        assert!(matches("run * **", "run a --b c") && matches("run **", "run"));
        assert!(matches("deploy-*.sh v*-rc", "deploy-web.sh v1-2-rc"));
        assert!(!matches("deploy-*.sh v*-rc", "deploy-web.sh v1-2-rc-x"));
        assert!("".parse::<CommandPattern>().is_err() && "a ** b".parse::<CommandPattern>().is_err());
    }
}
