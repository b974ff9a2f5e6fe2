//! Programs of the machine that make disks and work on them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandbox::ProviderError;

use crate::attempt::Attempt;
use crate::disk::named::half;
use crate::process::Crew;

/// How much is kept of what a program says, in bytes.
const MOST_WORDS: usize = 16 << 10;

/// A program, and what brings it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    /// The Debian package.
    pub(super) package: &'static str,
    /// The highest exit code that is no failure.
    pub(super) fine: i32,
    /// How long it may take; then it is ended.
    pub(super) within: Duration,
}

impl Program {
    /// What it says; where it fails, its words are the error.
    pub(super) fn run(self, flags: &[&str], rest: &[&OsStr]) -> io::Result<String> {
        let mut command = Command::new(self.name);
        command.env("LC_ALL", "C").args(flags).args(rest);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (output, in_time) = Crew::start(command, None)?.output(|program| program.ends_within(self.within))?;
        if !in_time {
            let words = format!(
                "{} took longer than {} s and was ended",
                self.name,
                self.within.as_secs()
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, words));
        }
        let (said, complained) = (words_of(&output.stdout), words_of(&output.stderr));
        if output.status.code().is_some_and(|code| code <= self.fine) {
            return Ok(said);
        }
        let words = format!("{} {}", complained.trim(), said.trim());
        let kind = if words.contains("No space left on device") {
            io::ErrorKind::StorageFull
        } else {
            io::ErrorKind::Other
        };
        let words = match words.trim() {
            "" => output.status.to_string(),
            words => words.to_owned(),
        };
        Err(io::Error::new(kind, words))
    }

    /// The same where it is needed for something: a machine without it is told what lacks.
    pub(super) fn needed(
        self,
        flags: &[&str],
        rest: &[&OsStr],
        attempt: impl FnOnce() -> String,
    ) -> Result<String, ProviderError> {
        match self.run(flags, rest) {
            // Any other than those of its own words: it was not even started.
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::Other | io::ErrorKind::StorageFull | io::ErrorKind::TimedOut
                ) =>
            {
                Err(ProviderError::Machine {
                    lacks: format!(
                        "{} cannot be run ({error}); install it: apt-get install {}",
                        self.name, self.package
                    ),
                })
            }
            ran => ran.attempt(attempt),
        }
    }
}

/// The beginning of what was said: a stranger's files can make a program complain of each of them.
fn words_of(said: &[u8]) -> String {
    String::from_utf8_lossy(&said[..said.len().min(MOST_WORDS)]).into_owned()
}

/// Makes a sparse file with a file system in it, as large as it may become: whole or not at all.
pub(super) fn make_file(path: &Path, bytes: u64, mkfs: Program, flags: &[&str]) -> Result<(), ProviderError> {
    let attempt = || format!("make the disk {}", path.display());
    let half = half(path);
    let made = File::create(&half)
        .and_then(|file| file.set_len(bytes))
        .attempt(attempt)
        .and_then(|()| mkfs.needed(flags, &[half.as_os_str()], attempt))
        .and_then(|_| fs::rename(&half, path).attempt(attempt));
    if made.is_err() {
        // What could not be made is what the caller learns of; at the next start it is cleared again.
        let _cleared = fs::remove_file(&half);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_words_the_first_are_kept_and_it_ends_all_the_same() {
        let program = Program {
            name: "sh",
            package: "dash",
            fine: 0,
            within: Duration::from_secs(60),
        };
        let script =
            "echo first; echo why >&2; head -c 3000000 /dev/zero | tr '\\0' x >&2; yes | head -c 3000000; exit 3";
        let words = program.run(&["-c", script], &[]).unwrap_err().to_string();
        assert!(words.starts_with("why"), "{}", &words[..40]);
        assert!(words.len() < 40_000, "{} bytes are kept", words.len());
    }

    #[test]
    fn what_takes_too_long_is_ended_and_says_so() {
        let program = Program {
            name: "sleep",
            package: "coreutils",
            fine: 0,
            within: Duration::ZERO,
        };
        let ended = program.needed(&["86400"], &[], || "wait for a day".to_owned());
        let Err(ProviderError::Failed { attempt, source }) = ended else {
            panic!("{ended:?}");
        };
        assert_eq!(attempt, "wait for a day");
        assert_eq!(source.to_string(), "sleep took longer than 0 s and was ended");
        let program = Program {
            within: Duration::from_secs(60),
            ..program
        };
        assert_eq!(program.run(&["0"], &[]).unwrap(), "");
    }
}
