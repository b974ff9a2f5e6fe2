//! Files of a round: offered, uploaded, recorded.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;

use domain::ContentHash;
use protocol::{Content, FileRecord, Kept, Offered, PathBytes, SYNC_ITEMS, SyncAnswer, SyncRequest};

use crate::tree::{Relative, stamp};
use crate::uplink::{Uplink, UplinkError, nonsense};

/// Files, pieces of theirs and removed paths that are recorded together.
const FILES: usize = 200;
const PIECES: usize = 2_000;
const OPEN: usize = 64;

/// Uploads under way at the same time.
const SIDE_BY_SIDE: usize = 4;

/// A file that differs from what was recorded.
pub(crate) struct Differs {
    pub(crate) record: FileRecord,
    /// The opened file, where it has pieces.
    pub(crate) file: Option<OwnedFd>,
}

#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) gone: Vec<Relative>,
    pub(crate) files: Vec<Differs>,
    pieces: usize,
    open: usize,
}

/// What became of a batch.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) gone: Vec<Relative>,
    pub(crate) recorded: Vec<FileRecord>,
    /// They changed meanwhile: to be looked at again.
    pub(crate) again: Vec<Relative>,
    /// There is no room for them.
    pub(crate) unfit: Vec<FileRecord>,
    /// Some of those to be looked at again did not change: what they hold was refused all the same.
    pub(crate) refused: bool,
}

impl Batch {
    pub(crate) fn add(&mut self, differs: Differs) {
        self.pieces += pieces(&differs.record).count();
        self.open += usize::from(differs.file.is_some());
        self.files.push(differs);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.files.len() + self.gone.len() >= FILES || self.pieces >= PIECES || self.open >= OPEN
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.gone.is_empty()
    }

    /// Has the files kept. What changes while it is uploaded is given up, and looked at again.
    pub(crate) fn send(self, root: &OwnedFd, uplink: &mut Uplink) -> Result<Sent, UplinkError> {
        let mut sent = Sent::default();
        let offers = offer(&self.files, uplink)?;
        let failed = upload(&self.files, &offers, uplink)?;
        let mut records = Vec::new();
        for Differs { record, file } in self.files {
            let lacks = |wanted: &dyn Fn(&ContentHash) -> bool| pieces(&record).any(|content| wanted(&content.sha256));
            if lacks(&|sha256| matches!(offers.get(sha256), Some(Offered::Full) | None)) {
                sent.unfit.push(record);
            } else if file.is_some_and(|file| !is_still(&file, &record)) {
                sent.again.push(record.path.0);
            } else if lacks(&|sha256| failed.contains(sha256)) {
                sent.refused = true;
                sent.again.push(record.path.0);
            } else {
                records.push(record);
            }
        }
        // What is recorded and lost with the machine's power would be taken for deleted.
        rustix::fs::syncfs(root).map_err(|errno| UplinkError::Later(errno.to_string()))?;
        let answer = uplink.ask(SyncRequest::Record {
            gone: self.gone.iter().cloned().map(PathBytes).collect(),
            files: records.clone(),
        })?;
        let SyncAnswer::Recorded { refused, full } = answer else {
            return Err(nonsense());
        };
        for (place, record) in records.into_iter().enumerate() {
            if full.contains(&place) {
                sent.unfit.push(record);
            } else if refused.contains(&place) {
                sent.again.push(record.path.0);
            } else {
                sent.recorded.push(record);
            }
        }
        sent.gone = self.gone;
        Ok(sent)
    }
}

fn pieces(record: &FileRecord) -> impl Iterator<Item = Content> {
    let pieces = match &record.kept {
        Kept::File { pieces, .. } => pieces.as_slice(),
        Kept::Folder | Kept::Link { .. } => &[],
    };
    pieces.iter().map(|piece| piece.content)
}

/// What the control plane says of each content.
fn offer(files: &[Differs], uplink: &mut Uplink) -> Result<HashMap<ContentHash, Offered>, UplinkError> {
    let mut seen = HashSet::new();
    let all = files.iter().flat_map(|differs| pieces(&differs.record));
    let contents: Vec<Content> = all.filter(|content| seen.insert(content.sha256)).collect();
    let mut offers = HashMap::with_capacity(contents.len());
    for contents in contents.chunks(SYNC_ITEMS) {
        let request = SyncRequest::Offer {
            contents: contents.to_vec(),
        };
        let SyncAnswer::Offered { offers: answers } = uplink.ask(request)? else {
            return Err(nonsense());
        };
        if answers.contains(&Offered::Later) {
            return Err(UplinkError::Later("what is offered is being removed".to_owned()));
        }
        offers.extend(contents.iter().map(|content| content.sha256).zip(answers));
    }
    Ok(offers)
}

/// Uploads what is wanted; gives back what was refused: mostly, as it is not in its file any more.
fn upload(
    files: &[Differs],
    offers: &HashMap<ContentHash, Offered>,
    uplink: &mut Uplink,
) -> Result<HashSet<ContentHash>, UplinkError> {
    let mut begun = HashSet::new();
    let mut failed = HashSet::new();
    let mut under_way: VecDeque<(u64, ContentHash)> = VecDeque::new();
    let mut later = None;
    let mut wait =
        |uplink: &mut Uplink, (number, sha256): (u64, ContentHash), later: &mut Option<UplinkError>| match uplink
            .wait(number)
        {
            Ok(()) => Ok(()),
            Err(UplinkError::Refused(_)) => {
                failed.insert(sha256);
                Ok(())
            }
            Err(error @ UplinkError::Later(_)) => {
                *later = Some(error);
                Ok(())
            }
            Err(error) => Err(error),
        };
    'files: for differs in files {
        let (Some(file), Kept::File { pieces, .. }) = (&differs.file, &differs.record.kept) else {
            continue;
        };
        for piece in pieces {
            let sha256 = piece.content.sha256;
            let Some(Offered::Upload { url }) = offers.get(&sha256) else {
                continue;
            };
            if !begun.insert(sha256) {
                continue;
            }
            if under_way.len() >= SIDE_BY_SIDE
                && let Some(first) = under_way.pop_front()
            {
                wait(uplink, first, &mut later)?;
            }
            if later.is_some() {
                break 'files;
            }
            under_way.push_back((uplink.put(url.clone(), file, piece.at, piece.content)?, sha256));
        }
    }
    for upload in under_way {
        wait(uplink, upload, &mut later)?;
    }
    later.map_or(Ok(failed), Err)
}

/// Whether a file is as it was when its pieces were read.
fn is_still(file: &OwnedFd, record: &FileRecord) -> bool {
    rustix::fs::fstat(file).is_ok_and(|status| stamp(&status) == record.stamp)
}
