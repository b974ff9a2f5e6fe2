//! Whole workspaces, out and in. Threat 114 too: whatever an archive holds, nothing beside the workspace is reached.

use std::fs::{self, File, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, mknodat, setxattr, utimensat};
use tar::{Builder, EntryType, Header};
use tools::ArchiveError;

use crate::bench::Bench;

impl Bench {
    fn packed(&self) -> Vec<u8> {
        let (archive, packing) = self.tools.files().pack().unwrap();
        let mut bytes = Vec::new();
        File::from(archive).read_to_end(&mut bytes).unwrap();
        packing.commit().unwrap();
        bytes
    }

    fn unpack(&self, archive: &[u8]) -> Result<(), ArchiveError> {
        let (into, unpacking) = self.tools.files().unpack().unwrap();
        let mut into = File::from(into);
        // Who refuses reads no further.
        let _refused = into.write_all(archive);
        drop(into);
        unpacking.commit().map(tools::Leftover::remove)
    }

    /// Everything that can be told of what is in the workspace.
    fn seen(&self) -> String {
        let script = "find . -mindepth 1 -type d -printf '%P %m %T@\\n' | sort
            find . ! -type d -printf '%P %y %m %n %s %l %T@\\n' | sort
            find . -type f -size -1M | sort | xargs -r sha256sum
            getfattr -R -d -m 'user.' . 2>/dev/null || true";
        let seen = Command::new("sh")
            .args(["-c", script])
            .current_dir(self.at(""))
            .output()
            .unwrap();
        String::from_utf8(seen.stdout).unwrap()
    }
}

