//! The tool `safebash`: one program that only looks, without a shell.
//!
//! Four walls stand one behind the other. The command is split into words by us, and whatever a shell would give a meaning
//! is refused ([`words`]). The program, and each of its flags, must be in a table ([`programs`]). It is started directly,
//! with an environment of ours and a Git that is told to trust nothing ([`environment`]). And where the kernel has Landlock it
//! may read the session's folders and the system's programs, write nothing, connect to nothing, and execute nothing but
//! itself. See `docs/adr/0030-safebash-without-a-shell.md`.

mod environment;
mod expand;
mod programs;
mod words;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::ResultPart;
use serde::Deserialize;

use crate::bounded::Collector;
use crate::process::{End, Program};
use crate::supervise::Confinement;
use crate::toolbox::{Answer, Bounds, Failure, beside, words as said};
use crate::{Files, Tools};

pub(crate) use environment::plain_environment;

/// Where programs are looked for: never in a folder that the user of the sandbox may write.
const PROGRAM_FOLDERS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    command: String,
}

/// A command was not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SafebashError {
    #[error("not run")]
    Words(#[from] words::WordsError),
    #[error("not run")]
    Refused(#[from] programs::Refused),
    #[error("{0} is not installed here")]
    NotInstalled(String),
    #[error("not run: what its patterns stand for is more than {most} bytes: name a folder, or use find")]
    TooMany { most: usize },
}

/// Runs a command that the table allows.
pub(crate) async fn run(tools: &Tools, arguments: Arguments, bounds: Bounds<'_>) -> Answer {
    let refused = |error: SafebashError| Failure::from(error);
    let words = words::split(&arguments.command).map_err(|error| refused(error.into()))?;
    let files = Arc::clone(&tools.files);
    let words = beside(move || Ok(expand::expand(&files, &words)?)).await?;
    let command = programs::check(&words).map_err(|error| refused(error.into()))?;
    let program =
        find_program(command.name).ok_or_else(|| refused(SafebashError::NotInstalled(command.name.to_owned())))?;

    let mut environment = plain_environment();
    if command.name == "git" {
        environment::for_git(&mut environment, tools.files.readable());
    }
    let running = tools.launcher.start(&Program {
        path: &program,
        arguments: &command.arguments,
        environment: &environment,
        input: false,
        // A repository's own configuration can name programs: without the kernel's help there is no Git.
        confinement: Some(&confinement(&tools.files, &program, command.name == "git")),
    })?;
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}-{}-{number}.txt", command.name, std::process::id());
    let mut output = Collector::clean(&tools.files, name, bounds.output_bytes.saturating_sub(200));
    let end = running
        .finish(&program, bounds.deadline, bounds.stop, |bytes| {
            let text = output.push(bytes);
            if !text.is_empty() {
                (bounds.progress)(&text);
            }
        })
        .await?;
    let text = output.finish().text;
    let with = |note: String| -> Vec<ResultPart> {
        let gap = if text.is_empty() || text.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        said(format!("{text}{gap}[{note}]"))
    };
    match end {
        End::Exited(0) if text.is_empty() => Ok(said("[no output]")),
        End::Exited(0) => Ok(said(text)),
        // Programs that look say "nothing found" or "they differ" with 1.
        End::Exited(1) if command.one_is_an_answer => Ok(with("exit code 1".to_owned())),
        End::Exited(code) => Err(Failure::Output(with(format!("exit code {code}")))),
        End::TimedOut => Err(Failure::Output(with(format!(
            "killed: it took longer than {} s",
            bounds.seconds
        )))),
        End::Stopped => Err(Failure::Stopped),
    }
}

/// Where a program is.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    PROGRAM_FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.is_file())
}

/// What a program that only looks may touch.
pub(crate) fn confinement(files: &Files, program: &Path, required: bool) -> Confinement {
    let system = [
        "/usr",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/bin",
        "/etc/ld.so.cache",
        "/etc/passwd",
        "/etc/group",
        "/etc/nsswitch.conf",
        "/etc/localtime",
        "/etc/magic",
        "/etc/fonts",
        "/dev/zero",
        "/dev/urandom",
    ];
    let loaders = [
        "/lib64/ld-linux-x86-64.so.2",
        "/lib/ld-linux-aarch64.so.1",
        "/lib/ld-linux-armhf.so.3",
        "/lib/ld-linux-riscv64-lp64d.so.1",
        "/lib64/ld64.so.2",
        "/lib/ld64.so.1",
        "/lib/ld-musl-x86_64.so.1",
        "/lib/ld-musl-aarch64.so.1",
    ];
    Confinement {
        required,
        read: files
            .readable()
            .map(Path::to_owned)
            .chain(system.into_iter().map(PathBuf::from))
            .collect(),
        write: vec!["/dev/null".into()],
        execute: std::iter::once(program.to_owned())
            .chain(loaders.into_iter().map(PathBuf::from))
            .collect(),
    }
}

#[cfg(test)]
mod tests;
