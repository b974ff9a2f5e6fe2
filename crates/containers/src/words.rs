//! What a sandbox's PID 1 says to nobody in particular.
//!
//! Whoever took PID 1 over has the descriptor, and with it the right to write, to cut and to lengthen. So it is no file among
//! the machine's own, whose room all sandboxes would share, but memory that cannot grow, counted as the sandbox's.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

/// Room for all that an honest runtime ever says. What does not fit is lost.
const ROOM: u64 = 256 << 10;
/// It can become neither longer nor shorter, and that cannot be changed.
const SEALED: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);
/// What PID 1 says them on.
const STDERR: i32 = 2;
/// How much of the end is of interest.
const LAST: usize = 2_000;

/// The words of one PID 1.
#[derive(Debug)]
pub struct Words(File);

impl Words {
    pub(crate) fn new() -> io::Result<Self> {
        let memory = memfd_create("belljar-runtime", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, ROOM)?;
        fcntl_add_seals(&memory, SEALED)?;
        Ok(Self(memory.into()))
    }

    /// The words of a PID 1 that another process started; none where it says them elsewhere by now. Whoever took it over may
    /// have put anything in their place: what is not such memory is not looked into.
    pub(crate) fn of(process: impl AsFd) -> Option<Self> {
        let said = pidfd_getfd(process, STDERR, PidfdGetfdFlags::empty()).ok()?;
        let seals = fcntl_get_seals(&said).ok()?;
        let is_it = seals.contains(SEALED) && fstat(&said).is_ok_and(|status| status.st_size.cast_unsigned() == ROOM);
        is_it.then(|| Self(said.into()))
    }

    /// The end that is written to.
    ///
    /// # Errors
    /// Where this process has no descriptor left.
    pub fn writer(&self) -> io::Result<File> {
        self.0.try_clone()
    }

    /// The last words.
    #[must_use]
    pub fn last(&self) -> String {
        self.end(LAST)
    }

    /// All that there is room for.
    pub(crate) fn all(&self) -> String {
        self.end(ROOM as usize)
    }

    fn end(&self, most: usize) -> String {
        let mut all = vec![0; ROOM as usize];
        // It has this size as long as it lives; where it cannot be read nothing was said.
        let _unread = self.0.read_exact_at(&mut all, 0);
        let said = all.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let tail = &all[said.saturating_sub(most)..said];
        String::from_utf8_lossy(tail).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Child, Command};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn the_last_words_are_the_end_of_what_was_said() {
        let words = Words::new().unwrap();
        assert_eq!(words.last(), "");
        let mut writer = words.writer().unwrap();
        writeln!(writer, "one").unwrap();
        writeln!(words.writer().unwrap(), "{}two", " ".repeat(LAST)).unwrap();
        assert_eq!(words.last(), "two");
        assert!(words.all().starts_with("one\n"));
    }

    #[test]
    fn the_words_of_a_process_are_found_again_and_nothing_else_is_taken_for_them() {
        let words = Words::new().unwrap();
        let started = |said: std::process::Stdio| Command::new("sleep").arg("100").stderr(said).spawn().unwrap();
        let open = |child: &Child| {
            let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
            pidfd_open(pid, PidfdFlags::empty()).unwrap()
        };
        let mut speaks = started(words.writer().unwrap().into());
        let mut elsewhere = started(tempfile::tempfile().unwrap().into());
        writeln!(words.writer().unwrap(), "said").unwrap();
        assert_eq!(Words::of(open(&speaks)).unwrap().last(), "said");
        assert!(Words::of(open(&elsewhere)).is_none());
        for child in [&mut speaks, &mut elsewhere] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn whoever_writes_can_make_it_neither_longer_nor_shorter() {
        let words = Words::new().unwrap();
        let mut writer = words.writer().unwrap();
        assert!(writer.set_len(100 << 30).is_err());
        assert!(writer.set_len(0).is_err());
        let much = vec![b'x'; 4 * ROOM as usize];
        assert!(writer.write_all(&much).is_err());
        assert!(writer.write_all_at(b"x", ROOM).is_err());
        assert_eq!(writer.metadata().unwrap().len(), ROOM);
        assert_eq!(words.last().len(), LAST);
    }
}
