//! Files that are kept outside, and come back.

use std::collections::HashMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use domain::ContentHash;
use futures::stream::{self, StreamExt, TryStreamExt};
use link::server::{FileSource, ServiceAnswer};
use protocol::{
    Content, FileRecord, Kept, Offered, PathBytes, Piece, Refusal, RefusalCode, SignedUrl, SyncAnswer, SyncCall,
    SyncRequest,
};
use tokio::sync::Semaphore;

use crate::handler::TOKEN;
use crate::jail::Jail;

/// A control plane's keeping of files, in memory; URLs are names of contents.
pub(crate) struct Keeps {
    contents: Mutex<HashMap<String, Vec<u8>>>,
    records: Mutex<Vec<FileRecord>>,
    missing: Mutex<Vec<FileRecord>>,
    /// How often it was asked what is missing.
    tries: AtomicUsize,
    /// How many files had no room on the disk, as it was told.
    no_room: Mutex<Vec<u64>>,
    /// Lets contents be fetched.
    fetches: Semaphore,
}

impl Keeps {
    pub(crate) fn answer(&self, call: SyncCall) -> Result<SyncAnswer, Refusal> {
        let url = |content: &Content| SignedUrl::from(format!("/v1/objects/{}?signed=1", content.sha256));
        Ok(match call.request {
            SyncRequest::Begin => SyncAnswer::Begun {
                missing: self.missing.lock().unwrap().len() as u64,
            },
            SyncRequest::Known { .. } => SyncAnswer::Known { files: Vec::new() },
            SyncRequest::Missing { .. } => {
                self.tries.fetch_add(1, Ordering::SeqCst);
                SyncAnswer::Page {
                    files: self.missing.lock().unwrap().clone(),
                    next: None,
                }
            }
            SyncRequest::CaughtUp => done(),
            SyncRequest::Placed { files } => {
                let placed = |record: &FileRecord| files.iter().any(|file| file.path == record.path);
                self.missing.lock().unwrap().retain(|record| !placed(record));
                done()
            }
            SyncRequest::NoRoom { files } => {
                self.no_room.lock().unwrap().push(files);
                done()
            }
            SyncRequest::Offer { contents } => {
                let contents = contents.iter();
                let offers = contents.map(|content| Offered::Upload { url: url(content) });
                SyncAnswer::Offered {
                    offers: offers.collect(),
                }
            }
            SyncRequest::Record { files, .. } => {
                self.records.lock().unwrap().extend(files);
                done()
            }
            SyncRequest::Fetch { contents } => SyncAnswer::Fetch {
                urls: contents.iter().map(url).collect(),
            },
        })
    }

    pub(crate) async fn keep(&self, url: &str, bytes: Option<u64>, body: FileSource) -> Result<(), Refusal> {
        let refused = |_| Refusal::new(RefusalCode::Unavailable, "it broke off");
        let pieces: Vec<Bytes> = body.try_collect().await.map_err(refused)?;
        let content = pieces.concat();
        assert_eq!(bytes, Some(content.len() as u64));
        self.contents.lock().unwrap().insert(url.to_owned(), content);
        Ok(())
    }

    pub(crate) async fn fetch(&self, url: &str) -> Result<ServiceAnswer, Refusal> {
        let _allowed = self.fetches.acquire().await.unwrap();
        let content = self.contents.lock().unwrap()[url].clone();
        Ok(ServiceAnswer {
            media_type: "application/octet-stream".to_owned(),
            length: Some(content.len() as u64),
            body: stream::iter([Ok(content.into())]).boxed(),
        })
    }

    /// What was recorded of a path last.
    fn recorded(&self, path: &str) -> Option<FileRecord> {
        let records = self.records.lock().unwrap();
        let found = records.iter().rev().find(|record| record.path.0 == path.as_bytes());
        found.cloned()
    }
}

fn done() -> SyncAnswer {
    SyncAnswer::Recorded {
        refused: Vec::new(),
        full: Vec::new(),
    }
}

/// A jail of a control plane that keeps files and has these to bring back.
async fn jail(missing: Vec<FileRecord>, contents: HashMap<String, Vec<u8>>) -> Jail {
    let root = testkit::miniature().rootfs();
    let root = format!("--ro-bind {} / --tmpfs /tmp", root.display());
    let jail = Jail::with_root(&root, |_| ()).await;
    keep(&jail, missing, contents);
    jail
}

fn keep(jail: &Jail, missing: Vec<FileRecord>, contents: HashMap<String, Vec<u8>>) {
    let keeps = Keeps {
        contents: contents.into(),
        records: Mutex::default(),
        missing: missing.into(),
        tries: AtomicUsize::new(0),
        no_room: Mutex::default(),
        fetches: Semaphore::new(0),
    };
    assert!(jail.handler.keeps.set(keeps).is_ok());
}

