//! What becomes of a child process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the kernel kill (SIGKILL) what this command starts as soon as the thread that starts it ends, however it ends. So it is to
/// be started by a thread that lives as long as the process, such as the main one.
///
/// A program that gains rights when it is executed (set-user-ID, file capabilities) loses this again.
pub fn end_with_parent(command: &mut Command) {
    let parent = libc::pid_t::try_from(std::process::id()).unwrap_or_default();
    let prepare = move || {
        // SAFETY: a bare system call that takes two numbers and touches no memory.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it has no arguments and cannot fail.
        if unsafe { libc::getppid() } != parent {
            // It ended before the kernel knew of the wish.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only what is safe after a fork of a process with threads may happen: these are two system
    // calls, and errors that allocate nothing.
    unsafe { command.pre_exec(prepare) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let starting = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("60");
            end_with_parent(&mut command);
            command.spawn().expect("a child")
        });
        let mut child = starting.join().expect("a thread that ends");
        assert_eq!(child.wait().expect("its end").signal(), Some(libc::SIGKILL));
    }
}
