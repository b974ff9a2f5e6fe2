//! The whole of it on real folders, with a PID 1 that answers as the real one does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod behind;
mod lost;

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use behind::{Behind, GOOD_FOR, State};
use domain::ContentHash;
use protocol::{Content, FileRecord, Kept, PIECE, PathBytes, Piece};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A workspace, and room beside it on the same disk.
fn workspace() -> (TempDir, PathBuf) {
    let disk = tempfile::tempdir().unwrap();
    let workspace = disk.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    (disk, workspace)
}

/// Files that no other has the content of, by folder.
fn fill(tree: &Path, folders: usize, files: usize) {
    for folder in 0..folders {
        let folder = tree.join(format!("{folder}"));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..files {
            let file = folder.join(format!("{file}"));
            fs::write(&file, file.as_os_str().as_encoded_bytes()).unwrap();
        }
    }
}

/// A file that another disk recorded, with what stands at the beginning of each of its pieces.
fn recorded(behind: &Behind, path: &str, pieces: &[String]) {
    let mut all = behind.state();
    let pieces: Vec<Piece> = (0..)
        .zip(pieces)
        .map(|(number, bytes)| {
            let sha256 = ContentHash(Sha256::digest(bytes).into());
            all.contents.insert(sha256, bytes.clone().into_bytes());
            let bytes = bytes.len() as u64;
            Piece {
                at: number * PIECE,
                content: Content { sha256, bytes },
            }
        })
        .collect();
    let bytes = pieces.last().map_or(0, |last| last.at + last.content.bytes);
    let path = PathBytes(path.as_bytes().to_vec());
    let record = FileRecord {
        path: path.clone(),
        kept: Kept::File { bytes, pieces },
        mode: 0o644,
        changed: 0,
        stamp: 0,
    };
    all.missing.insert(path.0, record);
}

#[tokio::test]
async fn a_tree_of_which_one_upload_fails_is_kept_whole() {
    let (disk, workspace) = workspace();
    fs::create_dir(workspace.join("known")).unwrap();
    let behind = Behind::default();
    let test = async {
        behind
            .until("the folder to be kept", |state| state.kept.len() == 1)
            .await;
        // It comes at once, so that nothing but its own name is heard of.
        fill(&disk.path().join("tree"), 100, 5);
        // One of the second batch.
        behind.state().fails = Some(70);
        fs::rename(disk.path().join("tree"), workspace.join("known/tree")).unwrap();
        behind
            .until("all of the tree to be kept", |state| state.kept.len() == 2 + 100 + 500)
            .await;
        assert_eq!(behind.state().fails, None, "one has failed");
    };
    behind.serve(&workspace, test).await;
}