fn keeps(jail: &Jail) -> &Keeps {
    jail.handler.keeps.get().unwrap()
}

#[tokio::test]
async fn what_a_user_writes_is_kept_by_a_process_that_has_nothing() {
    let jail = jail(Vec::new(), HashMap::new()).await;
    jail.claim().await;
    jail.shell("cd /workspace && mkdir -p a/b && echo words > a/b/file && ln -s /etc/shadow link && mkfifo pipe")
        .await;
    let record = testkit::eventually_async("the file to be kept", async || keeps(&jail).recorded("a/b/file")).await;
    let Kept::File { bytes: 6, pieces } = &record.kept else {
        panic!("{record:?}");
    };
    let url = format!("/v1/objects/{}?signed=1", pieces[0].content.sha256);
    assert_eq!(keeps(&jail).contents.lock().unwrap()[&url], b"words\n");
    let link = testkit::eventually_async("the link to be kept", async || keeps(&jail).recorded("link")).await;
    let target = PathBytes(b"/etc/shadow".to_vec());
    assert_eq!(link.kept, Kept::Link { target }, "it is kept as a link");
    assert_eq!(keeps(&jail).recorded("pipe"), None);

    let watcher = jail.process("belljar-runtime sync").unwrap();
    let status = std::fs::read_to_string(format!("/proc/{watcher}/status")).unwrap();
    let line = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("Uid:"), ["1000"; 4]);
    for rights in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(line(rights), ["0000000000000000"], "{rights}");
    }
    assert_eq!(line("NoNewPrivs:"), ["1"]);
    let told = std::fs::read(format!("/proc/{watcher}/environ")).unwrap();
    let told = [told, std::fs::read(format!("/proc/{watcher}/cmdline")).unwrap()].concat();
    assert!(!String::from_utf8_lossy(&told).contains(TOKEN));

    // One that is killed is replaced, and goes on.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(watcher).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    jail.shell("echo more > /workspace/more").await;
    testkit::eventually_async("the next one", async || keeps(&jail).recorded("more")).await;
}

#[tokio::test]
async fn no_tool_is_used_before_the_files_are_back() {
    let mut contents = HashMap::new();
    let record = kept("deep/file", b"back again", &mut contents);
    let jail = jail(vec![record], contents).await;
    jail.claim().await;
    let call = jail.linked.call(read_file("deep/file"), crate::jail::limits());
    let mut call = Box::pin(call);
    let asked = testkit::eventually_async("the content to be asked for", async || {
        jail.seen().contains(&"fetch".to_owned()).then_some(())
    });
    tokio::select! {
        early = &mut call => panic!("{early:?}"),
        () = asked => {}
    }
    keeps(&jail).fetches.add_permits(100);
    let result = testkit::within("the call", call).await.unwrap();
    assert!(crate::jail::words(&result).contains("back again"), "{result:?}");
    let metadata = std::fs::metadata(jail.workspace().join("deep/file")).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o640);
    assert_eq!((metadata.uid(), metadata.mtime()), (1000, 1_000_000_000));
}

#[tokio::test]
async fn what_cannot_be_read_is_not_said_to_be_kept_until_it_can_be() {
    let jail = jail(Vec::new(), HashMap::new()).await;
    jail.claim().await;
    jail.shell("echo open > /workspace/open").await;
    testkit::eventually_async("files to be kept", async || keeps(&jail).recorded("open")).await;
    let flush = async || testkit::within("the order", jail.linked.flush_files(Duration::from_secs(60))).await;
    // All of it is seen by the order itself for the first time.
    jail.shell(
        "cd /workspace && mkdir closed blind && echo inner > closed/inner && echo inner > blind/inner && \
         echo shut > shut && chmod 000 closed shut && chmod 400 blind",
    )
    .await;
    for _ in 0..2 {
        let error = flush().await.unwrap_err().to_string();
        assert!(error.contains("3 files"), "{error}");
    }
    jail.shell("cd /workspace && chmod 700 closed blind && chmod 600 shut")
        .await;
    flush().await.unwrap();
    for path in ["closed/inner", "blind/inner", "shut"] {
        assert!(keeps(&jail).recorded(path).is_some(), "{path}");
    }
}

fn read_file(name: &str) -> domain::ToolCall {
    let code = format!("return (await import('node:fs')).readFileSync('/workspace/{name}', 'utf8')");
    crate::jail::exec("1", &code)
}

