//! Programs of the machine that make disks and work on them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use sandbox::ProviderError;
use sys::child::end_with_parent;

use crate::attempt::Attempt;
use crate::disk::named::half;
use crate::process::Process;

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
        let output = self.end_of(command.spawn()?)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code().is_some_and(|code| code <= self.fine) {
            return Ok(said);
        }
        let complained = String::from_utf8_lossy(&output.stderr);
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

    /// What it said until its end, in its time.
    fn end_of(self, mut child: Child) -> io::Result<Output> {
        let process = Process::open(child.id().cast_signed()).inspect_err(|_| {
            // What could not be watched is what the caller learns of.
            let _ended = child.kill().and_then(|()| child.wait());
        })?;
        let (output, in_time) = thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let in_time = process.ends_within(self.within);
                if !in_time {
                    process.kill();
                }
                in_time
            });
            (child.wait_with_output(), watching.join())
        });
        if let Ok(false) = in_time {
            let words = format!(
                "{} took longer than {} s and was ended",
                self.name,
                self.within.as_secs()
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, words));
        }
        output
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
