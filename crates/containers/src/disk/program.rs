//! Programs of the machine that make disks and work on them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use sandbox::ProviderError;
use sys::child::end_with_parent;

use crate::attempt::Attempt;
use crate::disk::named::half;
use crate::process::Process;

/// How much is kept of what a program says, in bytes.
const MOST_WORDS: u64 = 16 << 10;

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
        // This thread waits for its end. Where this process is killed meanwhile, it would go on in what the next one clears.
        end_with_parent(&mut command);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (status, said, complained) = self.end_of(command.spawn()?)?;
        if status.code().is_some_and(|code| code <= self.fine) {
            return Ok(said);
        }
        let words = format!("{} {}", complained.trim(), said.trim());
        let kind = if words.contains("No space left on device") {
            io::ErrorKind::StorageFull
        } else {
            io::ErrorKind::Other
        };
        let words = match words.trim() {
            "" => status.to_string(),
            words => words.to_owned(),
        };
        Err(io::Error::new(kind, words))
    }

    /// How it ended in its time, what it said until then, and what it complained of.
    fn end_of(self, mut child: Child) -> io::Result<(ExitStatus, String, String)> {
        let process = Process::open(child.id().cast_signed()).inspect_err(|_| {
            // What could not be watched is what the caller learns of.
            let _ended = child.kill().and_then(|()| child.wait());
        })?;
        let (said, complained) = (child.stdout.take(), child.stderr.take());
        let (said, complained, in_time) = thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let in_time = process.ends_within(self.within);
                if !in_time {
                    process.kill();
                }
                in_time
            });
            let complained = scope.spawn(|| words_of(complained));
            (words_of(said), complained.join(), watching.join())
        });
        let status = child.wait()?;
        if let Ok(false) = in_time {
            let words = format!(
                "{} took longer than {} s and was ended",
                self.name,
                self.within.as_secs()
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, words));
        }
        let complained = complained.unwrap_or_else(|_| Ok(String::new()));
        Ok((status, said?, complained?))
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

/// What comes out of a pipe, its beginning if it is long: a stranger's files can make a program complain of each of them.
fn words_of(pipe: Option<impl Read>) -> io::Result<String> {
    let Some(mut pipe) = pipe else {
        return Ok(String::new());
    };
    let mut words = Vec::new();
    pipe.by_ref().take(MOST_WORDS).read_to_end(&mut words)?;
    // It would end, or wait for somebody to listen.
    io::copy(&mut pipe, &mut io::sink())?;
    Ok(String::from_utf8_lossy(&words).into_owned())
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