#[tokio::test]
async fn what_has_no_room_on_the_disk_keeps_no_tool_waiting_and_comes_when_there_is_room() {
    let mut contents = HashMap::new();
    let folder = FileRecord {
        kept: Kept::Folder,
        mode: 0o500,
        ..kept("deep", b"", &mut contents)
    };
    // More than one piece, and the newest.
    let large: Vec<u8> = (0..5_u32 << 20)
        .map(|place| u8::try_from(place % 251 + 1).unwrap())
        .collect();
    let missing = vec![
        folder,
        kept("deep/large", &large, &mut contents),
        kept("small", b"back again", &mut contents),
    ];
    let jail = Jail::with_little_room(8 << 20).await;
    keep(&jail, missing, contents);
    keeps(&jail).fetches.add_permits(1_000_000);
    jail.shell("head -c 4194304 /dev/zero > /workspace/unneeded").await;
    jail.claim().await;
    let call = async |call| {
        let result = jail.linked.call(call, crate::jail::limits());
        testkit::within("the call", result).await.unwrap()
    };
    let result = crate::jail::words(&call(read_file("small")).await);
    assert!(
        result.contains("back again") && result.contains("disk of this sandbox is full: 1 files"),
        "{result}"
    );
    assert_eq!(*keeps(&jail).no_room.lock().unwrap(), [1]);
    jail.shell("test ! -e /workspace/deep/large").await;
    // It is tried again, and there is still no room: only the other was ever fetched.
    let tries = || keeps(&jail).tries.load(Ordering::SeqCst);
    let before = tries();
    testkit::eventually_async("another try", async || (tries() > before + 1).then_some(())).await;
    let fetched = || jail.seen().iter().filter(|seen| *seen == "fetch").count();
    assert_eq!(fetched(), 1);
    jail.shell("test ! -e /workspace/deep/large").await;

    let unlink = "(await import('node:fs')).unlinkSync('/workspace/unneeded')";
    let result = call(crate::jail::exec("2", unlink)).await;
    assert!(!result.is_error, "{result:?}");
    testkit::eventually_async("the rest to come", async || {
        (keeps(&jail).no_room.lock().unwrap().last() == Some(&0)).then_some(())
    })
    .await;
    assert_eq!(*keeps(&jail).no_room.lock().unwrap(), [1, 0]);
    assert_eq!(fetched(), 1 + 2);
    let said = jail
        .shell("stat -c %a,%s /workspace/deep /workspace/deep/large; cat /workspace/deep/large | sha256sum")
        .await;
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with("500,"), "{said}");
    assert_eq!(lines[1], format!("640,{}", large.len()));
    assert!(lines[2].starts_with(&sha256(&large).to_string()), "{said}");
    let result = crate::jail::words(&call(read_file("small")).await);
    assert!(!result.contains("full"), "{result}");
    assert!(keeps(&jail).missing.lock().unwrap().is_empty());
}

#[tokio::test]
async fn tools_answer_on_a_full_disk() {
    let jail = Jail::with_little_room(2 << 20).await;
    keep(&jail, Vec::new(), HashMap::new());
    jail.claim().await;
    jail.shell("head -c 4194304 /dev/zero > /workspace/filler; test -s /workspace/filler")
        .await;
    let result = jail.call("exec", serde_json::json!({ "code": "return 40 + 2" })).await;
    assert!(
        !result.is_error && crate::jail::words(&result).contains("42"),
        "{result:?}"
    );
    let write = serde_json::json!({ "path": "notes", "content": "words ".repeat(10_000) });
    let result = jail.call("write", write).await;
    assert!(
        result.is_error && crate::jail::words(&result).contains("space"),
        "{result:?}"
    );
    jail.shell("test ! -e /workspace/notes && rm /workspace/filler").await;
    let write = serde_json::json!({ "path": "notes", "content": "words" });
    let result = jail.call("write", write).await;
    assert!(!result.is_error, "{result:?}");
    testkit::eventually_async("it to be kept", async || keeps(&jail).recorded("notes")).await;
}

/// A file that is kept, and what is in it among the contents.
fn kept(path: &str, bytes: &[u8], contents: &mut HashMap<String, Vec<u8>>) -> FileRecord {
    let mut pieces = Vec::new();
    for (place, piece) in bytes.chunks(4 << 20).enumerate() {
        let content = Content {
            sha256: sha256(piece),
            bytes: piece.len() as u64,
        };
        contents.insert(format!("/v1/objects/{}?signed=1", content.sha256), piece.to_vec());
        pieces.push(Piece {
            at: (place as u64) * (4 << 20),
            content,
        });
    }
    FileRecord {
        path: PathBytes(path.as_bytes().to_vec()),
        kept: Kept::File {
            bytes: bytes.len() as u64,
            pieces,
        },
        mode: 0o640,
        changed: 1_000_000_000_000_000_000,
        stamp: 0,
    }
}

fn sha256(bytes: &[u8]) -> ContentHash {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, bytes).unwrap();
    let said = testkit::run(std::process::Command::new("sha256sum").arg(file.path()));
    said.split(' ').next().unwrap().parse().unwrap()
}
