//! A command that starts others: ended with all of them, or not at all.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use sys::child::{end_with_parent, note_itself};

use super::seen::{self, Stat};
use super::{Boot, PATIENCE, Process};

/// What is kept of what a command says, in bytes.
const MOST_WORDS: u64 = 1 << 20;

/// A command at work that leads a process group of its own, and whoever is in that: what the command started, unless it left.
///
/// The command ends with the thread that started it, which is to wait for it.
#[derive(Debug)]
pub struct Crew {
    child: Child,
    leader: Process,
}

impl Crew {
    /// Starts a command. Whoever finds the file `noted`, if one is named, can end what is left of the crew where this process is
    /// killed: [`end_noted`].
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(mut command: Command, noted: Option<&Path>) -> io::Result<Self> {
        if let Some(noted) = noted {
            let mut note = File::create(noted)?;
            writeln!(note, "{}", Boot::now().map(String::from).unwrap_or_default())?;
            note_itself(&mut command, note.into());
        }
        end_with_parent(&mut command);
        let mut child = command.process_group(0).spawn()?;
        match Process::open(child.id().cast_signed()) {
            Ok(leader) => Ok(Self { child, leader }),
            Err(error) => {
                // What could not be watched is what the caller learns of.
                let _ended = child.kill().and_then(|()| child.wait());
                Err(error)
            }
        }
    }

    /// How the command ended. Where it takes longer than this, or fails, whoever is in its group is ended too; else they go on.
    ///
    /// # Errors
    /// Where somebody of them cannot be ended.
    pub fn finish(mut self, within: Duration) -> io::Result<ExitStatus> {
        if !self.leader.ends_within(within) || self.leader.exit_code() != Some(0) {
            self.end()?;
        }
        self.bury()
    }

    /// What the command said into pipes, and what came of watching it, which is to last until it ends or should. Then whoever is
    /// in its group is ended.
    ///
    /// # Errors
    /// Where somebody of them cannot be ended, or what was said cannot be read: somebody who left the group holds it open.
    pub fn output<T>(mut self, watch: impl FnOnce(&Process) -> T) -> io::Result<(Output, T)> {
        let said = heard(self.child.stdout.take().map(OwnedFd::from))?;
        let complained = heard(self.child.stderr.take().map(OwnedFd::from))?;
        let watched = watch(&self.leader);
        self.end()?;
        let output = Output {
            status: self.bury()?,
            stdout: words(&said)?,
            stderr: words(&complained)?,
        };
        Ok((output, watched))
    }

    /// Takes the command, which has ended, off the list of processes, with those of its group who fall to us.
    fn bury(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        bury_group(self.leader.identity.pid);
        Ok(status)
    }

    /// Ends all of it. The command is not buried yet, so the number of its group is nobody else's.
    fn end(&self) -> io::Result<()> {
        let pid = self.leader.identity.pid;
        if let Some(group) = Pid::from_raw(pid) {
            // Nobody is born into a group while it is killed. The only failure is that all have ended already.
            let _ended = kill_process_group(group, Signal::KILL);
        }
        end_all(|process| process.group == pid, |process| process.pid != pid)
    }
}

/// Ends what is left of a crew whose starter was killed, as far as is noted of it. Nothing where nothing is noted.
///
/// # Errors
/// Where the note cannot be read, or somebody cannot be ended.
pub fn end_noted(noted: &Path) -> io::Result<()> {
    let text = match fs::read(noted) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        text => text?,
    };
    let Some((boot, stat)) = text.iter().position(|byte| *byte == b'\n').map(|at| text.split_at(at)) else {
        return Ok(());
    };
    // Before the command notes itself it has started nobody.
    let Some(leader) = Stat::understand(stat) else {
        return Ok(());
    };
    let boot: Option<Boot> = std::str::from_utf8(boot).ok().and_then(|boot| boot.parse().ok());
    if boot != Boot::now() {
        return Ok(());
    }
    match Stat::of(leader.pid) {
        // A number is given away only when nobody is in the group that has it.
        Ok(other) if other.started != leader.started => return Ok(()),
        _ => {}
    }
    let is_of_it = |process: &Stat| {
        process.group == leader.pid && process.session == leader.session && process.started >= leader.started
    };
    end_all(is_of_it, |_| true)
}

/// Ends everybody who is of it, and whom they start meanwhile, and buries who falls to us.
fn end_all(is_of_it: impl Fn(&Stat) -> bool, to_bury: impl Fn(&Stat) -> bool) -> io::Result<()> {
    loop {
        let mut found_alive = false;
        let mut dead = Vec::new();
        for pid in seen::all() {
            if !Stat::of(pid).is_ok_and(|stat| is_of_it(&stat)) {
                continue;
            }
            let Ok(process) = Process::open(pid) else { continue };
            // Looked at once more, now that it keeps its number.
            let Some(stat) = Stat::of(pid).ok().filter(|stat| is_of_it(stat)) else {
                continue;
            };
            if process.lives() {
                found_alive = true;
                process.kill();
            }
            if to_bury(&stat) {
                dead.push(process);
            } else if !process.ends_within(PATIENCE) {
                return Err(still_lives(pid));
            }
        }
        // What they started falls to us when they have ended.
        for process in dead {
            if !process.ends_within(PATIENCE) {
                return Err(still_lives(process.identity.pid));
            }
            process.bury();
        }
        if !found_alive {
            return Ok(());
        }
    }
}

fn still_lives(pid: i32) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("process {pid} still lives {PATIENCE:?} after it was killed"),
    )
}

/// Buries those of a group who have ended and fall to us.
fn bury_group(number: i32) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while let Ok(Some(_buried)) = waitid(WaitId::Pgid(Pid::from_raw(number)), options) {}
}

