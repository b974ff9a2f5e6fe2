//! Threat 114: whatever stands in the workspace, tools reach nothing beside it.

use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::json;

use crate::bench::Bench;

/// A workspace full of traps.
fn trapped() -> Bench {
    let bench = Bench::new();
    bench.put("plain.txt", "plain\n");
    bench.put("folder/inner.txt", "inner\n");
    symlink(bench.outside("secret"), bench.at("absolute")).unwrap();
    symlink("../outside/secret", bench.at("relative")).unwrap();
    symlink("../outside", bench.at("way-out")).unwrap();
    symlink("plain.txt", bench.at("within")).unwrap();
    symlink("folder", bench.at("folder-within")).unwrap();
    symlink("loop", bench.at("loop")).unwrap();
    symlink("nowhere", bench.at("dangling")).unwrap();
    symlink("/proc/self/environ", bench.at("environ")).unwrap();
    symlink("/proc/self/root", bench.at("root")).unwrap();
    symlink("/dev/zero", bench.at("endless")).unwrap();
    std::fs::hard_link(bench.outside("secret"), bench.at("second-name")).unwrap();
    mknodat(CWD, bench.at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    mknodat(
        CWD,
        bench.at("device"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        makedev(1, 5),
    )
    .unwrap();
    UnixListener::bind(bench.at("socket")).unwrap();
    bench
}

const HOSTILE: &[(&str, &str)] = &[
    ("absolute", "symbolic link"),
    ("relative", "symbolic link"),
    ("way-out/secret", "symbolic link"),
    ("way-out/new", "symbolic link"),
    ("./folder/../way-out/secret", "symbolic link"),
    ("/workspace/way-out/secret", "symbolic link"),
    ("within", "symbolic link"),
    ("folder-within/inner.txt", "symbolic link"),
    ("loop", "symbolic link"),
    ("loop/x", "symbolic link"),
    ("environ", "symbolic link"),
    ("root/etc/passwd", "symbolic link"),
    ("endless", "symbolic link"),
    ("pipe", "named pipe"),
    ("device", "a device"),
    ("socket", "a socket"),
    ("..", "outside of the folders"),
    ("../outside/secret", "outside of the folders"),
    ("folder/../../outside/secret", "outside of the folders"),
    ("/etc/passwd", "outside of the folders"),
    ("/workspace/../etc/passwd", "outside of the folders"),
    ("/workspaces/x", "outside of the folders"),
    ("/proc/self/environ", "outside of the folders"),
    ("/proc/self/cwd/plain.txt", "outside of the folders"),
    ("/dev/stdin", "outside of the folders"),
    ("//etc/passwd", "outside of the folders"),
    ("/", "outside of the folders"),
    ("plain.txt\0.png", "NUL"),
    ("", "empty"),
    ("plain.txt/x", "Not a directory"),
];

#[tokio::test]
async fn threat_114_reading_never_leaves_the_folders() {
    let bench = trapped();
    let more = [
        "dangling",
        "PLAIN.TXT",
        "Folder/inner.txt",
        "plain.txt ",
        "~/x",
        "%2e%2e/outside/secret",
        "..\\outside\\secret",
    ];
    let missing = more.into_iter().map(|path| {
        (
            path,
            if path == "dangling" {
                "symbolic link"
            } else {
                "there is no"
            },
        )
    });
    for (path, expected) in HOSTILE.iter().copied().chain(missing) {
        let said = bench.error("read", json!({ "path": path })).await;
        assert!(said.contains(expected), "{path:?}: {said}");
        assert!(!said.contains("the secret"), "{path:?}: {said}");
    }
    for path in ["x".repeat(300), format!("{}/x", "d/".repeat(3_000))] {
        let said = bench.error("read", json!({ "path": path })).await;
        assert!(said.contains("longer than"), "{said}");
    }
    for path in [
        "plain.txt",
        "/workspace/plain.txt",
        "folder/../plain.txt",
        "./plain.txt",
        "/workspace//plain.txt",
    ] {
        assert_eq!(bench.ok("read", json!({ "path": path })).await, "1\tplain\n", "{path}");
    }
    let real = bench.at("plain.txt");
    assert_eq!(bench.ok("read", json!({ "path": real })).await, "1\tplain\n");
}

#[tokio::test]
async fn threat_114_writing_never_leaves_the_folders() {
    let bench = trapped();
    for (path, expected) in HOSTILE
        .iter()
        .copied()
        .chain([("dangling", "symbolic link"), ("/skills/x", "read only")])
    {
        for (tool, input) in [
            ("write", json!({ "path": path, "content": "overwritten" })),
            (
                "edit",
                json!({ "path": path, "old": "the secret", "new": "overwritten" }),
            ),
        ] {
            let said = bench.error(tool, input).await;
            let named =
                said.contains(expected) || (tool == "edit" && path == "/skills/x" && said.contains("there is no"));
            assert!(named, "{tool} {path:?}: {said}");
        }
    }
    for folder in ["folder", "folder/", "new/", "."] {
        bench.error("write", json!({ "path": folder, "content": "x" })).await;
    }
    assert_eq!(
        std::fs::read_to_string(bench.outside("secret")).unwrap(),
        "the secret\n"
    );
    assert_eq!(std::fs::read_dir(bench.outside("")).unwrap().count(), 1);
    assert!(
        std::fs::symlink_metadata(bench.at("pipe"))
            .unwrap()
            .file_type()
            .is_fifo()
    );
    assert!(!bench.at("nowhere").exists() && !bench.at("new").exists());
}

#[tokio::test]
async fn threat_114_a_second_name_of_a_file_elsewhere_is_replaced_and_not_written_through() {
    let bench = trapped();
    assert_eq!(std::fs::metadata(bench.at("second-name")).unwrap().nlink(), 2);
    bench
        .ok(
            "edit",
            json!({ "path": "second-name", "old": "the secret", "new": "changed" }),
        )
        .await;
    assert_eq!(bench.text("second-name"), "changed\n");
    bench
        .ok("write", json!({ "path": "second-name", "content": "again" }))
        .await;
    assert_eq!(
        std::fs::read_to_string(bench.outside("secret")).unwrap(),
        "the secret\n"
    );
}

#[test]
fn threat_114_what_is_swapped_after_a_look_is_not_reached() {
    let bench = Bench::new();
    bench.put("way/file", "mine\n");
    bench.put("file", "mine\n");
    let stop = AtomicBool::new(false);
    let (workspace, outside) = (bench.at(""), bench.outside(""));
    let (way, link) = (workspace.join("way"), workspace.join("link"));
    let (file, file_link) = (workspace.join("file"), workspace.join("file-link"));
    symlink(&outside, &link).unwrap();
    symlink(outside.join("secret"), &file_link).unwrap();
    std::thread::scope(|scope| {
        // The folder on the way, and the file itself, are links out of the workspace half of the time.
        let swapping = scope.spawn(|| {
            let mut rounds = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, &way, CWD, &link, exchange).unwrap();
                // A write may have replaced one of the two meanwhile.
                let _ = rustix::fs::renameat_with(CWD, &file, CWD, &file_link, exchange);
                if !file.is_symlink() && !file_link.is_symlink() {
                    std::fs::remove_file(&file_link).unwrap();
                    symlink(outside.join("secret"), &file_link).unwrap();
                }
                rounds += 1;
            }
            rounds
        });
        let attack = async {
            let (mut reached, mut refused) = (0, 0);
            for round in 0..1_500 {
                let (path, tool, input) = match round % 4 {
                    0 => ("way/secret", "read", json!({ "path": "way/secret" })),
                    1 => ("way/new", "write", json!({ "path": "way/new", "content": "planted" })),
                    2 => ("file", "read", json!({ "path": "file" })),
                    _ => ("file", "write", json!({ "path": "file", "content": "mine\n" })),
                };
                let result = bench.call(tool, input).await;
                let said = crate::bench::words(&result);
                assert!(!said.contains("the secret"), "{tool} {path}: {said}");
                if result.is_error { refused += 1 } else { reached += 1 }
            }
            (reached, refused)
        };
        let (reached, refused) = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(attack);
        stop.store(true, Ordering::Relaxed);
        assert!(swapping.join().unwrap() > 100, "nothing was swapped");
        assert!(
            reached > 10 && refused > 10,
            "{reached} reached, {refused} refused: no race took place"
        );
    });
    assert_eq!(
        std::fs::read_to_string(bench.outside("secret")).unwrap(),
        "the secret\n"
    );
    assert_eq!(
        std::fs::read_dir(bench.outside("")).unwrap().count(),
        1,
        "something was planted outside"
    );
}

