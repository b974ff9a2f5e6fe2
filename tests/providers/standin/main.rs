//! A stand-in for `belljar-runtime`: PID 1 of the sandboxes in this crate's tests.
//!
//! As the runtime does, it looks whether the list of system calls holds, gives it to itself where that is left to it, and leads
//! the network likewise.
//!
//! It dials the link and waits for an order, one line of `<uid> <command for sh>`; then it dials anew for the next. The
//! answer is what the command says, and a last line with its exit code. Under the highest uid there is, a command is PID 1's
//! own: root's, and what it says goes where PID 1's words go.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use redirect::Redirect;
use rustix::thread::{CapabilitySet, set_name};
use sandbox::{capture, inside};
use sys::listed::{Listed, look};

const LINK: &str = "/run/belljar/link.sock";

fn main() -> ExitCode {
    if std::env::args()
        .nth(2)
        .is_some_and(|word| word == inside::LISTS_ARGUMENT)
        && let Err(error) = calls::give_to_this_process()
    {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    match look() {
        Listed::Missing => return ExitCode::from(inside::UNLISTED),
        Listed::Misread => return ExitCode::from(inside::MISREAD),
        Listed::Held => {}
    }
    if let Err(error) = set_name(inside::LISTED_NAME) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let redirect = Redirect {
        tcp_port: capture::TCP_PORT,
        resolver_v4: capture::DNS_ADDRESS,
        resolver_v6: capture::DNS_ADDRESS_V6,
        resolver_port: capture::DNS_PORT,
    };
    let rights = CapabilitySet::KILL | CapabilitySet::SETGID | CapabilitySet::SETUID;
    if let Err(error) = redirect::lay_and_give_up(&redirect, rights) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    loop {
        if let Ok(link) = UnixStream::connect(LINK) {
            let mut order = String::new();
            let mut reader = BufReader::new(&link);
            if matches!(reader.read_line(&mut order), Ok(1..)) {
                thread::spawn(move || obey(&link, order.trim_end()));
                continue;
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn obey(mut link: &UnixStream, order: &str) {
    let (uid, command) = order.split_once(' ').unwrap_or(("1000", "false"));
    let uid = uid.parse().unwrap_or(1000);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).stdin(Stdio::null());
    if uid == u32::MAX {
        shell.stdout(Stdio::inherit()).stderr(Stdio::inherit());
    } else {
        shell.uid(uid).gid(uid);
    }
    let output = shell.output();
    let answer = match output {
        Ok(output) => {
            let mut said = output.stdout;
            said.extend(output.stderr);
            said.extend(format!("\n{}", output.status.code().unwrap_or(-1)).into_bytes());
            said
        }
        Err(error) => format!("{error}\n-1").into_bytes(),
    };
    // Whoever asked may have gone.
    let _gone = link.write_all(&answer);
}
