//! Programs that do a part of the work: each has a deadline, and what it said last stands in its error.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, PipeReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::BuildError;

/// What to show while an image is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress<'a> {
    /// Another part of the work begins.
    Stage(&'a str),
    /// A line that a program said.
    Line(&'a str),
}

/// A program that did not do its part.
#[derive(Debug, thiserror::Error)]
pub enum OutsideError {
    /// It is not there, or cannot be executed.
    #[error("{program} could not be started: is it installed? (apt-get install {package})")]
    Start {
        /// Its name.
        program: String,
        /// What brings it.
        package: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It ended and said that it failed.
    #[error("{program} failed ({status}); it said last:\n{said}")]
    Failed {
        /// Its name.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// Its last lines.
        said: String,
    },
    /// It was killed, because it said nothing for too long each time it was tried.
    #[error(
        "{program} said nothing for {quiet:?} and was stopped, {attempts} times: does the package registry answer? It said last:\n{said}"
    )]
    Quiet {
        /// Its name.
        program: String,
        /// How long nothing was heard.
        quiet: Duration,
        /// How often it was tried.
        attempts: u32,
        /// Its last lines.
        said: String,
    },
    /// It was killed at its deadline.
    #[error("{program} was not done after {deadline:?} and was stopped; it said last:\n{said}")]
    Late {
        /// Its name.
        program: String,
        /// The deadline.
        deadline: Duration,
        /// Its last lines.
        said: String,
    },
    /// It could not be watched.
    #[error("{program} could not be watched")]
    Watch {
        /// Its name.
        program: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// How long a program may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// All attempts together.
    pub(crate) deadline: Duration,
    /// Without a word.
    pub(crate) quiet: Duration,
    /// How often it is begun anew after it fell silent.
    pub(crate) attempts: u32,
}

/// A program to run.
#[derive(Debug)]
pub(crate) struct Outside {
    /// What it is run for: completes "could not …".
    pub(crate) stage: &'static str,
    /// What people call it.
    pub(crate) name: &'static str,
    /// The Debian package that brings it.
    pub(crate) package: &'static str,
    /// The command; made anew for each attempt.
    pub(crate) arguments: Vec<std::ffi::OsString>,
    /// Added to the environment.
    pub(crate) environment: Vec<(&'static str, std::ffi::OsString)>,
}

/// Begins a command whose program is killed when the thread that started it ends, however that comes: it would go on
/// writing into a folder that is nobody's.
pub(crate) const ENDING_WITH_US: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

const LINES_KEPT: usize = 20;
const LINE_LENGTH: usize = 300;
const WATCH: Duration = Duration::from_millis(100);

impl Outside {
    /// Runs it to its end. `before` is called before each attempt, to remove what an earlier one left.
    pub(crate) fn run(
        &self,
        patience: Patience,
        progress: &mut dyn FnMut(Progress<'_>),
        mut before: impl FnMut() -> Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        let begun = Instant::now();
        for attempt in 1.. {
            before()?;
            match self.attempt(begun + patience.deadline, patience, attempt, progress) {
                Err(OutsideError::Quiet { .. }) if attempt < patience.attempts => {
                    progress(Progress::Line(&format!("{} fell silent and is begun anew", self.name)));
                }
                end => {
                    return end.map_err(|source| BuildError::Outside {
                        stage: self.stage,
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    fn attempt(
        &self,
        deadline: Instant,
        patience: Patience,
        attempts: u32,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), OutsideError> {
        let watch = |source| OutsideError::Watch {
            program: self.name.to_owned(),
            source,
        };
        let (mut child, lines) = self.start()?;
        let mut last = VecDeque::with_capacity(LINES_KEPT);
        let mut heard = Instant::now();
        let status = loop {
            match lines.recv_timeout(WATCH) {
                Ok(line) => {
                    heard = Instant::now();
                    progress(Progress::Line(&line));
                    if last.len() == LINES_KEPT {
                        last.pop_front();
                    }
                    last.push_back(line);
                }
                Err(end) => {
                    if let Some(status) = child.try_wait().map_err(watch)? {
                        break status;
                    }
                    if end == RecvTimeoutError::Disconnected {
                        // Everybody closed the output: only the end of the program is left to wait for.
                        std::thread::sleep(WATCH / 10);
                    }
                }
            }
            let (late, silent) = (Instant::now() >= deadline, heard.elapsed() >= patience.quiet);
            if late || silent {
                kill(&mut child);
                let (program, said) = (self.name.to_owned(), text(&last));
                return Err(if late {
                    OutsideError::Late {
                        program,
                        deadline: patience.deadline,
                        said,
                    }
                } else {
                    OutsideError::Quiet {
                        program,
                        quiet: patience.quiet,
                        attempts,
                        said,
                    }
                });
            }
        };
        if status.success() {
            return Ok(());
        }
        Err(OutsideError::Failed {
            program: self.name.to_owned(),
            status,
            said: text(&last),
        })
    }

    fn start(&self) -> Result<(Child, Receiver<String>), OutsideError> {
        let watch = |source| OutsideError::Watch {
            program: self.name.to_owned(),
            source,
        };
        let (reader, writer) = std::io::pipe().map_err(watch)?;
        let mut arguments = self.arguments.iter();
        let mut command = Command::new(
            arguments
                .next()
                .ok_or_else(|| watch(std::io::ErrorKind::InvalidInput.into()))?,
        );
        command
            .args(arguments)
            .env("LC_ALL", "C.UTF-8")
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone().map_err(watch)?)
            .stderr(writer)
            .process_group(0);
        let child = command.spawn().map_err(|source| OutsideError::Start {
            program: self.name.to_owned(),
            package: self.package,
            source,
        })?;
        // The command holds the pipe's other end; the reader would never see its end.
        drop(command);
        let (sender, lines) = sync_channel(100);
        std::thread::spawn(move || {
            // Nobody listens any more: the program may still want to say something, and must not be stopped by that.
            read_lines(reader, |line| {
                let _ = sender.send(line);
            });
        });
        Ok((child, lines))
    }
}

fn read_lines(output: PipeReader, mut heard: impl FnMut(String)) {
    let mut output = BufReader::new(output);
    let mut bytes = Vec::new();
    while output.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) {
        let line = String::from_utf8_lossy(&bytes);
        // Progress bars overwrite themselves: the last state is the line.
        let line = line.trim_end().rsplit('\r').next().unwrap_or_default();
        if !line.is_empty() {
            heard(
                line.chars()
                    .filter(|letter| !letter.is_control())
                    .take(LINE_LENGTH)
                    .collect(),
            );
        }
        bytes.clear();
    }
}

/// Kills the program and what it started in its process group.
fn kill(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

fn text(lines: &VecDeque<String>) -> String {
    if lines.is_empty() {
        return "  (nothing)".to_owned();
    }
    lines
        .iter()
        .map(|line| format!("  {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        deadline: Duration::from_secs(30),
        quiet: Duration::from_secs(20),
        attempts: 1,
    };

    fn shell(script: &str) -> Outside {
        Outside {
            stage: "try",
            name: "sh",
            package: "dash",
            arguments: ["sh", "-c", script].map(Into::into).into(),
            environment: Vec::new(),
        }
    }

    fn run(outside: &Outside, patience: Patience) -> Result<Vec<String>, OutsideError> {
        let mut heard = Vec::new();
        outside
            .run(
                patience,
                &mut |progress| {
                    if let Progress::Line(line) = progress {
                        heard.push(line.to_owned());
                    }
                },
                || Ok(()),
            )
            .map_err(|error| match error {
                BuildError::Outside { source, .. } => source,
                other => panic!("{other}"),
            })?;
        Ok(heard)
    }

    #[test]
    fn what_it_says_is_heard_line_by_line() {
        let heard = run(&shell("echo one; echo two >&2; printf 'bar 1\\rbar 2\\n'"), PATIENCE).unwrap();
        assert_eq!(heard, ["one", "two", "bar 2"]);
    }

    #[test]
    fn a_failure_shows_the_last_lines() {
        let error = run(&shell("for n in $(seq 50); do echo line $n; done; exit 7"), PATIENCE).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("exit status: 7") && said.contains("line 50") && !said.contains("line 30\n"),
            "{said}"
        );
    }

    #[test]
    fn one_that_falls_silent_is_begun_anew_and_given_up() {
        let outside = shell("echo begun; sleep 600");
        let patience = Patience {
            quiet: Duration::from_millis(300),
            attempts: 2,
            ..PATIENCE
        };
        let error = run(&outside, patience).unwrap_err();
        assert!(matches!(error, OutsideError::Quiet { attempts: 2, .. }), "{error}");
        assert!(error.to_string().contains("begun"), "{error}");
    }

    #[test]
    fn one_that_never_ends_is_stopped_with_its_children() {
        let outside = shell("(while :; do echo busy; sleep 0.02; done) & wait");
        let patience = Patience {
            deadline: Duration::from_millis(300),
            ..PATIENCE
        };
        let error = run(&outside, patience).unwrap_err();
        assert!(matches!(error, OutsideError::Late { .. }), "{error}");
    }

    #[test]
    fn one_whose_starter_is_gone_ends_too() {
        let starter = std::thread::spawn(|| {
            let mut outside = shell("");
            outside.arguments = ENDING_WITH_US.iter().chain(&["sleep", "600"]).map(Into::into).collect();
            let (child, _lines) = outside.start().unwrap();
            let name = format!("/proc/{}/comm", child.id());
            let is_begun = || std::fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n");
            testkit::eventually("the program to begin", || is_begun().then_some(()));
            child
        });
        let mut child = starter.join().unwrap();
        testkit::eventually("the program's end", || child.try_wait().unwrap());
    }

    #[test]
    fn a_program_that_is_lacking_is_named_with_its_package() {
        let outside = Outside {
            arguments: vec!["/no/such/program".into()],
            ..shell("")
        };
        let said = run(&outside, PATIENCE).unwrap_err().to_string();
        assert!(said.contains("apt-get install dash"), "{said}");
    }
}
