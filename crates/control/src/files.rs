//! Files of workspaces, kept where their disks are not.
//!
//! The runtime asks, the answers are rows: what a workspace holds is known by the store, and a file is recorded only when its
//! contents are where they are kept. Contents travel over the link to signed URLs of this process, which hands them on: no
//! address and no key of the object store is ever in a sandbox. Whatever cannot be kept at the moment is refused as such, and
//! the runtime comes back with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use causes::with_causes;
use domain::{SandboxId, SessionId, Timestamp};
use futures::StreamExt;
use link::server::{FileSource, ServiceAnswer};
use objects::{Key, Method, ObjectError, Objects, Ticket, TicketError, Tickets};
use protocol::{
    Content, KnownFile, Offered, PathBytes, Refusal, RefusalCode, SYNC_ITEMS, SignedUrl, SyncAnswer, SyncCall,
    SyncRequest,
};
use store::{Asker, ContentState, FileStamp, RecordedFiles, Room, StoreError};
use tokio::sync::watch;

use crate::Control;
use crate::live::{Live, lock};

mod collect;
mod telling;
mod uploads;
mod wire;

use uploads::Uploads;

/// Files on one page.
const PAGE: u32 = 1_000;
/// Pieces on one page, about.
const PAGE_PIECES: usize = 20_000;

/// Where and how files of workspaces are kept.
#[derive(Clone, Debug)]
pub struct Files {
    /// Where.
    pub objects: Objects,
    /// What signs URLs.
    pub tickets: Tickets,
    /// Bytes that the files of one session may have.
    pub quota: u64,
    /// What no file needs is removed after this.
    pub grace: Duration,
    /// How often it is looked for.
    pub collect_every: Duration,
    /// How long the store of objects may be of no use until the session's people are told.
    pub patience: Duration,
    /// How often sessions are looked for that sleep, and have files on their disk that are kept nowhere else.
    pub catch_up_every: Duration,
}

/// What is known of a session's keeping of files.
#[derive(Debug)]
pub(crate) struct Keeping {
    /// The sandbox whose runtime keeps files.
    begun: watch::Sender<Option<SandboxId>>,
    uploads: Uploads,
    /// It is written down that the disk has what is kept nowhere else.
    behind: AtomicBool,
    outage: std::sync::Mutex<telling::Outage>,
    no_room: std::sync::Mutex<telling::NoRoom>,
    /// The session's disk, as its runtime calls it.
    disk: std::sync::Mutex<Option<String>>,
    /// Told when some of what is brought back to the disk has come.
    moved: watch::Sender<()>,
}

impl Default for Keeping {
    fn default() -> Self {
        Self {
            begun: watch::Sender::new(None),
            uploads: Uploads::default(),
            behind: AtomicBool::new(false),
            outage: std::sync::Mutex::default(),
            no_room: std::sync::Mutex::default(),
            disk: std::sync::Mutex::default(),
            moved: watch::Sender::new(()),
        }
    }
}

impl Keeping {
    /// Waits until this sandbox's runtime keeps files.
    pub(crate) async fn begun(&self, sandbox: SandboxId) {
        // The sender is this one's.
        let _ = self.begun.subscribe().wait_for(|begun| *begun == Some(sandbox)).await;
    }

    /// Whether this sandbox's runtime keeps files.
    pub(crate) fn has_begun(&self, sandbox: SandboxId) -> bool {
        *self.begun.borrow() == Some(sandbox)
    }

    /// What tells from now on that some of what is brought back to the disk has come.
    pub(crate) fn moves(&self) -> Moves {
        Moves(self.moved.subscribe())
    }

    /// Whether the store of objects is of no use to it, as far as it is known.
    pub(crate) fn is_in_vain(&self) -> bool {
        lock(&self.outage).is_on()
    }

    /// Whether files are being uploaded, so that the sandbox is not idle.
    pub(crate) fn is_under_way(&self) -> bool {
        self.uploads.are_under_way()
    }
}

/// Tells that some of what is brought back has come.
pub(crate) struct Moves(watch::Receiver<()>);

impl Moves {
    /// Waits until more has come.
    pub(crate) async fn changed(&mut self) {
        // The session lives as long as whoever waits for it.
        let _ = self.0.changed().await;
    }
}

fn invalid(words: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Invalid, words)
}

fn later(words: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Unavailable, words)
}

/// A store that cannot be used is one that may be used later.
fn stored(error: StoreError) -> Refusal {
    match error {
        StoreError::NotFound { .. } | StoreError::Invalid { .. } => invalid(error.to_string()),
        error => {
            tracing::warn!(error = with_causes(&error), "files cannot be written down");
            later("the control plane cannot write down files at the moment")
        }
    }
}