#[tokio::test]
async fn what_the_rules_leave_out_is_not_kept_and_they_count_when_they_change() {
    let (_disk, workspace) = workspace();
    let write = |path: &str, text: &str| {
        let path = workspace.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(".belljarignore", "*.log\n/build/\n");
    write("kept.txt", "kept");
    write("run.log", "left out by a rule");
    write("build/program", "left out with its folder");
    write("node_modules/package/index.js", "left out everywhere");
    write("cache/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55");
    write("cache/entry", "left out with its folder");
    let behind = Behind::default();
    let paths = |state: &State| -> Vec<String> {
        let paths = state.kept.keys().map(|path| String::from_utf8(path.clone()).unwrap());
        paths.collect()
    };
    let test = async {
        behind
            .until("what the rules want to be kept", |state| {
                paths(state) == [".belljarignore", "kept.txt"]
            })
            .await;
        // Whoever comes later is left out too.
        write("later.log", "left out by a rule");
        write("build/other", "left out with its folder");
        write("later.txt", "kept");
        behind
            .until("the later one to be kept", |state| {
                paths(state) == [".belljarignore", "kept.txt", "later.txt"]
            })
            .await;
        write(".belljarignore", "later.txt\n/build/\n!/cache/\n");
        let wanted = [
            ".belljarignore",
            "cache",
            "cache/CACHEDIR.TAG",
            "cache/entry",
            "kept.txt",
            "later.log",
            "run.log",
        ];
        behind
            .until("the new rules to count", |state| paths(state) == wanted)
            .await;
    };
    behind.serve(&workspace, test).await;
}

#[tokio::test]
async fn what_takes_longer_than_urls_are_good_comes_back() {
    let (_disk, workspace) = workspace();
    let behind = Behind::default();
    let pieces: Vec<String> = (0..128).map(|number| format!("piece {number}")).collect();
    recorded(&behind, "large", &pieces);
    behind.state().each_takes = 5;
    let test = async {
        behind
            .until("the file to be back", |state| state.missing.is_empty())
            .await;
    };
    behind.serve(&workspace, test).await;
    let file = fs::File::open(workspace.join("large")).unwrap();
    for (number, piece) in (0..).zip(&pieces) {
        let mut found = vec![0; piece.len()];
        file.read_exact_at(&mut found, number * PIECE).unwrap();
        assert_eq!(&found, piece.as_bytes());
    }
    let state = behind.state();
    assert!(state.clock > 2 * GOOD_FOR, "{}", state.clock);
    assert_eq!((state.expired, state.gets), (0, pieces.len()), "each was fetched once");
}

#[tokio::test]
async fn threat_118_uploads_that_take_longer_than_urls_are_good_go_on() {
    let (disk, workspace) = workspace();
    let behind = Behind::default();
    behind.state().each_takes = 6;
    fill(&disk.path().join("workspace"), 1, 120);
    let test = async {
        behind
            .until("all files to be kept", |state| state.kept.len() == 1 + 120)
            .await;
    };
    behind.serve(&workspace, test).await;
    let state = behind.state();
    assert!(state.clock > 2 * GOOD_FOR, "{}", state.clock);
    assert_eq!((state.expired, state.puts), (0, 120));
}

#[tokio::test]
async fn threat_121_what_stands_in_the_way_of_what_comes_back_is_newer_and_no_link_is_followed() {
    let (disk, workspace) = workspace();
    let outside = disk.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "another's").unwrap();
    let behind = Behind::default();
    for path in [
        "taken",
        "linked",
        "leads out/file",
        "leads out/new",
        "a file/file",
        "free",
    ] {
        recorded(&behind, path, &[format!("kept of {path}")]);
    }
    fs::write(workspace.join("taken"), "newer").unwrap();
    fs::write(workspace.join("a file"), "newer").unwrap();
    symlink(outside.join("file"), workspace.join("linked")).unwrap();
    symlink(&outside, workspace.join("leads out")).unwrap();
    let test = async {
        behind
            .until("what can come back to be back", |state| state.filled.is_some())
            .await;
    };
    behind.serve(&workspace, test).await;
    assert_eq!(fs::read(workspace.join("free")).unwrap(), b"kept of free");
    for newer in ["taken", "a file"] {
        assert_eq!(fs::read(workspace.join(newer)).unwrap(), b"newer", "{newer}");
    }
    for link in ["linked", "leads out"] {
        assert!(workspace.join(link).is_symlink(), "{link}");
    }
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"another's");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[tokio::test]
async fn a_content_that_is_being_removed_holds_up_its_own_file_only() {
    let (_disk, workspace) = workspace();
    let behind = Behind::default();
    let going = ContentHash(Sha256::digest("being removed").into());
    behind.state().going.insert(going);
    for name in ["being removed", "other", "third"] {
        fs::write(workspace.join(name), name).unwrap();
    }
    let test = async {
        behind
            .until("the others to be kept", |state| state.kept.len() == 2)
            .await;
        behind.state().going.clear();
        behind.until("it to be kept", |state| state.kept.len() == 3).await;
    };
    behind.serve(&workspace, test).await;
}

#[tokio::test]
async fn what_an_interrupted_way_back_left_is_removed() {
    let (disk, workspace) = workspace();
    let behind = Behind::default();
    recorded(&behind, "a/b/file", &["content".to_owned()]);
    fs::create_dir_all(workspace.join("a/b")).unwrap();
    fs::create_dir(disk.path().join("outside")).unwrap();
    symlink("../outside", workspace.join("link")).unwrap();
    let left = ["a/b/.belljar-sync-77-0.new", ".belljar-sync-1-31.new"].map(|name| workspace.join(name));
    // Somebody's own, or not here.
    let others = [
        workspace.join("a/.belljar-sync-notes.new"),
        workspace.join("a/.belljar-sync-7.new"),
        disk.path().join("outside/.belljar-sync-77-0.new"),
    ];
    for file in left.iter().chain(&others) {
        fs::write(file, "").unwrap();
    }
    fs::create_dir(workspace.join(".belljar-sync-77-1.new")).unwrap();
    let test = async {
        behind
            .until("the file to be back", |state| state.missing.is_empty())
            .await;
    };
    behind.serve(&workspace, test).await;
    assert!(left.iter().all(|file| !file.exists()));
    assert!(others.iter().all(|file| file.exists()));
    assert!(workspace.join(".belljar-sync-77-1.new").is_dir());
}

/// A file system for so many files, as long as this is held. Needs root.
struct Small(TempDir);

