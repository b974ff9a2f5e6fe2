//! Files of workspaces, kept where their disks are not. The process that watches them is the real one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{Config, ControlError, Files, Outside};
use domain::{Delivery, Event, SessionId};
use link::client::ClientError;
use objects::{Key, Method, Objects, Store, Ticket, Tickets};
use protocol::{Content, DiskId, FileRecord, Kept, PathBytes, SyncAnswer, SyncCall, SyncRequest};
use sandbox::SandboxProvider;
use store::{Asker, Target};

use crate::world::bucket::{Bucket, Mood};
use crate::world::{Differs, World};

mod archives;
mod asleep;
mod outages;
mod urls;

/// A world whose files are kept in a folder of its own.
/// Short, and longer than an upload: what is asked for and has not come in that time is taken for never to come.
const GRACE: Duration = Duration::from_millis(500);

pub(crate) async fn world() -> World {
    with(|_| {}).await
}

async fn with(differs: fn(&mut Files)) -> World {
    both(|_| {}, differs).await
}

pub(crate) async fn both(config: fn(&mut Config), differs: fn(&mut Files)) -> World {
    World::new(Differs {
        config,
        outside: Arc::new(move |folder, _| {
            let mut files = files(Objects::open(Store::Local(folder.join("objects"))).unwrap(), folder);
            differs(&mut files);
            Outside {
                files: Some(files),
                ..Outside::default()
            }
        }),
        ..Differs::default()
    })
    .await
}

fn files(objects: Objects, folder: &Path) -> Files {
    Files {
        objects,
        tickets: Tickets::open(&folder.join("objects.key")).unwrap(),
        quota: 1 << 30,
        grace: Duration::from_secs(3_600),
        collect_every: Duration::from_millis(20),
        patience: Duration::ZERO,
        catch_up_every: Duration::from_secs(3_600),
    }
}

/// A session with a sandbox that is not used, and its workspace.
pub(crate) async fn session(world: &World) -> (SessionId, PathBuf) {
    world.will_say("Hello.");
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    (accepted.session, world.sandboxes.workspace(accepted.session))
}

pub(crate) async fn again(world: &World, session: SessionId) {
    world.will_say("Here again.");
    let accepted = world
        .prompt_to(Target::Session(session), "again", Delivery::Restart)
        .await;
    world.done(&accepted).await;
}

/// What a file is, all of it that is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    mode: u32,
    changed: (i64, i64),
    content: Vec<u8>,
}

/// Everything below a folder, but for what is not kept.
pub(crate) fn tree(folder: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(&inner).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "new") {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_dir() {
                folders.push(path.clone());
                b"folder".to_vec()
            } else if metadata.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if metadata.len() > 1 << 26 {
                metadata.len().to_string().into_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            let changed = if metadata.is_dir() {
                (0, 0)
            } else {
                (metadata.mtime(), metadata.mtime_nsec())
            };
            let seen_now = Seen {
                mode: metadata.mode() & 0o777,
                changed,
                content,
            };
            seen.insert(path.strip_prefix(folder).unwrap().to_owned(), seen_now);
        }
    }
    seen
}

/// Archives a session, whose last run may have ended a moment ago, with whatever still runs in its sandbox.
pub(crate) async fn archive(world: &World, session: SessionId) -> Result<(), ControlError> {
    let _ = world.store.archive_session(Asker::System, session).await;
    world.control.archive_files(Asker::System, session).await
}

/// Its sandbox goes, its disk stays.
pub(crate) async fn hibernated(world: &World, session: SessionId) {
    let all = world.sandboxes.list().await.unwrap();
    let own = all.iter().find(|status| status.session == session).unwrap();
    world.control.remove_sandbox(Asker::System, own.id).await.unwrap();
}

async fn archived(world: &World, session: SessionId) {
    archive(world, session).await.unwrap();
    assert!(!world.sandboxes.workspace(session).exists(), "the disk is gone");
}

