//! The kernel tells of changes as long as its queue and its limits last. What it does not tell is found all the same.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use domain::ContentHash;
use protocol::Kept;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use sha2::{Digest, Sha256};

use crate::behind::{Behind, State};
use crate::{fill, workspace};

/// What a workspace's files are known to hold; folders hold nothing.
fn known(state: &State) -> Vec<(String, Option<ContentHash>)> {
    let known = state.kept.iter().map(|(path, record)| {
        let content = match &record.kept {
            Kept::File { pieces, .. } => pieces.first().map(|piece| piece.content.sha256),
            _ => None,
        };
        (String::from_utf8(path.clone()).unwrap(), content)
    });
    known.collect()
}

/// What they hold.
fn there(workspace: &Path) -> Vec<(String, Option<ContentHash>)> {
    let mut there = Vec::new();
    let mut folders = vec![workspace.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(workspace).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                there.push((name, None));
                folders.push(path);
            } else {
                there.push((name, Some(ContentHash(Sha256::digest(fs::read(&path).unwrap()).into()))));
            }
        }
    }
    there.sort();
    there
}

/// Everything that can become of files and folders.
fn change(workspace: &Path) {
    // Of the same length as before.
    let old = fs::read(workspace.join("0/0")).unwrap();
    fs::write(workspace.join("0/0"), "n".repeat(old.len())).unwrap();
    fs::write(workspace.join("0/new"), "new").unwrap();
    fs::remove_file(workspace.join("1/1")).unwrap();
    fs::rename(workspace.join("1/2"), workspace.join("2/renamed")).unwrap();
    fs::rename(workspace.join("3"), workspace.join("2/moved")).unwrap();
    fs::remove_dir_all(workspace.join("4")).unwrap();
    fs::create_dir_all(workspace.join("5/deep/er")).unwrap();
    fs::write(workspace.join("5/deep/er/file"), "deep").unwrap();
    fs::write(workspace.join("above"), "above").unwrap();
    // A file where a folder was.
    fs::remove_dir_all(workspace.join("6")).unwrap();
    fs::write(workspace.join("6"), "a file").unwrap();
}

async fn all_is_known(behind: &Behind, workspace: &Path) {
    let wanted = there(workspace);
    behind
        .until("all to be known that is there", |state| known(state) == wanted)
        .await;
}

#[tokio::test]
async fn what_no_queue_had_room_for_is_found() {
    let (_disk, workspace) = workspace();
    fill(&workspace, 7, 4);
    let behind = Behind::default();
    // As the kernel fills the queue of whoever does not read.
    let witness = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(
        &witness,
        &workspace,
        WatchFlags::CREATE | WatchFlags::CLOSE_WRITE | WatchFlags::DELETE,
    )
    .unwrap();
    let test = async {
        all_is_known(&behind, &workspace).await;
        let puts = behind.state().puts;
        for file in ["busy", "with", "these"] {
            fs::write(workspace.join(file), file).unwrap();
        }
        behind.until("it to be busy", |state| state.puts > puts).await;
        // It waits for an answer, which it gets when this test waits for something the next time.
        let room: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        for _ in 0..=room / 2 {
            fs::write(workspace.join("noise"), "").unwrap();
            fs::remove_file(workspace.join("noise")).unwrap();
        }
        change(&workspace);
        all_is_known(&behind, &workspace).await;
    };
    behind.serve(&workspace, test).await;
    let mut buffer = [MaybeUninit::uninit(); 16 << 10];
    let mut events = Reader::new(witness.as_fd(), &mut buffer);
    let mut overflown = false;
    while let Ok(event) = events.next() {
        overflown |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
    }
    assert!(overflown, "no queue was full");
}

/// Set in a process whose user has few of what the kernel watches with.
const FEW: &str = "BELLJAR_TEST_FEW_WATCHES";

/// Runs a test of this program again, in a user namespace with a limit of its own.
fn with_few(test: &str, limit: &str) {
    let mut again = Command::new("unshare");
    again
        .args(["--user", "--map-root-user"])
        .arg(std::env::current_exe().unwrap());
    again.args(["--exact", test, "--nocapture"]).env(FEW, limit);
    let output = again.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{limit}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn what_is_not_watched_is_found() {
    let Some(limit) = std::env::var_os(FEW) else {
        for limit in ["max_inotify_watches 3", "max_inotify_instances 0"] {
            with_few("lost::what_is_not_watched_is_found", limit);
        }
        return;
    };
    let limit = limit.into_string().unwrap();
    let (name, most) = limit.split_once(' ').unwrap();
    fs::write(format!("/proc/sys/user/{name}"), most).unwrap();
    let (_disk, workspace) = workspace();
    fill(&workspace, 7, 4);
    let behind = Behind::default();
    let test = async {
        behind.until("it to say so", |state| !state.said.is_empty()).await;
        all_is_known(&behind, &workspace).await;
        change(&workspace);
        all_is_known(&behind, &workspace).await;
        // And again, where it has not looked for the first time.
        fs::write(workspace.join("2/moved/0"), "changed").unwrap();
        fs::remove_file(workspace.join("5/deep/er/file")).unwrap();
        all_is_known(&behind, &workspace).await;
    };
    behind.serve_and_look(&workspace, Duration::from_millis(5), test).await;
    let state = behind.state();
    assert_eq!(state.said.len(), 1, "{:?}", state.said);
    assert!(
        state.said[0].contains("not every folder can be watched"),
        "{:?}",
        state.said
    );
}