impl Small {
    fn mount(files: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Its root is one of them.
        let options = CString::new(format!("size=1m,nr_inodes={}", files + 1)).unwrap();
        mount("tmpfs", folder.path(), "tmpfs", MountFlags::NOSUID, options.as_c_str()).expect("mounting needs root");
        Self(folder)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// So tools are used, which alone can make room.
#[tokio::test]
async fn a_full_disk_without_an_id_is_told_and_kept_when_there_is_room() {
    let small = Small::mount(4);
    let workspace = small.0.path();
    let ballast = ["one", "two", "three", "four"].map(|name| workspace.join(name));
    for file in &ballast {
        fs::write(file, "theirs").unwrap();
    }
    let full = fs::write(workspace.join("five"), "").unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let behind = Behind::default();
    recorded(&behind, "back", &["content".to_owned()]);
    let test = async {
        behind
            .until("tools to be let go on", |state| state.filled == Some(1))
            .await;
        assert!(
            behind.state().kept.is_empty(),
            "nothing is recorded in the name of no disk"
        );
        for file in &ballast[1..] {
            fs::remove_file(file).unwrap();
        }
        behind
            .until("all of it to be back", |state| {
                state.filled == Some(0) && state.missing.is_empty() && !state.kept.is_empty()
            })
            .await;
    };
    behind.serve(workspace, test).await;
    assert_eq!(fs::read(workspace.join("back")).unwrap(), b"content");
    let kept: Vec<_> = behind.state().kept.keys().cloned().collect();
    assert_eq!(kept, [b"one"]);
}

/// What a piece is called.
fn name(content: &str) -> ContentHash {
    ContentHash(Sha256::digest(content).into())
}

/// Programs remove folders that look empty: nobody wanted the loss of what was never in them.
#[tokio::test]
async fn what_is_still_to_come_comes_although_its_folder_was_removed() {
    let (_disk, workspace) = workspace();
    let behind = Behind::default();
    let large = ["gone/deep/large", "gone/moved/large", "empty/large", "large"];
    for path in large {
        recorded(&behind, path, &[path.to_owned()]);
        behind.state().no_room.insert(name(path));
    }
    recorded(&behind, "gone/small", &["small".to_owned()]);
    let test = async {
        behind
            .until("the small one to be back", |state| state.crowded == [4])
            .await;
        assert!(workspace.join("gone/small").exists());
        fs::rename(workspace.join("gone/moved"), workspace.join("moved")).unwrap();
        fs::remove_dir_all(workspace.join("gone")).unwrap();
        fs::remove_dir(workspace.join("empty")).unwrap();
        behind.state().no_room.clear();
        behind
            .until("the rest to be back", |state| state.crowded.last() == Some(&0))
            .await;
    };
    behind.serve(&workspace, test).await;
    for path in large {
        assert!(workspace.join(path).exists(), "{path}");
    }
    assert!(!workspace.join("gone/small").exists());
}

#[tokio::test]
async fn what_is_not_what_it_should_be_is_fetched_once() {
    let (_disk, workspace) = workspace();
    let behind = Behind::default();
    recorded(&behind, "broken", &["as it was".to_owned()]);
    behind.state().contents.insert(name("as it was"), b"something".to_vec());
    recorded(&behind, "large", &["large".to_owned()]);
    behind.state().no_room.insert(name("large"));
    let test = async {
        behind.until("it to be tried", |state| state.crowded == [1]).await;
        // Two at first, and the large one alone; then that one twice each time.
        behind.until("it to be tried again", |state| state.gets >= 3 + 2).await;
        behind.state().no_room.clear();
        behind
            .until("the rest to be back", |state| state.crowded == [1, 0])
            .await;
    };
    behind.serve(&workspace, test).await;
    assert_eq!(fs::read(workspace.join("large")).unwrap(), b"large");
    assert!(!workspace.join("broken").exists());
    let state = behind.state();
    assert_eq!(state.fetched[&name("as it was")], 1);
}

#[tokio::test]
async fn that_nothing_waits_is_told_when_nothing_does() {
    let (disk, workspace) = workspace();
    let behind = Behind::default();
    let test = async {
        behind.until("the beginning", |state| state.caught_up == [0]).await;
        fill(&disk.path().join("tree"), 1, 5);
        behind.state().fails = Some(3);
        fs::rename(disk.path().join("tree"), workspace.join("tree")).unwrap();
        behind
            .until("it to be told again", |state| state.caught_up.len() == 2)
            .await;
    };
    behind.serve(&workspace, test).await;
    assert_eq!(behind.state().fails, None, "one has failed");
    assert_eq!(behind.state().caught_up, [0, 2 + 5]);
}