pub(crate) async fn comes_back(workspace: &Path, wanted: &BTreeMap<PathBuf, Seen>) {
    let same = testkit::eventually_async("the files to come back", async || {
        (tree(workspace) == *wanted).then_some(())
    });
    if tokio::time::timeout(Duration::from_secs(55), same).await.is_err() {
        assert_eq!(tree(workspace), *wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_comes_back_to_another_disk_as_it_was() {
    let world = world().await;
    let (session, workspace) = session(&world).await;
    fs::create_dir_all(workspace.join("a/b/empty")).unwrap();
    fs::write(workspace.join("a/b/text"), "words").unwrap();
    fs::write(workspace.join("nothing"), "").unwrap();
    fs::write(workspace.join("large"), vec![b'l'; 5 << 20]).unwrap();
    fs::write(workspace.join("program"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(workspace.join("program"), PermissionsExt::from_mode(0o4751)).unwrap();
    fs::set_permissions(workspace.join("a/b"), PermissionsExt::from_mode(0o500)).unwrap();
    symlink("../../../etc/passwd", workspace.join("a/link")).unwrap();
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"not \xff text");
    fs::write(workspace.join(name), "x").unwrap();
    let sparse = fs::File::create(workspace.join("sparse")).unwrap();
    sparse.set_len(5 << 30).unwrap();
    sparse.write_all_at(b"in the middle", 3 << 30).unwrap();
    fs::create_dir(workspace.join("node_modules")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        workspace.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();

    let mut wanted = tree(&workspace_without(&workspace, &["node_modules", "pipe"]));
    wanted.get_mut(Path::new("program")).unwrap().mode = 0o751;
    archived(&world, session).await;
    let kept = world.store.workspace(Asker::System, session).await.unwrap().unwrap();
    assert!(kept.archived.is_some() && kept.bytes < 20 << 20, "{kept:?}");
    let is_archived = |event: &Event| matches!(event, Event::Files { state, .. } if state == "archived");
    world.event(session, "the archiving to be told", is_archived).await;

    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
    let sparse = fs::File::open(workspace.join("sparse")).unwrap();
    let mut middle = [0; 13];
    sparse.read_exact_at(&mut middle, 3 << 30).unwrap();
    assert_eq!(&middle, b"in the middle");
    assert!(sparse.metadata().unwrap().blocks() < 1 << 15, "its holes are holes");
    assert!(
        world
            .store
            .workspace(Asker::System, session)
            .await
            .unwrap()
            .unwrap()
            .archived
            .is_none()
    );
}

/// Removes what is not kept before the tree is taken down.
fn workspace_without(workspace: &Path, names: &[&str]) -> PathBuf {
    for name in names {
        let path = workspace.join(name);
        let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
    }
    workspace.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_stays_deleted_and_a_rename_uploads_nothing() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |_| {}).await;
    let (session, workspace) = session(&world).await;
    fs::create_dir_all(workspace.join("old/deep")).unwrap();
    fs::write(workspace.join("old/deep/file"), "content").unwrap();
    fs::write(workspace.join("gone"), "to be deleted").unwrap();
    archived(&world, session).await;
    let uploads = bucket.puts();
    again(&world, session).await;
    testkit::eventually_async("the files to come back", async || {
        (workspace.join("gone").exists() && workspace.join("old/deep/file").exists()).then_some(())
    })
    .await;
    // No tool is used before all files are known to be back. From then on new ones are kept.
    fs::write(workspace.join("since"), "since").unwrap();
    testkit::eventually_async("the new one to be kept", async || {
        (bucket.puts() > uploads).then_some(())
    })
    .await;
    fs::remove_file(workspace.join("gone")).unwrap();
    fs::rename(workspace.join("old"), workspace.join("new")).unwrap();
    // The same content at another place is the same object.
    fs::write(workspace.join("copy"), "content").unwrap();
    let wanted = tree(&workspace);
    archived(&world, session).await;
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
    assert_eq!(bucket.puts(), uploads + 1);
}

async fn in_bucket(bucket: &Arc<Bucket>, differs: fn(&mut Files)) -> World {
    in_bucket_with(bucket, |_| {}, differs).await
}

async fn in_bucket_with(bucket: &Arc<Bucket>, config: fn(&mut Config), differs: fn(&mut Files)) -> World {
    let bucket = Arc::clone(bucket);
    World::new(Differs {
        config,
        outside: Arc::new(move |folder, _| {
            let mut files = files(bucket.objects(), folder);
            differs(&mut files);
            Outside {
                files: Some(files),
                ..Outside::default()
            }
        }),
        ..Differs::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_told_once_and_kept_as_soon_as_there_is_room() {
    let world = with(|files| {
        files.quota = 1_000;
        files.grace = GRACE;
    })
    .await;
    let (session, workspace) = session(&world).await;
    fs::write(workspace.join("small"), vec![b's'; 600]).unwrap();
    archived(&world, session).await;
    again(&world, session).await;
    testkit::eventually_async("the file to come back", async || {
        workspace.join("small").exists().then_some(())
    })
    .await;
    fs::write(workspace.join("large"), vec![b'x'; 800]).unwrap();
    let error = archive(&world, session).await.unwrap_err();
    assert!(
        matches!(&error, ControlError::Unavailable(words) if words.contains("1 files")),
        "{error:?}"
    );
    assert!(workspace.join("large").exists(), "nothing is removed that is not kept");
    fs::write(workspace.join("other"), vec![b'y'; 900]).unwrap();
    assert!(archive(&world, session).await.is_err());
    let told = world.events(session).await;
    let full = told
        .iter()
        .filter(|event| matches!(&event.event, Event::Files { state, .. } if state == "full"));
    assert_eq!(full.count(), 1);

    fs::remove_file(workspace.join("small")).unwrap();
    fs::remove_file(workspace.join("other")).unwrap();
    let wanted = tree(&workspace);
    archived(&world, session).await;
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_file_has_any_more_is_removed() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |files| files.grace = GRACE).await;
    let (_, workspace) = session(&world).await;
    fs::write(workspace.join("twice"), "kept").unwrap();
    fs::write(workspace.join("file"), "first").unwrap();
    let has = async |wanted: &[&str]| {
        testkit::eventually_async("the contents", async || (bucket.contents() == wanted).then_some(())).await;
    };
    has(&["first", "kept"]).await;
    fs::copy(workspace.join("twice"), workspace.join("copy")).unwrap();
    fs::write(workspace.join("file"), "second").unwrap();
    has(&["kept", "second"]).await;
    fs::remove_file(workspace.join("twice")).unwrap();
    fs::write(workspace.join("file"), "third").unwrap();
    has(&["kept", "third"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_that_cannot_be_removed_keeps_no_other() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |files| files.grace = GRACE).await;
    let (_, workspace) = session(&world).await;
    let has = async |wanted: &[&str]| {
        testkit::eventually_async("the contents", async || (bucket.contents() == wanted).then_some(())).await;
    };
    bucket.hold(Some(b"held"));
    fs::write(workspace.join("file"), "held").unwrap();
    has(&["held"]).await;
    fs::remove_file(workspace.join("file")).unwrap();
    testkit::eventually_async("the removal to be tried", async || (bucket.failed() > 0).then_some(())).await;
    for (name, content) in [("one", "first"), ("two", "second")] {
        fs::write(workspace.join(name), content).unwrap();
    }
    has(&["first", "held", "second"]).await;
    fs::remove_file(workspace.join("one")).unwrap();
    has(&["held", "second"]).await;
    bucket.hold(None);
    has(&["second"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_removed_can_be_kept_again() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |files| files.grace = Duration::from_millis(200)).await;
    let (session, workspace) = session(&world).await;
    bucket.hold(Some(b"held"));
    fs::write(workspace.join("file"), "held").unwrap();
    let has = async |wanted: &[&str]| {
        testkit::eventually_async("the contents", async || (bucket.contents() == wanted).then_some(())).await;
    };
    has(&["held"]).await;
    fs::remove_file(workspace.join("file")).unwrap();
    testkit::eventually_async("the removal to be tried", async || (bucket.failed() > 0).then_some(())).await;
    fs::write(workspace.join("again"), "held").unwrap();
    let wanted = tree(&workspace);
    archived(&world, session).await;
    bucket.hold(None);
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_url_is_good_no_more_a_fresh_one_is_asked_for() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let short = |files: &mut Files| files.tickets = files.tickets.clone().good_for(Duration::from_millis(500));
    let world = in_bucket(&bucket, short).await;
    let (session, workspace) = session(&world).await;
    let tickets = world.tickets();
    // A URL that was made now, when it is good no more: so is each that was made before.
    let outlived = async |method, request| {
        let (_, client) = world.inside.newest();
        let disk = DiskId::try_from("ab".repeat(16)).unwrap();
        let url = match client.sync(&SyncCall { disk, request }).await.unwrap() {
            SyncAnswer::Offered { offers } => match &offers[..] {
                [protocol::Offered::Upload { url }] => url.clone(),
                other => panic!("{other:?}"),
            },
            SyncAnswer::Fetch { urls } => urls[0].clone(),
            other => panic!("{other:?}"),
        };
        testkit::eventually_async("the URL to be good no more", async || {
            // Two clocks tell of it.
            let now = domain::Timestamp(domain::Timestamp::now().0 - 1_000);
            tickets.check(method, &url, now).is_err().then_some(())
        })
        .await;
        (client, url)
    };
    let is_later = |error: Option<ClientError>| {
        let code = match &error {
            Some(ClientError::Refused(refusal)) => Some(refusal.code),
            _ => None,
        };
        assert_eq!(code, Some(protocol::RefusalCode::Unavailable), "{error:?}");
    };

    // More than are uploaded side by side: those that wait have their URLs.
    let contents: Vec<String> = (10..30).map(|number| format!("content {number}")).collect();
    let tree_of_it = workspace.with_file_name("tree");
    fs::create_dir(&tree_of_it).unwrap();
    for content in &contents {
        fs::write(tree_of_it.join(content), content).unwrap();
    }
    bucket.set(Mood::Waits);
    fs::rename(&tree_of_it, workspace.join("tree")).unwrap();
    let asked = async |count| {
        testkit::eventually_async("contents to be on their way", async || {
            (bucket.failed() >= count).then_some(())
        })
        .await;
    };
    asked(4).await;
    let content = Content {
        sha256: domain::ContentHash([7; 32]),
        bytes: 4,
    };
    let offer = SyncRequest::Offer {
        contents: vec![content],
    };
    let (client, url) = outlived(Method::Put, offer).await;
    let body = futures::StreamExt::boxed(futures::stream::iter([Ok(bytes::Bytes::from_static(b"abcd"))]));
    is_later(client.keep_object(&url, 4, body).await.err());
    bucket.set(Mood::Works);
    let wanted = tree(&workspace);
    archived(&world, session).await;
    assert_eq!(bucket.contents(), contents);

    bucket.set(Mood::Waits);
    let before = bucket.failed();
    again(&world, session).await;
    asked(before + 8).await;
    let kept = Content {
        sha256: bucket.names()[0],
        bytes: contents[0].len() as u64,
    };
    let fetch = SyncRequest::Fetch { contents: vec![kept] };
    let (client, url) = outlived(Method::Get, fetch).await;
    is_later(client.fetch_object(&url).await.err());
    bucket.set(Mood::Works);
    comes_back(&workspace, &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_never_rests_is_uploaded_at_a_bounded_rate_and_its_end_is_kept() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |_| {}).await;
    let (session, workspace) = session(&world).await;
    let writes = 2_000;
    for number in 0..writes {
        fs::write(workspace.join("busy"), format!("{number}")).unwrap();
    }
    archived(&world, session).await;
    assert!(bucket.contents().contains(&(writes - 1).to_string()));
    assert!(bucket.puts() < writes / 4, "{} uploads", bucket.puts());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_files_are_kept() {
    let full = std::env::var_os("BELLJAR_TEST_FULL").is_some();
    let count = if full { 100_000 } else { 3_000 };
    let world = world().await;
    let (session, workspace) = session(&world).await;
    for number in 0..count {
        let folder = workspace.join(format!("{}", number % 97));
        if number < 97 {
            fs::create_dir(&folder).unwrap();
        }
        fs::write(folder.join(format!("file-{number}")), format!("{number}")).unwrap();
    }
    let wanted = tree(&workspace);
    let kept = async {
        loop {
            match archive(&world, session).await {
                // So many take longer than is waited for; what is kept stays so.
                Err(ControlError::Unavailable(words)) if full && words.contains("not everything could be kept") => {}
                kept => return kept.unwrap(),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(if full { 1_800 } else { 600 }), kept)
        .await
        .unwrap();
    again(&world, session).await;
    testkit::eventually_async("the files to come back", async || {
        (tree(&workspace) == wanted).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_116_and_117_and_118_a_sandbox_reaches_its_own_contents_only() {
    let world = world().await;
    let (session, _) = session(&world).await;
    let (_, client) = world.inside.newest();
    let stranger = SessionId::new();
    let disk = DiskId::try_from("ab".repeat(16)).unwrap();
    let ask = async |request| {
        client
            .sync(&SyncCall {
                disk: disk.clone(),
                request,
            })
            .await
    };
    ask(SyncRequest::Begin).await.unwrap();

    let content = Content {
        sha256: domain::ContentHash([7; 32]),
        bytes: 4,
    };
    let SyncAnswer::Offered { offers } = ask(SyncRequest::Offer {
        contents: vec![content],
    })
    .await
    .unwrap() else {
        panic!("another answer");
    };
    let protocol::Offered::Upload { url } = &offers[0] else {
        panic!("{offers:?}");
    };
    let put = async |url: &str, bytes: &'static [u8]| {
        let body = futures::StreamExt::boxed(futures::stream::iter([Ok(bytes::Bytes::from_static(bytes))]));
        client.keep_object(url, bytes.len() as u64, body).await
    };
    // Another content, another length, another key, another session, another method.
    assert!(matches!(put(url, b"abcd").await, Err(ClientError::Refused(_))));
    assert!(matches!(put(url, b"abcde").await, Err(ClientError::Refused(_))));
    let other_key = url.replace(&content.sha256.to_string(), &"08".repeat(32));
    assert!(matches!(put(&other_key, b"abcd").await, Err(ClientError::Refused(_))));
    let other_session = url.replace(&session.to_string(), &stranger.to_string());
    assert!(matches!(
        put(&other_session, b"abcd").await,
        Err(ClientError::Refused(_))
    ));
    assert!(matches!(client.fetch_object(url).await, Err(ClientError::Refused(_))));

    // What is not there cannot be recorded, and no path leads out.
    let record = |path: &str, bytes: u64| SyncRequest::Record {
        gone: Vec::new(),
        files: vec![FileRecord {
            path: PathBytes(path.as_bytes().to_vec()),
            kept: Kept::File {
                bytes,
                pieces: vec![protocol::Piece { at: 0, content }],
            },
            mode: 0o644,
            changed: 0,
            stamp: 0,
        }],
    };
    let answer = ask(record("a", 4)).await.unwrap();
    let refused = SyncAnswer::Recorded {
        refused: vec![0],
        full: Vec::new(),
    };
    assert_eq!(answer, refused);
    for path in ["../a", "/etc/passwd", "a/../../b", ""] {
        assert!(
            matches!(ask(record(path, 4)).await, Err(ClientError::Refused(_))),
            "{path}"
        );
    }
    let SyncAnswer::Fetch { urls } = ask(SyncRequest::Fetch {
        contents: vec![content],
    })
    .await
    .unwrap() else {
        panic!("another answer");
    };
    assert_eq!(urls, [protocol::SignedUrl::default()]);
    // A URL that this installation signed for another session opens nothing on this link.
    let theirs = Ticket {
        key: Key {
            session: stranger,
            sha256: content.sha256,
        },
        bytes: 4,
    };
    let signed = world.tickets().sign(Method::Put, theirs, domain::Timestamp::now());
    assert!(matches!(put(&signed, b"abcd").await, Err(ClientError::Refused(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_dies_goes_on_keeping_files_where_it_stood() {
    let world = world().await;
    let (session, workspace) = session(&world).await;
    fs::write(workspace.join("before"), "before").unwrap();
    let world = world.restarted().await;
    fs::write(workspace.join("after"), "after").unwrap();
    again(&world, session).await;
    let wanted = tree(&workspace);
    archived(&world, session).await;
    let world = world.restarted().await;
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_put_away_keeps_no_disk() {
    let world = world().await;
    let (session, workspace) = session(&world).await;
    fs::write(workspace.join("file"), "content").unwrap();
    let wanted = tree(&workspace);
    testkit::eventually_async("the session to be put away", async || {
        world.control.archive(world.asker, session).await.ok()
    })
    .await;
    testkit::eventually_async("the disk to go", async || (!workspace.exists()).then_some(())).await;
    again(&world, session).await;
    comes_back(&workspace, &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_deep_to_be_kept_keeps_its_disk() {
    let world = world().await;
    let (session, workspace) = session(&world).await;
    fs::write(workspace.join("file"), "content").unwrap();
    // Made step by step: the whole path is longer than can be kept.
    let mut folder = fs::File::open(&workspace).unwrap();
    let name = "d".repeat(200);
    for _ in 0..25 {
        rustix::fs::mkdirat(&folder, name.as_str(), rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        let next = rustix::fs::openat(&folder, name.as_str(), flags, rustix::fs::Mode::empty()).unwrap();
        folder = next.into();
    }
    let error = archive(&world, session).await.unwrap_err();
    assert!(
        matches!(&error, ControlError::Unavailable(words) if words.contains("not kept")),
        "{error:?}"
    );
    assert!(workspace.join("file").exists(), "nothing is removed");
}

fn soon_archived(config: &mut Config) {
    config.freeze_after = Duration::from_millis(20);
    config.hibernate_after = Duration::from_millis(50);
    config.archive_after = Duration::from_millis(100);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_uses_for_long_has_no_disk_and_comes_back_when_it_is_used() {
    let world = both(soon_archived, |_| {}).await;
    let (session, workspace) = session(&world).await;
    let upload = futures::stream::iter([Ok(bytes::Bytes::from_static(b"content"))]);
    let upload = world.control.upload(world.asker, session, "file", Box::pin(upload));
    upload.await.unwrap();
    let is_archived = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == "archived");
    world.event(session, "its time to be archived", is_archived).await;
    testkit::eventually_async("the disk to go", async || (!workspace.exists()).then_some(())).await;
    // Whoever asks for a file waits for it, and gets it.
    let file = testkit::eventually_async("the file to come back", async || {
        world.control.download(world.asker, session, "file").await.ok()
    })
    .await;
    let bytes: Vec<_> = futures::TryStreamExt::try_collect(file).await.unwrap();
    assert_eq!(bytes.concat(), b"content");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_whole_is_never_archived_by_time() {
    let world = both(soon_archived, |files| files.quota = 10).await;
    let (session, workspace) = session(&world).await;
    let upload = futures::stream::iter([Ok(bytes::Bytes::from_static(b"more than ten bytes"))]);
    let upload = world.control.upload(world.asker, session, "file", Box::pin(upload));
    upload.await.unwrap();
    // It is tried again and again, each time with a sandbox of its own.
    let tries = world.inside.sandboxes() + 3;
    testkit::eventually_async("it to be tried", async || {
        (world.inside.sandboxes() >= tries).then_some(())
    })
    .await;
    assert!(workspace.join("file").exists());
    let kept = world.store.workspace(Asker::System, session).await.unwrap().unwrap();
    assert_eq!(kept.archived, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_leaves_files_out_is_never_archived_by_time_and_says_so() {
    let world = both(soon_archived, |_| {}).await;
    let (session, workspace) = session(&world).await;
    let upload = futures::stream::iter([Ok(bytes::Bytes::from_static(b"/data\n"))]);
    let upload = world
        .control
        .upload(world.asker, session, ".belljarignore", Box::pin(upload));
    upload.await.unwrap();
    fs::write(workspace.join("data"), "nowhere else").unwrap();
    let says_so = |event: &Event| matches!(event, Event::Sandbox { state, reason: Some(reason) } if state == "hibernated" && reason.contains(".belljarignore"));
    world.event(session, "why its disk stays", says_so).await;
    assert_eq!(fs::read_to_string(workspace.join("data")).unwrap(), "nowhere else");
    let kept = world.store.workspace(Asker::System, session).await.unwrap().unwrap();
    assert_eq!(kept.archived, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_runtime_does_not_say_what_is_missing_a_session_is_archived_in_the_next_sandbox() {
    let world = both(soon_archived, |_| {}).await;
    world.inside.vague.store(true, Ordering::SeqCst);
    let (session, workspace) = session(&world).await;
    fs::write(workspace.join("file"), "content").unwrap();
    let says_so = |event: &Event| matches!(event, Event::Sandbox { state, reason: Some(reason) } if state == "hibernated" && reason.contains("does not say"));
    world.event(session, "why its disk stays", says_so).await;
    assert!(workspace.join("file").exists());
    world.inside.vague.store(false, Ordering::SeqCst);
    let is_archived = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == "archived");
    world.event(session, "it to be archived", is_archived).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_workspace_is_neither_kept_nor_forked() {
    let tasks = lifecycle::Tasks::new();
    let bucket = Bucket::start(&tasks).await;
    let world = in_bucket(&bucket, |_| {}).await;
    let (session, workspace) = session(&world).await;
    fs::write(workspace.join("file"), "content").unwrap();
    archived(&world, session).await;
    // The way back has begun, and nothing comes.
    bucket.set(Mood::Refuses);
    let failing = bucket.fails_again();
    again(&world, session).await;
    failing.await;
    let one = control::NewFork {
        count: 1,
        snapshot: None,
        scope: None,
    };
    let saved = world.control.save_snapshot(world.asker, session, None).await.map(drop);
    let forked = world.control.fork(world.asker, session, one.clone()).await.map(drop);
    for refused in [saved, forked] {
        assert!(
            matches!(&refused, Err(ControlError::Conflict(words)) if words.contains("still being brought back")),
            "{refused:?}"
        );
    }
    assert!(world.store.all_snapshots(Asker::System).await.unwrap().is_empty());
    bucket.set(Mood::Works);
    let forks = testkit::eventually_async("the files to be back", async || {
        world.control.fork(world.asker, session, one.clone()).await.ok()
    })
    .await;
    let fork = world.sandboxes.workspace(forks[0].id);
    assert_eq!(fs::read_to_string(fork.join("file")).unwrap(), "content");
}
