//! Dirty folders, rounds, and the order to keep everything now.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use protocol::{DiskId, FileRecord, FromSync, Kept, SyncAnswer, SyncRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::batch::{Batch, Sent};
use crate::disk;
use crate::index::{Index, Known};
use crate::place::Filling;
use crate::rules::{self, Rules};
use crate::tree::{Relative, split};
use crate::uplink::{Uplink, UplinkError, nonsense};
use crate::watch::{Hint, Watch};

/// Names of one folder that are looked at one by one; where more have changed, all of it is looked at.
const NAMES: usize = 512;

/// How long to wait after the first failure, and at most. Half as much again or less is added, so that many do not come back
/// at once.
const BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// How often a wait is doubled once more for what was fetched in vain: it takes more than an hour at last.
const MOST_IN_VAIN: u32 = 6;

/// How it is done.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// From the first change until all that changed is taken up: what is rewritten again and again is uploaded once in this
    /// time.
    pub settle: Duration,
    /// How often everything is looked at where the kernel does not watch everything.
    pub look_again: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(1),
            look_again: Duration::from_secs(300),
        }
    }
}

/// Files cannot be kept any longer.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The workspace cannot be opened or marked.
    #[error("cannot {attempt} the workspace")]
    Workspace {
        /// What was tried.
        attempt: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// PID 1 is gone.
    #[error(transparent)]
    Uplink(#[from] UplinkError),
}

/// Keeps the files of a workspace until PID 1 hangs up.
///
/// # Errors
/// [`SyncError`]; another process may begin where this one ended.
pub fn run(socket: UnixStream, workspace: &Path, settings: Settings) -> Result<(), SyncError> {
    let failed = |attempt| {
        move |errno: Errno| SyncError::Workspace {
            attempt,
            source: errno.into(),
        }
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(workspace, flags, Mode::empty()).map_err(failed("open"))?;
    let mut worker = Worker {
        rules: Rules::read(&root),
        root,
        watch: Watch::default(),
        uplink: Uplink::new(socket),
        index: Index::default(),
        dirty: Dirty::default(),
        left: BTreeMap::new(),
        blind: false,
        filling: Filling::default(),
        no_room: 0,
        fills: Retries::new(),
        behind: true,
        fill_failed: false,
        got_on: false,
        settings,
    };
    let disk = disk::id(&worker.root).map_err(failed("name the disk of"))?;
    let kept = match disk::keep(&worker.root, &disk) {
        Err(Errno::NOSPC | Errno::DQUOT) => false,
        kept => kept.map(|()| true).map_err(failed("name the disk of"))?,
    };
    worker.uplink.tell(&FromSync::Disk { disk: disk.clone() })?;
    worker.uplink.begin()?;
    worker.again_and_again(Worker::fill)?;
    let no_room = worker.no_room;
    // From here on tools are used, and can make room.
    worker.uplink.tell(&FromSync::Filled { no_room })?;
    if !kept {
        let words = "there is no room on the disk for its own id: nothing is kept until there is".to_owned();
        worker.uplink.tell(&FromSync::Said { words })?;
        worker.again_and_again(|worker| worker.keep_id(&disk))?;
    }
    worker.again_and_again(Worker::learn)?;
    worker.dirty.whole(Vec::new());
    worker.work()
}

/// Where to look, by folder.
#[derive(Default)]
pub(crate) struct Dirty(BTreeMap<Relative, Where>);

pub(crate) enum Where {
    Names(BTreeSet<Vec<u8>>),
    Whole,
}

impl Dirty {
    fn whole(&mut self, folder: Relative) {
        self.0.insert(folder, Where::Whole);
    }

    fn name(&mut self, folder: Relative, name: Vec<u8>) {
        let place = self.0.entry(folder).or_insert_with(|| Where::Names(BTreeSet::new()));
        if let Where::Names(names) = place {
            names.insert(name);
            if names.len() > NAMES {
                *place = Where::Whole;
            }
        }
    }

    pub(crate) fn path(&mut self, path: &[u8]) {
        let (folder, name) = split(path);
        self.name(folder.to_vec(), name.to_vec());
    }
}

pub(crate) struct Worker {
    pub(crate) root: OwnedFd,
    pub(crate) watch: Watch,
    pub(crate) uplink: Uplink,
    pub(crate) rules: Rules,
    pub(crate) index: Index,
    pub(crate) dirty: Dirty,
    /// Files that could not be kept, with their stamps: no room, or they cannot be read. Tried again when they change, when
    /// something goes, and when everything is looked at.
    pub(crate) left: BTreeMap<Relative, i64>,
    /// Some folders are not watched.
    pub(crate) blind: bool,
    filling: Filling,
    /// Files that are not back, for want of room.
    no_room: u64,
    /// When they are tried again.
    fills: Retries,
    /// The control plane was not told yet that nothing waits, or something has failed since.
    behind: bool,
    /// The last try to bring them back broke off.
    fill_failed: bool,
    /// Something was recorded in this round.
    got_on: bool,
    pub(crate) settings: Settings,
}

impl Worker {
    /// Tries until it succeeds.
    fn again_and_again(&mut self, mut what: impl FnMut(&mut Self) -> Result<(), UplinkError>) -> Result<(), SyncError> {
        let mut failures = 0;
        loop {
            match what(self) {
                Err(UplinkError::Later(_) | UplinkError::Refused(_) | UplinkError::NoRoom) => {
                    failures += 1;
                    let until = Instant::now() + backoff(failures);
                    while Instant::now() < until {
                        self.sleep(Some(until))?;
                    }
                }
                done => return Ok(done?),
            }
        }
    }

    /// Brings back what other disks recorded. What has no room is told, and left for another time.
    fn fill(&mut self) -> Result<(), UplinkError> {
        let no_room = self.filling.fill(&self.root, &mut self.uplink, &mut self.index)?;
        if no_room != self.no_room {
            self.uplink.tell_if_known(SyncRequest::NoRoom { files: no_room })?;
            self.no_room = no_room;
        }
        Ok(())
    }

    /// Writes the id of a disk that had no room for it. Until it is there, nothing is recorded: under another id it would all
    /// come back that was deleted.
    fn keep_id(&mut self, disk: &DiskId) -> Result<(), UplinkError> {
        let kept = disk::keep(&self.root, disk).map_err(|errno| UplinkError::Later(errno.to_string()));
        if kept.is_err() {
            for number in std::mem::take(&mut self.uplink.flushes) {
                // One at least.
                self.uplink.tell(&FromSync::Flushed { number, left: 1 })?;
            }
        }
        kept
    }

    /// Learns what this disk has recorded before.
    fn learn(&mut self) -> Result<(), UplinkError> {
        let mut after = None;
        loop {
            let SyncAnswer::Known { files } = self.uplink.ask(SyncRequest::Known { after })? else {
                return Err(nonsense());
            };
            let Some(last) = files.last() else {
                return Ok(());
            };
            after = Some(last.path.clone());
            for file in files {
                let (stamp, folder) = (file.stamp, file.folder);
                self.index.insert(&file.path.0, Known { stamp, folder });
            }
        }
    }

    /// Rounds, for ever.
    fn work(&mut self) -> Result<(), SyncError> {
        let mut failures = 0;
        let mut due = Some(Instant::now());
        let mut looked = Instant::now();
        loop {
            // It may have come with an answer, and lies here.
            self.uplink.take()?;
            if !self.uplink.flushes.is_empty() && failures == 0 {
                due = Some(Instant::now());
            }
            let fill = (self.no_room > 0).then_some(self.fills.due);
            let look = due.or_else(|| self.blind.then(|| looked + self.settings.look_again));
            self.sleep(look.into_iter().chain(fill).min())?;
            if fill.is_some_and(|due| Instant::now() >= due) {
                self.fill_again()?;
                if self.behind && !self.fill_failed {
                    due = due.or(Some(Instant::now()));
                }
            }
            if !self.uplink.flushes.is_empty() && failures == 0 {
                due = Some(Instant::now());
            }
            if self.blind && looked.elapsed() >= self.settings.look_again {
                self.dirty.whole(Vec::new());
                due = Some(Instant::now());
            }
            if !self.dirty.0.is_empty() && due.is_none() {
                due = Some(Instant::now() + self.settings.settle);
            }
            if due.is_none_or(|due| Instant::now() < due) {
                continue;
            }
            let flushes = std::mem::take(&mut self.uplink.flushes);
            let everywhere = !flushes.is_empty() || matches!(self.dirty.0.get(&Vec::new()), Some(Where::Whole));
            if everywhere {
                looked = Instant::now();
                self.left.clear();
            }
            self.got_on = false;
            match self.round(everywhere) {
                Ok(()) if self.dirty.0.is_empty() => {
                    // Before whoever ordered it ends this process.
                    let is_known = self.catch_up()?;
                    let left = self.left.len() as u64;
                    for number in flushes {
                        self.uplink.tell(&FromSync::Flushed { number, left })?;
                    }
                    if is_known {
                        (failures, due) = (0, None);
                    } else {
                        failures += 1;
                        due = Some(Instant::now() + backoff(failures));
                    }
                }
                // Something changed under our eyes.
                Ok(()) => {
                    self.uplink.flushes.extend(flushes);
                    (failures, due) = (1, Some(Instant::now() + self.settings.settle));
                }
                Err(UplinkError::Later(_) | UplinkError::Refused(_) | UplinkError::NoRoom) => {
                    self.uplink.flushes.extend(flushes);
                    self.behind = true;
                    failures = if self.got_on { 1 } else { failures + 1 };
                    due = Some(Instant::now() + backoff(failures));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Tells the control plane that nothing waits, where something did: whether that is known there now.
    fn catch_up(&mut self) -> Result<bool, UplinkError> {
        if !self.behind || self.fill_failed {
            return Ok(true);
        }
        match self.uplink.tell_if_known(SyncRequest::CaughtUp) {
            Ok(()) => self.behind = false,
            Err(UplinkError::Later(_) | UplinkError::Refused(_) | UplinkError::NoRoom) => {}
            Err(error) => return Err(error),
        }
        Ok(!self.behind)
    }

    /// Tries once more to bring back what had no room.
    fn fill_again(&mut self) -> Result<(), UplinkError> {
        let before = self.no_room;
        self.fill_failed = match self.fill() {
            Ok(()) => false,
            Err(UplinkError::Later(_) | UplinkError::Refused(_) | UplinkError::NoRoom) => true,
            Err(error) => return Err(error),
        };
        self.behind |= self.fill_failed;
        if self.no_room == before {
            self.fills.failed(self.filling.in_vain);
        } else {
            self.fills = Retries::new();
            let no_room = self.no_room;
            self.uplink.tell(&FromSync::Filled { no_room })?;
        }
        Ok(())
    }

    /// Sleeps until something happens, or until then.
    fn sleep(&mut self, until: Option<Instant>) -> Result<(), UplinkError> {
        let wait = until.map(|until| until.saturating_duration_since(Instant::now()));
        let wait = wait.and_then(|wait| {
            Some(Timespec {
                tv_sec: i64::try_from(wait.as_secs()).ok()?,
                tv_nsec: i64::from(wait.subsec_nanos()),
            })
        });
        let mut ready = vec![PollFd::new(&self.uplink, PollFlags::IN)];
        let events = self.watch.events();
        ready.extend(events.map(|events| PollFd::from_borrowed_fd(events, PollFlags::IN)));
        match poll(&mut ready, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(UplinkError::Closed(errno.into())),
        }
        self.uplink.take()?;
        let dirty = &mut self.dirty;
        self.watch.read(|hint| match hint {
            Hint::Name(folder, name) => dirty.name(folder, name),
            Hint::Everywhere => dirty.whole(Vec::new()),
        });
        Ok(())
    }

    /// Looks where something may have changed and has it recorded. What could not be is dirty again.
    fn round(&mut self, everywhere: bool) -> Result<(), UplinkError> {
        let dirty = std::mem::take(&mut self.dirty);
        let rules = dirty.0.get(&Vec::new());
        let new_rules = rules.is_some_and(|names| match names {
            Where::Names(names) => names.contains(rules::FILE),
            Where::Whole => true,
        });
        let everywhere = everywhere || new_rules;
        if new_rules {
            self.rules = Rules::read(&self.root);
        }
        let folders: Vec<Relative> = dirty.0.keys().cloned().collect();
        let mut queue = dirty.0;
        if everywhere {
            queue.insert(Vec::new(), Where::Whole);
        }
        let mut batch = Batch::default();
        let mut refused = false;
        // Folders of which something is in the batch.
        let mut looked_at = Vec::new();
        while let Some((folder, names)) = queue.pop_first() {
            self.look(&folder, names, everywhere, &mut batch, &mut queue);
            looked_at.push(folder);
            if batch.is_full() || (queue.is_empty() && !batch.is_empty()) {
                let sent = std::mem::take(&mut batch).send(&self.root, &mut self.uplink);
                match sent {
                    Ok(sent) => {
                        refused |= sent.refused;
                        self.note(sent);
                        looked_at.clear();
                    }
                    Err(error) => {
                        // What is recorded already costs no more than a look.
                        folders
                            .into_iter()
                            .chain(queue.into_keys())
                            .chain(looked_at)
                            .for_each(|folder| self.dirty.whole(folder));
                        return Err(error);
                    }
                }
            }
        }
        if refused {
            return Err(UplinkError::Later("what some files hold cannot be kept yet".to_owned()));
        }
        Ok(())
    }

    fn note(&mut self, sent: Sent) {
        let freed = !sent.gone.is_empty();
        for path in sent.gone {
            self.index.remove(&path);
            self.left.remove(&path);
        }
        self.got_on |= freed || !sent.recorded.is_empty();
        for record in sent.recorded {
            // A folder that is known and could not be opened stays so until it is opened.
            let closed = matches!(record.kept, Kept::Folder) && self.left.get(&record.path.0) == Some(&0);
            if !closed {
                self.left.remove(&record.path.0);
            }
            self.index.insert(&record.path.0, known(&record));
        }
        for path in sent.again {
            self.dirty.path(&path);
        }
        if freed {
            // There may be room for them now.
            for path in std::mem::take(&mut self.left).into_keys() {
                self.dirty.path(&path);
            }
        }
        for record in sent.unfit {
            if freed {
                self.dirty.path(&record.path.0);
            } else {
                self.left.insert(record.path.0, record.stamp);
            }
        }
    }
}

fn known(record: &FileRecord) -> Known {
    Known {
        stamp: record.stamp,
        folder: matches!(record.kept, Kept::Folder),
    }
}

/// When something is tried the next time that failed before.
struct Retries {
    failures: u32,
    in_vain: u32,
    due: Instant,
}

impl Retries {
    fn new() -> Self {
        Self {
            failures: 1,
            in_vain: 0,
            due: Instant::now() + backoff(1),
        }
    }

    /// It failed once more; what was fetched in vain had its price.
    fn failed(&mut self, in_vain: bool) {
        self.failures += 1;
        self.in_vain += u32::from(in_vain);
        self.due = Instant::now() + self.wait();
    }

    fn wait(&self) -> Duration {
        backoff(self.failures) * (1 << self.in_vain.min(MOST_IN_VAIN))
    }
}

fn backoff(failures: u32) -> Duration {
    let wait = BACKOFF
        .saturating_mul(1 << failures.min(10).saturating_sub(1))
        .min(LONGEST_BACKOFF);
    // The clock's last digits are as good as dice here.
    let dice = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.subsec_nanos());
    wait + wait.mul_f64(f64::from(dice % 1_000) / 2_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_the_room_comes_again_soon_and_a_fetch_in_vain_does_not() {
        let (mut looks, mut fetches) = (Retries::new(), Retries::new());
        for _ in 0..20 {
            looks.failed(false);
            let before = fetches.wait();
            fetches.failed(true);
            assert!(fetches.in_vain > MOST_IN_VAIN || fetches.wait() > before);
        }
        assert!(looks.wait() <= LONGEST_BACKOFF * 3 / 2, "{:?}", looks.wait());
        assert!(fetches.wait() >= Duration::from_secs(3_600), "{:?}", fetches.wait());
    }
}