/// Reads a pipe to its end, in a thread of its own that nobody has to wait for. What is not kept is read too: whoever writes
/// would end, or wait for somebody to listen.
fn heard(pipe: Option<OwnedFd>) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new().spawn(move || {
        let all = || {
            let mut bytes = Vec::new();
            if let Some(pipe) = pipe {
                let pipe = File::from(pipe);
                (&pipe).take(MOST_WORDS).read_to_end(&mut bytes)?;
                io::copy(&mut &pipe, &mut io::sink())?;
            }
            Ok(bytes)
        };
        // Nobody waits for it any more where it took too long.
        let _too_late = sender.send(all());
    })?;
    Ok(receiver)
}

fn words(heard: &Receiver<io::Result<Vec<u8>>>) -> io::Result<Vec<u8>> {
    heard.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        let words = "somebody who was started by it has left its process group and holds its output open";
        Err(io::Error::new(io::ErrorKind::TimedOut, words))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    use std::time::Instant;

    use rustix::process::{getpid, set_child_subreaper};

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// A shell, which starts another that waits for a day and tells its number, and then does this.
    fn shell(folder: &Path, then: &str) -> Command {
        // Whose parent has ended falls to this process.
        set_child_subreaper(Some(getpid())).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("sleep 86400 & echo $! > new; mv new started; {then}")]);
        shell.current_dir(folder).stdin(Stdio::null());
        shell
    }

    /// The process that the shell started.
    fn started(folder: &Path) -> i32 {
        let begun = Instant::now();
        loop {
            let told = fs::read_to_string(folder.join("started")).unwrap_or_default();
            match told.trim().parse() {
                Ok(pid) => return pid,
                Err(_) => assert!(begun.elapsed() < SOON, "it was not started"),
            }
            thread::yield_now();
        }
    }

    #[test]
    fn what_fails_is_ended_and_buried_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let crew = Crew::start(shell(folder.path(), "exit 3"), None).unwrap();
        assert_eq!(crew.finish(SOON).unwrap().code(), Some(3));
        assert!(Stat::of(started(folder.path())).is_err());
    }

    #[test]
    fn what_takes_too_long_is_ended_and_buried_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let crew = Crew::start(shell(folder.path(), "wait"), None).unwrap();
        let pid = started(folder.path());
        assert_eq!(crew.finish(Duration::ZERO).unwrap().signal(), Some(9));
        assert!(Stat::of(pid).is_err());
    }

    #[test]
    fn what_is_done_leaves_who_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let crew = Crew::start(shell(folder.path(), "exit 0"), None).unwrap();
        assert!(crew.finish(SOON).unwrap().success());
        let process = Process::open(started(folder.path())).unwrap();
        assert!(process.lives());
        process.kill();
        assert!(process.ends_within(SOON));
        process.bury();
    }

    #[test]
    fn whoever_holds_a_pipe_open_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = shell(folder.path(), "echo words; exit 0");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let crew = Crew::start(command, None).unwrap();
        let (output, in_time) = crew.output(|leader| leader.ends_within(SOON)).unwrap();
        assert!(in_time && output.status.success());
        assert_eq!(output.stdout, b"words\n");
        assert!(Stat::of(started(folder.path())).is_err());
    }

    #[test]
    fn whoever_left_the_group_and_holds_a_pipe_open_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "setsid sh -c 'echo $$ > new; mv new started; exec sleep 86400'"]);
        command.current_dir(folder.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let crew = Crew::start(command, None).unwrap();
        let error = crew.output(|_| started(folder.path())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        Process::open(started(folder.path())).unwrap().kill();
    }

    #[test]
    fn whoever_comes_later_ends_what_is_noted_and_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let noted = folder.path().join("note");
        end_noted(&noted).unwrap();
        let crew = Crew::start(shell(folder.path(), "wait"), Some(&noted)).unwrap();
        let pid = started(folder.path());
        let stranger = tempfile::tempdir().unwrap();
        let other = Crew::start(shell(stranger.path(), "wait"), None).unwrap();
        let others = started(stranger.path());
        // As if only the command had been killed with whoever started it.
        let Crew { mut child, leader } = crew;
        child.kill().unwrap();
        child.wait().unwrap();
        let leader = &leader;
        assert!(Process::open(pid).unwrap().lives());

        let text = fs::read_to_string(&noted).unwrap();
        let (boot, stat) = text.split_once('\n').unwrap();
        let [number, others_number] = [leader, &other.leader].map(|one| one.identity.pid.to_string());
        let began = Stat::understand(stat.as_bytes()).unwrap().started.to_string();
        let reused = stat.replacen(&number, &others_number, 1).replace(&began, "1");
        // Of a time before the machine was started anew; of a number that somebody else has by now; cut off.
        for wrong in [
            format!("{:032x}\n{stat}", 1),
            format!("{boot}\n{reused}"),
            format!("{boot}\n"),
            boot.to_owned(),
            String::new(),
        ] {
            fs::write(&noted, wrong).unwrap();
            end_noted(&noted).unwrap();
            assert!(Process::open(pid).unwrap().lives());
        }
        fs::write(&noted, &text).unwrap();
        end_noted(&noted).unwrap();
        assert!(Stat::of(pid).is_err());
        assert!(Process::open(others).unwrap().lives());
        other.finish(Duration::ZERO).unwrap();
        assert!(Stat::of(others).is_err());
    }

    #[test]
    fn a_command_ends_with_the_thread_that_started_it() {
        let folder = tempfile::tempdir().unwrap();
        let command = shell(folder.path(), "wait");
        let crew = thread::spawn(move || Crew::start(command, None).unwrap());
        let crew = crew.join().unwrap();
        assert_eq!(crew.finish(SOON).unwrap().signal(), Some(9));
    }
}
