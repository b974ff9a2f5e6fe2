//! What trials are made with.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use causes::with_causes;
use containers::overlay::leave_mount_namespace;

use super::{Finding, Machine, Verdict};

/// How long a program of a trial may take.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Why a trial failed, and what to do about it.
#[derive(Debug)]
pub(super) struct Lack {
    verdict: Verdict,
    says: String,
    mend: String,
}

impl Lack {
    pub(super) fn lacking(says: impl Display, mend: impl Display) -> Self {
        Self {
            verdict: Verdict::Lacking,
            says: says.to_string(),
            mend: mend.to_string(),
        }
    }

    pub(super) fn warning(says: impl Display, mend: impl Display) -> Self {
        Self {
            verdict: Verdict::Warning,
            ..Self::lacking(says, mend)
        }
    }

    pub(super) fn finding(self, what: &'static str) -> Finding {
        Finding {
            what,
            verdict: self.verdict,
            says: self.says,
            mend: Some(self.mend),
        }
    }

    pub(super) fn says(&self) -> &str {
        &self.says
    }
}

/// Names what lacks when a step of a trial fails.
pub(super) trait OrLacking<T> {
    fn or_lacking(self, says: &str, mend: impl Display) -> Result<T, Lack>;
}

impl<T, E: Display> OrLacking<T> for Result<T, E> {
    fn or_lacking(self, says: &str, mend: impl Display) -> Result<T, Lack> {
        self.map_err(|error| Lack::lacking(format!("{says}: {error}"), mend))
    }
}

/// Why a program did not do what it should.
#[derive(Debug)]
pub(super) enum NotDone {
    /// It is not there.
    Missing,
    /// It is there and may not be executed.
    Forbidden,
    /// It was started and failed; what it said.
    Failed(String),
}

impl NotDone {
    /// In words, where `package` brings the program.
    pub(super) fn lack(self, program: &Path, package: &str, otherwise: &str) -> Lack {
        let program = program.display();
        match self {
            Self::Missing => Lack::lacking(
                format!("the program {program} is not there"),
                format!("apt-get install {package}"),
            ),
            Self::Forbidden => Lack::lacking(
                format!("the program {program} may not be executed"),
                format!("apt-get install --reinstall {package}"),
            ),
            Self::Failed(said) => Lack::lacking(format!("{program} fails: {said}"), otherwise),
        }
    }
}

impl Machine {
    /// Runs a program and gives what it said.
    pub(super) fn run(&self, program: &Path, arguments: &[&str], input: &str) -> Result<String, NotDone> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::NotFound => NotDone::Missing,
            ErrorKind::PermissionDenied => NotDone::Forbidden,
            _ => NotDone::Failed(error.to_string()),
        };
        let mut child = self.command(program, arguments).spawn().map_err(failed)?;
        if let Some(mut pipe) = child.stdin.take() {
            // One that does not read what it is given says why itself.
            let _ = pipe.write_all(input.as_bytes());
        }
        let (said, complained) = (reader(child.stdout.take()), reader(child.stderr.take()));
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if begun.elapsed() > PATIENCE {
                end(&mut child);
                return Err(NotDone::Failed(format!("it was not done after {PATIENCE:?}")));
            }
            std::thread::sleep(LOOK_AGAIN);
        };
        let said = said.join().unwrap_or_default();
        if status.success() {
            return Ok(said);
        }
        let complained = complained.join().unwrap_or_default() + &said;
        let last = complained.lines().rev().find(|line| !line.trim().is_empty());
        Err(NotDone::Failed(last.map_or_else(
            || status.to_string(),
            |line| line.chars().take(300).collect(),
        )))
    }

    /// A program with pipes, in a process group of its own.
    pub(super) fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("PATH", &self.path)
            .env("LC_ALL", "C.UTF-8")
            .process_group(0);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Works in an empty folder on the data directory's file system, in a thread whose mounts nobody else sees. Folder and
    /// mounts are gone afterwards.
    pub(super) fn with_own_mounts(
        &self,
        work: impl FnOnce(&Path) -> Result<String, Lack> + Send,
    ) -> Result<String, Lack> {
        let folder = folder_in(self.place())?;
        let in_it = || {
            leave_mount_namespace()
                .map_err(|error| Lack::lacking(with_causes(&error), "run this as root (`sudo belljar doctor`)"))?;
            work(folder.path())
        };
        let worked = std::thread::scope(|scope| scope.spawn(in_it).join());
        // Only here: under the thread's own mounts it could not be removed.
        let removed = folder.close();
        let says =
            worked.unwrap_or_else(|_| Err(Lack::lacking("the trial itself went wrong", "report this as a fault")))?;
        removed.or_lacking(
            "the folder of a trial cannot be removed",
            "remove what is called .belljar-doctor-…",
        )?;
        Ok(says)
    }

    /// The data directory, or where it would be made.
    pub(super) fn place(&self) -> &Path {
        let mut places = self.data.ancestors();
        places.find(|folder| folder.is_dir()).unwrap_or(Path::new("/"))
    }
}

/// An empty folder that everybody may pass through.
pub(super) fn folder_in(place: &Path) -> Result<tempfile::TempDir, Lack> {
    let made = tempfile::Builder::new()
        .prefix(".belljar-doctor-")
        .permissions(std::fs::Permissions::from_mode(0o711))
        .tempdir_in(place);
    made.or_lacking(
        &format!("no folder can be made in {}", place.display()),
        "free some space there, or choose another data directory",
    )
}

/// A name for what the kernel or the OCI runtime knows by name; two doctors do not get in each other's way.
pub(super) fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "belljar-doctor-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Kills a program and what it started.
pub(super) fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could be read until the pipe broke is what it said.
        let _ = pipe.map(|pipe| pipe.take(1 << 20).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