/// A workspace with a file of each kind that goes out.
fn furnished() -> Bench {
    let bench = Bench::new();
    bench.put("folder/inner/file", "words\n");
    bench.put("empty", "");
    bench.put(&format!("folder/{}", "long".repeat(50)), "a long name\n");
    fs::set_permissions(bench.at("folder/inner/file"), Permissions::from_mode(0o751)).unwrap();
    fs::hard_link(bench.at("folder/inner/file"), bench.at("twin")).unwrap();
    symlink("folder/inner/file", bench.at("link")).unwrap();
    symlink("../../empty", bench.at("folder/inner/up")).unwrap();
    symlink("nowhere", bench.at("dangling")).unwrap();
    setxattr(bench.at("twin"), "user.color", b"green\0\n", XattrFlags::empty()).unwrap();
    let mut holes = File::create(bench.at("holes")).unwrap();
    for place in [0, 1 << 20, 3 << 30, 4 << 30, (5_u64 << 30) - 3] {
        holes.seek(SeekFrom::Start(place)).unwrap();
        holes.write_all(b"end").unwrap();
    }
    File::create(bench.at("hollow")).unwrap().set_len(7 << 20).unwrap();
    fs::set_permissions(bench.at("folder/inner"), Permissions::from_mode(0o1700)).unwrap();
    for path in ["folder/inner", "twin", "folder"] {
        let time = Timespec {
            tv_sec: 1_000_000_000,
            tv_nsec: 123_456_789,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(CWD, bench.at(path), &times, rustix::fs::AtFlags::empty()).unwrap();
    }
    bench
}

#[test]
fn a_workspace_comes_back_as_it_went() {
    let bench = furnished();
    let archive = bench.packed();
    assert!(archive.len() < 2 << 20, "holes are packed: {} bytes", archive.len());
    let other = Bench::new();
    other.put("old/file", "goes");
    other.unpack(&archive).unwrap();
    assert_eq!(other.seen(), bench.seen());
    let [first, second] = ["holes", "hollow"].map(|name| fs::metadata(other.at(name)).unwrap());
    assert_eq!((first.len(), second.len()), (5 << 30, 7 << 20));
    assert!(
        first.blocks() * 512 < 2 << 20 && second.blocks() == 0,
        "{} {}",
        first.blocks(),
        second.blocks()
    );
    for (place, words) in [(3 << 30, b"end"), ((5_u64 << 30) - 3, b"end"), (2 << 30, b"\0\0\0")] {
        let mut read = [0; 3];
        std::os::unix::fs::FileExt::read_exact_at(&File::open(other.at("holes")).unwrap(), &mut read, place).unwrap();
        assert_eq!(&read, words);
    }
    assert_eq!(fs::metadata(other.at("twin")).unwrap().nlink(), 2);
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(other.at("folder/inner/file"), "user.color", &mut value).unwrap();
    assert_eq!(&value[..length], b"green\0\n");
    assert_eq!(other.packed().len(), archive.len(), "nothing of ours is left");
}

#[test]
fn what_leads_out_does_not_go_out() {
    let bench = Bench::new();
    bench.put("file", "words");
    fs::set_permissions(bench.at("file"), Permissions::from_mode(0o6755)).unwrap();
    symlink(bench.outside("secret"), bench.at("absolute")).unwrap();
    symlink("../outside/secret", bench.at("relative")).unwrap();
    symlink("file/../../outside", bench.at("hidden")).unwrap();
    mknodat(CWD, bench.at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    let other = Bench::new();
    other.unpack(&bench.packed()).unwrap();
    let names: Vec<_> = fs::read_dir(other.at(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["file"]);
    assert_eq!(fs::metadata(other.at("file")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn other_programs_understand_it_and_are_understood() {
    let bench = furnished();
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive.tar");
    fs::write(&archive, bench.packed()).unwrap();
    let listed = Command::new("tar").arg("tf").arg(&archive).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), 11);
    let made = Command::new("tar")
        .args(["--create", "--sparse", "--format=gnu", "--file"])
        .arg(&archive)
        .arg("-C")
        .arg(bench.at(""))
        .arg(".")
        .status()
        .unwrap();
    assert!(made.success());
    let other = Bench::new();
    other.unpack(&fs::read(&archive).unwrap()).unwrap();
    assert_eq!(fs::metadata(other.at("holes")).unwrap().len(), 5 << 30);
    assert_eq!(other.text("link"), "words\n");
    assert_eq!(fs::metadata(other.at("twin")).unwrap().nlink(), 2);
}

/// An entry's kind, name, target and mode.
type Made = (EntryType, &'static str, &'static str, u32);

/// An archive of entries that no honest program makes.
fn archive(entries: &[Made]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, target, mode) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_size(0);
        header.set_mtime(0);
        let bytes = header.as_mut_bytes();
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes[157..157 + target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        builder.append(&header, std::io::empty()).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn threat_114_a_hostile_archive_reaches_nothing_and_changes_nothing() {
    use EntryType::{Block, Char, Directory, Fifo, Link, Regular, Symlink};
    let cases: &[(&[Made], &str)] = &[
        (&[(Regular, "/etc/evil", "", 0o644)], "absolute"),
        (&[(Regular, "../evil", "", 0o644)], ".."),
        (&[(Regular, "a/../../evil", "", 0o644)], ".."),
        (&[(Symlink, "a", "/etc", 0o777)], "leads out"),
        (&[(Symlink, "a", "../outside", 0o777)], "leads out"),
        (
            &[(Symlink, "b", ".", 0o777), (Symlink, "a", "b/../outside", 0o777)],
            "leads out",
        ),
        (
            &[
                (Directory, "d", "", 0o755),
                (Symlink, "l", "d", 0o777),
                (Regular, "l/evil", "", 0o644),
            ],
            "link or a file",
        ),
        (
            &[(Regular, "f", "", 0o644), (Regular, "f/evil", "", 0o644)],
            "link or a file",
        ),
        (&[(Link, "a", "../outside/secret", 0o644)], ".."),
        (&[(Link, "a", "/etc/passwd", 0o644)], "absolute"),
        (&[(Link, "a", "not-there", 0o644)], "not there"),
        (&[(Symlink, "l", "x", 0o777), (Link, "a", "l", 0o644)], "not there"),
        (&[(Fifo, "a", "", 0o644)], "pipe"),
        (&[(Char, "a", "", 0o644)], "device"),
        (&[(Block, "a", "", 0o644)], "device"),
        (&[(Regular, "a", "", 0o4755)], "set-uid"),
        (&[(Directory, "a", "", 0o2755)], "set-gid"),
        (&[(Regular, "a", "", 0o644), (Regular, "a", "", 0o644)], "has its name"),
    ];
    for (entries, why) in cases {
        let bench = Bench::new();
        bench.put("kept", "kept");
        let before = bench.seen();
        let mut whole = vec![(Regular, "first", "", 0o644)];
        whole.extend_from_slice(entries);
        let refused = bench.unpack(&archive(&whole)).unwrap_err();
        let last = entries.last().unwrap().1;
        let words = refused.to_string();
        assert!(words.contains(why) && words.contains(last), "{last}: {words}");
        assert_eq!(bench.seen(), before, "{last}");
        assert_eq!(fs::read_to_string(bench.outside("secret")).unwrap(), "the secret\n");
        assert!(!Path::new("/etc/evil").exists() && !bench.outside("../evil").exists());
    }
}

#[test]
fn an_archive_that_was_cut_short_changes_nothing() {
    let bench = furnished();
    let whole = bench.packed();
    let other = Bench::new();
    other.put("kept", "kept");
    let before = other.seen();
    for length in [
        0,
        1,
        511,
        512,
        5_000,
        whole.len() / 2,
        whole.len() - 1024,
        whole.len() - 1023,
    ] {
        let refused = other.unpack(&whole[..length]).unwrap_err();
        assert!(matches!(refused, ArchiveError::Broken(_)), "{length}: {refused:?}");
        assert_eq!(other.seen(), before, "{length}");
    }
    assert!(other.unpack(b"no archive at all, but words, and many of them").is_err());
    assert!(other.unpack(&[7; 4_096]).is_err());
    assert_eq!(other.seen(), before);
}

#[test]
fn who_is_killed_while_names_change_leaves_all_of_one_or_the_other() {
    let bench = Bench::new();
    let names = || {
        let mut names: Vec<_> = fs::read_dir(bench.at(""))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    // Half of what is there was moved away.
    for (path, words) in [
        ("a", "old"),
        (".belljar-import-7-0.old/b", "old"),
        (".belljar-import-7-0.new/a", "new"),
    ] {
        bench.put(path, words);
    }
    bench.tools.files().recover().unwrap();
    assert_eq!(names(), ["a", "b"]);
    assert_eq!(bench.text("a") + &bench.text("b"), "oldold");
    // All of it was, and half of what came has its place.
    for (path, words) in [
        ("a", "new"),
        (".belljar-import-7-0.gone/b", "old"),
        (".belljar-import-7-0.new/c", "new"),
    ] {
        bench.put(path, words);
    }
    fs::remove_file(bench.at("b")).unwrap();
    bench.tools.files().recover().unwrap();
    assert_eq!(names(), ["a", "c"]);
    assert_eq!(bench.text("a") + &bench.text("c"), "newnew");
}
