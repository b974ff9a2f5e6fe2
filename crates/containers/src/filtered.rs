//! Whether the list of system calls was applied: an OCI runtime that was built without it says nothing and goes on.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use sandbox::ProviderError;

use crate::attempt::Attempt;
use crate::process::Process;

/// How long the runtime may take to be started once the container is made; it takes thousandths of that.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Waits until the kernel filters what PID 1 asks of it, which is so before it is the runtime's program. `maker` is who was
/// told to, in words.
///
/// # Errors
/// [`ProviderError::Machine`] where it became that program unfiltered.
pub fn require_filter(first: &Process, runtime: &Path, maker: &str) -> Result<(), ProviderError> {
    let folder = format!("/proc/{}", first.identity.pid);
    let place = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let runtime_place = place(runtime).attempt(|| format!("look at {}", runtime.display()))?;
    let begun = Instant::now();
    loop {
        // In this order: the filter is there before the program is.
        let started = place(&Path::new(&folder).join("exe")).is_ok_and(|found| found == runtime_place);
        let status = fs::read_to_string(format!("{folder}/status")).unwrap_or_default();
        // One that has ended is somebody else's to notice, and to say why.
        if is_filtered(&status) || !first.lives() {
            return Ok(());
        }
        if started || begun.elapsed() > PATIENCE {
            return Err(unfiltered(maker));
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// What is said of one that applies no list.
#[must_use]
pub fn unfiltered(maker: &str) -> ProviderError {
    ProviderError::Machine {
        lacks: format!(
            "{maker} applies no list of system calls to what it starts, so nothing may be started by it: take an OCI runtime \
             that was built with seccomp (apt-get install runc)"
        ),
    }
}

fn is_filtered(status: &str) -> bool {
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_mode_2() {
        let status = |mode: &str| format!("Name:\tsh\nNoNewPrivs:\t1\nSeccomp:\t{mode}\nSeccomp_filters:\t2\n");
        assert!(is_filtered(&status("2")));
        for mode in ["0", "1", "22", ""] {
            assert!(!is_filtered(&status(mode)), "{mode}");
        }
        assert!(!is_filtered(""));
    }
}
