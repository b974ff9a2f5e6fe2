//! Lines that a person types.

use std::io::{Stdin, stdin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::mpsc;

/// Lines that a person types. Whoever reads none keeps nobody from leaving.
#[derive(Default)]
pub(super) struct Typed {
    lines: Option<mpsc::Receiver<Line>>,
    read: Arc<Mutex<Read>>,
}

/// A line, and how often what was typed had been forgotten when it was read.
struct Line {
    text: String,
    forgotten: u64,
}

#[derive(Default)]
struct Read {
    /// What there is of the next line.
    bytes: Vec<u8>,
    forgotten: u64,
}

impl Typed {
    /// The next line; none where there are no more.
    pub(super) async fn line(&mut self) -> Option<String> {
        loop {
            let line = self.lines().recv().await?;
            if line.forgotten == lock(&self.read).forgotten {
                return Some(line.text);
            }
        }
    }

    /// Forgets what was typed before now at a terminal, whether it was read or not.
    pub(super) fn forget(&mut self) {
        let mut read = lock(&self.read);
        read.forgotten += 1;
        read.bytes.clear();
        // What is no terminal keeps what nobody has typed.
        let _ = tcflush(stdin(), QueueSelector::IFlush);
    }

    fn lines(&mut self) -> &mut mpsc::Receiver<Line> {
        self.lines.get_or_insert_with(|| {
            let (typed, lines) = mpsc::channel(1);
            let read = Arc::clone(&self.read);
            std::thread::spawn(move || listen(&read, &typed));
            lines
        })
    }
}

fn lock(read: &Mutex<Read>) -> MutexGuard<'_, Read> {
    read.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads as long as there is something to read, and somebody who wants it.
fn listen(read: &Mutex<Read>, typed: &mpsc::Sender<Line>) {
    let stdin = stdin();
    loop {
        match ready(&stdin, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let (lines, ended) = {
            let mut read = lock(read);
            // It may have been forgotten meanwhile; then nothing is waited for while others wait for the lock.
            match ready(&stdin, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                Ok(true) => read.more(&stdin),
                Ok(false) | Err(_) => continue,
            }
        };
        for line in lines {
            if typed.blocking_send(line).is_err() {
                return;
            }
        }
        if ended {
            return;
        }
    }
}

fn ready(stdin: &Stdin, until: Option<&Timespec>) -> Result<bool, Errno> {
    let mut wanted = [PollFd::new(stdin, PollFlags::IN)];
    Ok(poll(&mut wanted, until)? > 0)
}

impl Read {
    /// Reads what is there: lines that are whole by now, and whether these were the last.
    fn more(&mut self, stdin: &Stdin) -> (Vec<Line>, bool) {
        let mut bytes = [0; 4_096];
        let ended = match rustix::io::read(stdin, &mut bytes) {
            Ok(length) => {
                self.bytes.extend_from_slice(&bytes[..length]);
                length == 0
            }
            Err(error) => error != Errno::INTR && error != Errno::AGAIN,
        };
        let mut lines = Vec::new();
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            lines.push(self.line(&line));
        }
        if ended && !self.bytes.is_empty() {
            let rest = std::mem::take(&mut self.bytes);
            lines.push(self.line(&rest));
        }
        (lines, ended)
    }

    fn line(&self, bytes: &[u8]) -> Line {
        let text = String::from_utf8_lossy(bytes);
        Line {
            text: text.trim_end_matches(['\n', '\r']).to_owned(),
            forgotten: self.forgotten,
        }
    }
}
