//! Files of a round: offered, uploaded, recorded.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;

use domain::ContentHash;
use protocol::{Content, FileRecord, Kept, Offered, PathBytes, Piece, SYNC_ITEMS, SyncAnswer, SyncRequest};

use crate::signed::{self, Signed};
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
    /// Some of those to be looked at again did not change: what they hold was refused all the same, or is being removed at
    /// this moment.
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
        let contents = self.files.iter().flat_map(|differs| pieces(&differs.record));
        let mut offers = offer(contents, uplink)?;
        let refused = upload(&self.files, &mut offers, uplink)?;
        let mut records = Vec::new();
        for Differs { record, file } in self.files {
            let lacks = |wanted: &dyn Fn(&ContentHash) -> bool| pieces(&record).any(|content| wanted(&content.sha256));
            if lacks(&|sha256| matches!(offers.get(sha256), Some(Offered::Full) | None)) {
                sent.unfit.push(record);
            } else if file.is_some_and(|file| !is_still(&file, &record)) {
                sent.again.push(record.path.0);
            } else if lacks(&|sha256| refused.contains(sha256) || matches!(offers.get(sha256), Some(Offered::Later))) {
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
fn offer(
    all: impl Iterator<Item = Content>,
    uplink: &mut Uplink,
) -> Result<HashMap<ContentHash, Offered>, UplinkError> {
    let mut seen = HashSet::new();
    let contents: Vec<Content> = all.filter(|content| seen.insert(content.sha256)).collect();
    let mut offers = HashMap::with_capacity(contents.len());
    for contents in contents.chunks(SYNC_ITEMS) {
        let request = SyncRequest::Offer {
            contents: contents.to_vec(),
        };
        let SyncAnswer::Offered { offers: answers } = uplink.ask(request)? else {
            return Err(nonsense());
        };
        offers.extend(contents.iter().map(|content| content.sha256).zip(answers));
    }
    Ok(offers)
}

/// Uploads what is wanted, and knows then what is said of it; gives back what was refused: mostly, as it is not in its file
/// any more.
fn upload(
    files: &[Differs],
    offers: &mut HashMap<ContentHash, Offered>,
    uplink: &mut Uplink,
) -> Result<HashSet<ContentHash>, UplinkError> {
    let mut seen = HashSet::new();
    let mut wanted = Vec::new();
    for Differs { record, file } in files {
        let (Some(file), Kept::File { pieces, .. }) = (file, &record.kept) else {
            continue;
        };
        let is_wanted = |piece: &&Piece| {
            let sha256 = piece.content.sha256;
            matches!(offers.get(&sha256), Some(Offered::Upload { .. })) && seen.insert(sha256)
        };
        wanted.extend(pieces.iter().filter(is_wanted).map(|piece| (file, *piece)));
    }
    let mut uploading = Uploading::default();
    let mut signed = Signed::now(0);
    for (number, (file, piece)) in wanted.iter().enumerate() {
        if uploading.under_way.len() >= SIDE_BY_SIDE {
            uploading.wait(uplink)?;
        }
        if !signed.is_good(number) {
            let next = wanted.iter().skip(number).take(signed::TOGETHER);
            match offer(next.map(|(_, piece)| piece.content), uplink) {
                Ok(again) => offers.extend(again),
                Err(error) => uploading.later = Some(error),
            }
            signed = Signed::now(number);
        }
        if uploading.later.is_some() {
            break;
        }
        if let Some(Offered::Upload { url }) = offers.get(&piece.content.sha256) {
            let number = uplink.put(url.clone(), file, piece.at, piece.content)?;
            uploading.under_way.push_back((number, piece.content.sha256));
        }
    }
    while !uploading.under_way.is_empty() {
        uploading.wait(uplink)?;
    }
    uploading.later.map_or(Ok(uploading.refused), Err)
}

/// Contents on their way.
#[derive(Default)]
struct Uploading {
    under_way: VecDeque<(u64, ContentHash)>,
    refused: HashSet<ContentHash>,
    /// Why no more is begun.
    later: Option<UplinkError>,
}

impl Uploading {
    /// Waits for the one that was begun first.
    fn wait(&mut self, uplink: &mut Uplink) -> Result<(), UplinkError> {
        let Some((number, sha256)) = self.under_way.pop_front() else {
            return Ok(());
        };
        match uplink.wait(number) {
            Ok(()) => {}
            Err(UplinkError::Refused(_)) => {
                self.refused.insert(sha256);
            }
            Err(error @ (UplinkError::Later(_) | UplinkError::NoRoom)) => self.later = Some(error),
            Err(error @ UplinkError::Closed(_)) => return Err(error),
        }
        Ok(())
    }
}

/// Whether a file is as it was when its pieces were read.
fn is_still(file: &OwnedFd, record: &FileRecord) -> bool {
    rustix::fs::fstat(file).is_ok_and(|status| stamp(&status) == record.stamp)
}