impl Control {
    fn keeps(&self) -> Result<&Files, Refusal> {
        self.0
            .files
            .as_ref()
            .ok_or_else(|| Refusal::new(RefusalCode::Denied, "this installation keeps no files of workspaces"))
    }

    /// Whether all of a session's files are on its disk, as far as it is known: none is still to be brought back.
    pub(crate) async fn has_all_files(&self, live: &Live) -> Result<bool, StoreError> {
        if self.0.files.is_none() {
            return Ok(true);
        }
        let (store, session) = (&self.0.store, live.session);
        let disk = lock(&live.files.disk).clone();
        match disk {
            None => Ok(store.workspace(Asker::System, session).await?.is_none()),
            Some(disk) => {
                let missing = store.missing_files(Asker::System, session, &disk, None, 1, 1);
                Ok(missing.await?.is_empty())
            }
        }
    }

    /// Whether no file of a session was ever kept outside, so that its disk, new or old, lacks nothing.
    pub(crate) async fn never_kept(&self, live: &Live) -> Result<bool, StoreError> {
        if self.0.files.is_none() || live.is_own() {
            return Ok(true);
        }
        let workspace = self.0.store.workspace(Asker::System, live.session).await?;
        Ok(workspace.is_none())
    }

    /// What a runtime asks to keep its workspace's files.
    pub(crate) async fn sync_files(
        &self,
        live: &Live,
        sandbox: SandboxId,
        call: SyncCall,
    ) -> Result<SyncAnswer, Refusal> {
        let files = self.keeps()?;
        if live.is_own() {
            let words = "what an image is built in is not kept";
            return Err(Refusal::new(RefusalCode::Denied, words));
        }
        let (store, session, disk) = (&self.0.store, live.session, call.disk.as_str());
        match call.request {
            SyncRequest::Begin => {
                let missing = store.begin_files(Asker::System, session, disk).await.map_err(stored)?;
                // Whatever is written down of it: its next failure is.
                live.files.behind.store(false, Ordering::SeqCst);
                *lock(&live.files.disk) = Some(call.disk.as_str().to_owned());
                live.files.begun.send_replace(Some(sandbox));
                Ok(SyncAnswer::Begun { missing })
            }
            SyncRequest::Known { after } => {
                let after = after.map_or_else(Vec::new, |path| path.0);
                let known = store.recorded_files(Asker::System, session, disk, after, PAGE);
                let known = known.await.map_err(stored)?.into_iter();
                let files = known.map(|file| KnownFile {
                    path: PathBytes(file.path),
                    stamp: file.stamp,
                    folder: file.folder,
                });
                Ok(SyncAnswer::Known { files: files.collect() })
            }
            SyncRequest::Missing { after } => {
                let after = after.map(|after| (after.version, after.path.0));
                let missing = store.missing_files(Asker::System, session, disk, after, PAGE, PAGE_PIECES);
                Ok(wire::page(missing.await.map_err(stored)?))
            }
            SyncRequest::Placed { files } => {
                few(files.len())?;
                let files = files.into_iter().map(|file| FileStamp {
                    path: file.path.0,
                    stamp: file.stamp,
                    folder: file.folder,
                });
                let placed = store.place_files(Asker::System, session, disk, files.collect());
                placed.await.map_err(stored)?;
                live.files.moved.send_replace(());
                Ok(noted())
            }
            SyncRequest::NoRoom { files: missing } => {
                self.tell_room(live, sandbox, missing).await.map_err(stored)?;
                Ok(noted())
            }
            SyncRequest::CaughtUp => {
                self.caught_up(live).await;
                Ok(noted())
            }
            SyncRequest::Offer { contents } => self.offer_files(files, live, contents).await,
            SyncRequest::Record { gone, files } => {
                few(gone.len() + files.len())?;
                let (gone, files) = wire::record(gone, files).map_err(invalid)?;
                let recorded = store.record_files(Asker::System, session, disk, gone, files);
                let RecordedFiles { refused, full } = recorded.await.map_err(stored)?;
                Ok(SyncAnswer::Recorded { refused, full })
            }
            SyncRequest::Fetch { contents } => {
                few(contents.len())?;
                let hashes: Vec<_> = contents.iter().map(|content| content.sha256).collect();
                let there = store
                    .has_contents(Asker::System, session, &hashes)
                    .await
                    .map_err(stored)?;
                let urls = contents.into_iter().zip(there);
                let urls = urls.map(|(content, there)| match there {
                    true => sign(files, Method::Get, session, content, self.0.clock.now()),
                    // Nobody has it: a URL that leads nowhere.
                    false => SignedUrl::default(),
                });
                Ok(SyncAnswer::Fetch { urls: urls.collect() })
            }
        }
    }

