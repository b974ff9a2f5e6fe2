//! What becomes of a child process.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, setrlimit};

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

/// Has the kernel end what this command starts, and what that starts, before others where memory ends: by how many thousandths of
/// it they count as larger than they are (`oom_score_adj`).
pub fn end_first(command: &mut Command, thousandths: u16) {
    let text = thousandths.to_string();
    let prepare = move || {
        let file = rustix::fs::open(OWN_SCORE, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, text.as_bytes())?;
        Ok(())
    };
    // SAFETY: between fork and exec only what is safe after a fork of a process with threads may happen: these are system calls
    // on a constant, on bytes that were there before, and on a descriptor; errors allocate nothing.
    unsafe { command.pre_exec(prepare) };
}

const OWN_SCORE: &CStr = c"/proc/self/oom_score_adj";

/// Has what this command starts write into a file what the kernel says of it in its `stat`, its number and its start among that,
/// before it does anything: whoever reads the file knows it, whatever has become of this process since. The command holds the
/// file open as long as it is there.
pub fn note_itself(command: &mut Command, file: OwnedFd) {
    let prepare = move || {
        let own = rustix::fs::open(OWN_STAT, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut said = [0; 1_024];
        let length = rustix::io::read(&own, &mut said)?;
        let written = rustix::io::write(&file, &said[..length])?;
        if written == length {
            Ok(())
        } else {
            Err(io::ErrorKind::StorageFull.into())
        }
    };
    // SAFETY: between fork and exec only what is safe after a fork of a process with threads may happen: these are system calls
    // on a constant, on the stack, and on descriptors, one of which is the closure's own; errors allocate nothing.
    unsafe { command.pre_exec(prepare) };
}

const OWN_STAT: &CStr = c"/proc/self/stat";

/// Hands a socket to what this command starts, as systemd does: descriptor 3, and `LISTEN_FDS`. The process is not named, as it
/// is not known before it starts; who takes the socket is to do without. The socket is to be open whenever the command starts:
/// what has its number then is handed over.
pub fn hand_over(command: &mut Command, socket: &impl AsRawFd) {
    const FIRST: RawFd = 3;
    command.env("LISTEN_FDS", "1").env_remove("LISTEN_PID");
    let socket = socket.as_raw_fd();
    let prepare = move || {
        // SAFETY: bare system calls that take numbers and touch no memory. A descriptor 3 that is replaced was to be closed by
        // what comes next, the execution of another program; one that is the socket already is left open instead.
        let done = unsafe {
            if socket == FIRST {
                libc::fcntl(socket, libc::F_SETFD, 0)
            } else {
                libc::dup2(socket, FIRST)
            }
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only what is safe after a fork of a process with threads may happen: this is one system call,
    // and an error that allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

/// Has this command start in a session of its own, with these limits, and neither it nor what it starts ever leave it: who kills
/// its process group kills all of them.
///
/// Leaving is refused with `EPERM`, and so are the system calls of the x32 kind, which pass by filters that know numbers alone.
/// Programs of another architecture have other numbers: whoever starts strangers keeps those out by a filter of its own.
/// A limit that is lower already stays. The thread that starts the command must have given up new privileges, or start it as root.
pub fn enclose(command: &mut Command, limits: &'static [(Resource, u64)]) {
    let prepare = move || {
        for (resource, most) in limits {
            let now = rustix::process::getrlimit(*resource);
            let most = Some(now.maximum.map_or(*most, |allowed| allowed.min(*most)));
            let limit = Rlimit {
                current: most,
                maximum: most,
            };
            setrlimit(*resource, limit)?;
        }
        rustix::process::setsid()?;
        let program = libc::sock_fprog {
            len: STAYS.len() as libc::c_ushort,
            filter: STAYS.as_ptr().cast_mut(),
        };
        // SAFETY: the kernel reads the filter, which is a constant, and copies it; nothing is written.
        match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only what is safe after a fork of a process with threads may happen: these are system calls
    // on numbers and constants, and errors that allocate nothing.
    unsafe { command.pre_exec(prepare) };
}

/// The lowest number of a system call of the x32 kind: <https://www.kernel.org/doc/html/latest/arch/x86/index.html>.
const X32: u32 = 0x4000_0000;

/// Refuses leaving a session or a group, and what is of another kind.
static STAYS: [libc::sock_filter; 6] = [
    // the number, which stands first in what a filter sees
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
    step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, X32, 3, 0),
    step(
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::SYS_setsid as u32,
        2,
        0,
    ),
    step(
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::SYS_setpgid as u32,
        1,
        0,
    ),
    step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    step(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        0,
        0,
    ),
];

/// An instruction of a filter: where it jumps if so, and if not.
const fn step(code: u32, value: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k: value,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
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

    #[test]
    fn a_child_that_ends_first_counts_as_larger() {
        let mut command = Command::new("sh");
        command.args(["-c", "cat /proc/self/oom_score_adj"]);
        end_first(&mut command, 1_000);
        assert_eq!(command.output().expect("it runs").stdout, b"1000\n");
    }

    #[test]
    fn a_child_is_noted_before_it_runs() {
        let (mut reading, writing) = io::pipe().expect("a pipe");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$"]);
        note_itself(&mut command, writing.into());
        let said = command.output().expect("it runs").stdout;
        drop(command);
        let mut noted = String::new();
        reading.read_to_string(&mut noted).expect("text");
        let (number, _) = noted.split_once(" (").expect("a number and a name");
        assert_eq!(number, String::from_utf8_lossy(&said).trim());
    }

    #[test]
    fn nothing_leaves_its_session_and_limits_hold() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "ulimit -n; setsid -w true && echo left; ps -o sid= -p $$ | tr -d ' '; echo $$",
        ]);
        enclose(&mut command, &[(Resource::Nofile, 77)]);
        let said = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).expect("it may be given up");
            command.output().expect("it runs")
        });
        let said = String::from_utf8(said.join().expect("a thread that ends").stdout).expect("text");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.first(), Some(&"77"), "{said}");
        assert_eq!(lines.len(), 3, "{said}");
        assert_eq!(lines[1], lines[2], "it leads its session: {said}");
    }
}
