//! Whether the list of system calls holds: who makes a container may leave it out, or get rules of it wrong, and says nothing.
//!
//! The first process of every sandbox tries it before it does anything else, and ends where it does not hold. [`trial`] does the
//! same with an image's shell, before there is any sandbox.

pub mod trial;

use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sandbox::{ProviderError, inside};

use crate::cgroup::Group;
use crate::process::{self, Process};

/// How long the runtime may take to be started once the container is made; it takes thousandths of that.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Waits until PID 1 has found that the list of system calls holds. `maker` is who was told to apply it, in words; `code` says
/// how PID 1 ended.
///
/// # Errors
/// [`ProviderError::Machine`] where it does not hold, or nothing is heard of it.
pub fn require_list(first: &Process, maker: &str, code: impl FnOnce() -> Option<i32>) -> Result<(), ProviderError> {
    let begun = Instant::now();
    loop {
        // In this order: what has ended may have given its number away.
        let named = says_that_it_holds(first.identity.pid);
        match (named, first.lives()) {
            (true, true) => return Ok(()),
            (_, false) => return ended(code, maker),
            (false, true) if begun.elapsed() > PATIENCE => return Err(silent(maker, PATIENCE)),
            (false, true) => thread::sleep(LOOK_AGAIN),
        }
    }
}

/// The same of a PID 1 that a kernel of its own answers, and that is started, or goes on, `within` a time. That it has looked shows
/// at its link, where it dials only then. What it called itself before, it told that kernel alone: where this machine's knows of
/// it, there is no other.
///
/// # Errors
/// As [`require_list`]; [`ProviderError::Machine`] where this machine's kernel is the one that answers.
pub fn require_own_kernel(
    first: &Process,
    group: &Group,
    link: BorrowedFd<'_>,
    within: Duration,
    maker: &str,
    code: impl FnOnce() -> Option<i32>,
) -> Result<(), ProviderError> {
    let begun = Instant::now();
    loop {
        let mut asked = [
            PollFd::from_borrowed_fd(link, PollFlags::IN),
            PollFd::new(first, PollFlags::IN),
        ];
        let left = Timespec::try_from(within.saturating_sub(begun.elapsed())).ok();
        match poll(&mut asked, left.as_ref()) {
            Ok(0) => return Err(silent(maker, within)),
            Ok(_) if asked[1].revents().is_empty() => break,
            Ok(_) => return ended(code, maker),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(ProviderError::failed("listen at the link of a sandbox", error)),
        }
    }
    let mut known = group.processes();
    known.insert(first.identity.pid);
    if known.into_iter().any(says_that_it_holds) {
        return Err(ProviderError::Machine {
            lacks: format!(
                "{maker} says that it is gVisor, a kernel of its own, and this machine's kernel answers what it starts: name the \
                 program that it really is in sandbox.runtime, or install gVisor's"
            ),
        });
    }
    Ok(())
}

/// Whether this machine's kernel was told so by a process.
fn says_that_it_holds(pid: i32) -> bool {
    process::name(pid).is_ok_and(|name| name == inside::LISTED_NAME.to_bytes())
}

/// For any other reason than the list it is somebody else's to notice, and to say why.
fn ended(code: impl FnOnce() -> Option<i32>, maker: &str) -> Result<(), ProviderError> {
    code().and_then(|code| refusal(code, maker)).map_or(Ok(()), Err)
}

fn silent(maker: &str, within: Duration) -> ProviderError {
    ProviderError::Machine {
        lacks: format!(
            "what {maker} started did not say within {} seconds that the list of system calls holds, so it is not let begin: look \
             at that maker's own messages, or take another OCI runtime (apt-get install runc)",
            within.as_secs()
        ),
    }
}

/// What is said of a first process that ended so, if it did because of the list.
#[must_use]
pub fn refusal(code: i32, maker: &str) -> Option<ProviderError> {
    let is = |known: u8| code == i32::from(known);
    if is(inside::UNLISTED) {
        return Some(unfiltered(maker));
    }
    is(inside::MISREAD).then(|| misread(maker))
}

/// What is said of a maker that applies no list.
#[must_use]
pub fn unfiltered(maker: &str) -> ProviderError {
    ProviderError::Machine {
        lacks: format!(
            "{maker} applies no list of system calls to what it starts, so nothing may be started by it: take an OCI runtime \
             that was built with seccomp (apt-get install runc)"
        ),
    }
}

/// What is said of one that gets its rules wrong.
#[must_use]
pub fn misread(maker: &str) -> ProviderError {
    ProviderError::Machine {
        lacks: format!(
            "{maker} gets rules about bits of an argument wrong (SCMP_CMP_MASKED_EQ) and lets users make namespaces, so nothing may \
             be started by it: take another OCI runtime (apt-get install runc)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What is said of a program that ends so.
    fn ended(code: u8) -> Result<(), ProviderError> {
        let mut child = Command::new("sh")
            .args(["-c", &format!("exit {code}")])
            .spawn()
            .unwrap();
        let process = Process::open(child.id().cast_signed()).unwrap();
        let judged = require_list(&process, "it", || {
            assert!(process.ends_within(PATIENCE));
            process.exit_code()
        });
        child.wait().unwrap();
        judged
    }

    #[test]
    fn how_the_first_process_ended_says_whether_the_list_held() {
        assert!(ended(1).is_ok());
        for (code, says) in [(inside::UNLISTED, "no list"), (inside::MISREAD, "bits of an argument")] {
            let refused = ended(code);
            assert!(
                matches!(&refused, Err(ProviderError::Machine { lacks }) if lacks.contains(says)),
                "{refused:?}"
            );
        }
    }
}
