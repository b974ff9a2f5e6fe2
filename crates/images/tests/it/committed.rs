//! Images that are made of others.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use containers::library::Library;
use images::Generation;
use sandbox::ImageDigest;

use crate::workshop::{PLENTY, TAKE_AWAY, Workshop, words};

/// Bytes that a folder takes on the disk, without what links in it lead to.
fn disk_usage(folder: &Path) -> u64 {
    let said = testkit::run(Command::new("du").args(["--summarize", "--block-size=1"]).arg(folder));
    said.split_ascii_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_commit_costs_what_differs_and_the_same_again_nothing() {
    let workshop = Workshop::new();
    let place = workshop.path("images");
    let before = disk_usage(&place);
    let make = "head -c 3000000 /dev/urandom > big && mkdir app && echo one > app/file";
    let upper = workshop.upper(make);
    let open = || File::open(&upper).unwrap();
    let first = workshop
        .images
        .commit(&workshop.base, Some(open().as_fd()), PLENTY)
        .unwrap();
    let cost = disk_usage(&place) - before;
    // Once as files, once as an archive.
    assert!((6_000_000..6_400_000).contains(&cost), "{cost}");
    assert!((3_000_000..3_100_000).contains(&first.bytes), "{first:?}");
    assert_eq!(first.base, Some(workshop.base.clone()));

    let again = workshop
        .images
        .commit(&workshop.base, Some(open().as_fd()), PLENTY)
        .unwrap();
    assert_eq!(again.digest, first.digest);
    assert!(disk_usage(&place) - before < cost + 10_000);
    let next = workshop.committed(&first.digest, "echo two > other");
    assert!(
        disk_usage(&place) - before < cost + 100_000,
        "a small change is a small layer"
    );
    assert_eq!(
        workshop.shown(&workshop.images, &next.digest, "ls && cat app/file other"),
        "app\nbig\nother\none\ntwo\n"
    );
    assert_eq!(workshop.halves(), Vec::<PathBuf>::new());

    // Nothing written is nothing new.
    let nothing = workshop.images.commit(&next.digest, None, PLENTY).unwrap();
    assert_eq!(nothing.digest, next.digest);
    assert_eq!(workshop.committed(&next.digest, "true").digest, next.digest);
}

#[test]
fn what_a_stranger_wrote_is_taken_over_and_what_harms_is_not() {
    let workshop = Workshop::new();
    let secret = workshop.path("secret");
    fs::write(&secret, "secret").unwrap();
    let made = workshop.committed(
        &workshop.base,
        &format!(
            "ln -s {0} link && ln -s / root && mkdir -p 'a b' && echo x > 'a b/new
line' && cp /bin/true tool && chmod 6755 tool \
            && mknod device b 8 0 && mknod zero c 1 5 && mkfifo pipe && python3 -c 'import socket; \
            socket.socket(socket.AF_UNIX).bind(\"socket\")' && python3 -c 'import os; os.setxattr(\"tool\", \"user.color\", b\"green\")' && chmod 1777 'a b' \
            && truncate -s 100M holes && ln tool twin && chown 99999:99999 'a b'",
            secret.display()
        ),
    );
    let layer = workshop.images.image(&made.digest).unwrap().layers.pop().unwrap();
    let files = layer.files.join("knowledge");
    let mut names: Vec<_> = fs::read_dir(&files)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a b", "holes", "link", "root", "tool", "twin"]);
    assert_eq!(fs::read_link(files.join("link")).unwrap(), secret);
    assert_eq!(
        fs::metadata(files.join("tool")).unwrap().mode() & 0o7777,
        0o755,
        "a set-user-id bit was kept"
    );
    let said = testkit::run(
        Command::new("python3")
            .args(["-c", "import os, sys; print(os.listxattr(sys.argv[1]))"])
            .arg(files.join("tool")),
    );
    assert_eq!(said, "[]\n", "an extended attribute was kept");
    let folder = fs::metadata(files.join("a b")).unwrap();
    assert_eq!((folder.uid(), folder.mode() & 0o7777), (0, 0o1777));
    assert!(files.join("a b/new\nline").is_file());
    let holes = fs::metadata(files.join("holes")).unwrap();
    assert!(
        holes.len() == 100 << 20 && holes.blocks() < 100,
        "{} blocks",
        holes.blocks()
    );
    let [tool, twin] = ["tool", "twin"].map(|name| fs::metadata(files.join(name)).unwrap().ino());
    assert_eq!(tool, twin);
    let listed = testkit::run(Command::new("tar").arg("--list").arg("--file").arg(&layer.archive));
    assert!(
        !listed.contains("device") && !listed.contains("socket") && !listed.contains("pipe"),
        "{listed}"
    );
}

#[test]
fn what_cannot_be_an_image_is_refused_and_leaves_nothing() {
    let workshop = Workshop::new();
    let deep = "mkdir -p $(for i in $(seq 130); do printf d/; done)";
    let long = "for i in $(seq 12); do mkdir $(printf 'x%.0s' $(seq 250)); cd x*; done; echo > end";
    for (make, why) in [
        ("mkdir a && echo > a/.wh.b", "may begin with .wh."),
        (deep, "lies in more folders"),
        (long, "longer than"),
        ("truncate -s 2G a", "have more than"),
        ("truncate -s 600M a && truncate -s 600M b", "have more than"),
    ] {
        let error = workshop.commit(&workshop.base, make).unwrap_err();
        assert!(words(&error).contains(why), "{make}: {}", words(&error));
        assert_eq!(workshop.halves(), Vec::<PathBuf>::new(), "{make}");
    }
    assert_eq!(workshop.layers().len(), 1);
    assert_eq!(workshop.images.list().unwrap().len(), 1);
}

#[test]
fn many_layers_become_one_that_shows_the_same() {
    let workshop = Workshop::new();
    let mut image = workshop.committed(
        &workshop.base,
        "echo > gone && echo > back && mkdir -p app/anew app/file && echo old > app/anew/old && echo 0 > number",
    );
    for round in 1..=20 {
        let make = match round {
            3 => TAKE_AWAY.to_owned(),
            4 => "mknod back c 0 0 && mkdir app && mknod app/file c 0 0".to_owned(),
            5 => "echo again > back && mkdir app && echo file > app/file".to_owned(),
            _ => format!("echo {round} > number && echo {round} > only-{round}"),
        };
        image = workshop.committed(&image.digest, &make);
    }
    let stored = workshop.images.image(&image.digest).unwrap();
    // Sixteen became one with the seventeenth, and four came since.
    assert_eq!(
        (stored.base, stored.base_layers, stored.layers.len()),
        (workshop.base.clone(), 1, 1 + 1 + 4)
    );
    let said = workshop.shown(
        &workshop.images,
        &image.digest,
        "ls && cat number back app/file app/anew/* only-1 && ls app/anew",
    );
    let only: String = (1..=20)
        .filter(|round| !(3..=5).contains(round))
        .map(|round| format!("only-{round}\n"))
        .collect();
    let mut names: Vec<&str> = only.lines().chain(["app", "back", "number"]).collect();
    names.sort();
    assert_eq!(said, format!("{}\n20\nagain\nfile\nnew\n1\nnew\n", names.join("\n")));

    // What only older ones have goes with them, and this one needs none of them.
    let kept = image.digest;
    for generation in workshop.images.list().unwrap() {
        if generation.digest != kept && generation.digest != workshop.base {
            workshop.images.remove(&generation.digest).unwrap();
        }
    }
    assert_eq!(workshop.layers().len(), 6);
    assert!(workshop.shown(&workshop.images, &kept, "cat number").starts_with("20"));
    workshop.images.remove(&kept).unwrap();
    assert_eq!(workshop.layers(), [testkit::miniature().layer.clone()]);
    workshop.images.remove(&kept).unwrap();
}

#[test]
fn an_image_that_is_removed_leaves_the_layers_of_others() {
    let workshop = Workshop::new();
    let first = workshop.committed(&workshop.base, "echo one > file");
    let second = workshop.committed(&first.digest, "echo two > other");
    workshop.images.remove(&first.digest).unwrap();
    assert_eq!(workshop.layers().len(), 3);
    assert_eq!(
        workshop.shown(&workshop.images, &second.digest, "cat file other"),
        "one\ntwo\n"
    );
    // Not even the base itself needs to be there for what was made on it.
    workshop.images.remove(&workshop.base).unwrap();
    assert_eq!(
        workshop.shown(&workshop.images, &second.digest, "cat file other"),
        "one\ntwo\n"
    );
    assert!(
        workshop.images.collect(&[]).unwrap().is_empty(),
        "what was committed was collected"
    );
    assert_eq!(workshop.layers().len(), 3);
}

#[test]
fn an_image_whose_description_is_not_understood_keeps_its_layers() {
    let workshop = Workshop::new();
    let first = workshop.committed(&workshop.base, "echo one > file");
    let second = workshop.committed(&workshop.base, "echo two > other");
    let before = workshop.layers();
    let description = first.folder.join("image.json");
    let good = fs::read(&description).unwrap();
    // As a later release might write it; and one that cannot be read at all.
    let unreadable: [fn(&Path); 2] = [
        |path| fs::write(path, r#"{ "written": "otherwise" }"#).unwrap(),
        |path| fs::remove_file(path).and_then(|()| fs::create_dir(path)).unwrap(),
    ];
    for spoil in unreadable {
        spoil(&description);
        let broken = workshop.images.broken().unwrap();
        let [broken] = &*broken else { panic!("{broken:?}") };
        assert_eq!(broken.digest, first.digest);
        assert!(words(&broken.error).contains("image.json"), "{}", words(&broken.error));
        let listed = workshop.images.list().unwrap().into_iter().map(|image| image.digest);
        assert_eq!(
            BTreeSet::from_iter(listed),
            BTreeSet::from([workshop.base.clone(), second.digest.clone()])
        );
        for meant in [first.digest.as_str(), &first.digest.as_str()[..12]] {
            let error = workshop.images.meant(meant).unwrap_err();
            assert_eq!(words(&error), words(&broken.error));
        }
        // Nobody knows which layers are its.
        workshop.images.remove(&ImageDigest::from_bytes([9; 32])).unwrap();
        workshop.images.collect(&[]).unwrap();
        workshop.images.clear().unwrap();
        assert_eq!(workshop.layers(), before);
    }
    workshop.images.remove(&second.digest).unwrap();
    assert_eq!(workshop.layers(), before);
    fs::remove_dir(&description).unwrap();
    fs::write(&description, good).unwrap();
    assert_eq!(workshop.images.broken().unwrap().len(), 0);
    workshop.images.clear().unwrap();
    assert_eq!(workshop.layers().len(), 2);
    assert_eq!(workshop.shown(&workshop.images, &first.digest, "cat file"), "one\n");
}

#[test]
fn a_broken_image_is_removed_like_any_other_and_mended_by_the_same_again() {
    let workshop = Workshop::new();
    let upper = workshop.upper("echo one > file");
    let make = || {
        let upper = File::open(&upper).unwrap();
        workshop
            .images
            .commit(&workshop.base, Some(upper.as_fd()), PLENTY)
            .unwrap()
    };
    let spoil = |image: &Generation| fs::write(image.folder.join("image.json"), "garbage").unwrap();
    let image = make();
    spoil(&image);
    let again = make();
    assert_eq!(again.digest, image.digest);
    assert_eq!(workshop.images.broken().unwrap().len(), 0);
    assert_eq!(workshop.shown(&workshop.images, &image.digest, "cat file"), "one\n");

    // Whatever of it is lost: its layers are others' too.
    for lost in ["config.json", "oci"] {
        let path = image.folder.join(lost);
        if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        }
        .unwrap();
        assert_eq!(make().digest, image.digest);
        assert_eq!(workshop.images.broken().unwrap().len(), 0, "{lost}");
        assert!(path.exists(), "{lost}");
        assert_eq!(workshop.shown(&workshop.images, &image.digest, "cat file"), "one\n");
    }
    assert_eq!(workshop.halves(), Vec::<PathBuf>::new());

    // A disk that fails says the same: EIO. Nothing is replaced for that.
    let (description, aside) = (image.folder.join("image.json"), image.folder.join("aside"));
    fs::rename(&description, &aside).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", &description).unwrap();
    let upper_again = File::open(&upper).unwrap();
    workshop
        .images
        .commit(&workshop.base, Some(upper_again.as_fd()), PLENTY)
        .unwrap_err();
    fs::rename(&aside, &description).unwrap();
    assert_eq!(workshop.images.broken().unwrap().len(), 0);

    spoil(&image);
    let meant = workshop.images.meant_broken(&image.digest.as_str()[..12]).unwrap();
    workshop.images.remove(&meant.unwrap().digest).unwrap();
    assert!(!image.folder.exists());
    assert_eq!(workshop.images.broken().unwrap().len(), 0);
    assert_eq!(workshop.layers(), [testkit::miniature().layer.clone()]);
    assert_eq!(workshop.halves(), Vec::<PathBuf>::new());
}

#[test]
fn an_image_of_an_earlier_release_whose_layout_is_lost_is_broken_and_hinders_no_other() {
    let workshop = Workshop::new();
    let lost = workshop.path("images").join("e".repeat(64));
    fs::create_dir(&lost).unwrap();
    let about = serde_json::json!({ "digest": "e".repeat(64), "name": "old", "recipe": "key", "built": 0, "bytes": 5 });
    fs::write(lost.join("image.json"), about.to_string()).unwrap();
    fs::write(lost.join("config.json"), "{}").unwrap();
    let broken = workshop.images.broken().unwrap();
    assert!(words(&broken[0].error).contains("layout"), "{broken:?}");
    workshop.images.clear().unwrap();
    assert_eq!(workshop.images.list().unwrap().len(), 1);
}

#[test]
fn whoever_is_killed_in_a_commit_leaves_no_image() {
    let workshop = Workshop::new();
    let place = workshop.path("images");
    // As one that got as far as its description, and holds it no longer.
    let half = place.join("half-x");
    fs::create_dir_all(half.join("image")).unwrap();
    fs::write(half.join("image/image.json"), "{}").unwrap();
    // Killed between naming the layer and naming the image.
    fs::create_dir_all(place.join("layers").join("e".repeat(64)).join("files")).unwrap();
    assert_eq!(workshop.images.list().unwrap().len(), 1);
    let image = workshop.committed(&workshop.base, "echo > file");
    assert!(!half.exists());
    workshop.images.remove(&image.digest).unwrap();
    assert_eq!(workshop.layers(), [testkit::miniature().layer.clone()]);
}

#[test]
fn absences_are_devices_that_nobody_can_open() {
    let workshop = Workshop::new();
    let first = workshop.committed(&workshop.base, "echo > gone");
    let image = workshop.committed(&first.digest, "mknod gone c 0 0");
    let layer = workshop.images.image(&image.digest).unwrap().layers.pop().unwrap();
    let about = fs::symlink_metadata(layer.files.join("knowledge/gone")).unwrap();
    assert!(about.file_type().is_char_device() && about.rdev() == 0);
    let listed = testkit::run(Command::new("tar").arg("--list").arg("--file").arg(&layer.archive));
    assert_eq!(listed, "knowledge\nknowledge/.wh.gone\n");
    assert_eq!(fs::metadata(&layer.files).unwrap().permissions().mode() & 0o777, 0o755);
}