    async fn offer_files(&self, files: &Files, live: &Live, contents: Vec<Content>) -> Result<SyncAnswer, Refusal> {
        few(contents.len())?;
        if !contents.iter().all(wire::is_content) {
            return Err(invalid("a content has 1 to 4194304 bytes"));
        }
        let room = Room {
            bytes: files.quota,
            spare: files.quota.saturating_add(64 << 20),
        };
        let pairs = contents.iter().map(|content| (content.sha256, content.bytes)).collect();
        let states = {
            let mut writing = live.writing.lock().await;
            let offered = self.0.store.offer_contents(Asker::System, live.session, pairs, room);
            let (states, events) = offered.await.map_err(stored)?;
            live.note(&mut writing, events);
            states
        };
        if states.contains(&ContentState::Wanted) {
            live.files.uploads.expected();
        }
        let offers = contents.into_iter().zip(states);
        let offers = offers.map(|(content, state)| match state {
            ContentState::Stored => Offered::Stored,
            ContentState::Going => Offered::Later,
            ContentState::Full => Offered::Full,
            ContentState::Wanted => Offered::Upload {
                url: sign(files, Method::Put, live.session, content, self.0.clock.now()),
            },
        });
        Ok(SyncAnswer::Offered {
            offers: offers.collect(),
        })
    }

    /// A content on its way to where it is kept.
    pub(crate) async fn keep_content(
        &self,
        live: &Live,
        url: &str,
        bytes: Option<u64>,
        body: FileSource,
    ) -> Result<(), Refusal> {
        let files = self.keeps()?;
        let ticket = ticket(files, Method::Put, live.session, url, self.0.clock.now())?;
        if bytes != Some(ticket.bytes) {
            return Err(invalid("the URL is signed for another length"));
        }
        let _under_way = live.files.uploads.begin();
        let kept = files.objects.put(ticket.key, ticket.bytes, body).await;
        let what = (Method::Put, ticket.key.sha256);
        self.note_outage(files, live, what, kept.as_ref().err()).await;
        kept.map_err(refused)?;
        let counted = self
            .0
            .store
            .content_stored(Asker::System, live.session, ticket.key.sha256);
        if counted.await.map_err(stored)? {
            Ok(())
        } else {
            Err(later("the content is being removed at this moment"))
        }
    }

    /// A content that is kept.
    pub(crate) async fn kept_content(&self, live: &Live, url: &str) -> Result<ServiceAnswer, Refusal> {
        let files = self.keeps()?;
        let ticket = ticket(files, Method::Get, live.session, url, self.0.clock.now())?;
        let found = files.objects.get(ticket.key).await;
        let what = (Method::Get, ticket.key.sha256);
        self.note_outage(files, live, what, found.as_ref().err()).await;
        let (length, body) = found.map_err(refused)?;
        live.files.moved.send_replace(());
        if length != ticket.bytes {
            return Err(invalid("what is kept has another length"));
        }
        Ok(ServiceAnswer {
            media_type: "application/octet-stream".to_owned(),
            length: Some(length),
            body: body.boxed(),
        })
    }
}

/// There is nothing more to be said to that.
const fn noted() -> SyncAnswer {
    SyncAnswer::Recorded {
        refused: Vec::new(),
        full: Vec::new(),
    }
}

fn few(count: usize) -> Result<(), Refusal> {
    if count <= SYNC_ITEMS {
        return Ok(());
    }
    Err(invalid(format!(
        "a request names at most {SYNC_ITEMS} files or contents"
    )))
}

fn sign(files: &Files, method: Method, session: SessionId, content: Content, now: Timestamp) -> SignedUrl {
    let Content { sha256, bytes } = content;
    let key = Key { session, sha256 };
    files.tickets.sign(method, Ticket { key, bytes }, now).into()
}

/// What a URL allows, if it is this session's.
fn ticket(files: &Files, method: Method, session: SessionId, url: &str, now: Timestamp) -> Result<Ticket, Refusal> {
    let ticket = files.tickets.check(method, url, now);
    let ticket = ticket.map_err(|error| match error {
        TicketError::Unsigned => invalid(error.to_string()),
        // Whoever asks for another gets one.
        TicketError::Expired => later(error.to_string()),
    })?;
    if ticket.key.session != session {
        return Err(Refusal::new(
            RefusalCode::Denied,
            "the URL is signed for another session",
        ));
    }
    Ok(ticket)
}

fn refused(error: ObjectError) -> Refusal {
    match error {
        ObjectError::NotFound(_) | ObjectError::Other { .. } => invalid(error.to_string()),
        ObjectError::Full { .. } => later("there is no room where contents of files are kept"),
        ObjectError::Cut { .. }
        | ObjectError::Refused { .. }
        | ObjectError::Unavailable { .. }
        | ObjectError::Settings(_) => later("contents of files cannot be kept or had at the moment"),
    }
}
