//! What is behind the socket: PID 1, and a control plane whose clock moves with the bytes that it carries.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use channel::{Descriptors, Lines};
use domain::ContentHash;
use protocol::{Fault, FileRecord, FromSync, Offered, SYNC_BYTES, SignedUrl, SyncAnswer, SyncRequest, ToSync};
use sha2::{Digest, Sha256};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long a URL is good.
pub(crate) const GOOD_FOR: u64 = 300;

/// How long something is waited for that comes.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) kept: BTreeMap<Vec<u8>, FileRecord>,
    /// What another disk recorded, and this one has not.
    pub(crate) missing: BTreeMap<Vec<u8>, FileRecord>,
    pub(crate) contents: HashMap<ContentHash, Vec<u8>>,
    /// They are being removed.
    pub(crate) going: HashSet<ContentHash>,
    /// The upload that fails, once, counted down.
    pub(crate) fails: Option<usize>,
    /// There is no room for them on the disk.
    pub(crate) no_room: HashSet<ContentHash>,
    /// How many files had no room, each time that it was told.
    pub(crate) crowded: Vec<u64>,
    /// How many files were kept each time that it was told that nothing waits.
    pub(crate) caught_up: Vec<usize>,
    /// How long each upload and download takes.
    pub(crate) each_takes: u64,
    pub(crate) clock: u64,
    /// Uploads and downloads whose URL was not good any more.
    pub(crate) expired: usize,
    pub(crate) puts: usize,
    pub(crate) gets: usize,
    /// What is said to tools: everything is there, but for so many files.
    pub(crate) filled: Option<u64>,
    /// What was said for the log.
    pub(crate) said: Vec<String>,
    /// How often each content was fetched.
    pub(crate) fetched: HashMap<ContentHash, usize>,
}

#[derive(Default)]
pub(crate) struct Behind {
    state: Mutex<State>,
    /// Something was asked and answered.
    answered: Notify,
}

impl Behind {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let wait = async {
            while !is_so(&self.state()) {
                self.answered.notified().await;
            }
        };
        let waited = timeout(LIMIT, wait).await;
        assert!(waited.is_ok(), "waited {LIMIT:?} for {what}");
    }

    /// Has a workspace's files kept while the test goes on. What the kernel watches is looked at when it says so, and only then.
    pub(crate) async fn serve(&self, workspace: &Path, test: impl Future<Output = ()>) {
        self.serve_and_look(workspace, Duration::from_secs(3_600), test).await;
    }

    /// The same; where the kernel does not watch everything, all of it is looked at this often.
    pub(crate) async fn serve_and_look(&self, workspace: &Path, look_again: Duration, test: impl Future<Output = ()>) {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let settings = sync::Settings {
            settle: Duration::from_millis(1),
            look_again,
        };
        let workspace = workspace.to_owned();
        let keeps = std::thread::spawn(move || sync::run(far, &workspace, settings));
        tokio::select! {
            () = self.answer(UnixStream::from_std(near).unwrap()) => {}
            () = test => {}
        }
        // It ends when nobody is at the other end of the socket.
        let ended = keeps.join().unwrap();
        assert!(matches!(ended, Err(sync::SyncError::Uplink(_))), "{ended:?}");
    }

    async fn answer(&self, socket: UnixStream) {
        let socket = Arc::new(socket);
        let mut lines = Lines::new(Arc::clone(&socket), SYNC_BYTES, Descriptors::Taken);
        while let Some(line) = lines.read().await.unwrap() {
            let (number, done) = match line {
                FromSync::Disk { .. } => {
                    channel::write(&socket, &ToSync::Begin, None).await.unwrap();
                    continue;
                }
                FromSync::Ask { number, request } => {
                    let answer = self.state().ask(request);
                    let answer = ToSync::Answer { number, answer };
                    channel::write(&socket, &answer, None).await.unwrap();
                    self.answered.notify_one();
                    continue;
                }
                FromSync::Put { number, url, at, bytes } => {
                    let file = File::from(lines.descriptor().unwrap());
                    (number, self.state().put(&url, &file, at, bytes))
                }
                FromSync::Get { number, url, at, bytes } => {
                    let file = File::from(lines.descriptor().unwrap());
                    (number, self.state().get(&url, &file, at, bytes))
                }
                FromSync::Filled { no_room } => {
                    self.state().filled = Some(no_room);
                    self.answered.notify_one();
                    continue;
                }
                FromSync::Said { words } => {
                    self.state().said.push(words);
                    self.answered.notify_one();
                    continue;
                }
                FromSync::Flushed { .. } => continue,
            };
            let answer = match done {
                Ok(()) => ToSync::Done { number },
                Err((fault, reason)) => {
                    let reason = reason.to_owned();
                    ToSync::Failed { number, fault, reason }
                }
            };
            channel::write(&socket, &answer, None).await.unwrap();
            self.answered.notify_one();
        }
    }
}

