//! SSH where a rule says so: the broker is the server inside and the client outside, and only commands pass (threat 15).
//!
//! Inside, it shows a host key of this installation, which sandboxes are told to trust, and lets everybody in: whose connection
//! it is says the link. Outside, it takes only the host keys that the rule pins, and shows the rule's key, which no sandbox
//! holds. Between the two there is no shell, no terminal, no forwarding of ports, agents or displays, and no subsystem but
//! those that the rule names; each command is checked, carried and audited alone.
//!
//! What a command prints is not searched for secrets: the key does not leave the broker, so no server can show it.

mod carry;
mod command;
mod exec;
mod gate;
mod inside;
mod outside;
mod own_key;

use std::fmt;

use ring::digest::{SHA256, digest};
use russh::keys::ssh_key::Fingerprint;
use russh::keys::{HashAlg, PublicKey};
use secret::Reference;
use serde::Deserialize;

pub use command::{CommandPattern, CommandPatternError};
pub use own_key::HostKeyError;

pub(crate) use carry::{Connection, Ssh};

/// How a rule's hosts are reached over SSH, and what may run there.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SshRule {
    /// Who logs in.
    pub user: String,
    /// The private key that they log in with, as OpenSSH or PEM writes it, without a passphrase.
    pub secret: Reference,
    /// The keys that the host may show, at least one.
    pub host_keys: Vec<HostKey>,
    /// The commands that may run; any command where left out.
    pub commands: Option<Vec<CommandPattern>>,
    /// The subsystems that may run (`sftp`); none where left out.
    #[serde(default)]
    pub subsystems: Vec<String>,
}

/// A host's key, by its fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct HostKey(Fingerprint);

/// Why text is no host key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is no host key: write its fingerprint (SHA256:…) or the key itself (ssh-ed25519 AAAA…), as `ssh-keyscan HOST` shows it"
)]
pub struct HostKeyPinError(String);

impl TryFrom<String> for HostKey {
    type Error = HostKeyPinError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let fingerprint = match text.parse::<Fingerprint>() {
            Ok(fingerprint) if fingerprint.is_sha256() => Some(fingerprint),
            _ => PublicKey::from_openssh(&text)
                .ok()
                .map(|key| key.fingerprint(HashAlg::Sha256)),
        };
        fingerprint.map(Self).ok_or(HostKeyPinError(text))
    }
}

impl fmt::Display for HostKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// What a client asks to run.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Asked {
    Command(Vec<u8>),
    Subsystem(String),
}

impl Asked {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Command(command) => command,
            Self::Subsystem(name) => name.as_bytes(),
        }
    }

    /// Fit to be shown: nothing that commands a terminal, one blank where there are many, and the whole text's size and digest
    /// where it is cut.
    fn shown(&self) -> String {
        let text = String::from_utf8_lossy(self.bytes());
        let mut letters: Vec<char> = match self {
            Self::Command(_) => Vec::new(),
            Self::Subsystem(_) => "subsystem ".chars().collect(),
        };
        for letter in text.chars() {
            let letter = match letter {
                letter if letter.is_control() => '\u{fffd}',
                letter if letter.is_whitespace() => ' ',
                letter => letter,
            };
            let again = matches!(letter, ' ' | '\u{fffd}') && letters.last() == Some(&letter);
            if letters.len() == SHOWN && !again {
                let digest = digest(&SHA256, self.bytes());
                let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
                letters.extend(format!("… ({} bytes, SHA-256 {hex})", self.bytes().len()).chars());
                break;
            }
            if !again {
                letters.push(letter);
            }
        }
        letters.into_iter().collect()
    }
}

/// Characters of a command that the audit is told.
const SHOWN: usize = 512;

impl SshRule {
    /// Whether it lets this run.
    fn allows(&self, asked: &Asked) -> bool {
        match asked {
            Asked::Subsystem(name) => self.subsystems.contains(name),
            Asked::Command(command) => match &self.commands {
                None => true,
                Some(patterns) => {
                    command::words(command).is_some_and(|words| patterns.iter().any(|pattern| pattern.matches(&words)))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threat_015_what_is_shown_of_a_command_hides_nothing_behind_blanks_or_length() {
        let shown = |command: &str| Asked::Command(command.into()).shown();
        assert_eq!(shown("git-upload-pack 'a/b'"), "git-upload-pack 'a/b'");
        for blank in [" ", "\u{3000}"] {
            let hidden = format!("ls{}; id", blank.repeat(600));
            assert_eq!(shown(&hidden), "ls ; id");
        }
        assert_eq!(shown(&format!("ls{}id", "\n".repeat(600))), "ls\u{fffd}id");
        let (one, other) = ("a".repeat(SHOWN) + "1", "a".repeat(SHOWN) + "2");
        let start = format!("{}… (513 bytes, SHA-256 ", "a".repeat(SHOWN));
        assert!(shown(&one).starts_with(&start) && shown(&one) != shown(&other));
        assert_eq!(Asked::Subsystem("sftp".to_owned()).shown(), "subsystem sftp");
    }
}