#[test]
fn files_are_transferred_whole_or_not_at_all() {
    use std::io::{Read, Write};
    let bench = trapped();
    let files = bench.tools.files();
    let created = files.create("deep/er/new.bin").unwrap();
    created.file().write_all(b"half").unwrap();
    assert!(!bench.at("deep/er/new.bin").exists());
    drop(created);
    assert_eq!(
        std::fs::read_dir(bench.at("deep/er")).unwrap().count(),
        0,
        "a half file was left"
    );
    let created = files.create("deep/er/new.bin").unwrap();
    created.file().write_all(b"whole").unwrap();
    created.commit().unwrap();
    let mut text = String::new();
    files
        .read("deep/er/new.bin")
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "whole");

    let (entries, more) = files.list("", 1_000).unwrap();
    assert!(!more);
    let listed: Vec<String> = entries
        .iter()
        .map(|entry| format!("{:?} {}", entry.kind, entry.path))
        .collect();
    for expected in [
        "Folder deep",
        "File deep/er/new.bin",
        "Link way-out",
        "Special pipe",
        "File plain.txt",
    ] {
        assert!(
            listed.iter().any(|entry| entry == expected),
            "{expected} is not in {listed:?}"
        );
    }
    assert!(
        !listed.iter().any(|entry| entry.contains("way-out/")),
        "a link was followed: {listed:?}"
    );
    assert!(files.list("", 3).unwrap().1);
    assert!(files.list("way-out", 10).is_err() && files.list("plain.txt", 10).is_err());
}
