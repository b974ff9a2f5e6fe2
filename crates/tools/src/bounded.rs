//! Output that a model can be shown: clean, and no more than fits.

mod clean;

use std::io::Write;

pub(crate) use clean::Cleaner;

use crate::{Created, Files};
use causes::with_causes;

/// The most bytes that are kept of one output.
const MAX_KEPT: u64 = 64 * 1024 * 1024;
/// Where output goes that does not fit.
const FOLDER: &str = ".belljar";

/// Takes an output as it appears; what does not fit goes to a file of the workspace.
pub(crate) struct Collector<'a> {
    files: &'a Files,
    /// What the file is called, without its folder.
    name: String,
    limit: usize,
    cleaner: Option<Cleaner>,
    /// The beginning: all of it, as long as it fits.
    head: Vec<u8>,
    /// The end, once it does not.
    tail: Vec<u8>,
    total: u64,
    kept: Kept,
}

enum Kept {
    /// It fits so far.
    Not,
    In(Created),
    /// In a file as far as that went, and why no further.
    Partly(Option<Created>, String),
}

/// An output that has ended.
#[derive(Debug)]
pub(crate) struct Collected {
    /// What a model is shown.
    pub(crate) text: String,
    /// All of it is in `text`.
    pub(crate) whole: bool,
}

impl<'a> Collector<'a> {
    /// Collects an output that people would read: terminal codes are taken out.
    pub(crate) fn clean(files: &'a Files, name: String, limit: usize) -> Self {
        Self {
            cleaner: Some(Cleaner::default()),
            ..Self::raw(files, name, limit)
        }
    }

    /// Collects data as it is.
    pub(crate) fn raw(files: &'a Files, name: String, limit: usize) -> Self {
        Self {
            files,
            name,
            limit,
            cleaner: None,
            head: Vec::new(),
            tail: Vec::new(),
            total: 0,
            kept: Kept::Not,
        }
    }

    /// Takes more; answers with what is new, as it may be shown.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        match &mut self.cleaner {
            Some(cleaner) => {
                let text = cleaner.push(bytes);
                self.keep(text.as_bytes());
                text
            }
            None => {
                self.keep(bytes);
                String::new()
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let fits = bytes.len().min(self.limit - self.head.len());
        self.head.extend_from_slice(&bytes[..fits]);
        if fits == bytes.len() && matches!(self.kept, Kept::Not) {
            return;
        }
        let rest = &bytes[fits..];
        if matches!(self.kept, Kept::Not) {
            self.kept = match self.files.create(&format!("{FOLDER}/{}", self.name)) {
                Ok(file) => Kept::In(file),
                Err(error) => Kept::Partly(None, with_causes(&error)),
            };
            let head = std::mem::take(&mut self.head);
            self.spill(&head);
            self.head = head;
        }
        self.spill(rest);
        let tail = self.limit / 4;
        self.tail.extend_from_slice(&rest[rest.len().saturating_sub(tail)..]);
        if self.tail.len() > tail * 2 {
            self.tail.drain(..self.tail.len() - tail);
        }
    }

    fn spill(&mut self, bytes: &[u8]) {
        let Kept::In(created) = &self.kept else { return };
        let failed = if self.total > MAX_KEPT {
            Some(format!("only its first {MAX_KEPT} bytes were kept"))
        } else {
            created.file().write_all(bytes).err().map(|error| error.to_string())
        };
        if let Some(reason) = failed
            && let Kept::In(created) = std::mem::replace(&mut self.kept, Kept::Not)
        {
            self.kept = Kept::Partly(Some(created), reason);
        }
    }

    /// Ends it.
    pub(crate) fn finish(mut self) -> Collected {
        if let Some(cleaner) = &mut self.cleaner {
            let text = cleaner.finish();
            self.keep(text.as_bytes());
        }
        let commit = |created: Created| created.commit().map_err(|error| with_causes(&error));
        let note = match std::mem::replace(&mut self.kept, Kept::Not) {
            Kept::Not => {
                return Collected {
                    text: String::from_utf8_lossy(&self.head).into_owned(),
                    whole: true,
                };
            }
            Kept::In(created) => match commit(created) {
                Ok(()) => format!("all of it is in /workspace/{FOLDER}/{}", self.name),
                Err(reason) => format!("the rest is lost: {reason}"),
            },
            Kept::Partly(created, reason) => match created.map(commit) {
                Some(Ok(())) => format!("its beginning is in /workspace/{FOLDER}/{}: {reason}", self.name),
                Some(Err(reason)) => format!("the rest is lost: {reason}"),
                None => format!("the rest is lost: {reason}"),
            },
        };
        // The notice has its place within the limit.
        let room = self.limit.saturating_sub(note.len() + 60);
        let tail = &self.tail[self.tail.len().saturating_sub(room / 4)..];
        let head = &self.head[..self.head.len().min(room - tail.len())];
        let left_out = self.total - head.len() as u64 - tail.len() as u64;
        let (head, tail) = (whole_chars(head), whole_chars(tail));
        Collected {
            text: format!("{head}\n[… {left_out} bytes left out; {note} …]\n{tail}"),
            whole: false,
        }
    }
}

/// The text without the half characters that a cut left at its ends.
fn whole_chars(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_matches('\u{fffd}').to_owned()
}

#[cfg(test)]
mod tests;