impl State {
    fn sign(&self, sha256: ContentHash) -> SignedUrl {
        format!("{sha256} {}", self.clock + GOOD_FOR).into()
    }

    /// What a URL leads to, when it is good; time passes.
    fn open(&mut self, url: &str) -> Result<ContentHash, (Fault, &'static str)> {
        let (sha256, until) = url.split_once(' ').unwrap();
        let until: u64 = until.parse().unwrap();
        if self.clock > until {
            self.expired += 1;
            return Err((Fault::Passing, "the URL is good no more"));
        }
        self.clock += self.each_takes;
        Ok(sha256.parse().unwrap())
    }

    fn put(&mut self, url: &str, file: &File, at: u64, bytes: u64) -> Result<(), (Fault, &'static str)> {
        let sha256 = self.open(url)?;
        if let Some(left) = self.fails {
            self.fails = left.checked_sub(1);
            if left == 0 {
                return Err((Fault::Passing, "not now"));
            }
        }
        let mut content = vec![0; usize::try_from(bytes).unwrap()];
        file.read_exact_at(&mut content, at).unwrap();
        assert_eq!(ContentHash(Sha256::digest(&content).into()), sha256);
        self.contents.insert(sha256, content);
        self.puts += 1;
        Ok(())
    }

    fn get(&mut self, url: &str, file: &File, at: u64, bytes: u64) -> Result<(), (Fault, &'static str)> {
        let sha256 = self.open(url)?;
        self.gets += 1;
        *self.fetched.entry(sha256).or_default() += 1;
        if self.no_room.contains(&sha256) {
            return Err((Fault::NoRoom, "the disk is full"));
        }
        let content = &self.contents[&sha256];
        assert_eq!(content.len() as u64, bytes);
        file.write_all_at(content, at).unwrap();
        Ok(())
    }

    fn ask(&mut self, request: SyncRequest) -> SyncAnswer {
        let recorded = SyncAnswer::Recorded {
            refused: Vec::new(),
            full: Vec::new(),
        };
        match request {
            SyncRequest::Begin => SyncAnswer::Begun {
                missing: self.missing.len() as u64,
            },
            SyncRequest::Known { .. } => SyncAnswer::Known { files: Vec::new() },
            SyncRequest::Missing { .. } => SyncAnswer::Page {
                files: self.missing.values().cloned().collect(),
                next: None,
            },
            SyncRequest::Placed { files } => {
                for file in files {
                    self.missing.remove(&file.path.0);
                }
                recorded
            }
            SyncRequest::NoRoom { files } => {
                self.crowded.push(files);
                recorded
            }
            SyncRequest::CaughtUp => {
                self.caught_up.push(self.kept.len());
                recorded
            }
            SyncRequest::Offer { contents } => {
                let offers = contents.iter().map(|content| match content.sha256 {
                    sha256 if self.going.contains(&sha256) => Offered::Later,
                    sha256 if self.contents.contains_key(&sha256) => Offered::Stored,
                    sha256 => Offered::Upload { url: self.sign(sha256) },
                });
                SyncAnswer::Offered {
                    offers: offers.collect(),
                }
            }
            SyncRequest::Record { gone, files } => {
                for path in gone {
                    // With all that was in it.
                    let below = [&path.0[..], b"/"].concat();
                    self.kept.retain(|kept, _| *kept != path.0 && !kept.starts_with(&below));
                }
                for file in files {
                    self.kept.insert(file.path.0.clone(), file);
                }
                recorded
            }
            SyncRequest::Fetch { contents } => SyncAnswer::Fetch {
                urls: contents.iter().map(|content| self.sign(content.sha256)).collect(),
            },
        }
    }
}
