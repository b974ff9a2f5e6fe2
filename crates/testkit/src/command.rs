//! Running a program, with everything it said when it fails.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A program of those that `scripts/prepare tests` puts into a folder of their own, or of this machine.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let own = prepared(name);
    if own.exists() { own } else { name.into() }
}

/// Where `scripts/prepare tests` puts a program.
pub fn prepared(name: &str) -> PathBuf {
    let folder =
        std::env::var_os("BELLJAR_TEST_PROGRAMS").map_or_else(|| "/opt/belljar-tests/bin".into(), PathBuf::from);
    folder.join(name)
}

/// Runs a program for at most a minute and gives its standard output; panics with all it said when it fails.
pub fn run(command: &mut Command) -> String {
    run_within(Duration::from_secs(60), command)
}

/// [`run`] with another limit. The program gets no input, and is killed at the limit.
pub fn run_within(limit: Duration, command: &mut Command) -> String {
    match try_run(limit, command) {
        Ok(output) => output,
        Err(report) => panic!("{report}"),
    }
}

pub(crate) fn try_run(limit: Duration, command: &mut Command) -> Result<String, String> {
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("start {command:?}: {error}"))?;
    let output = collect(child.stdout.take());
    let complaints = collect(child.stderr.take());
    let status = loop {
        match child
            .try_wait()
            .map_err(|error| format!("wait for {command:?}: {error}"))?
        {
            Some(status) => break Ok(status),
            None if begun.elapsed() > limit => {
                let _ = child.kill();
                let _ = child.wait();
                break Err(format!("killed {command:?} after {limit:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    match status {
        Ok(status) if status.success() => output.text(),
        Ok(status) => Err(format!(
            "{command:?} ended with {status}\n{}{}",
            output.text()?,
            complaints.text()?
        )),
        // Whoever still holds the pipes may never close them: what was said is not waited for.
        Err(killed) => Err(killed),
    }
}

struct Collected(std::thread::JoinHandle<std::io::Result<Vec<u8>>>);

fn collect(pipe: Option<impl Read + Send + 'static>) -> Collected {
    Collected(std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    }))
}

impl Collected {
    fn text(self) -> Result<String, String> {
        let bytes = self
            .0
            .join()
            .map_err(|_| "the reader of an output panicked".to_owned())?;
        let bytes = bytes.map_err(|error| format!("read an output: {error}"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "no such luck")]
    fn a_failure_shows_what_was_said() {
        run(Command::new("sh").args(["-c", "echo no such luck >&2; exit 3"]));
    }

    #[test]
    #[should_panic(expected = "killed")]
    fn a_program_that_hangs_is_killed() {
        run_within(Duration::from_millis(50), Command::new("sleep").arg("600"));
    }

    #[test]
    fn the_output_comes_back() {
        assert_eq!(run(Command::new("echo").arg("done")), "done\n");
    }
}
