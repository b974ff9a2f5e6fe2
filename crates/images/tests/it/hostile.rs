//! Images that somebody made to do harm, and what is none.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use containers::library::Library;

use crate::archives::{describe, pack};
use crate::workshop::{Workshop, words};

/// Archives that no tool makes of files.
const HOSTILE: &str = r#"
import io, sys, tarfile
def entry(name, kind=tarfile.REGTYPE, link="", data=b"x", uid=0, mode=0o644, pax={}):
    info = tarfile.TarInfo(name)
    info.pax_headers = pax
    info.type, info.linkname, info.uid, info.mode = kind, link, uid, mode
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, io.BytesIO(data)
outside = sys.argv[3]
kinds = {
    "absolute": [entry("/etc/evil")],
    "upwards": [entry("a/../../evil")],
    "behind-a-link": [entry("a", tarfile.SYMTYPE, outside), entry("a/evil")],
    "folder-behind-a-link": [entry("a", tarfile.SYMTYPE, outside), entry("a/evil", tarfile.DIRTYPE)],
    "hard-link-out": [entry("a", tarfile.SYMTYPE, outside), entry("b", tarfile.LNKTYPE, "a/secret")],
    "hard-link-upwards": [entry("b", tarfile.LNKTYPE, "../../secret")],
    "absence-behind-a-link": [entry("a", tarfile.SYMTYPE, outside), entry("a/.wh.secret", data=b"")],
    "absence-of-all": [entry(".wh...", data=b"")],
    "somebody": [entry("a", uid=4000000)],
    "deep": [entry("/".join(["d"] * 200))],
    "two-sizes": [entry("a", data=b"x" * 512, pax={"size": "0"})],
    "harmless": [
        entry("a", tarfile.DIRTYPE, mode=0o755), entry("a/tool", mode=0o6755), entry("disk", tarfile.BLKTYPE),
        entry("null", tarfile.CHRTYPE), entry("pipe", tarfile.FIFOTYPE), entry("link", tarfile.SYMTYPE, outside),
        entry("link", data=b"own"), entry("twin", tarfile.LNKTYPE, "link"),
    ],
}
with tarfile.open(sys.argv[2], "w") as archive:
    for info, data in kinds[sys.argv[1]]:
        archive.addfile(info, data)
"#;

#[test]
fn threat_121_hostile_archives_reach_nothing_outside() {
    let workshop = Workshop::new();
    let outside = workshop.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    let make = |kind: &str| {
        let layout = workshop.path(kind);
        fs::create_dir(&layout).unwrap();
        let layer = layout.join("layer");
        let mut python = Command::new("python3");
        testkit::run(python.args(["-c", HOSTILE, kind]).arg(&layer).arg(&outside));
        describe(&layout, &[layer]);
        workshop.images.import(&layout, "hostile")
    };
    for (kind, why) in [
        ("absolute", "leads out"),
        ("upwards", "leads out"),
        ("behind-a-link", "behind a link"),
        ("folder-behind-a-link", "behind a link"),
        ("hard-link-out", "behind a link"),
        ("hard-link-upwards", "leads out"),
        ("absence-behind-a-link", "behind a link"),
        ("absence-of-all", "takes away nothing"),
        ("somebody", "4000000"),
        ("deep", "longer than"),
        ("two-sizes", "two sizes"),
    ] {
        let error = make(kind).unwrap_err();
        assert!(words(&error).contains(why), "{kind}: {}", words(&error));
        assert_eq!(workshop.halves(), Vec::<PathBuf>::new(), "{kind}");
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret");
    assert_eq!(fs::metadata(outside.join("secret")).unwrap().nlink(), 1);

    let came = make("harmless").unwrap_or_else(|error| panic!("{}", words(&error)));
    let files = workshop.images.image(&came.digest).unwrap().layers[0].files.clone();
    assert_eq!(fs::metadata(files.join("a/tool")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(
        fs::metadata(files.join("a")).unwrap().mtime(),
        0,
        "what came into it changed it"
    );
    assert_eq!(fs::read_to_string(files.join("twin")).unwrap(), "own");
    for name in ["disk", "null", "pipe"] {
        assert!(!files.join(name).exists(), "{name}");
    }
}

#[test]
fn links_of_an_image_are_not_followed_on_this_machine() {
    let workshop = Workshop::new();
    let outside = workshop.path("outside");
    fs::create_dir(&outside).unwrap();
    for name in ["hosts", "resolv.conf", "hostname"] {
        fs::write(outside.join(name), "the machine's").unwrap();
    }
    let layout = workshop.path("led");
    fs::create_dir(&layout).unwrap();
    let to = outside.display();
    pack(
        &workshop,
        &layout,
        &format!("ln -s {to} skills && ln -s {to} etc && mkdir own"),
    );
    let came = workshop.images.import(&layout, "led").unwrap();
    assert_eq!(workshop.images.folder_in(&came.digest, "skills"), None);
    assert!(workshop.images.folder_in(&came.digest, "own").is_some());
    let files = &workshop.images.image(&came.digest).unwrap().layers[1].files;
    assert!(
        files.join("etc/hosts").is_file(),
        "what the machine has was taken for the image's"
    );
}

#[test]
fn what_is_no_image_is_refused_in_words() {
    let workshop = Workshop::new();
    let text = workshop.path("text");
    fs::write(&text, "just words").unwrap();
    let empty = workshop.path("nothing");
    fs::create_dir(&empty).unwrap();
    let led = workshop.path("led");
    fs::create_dir(&led).unwrap();
    symlink(&text, led.join("index.json")).unwrap();
    let changed = workshop.path("changed");
    fs::create_dir_all(changed.join("blobs/sha256")).unwrap();
    pack(&workshop, &changed, "mkdir bin && echo > bin/sh");
    for entry in fs::read_dir(changed.join("blobs/sha256")).unwrap() {
        let path = entry.unwrap().path();
        if fs::metadata(&path).unwrap().len() > 5_000 {
            let mut bytes = fs::read(&path).unwrap();
            bytes[0] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    }
    for (path, why) in [
        (&text, "neither an archive"),
        (&empty, "neither index.json nor manifest.json"),
        (&led, "cannot import"),
        (&changed, "not what its name"),
        (&workshop.path("not there"), "cannot import"),
    ] {
        let error = workshop.images.import(path, "x").unwrap_err();
        assert!(words(&error).contains(why), "{}: {}", path.display(), words(&error));
    }
    assert_eq!(workshop.halves(), Vec::<PathBuf>::new());
}
