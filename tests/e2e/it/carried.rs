//! A workspace as a file: out of one machine and into another, with all that can be told of it, and nothing that leads out.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::installation::Installation;
use crate::transcript::Transcript;

/// Files of every kind, and what can be told of them.
const JOB: &str = r##"
steps:
  - when: { turn: 1, text: furnish }
    tools:
      - name: exec
        input:
          code: |
            const { execFileSync } = await import("node:child_process");
            execFileSync("python3", ["-c", String.raw`
            import os
            os.umask(0o22)
            os.makedirs("deep/er")
            os.mkdir("shut", 0o700)
            open("deep/er/text", "w").write("words\n" * 3000)
            open("empty", "w")
            open("deep/" + "long" * 40, "w").write("a long name")
            open(b"not \xff text", "wb").write(bytes(range(256)))
            os.chmod("deep/er/text", 0o751)
            os.link("deep/er/text", "twin")
            os.symlink("deep/er/text", "link")
            os.symlink("../../empty", "deep/er/up")
            os.symlink("nowhere", "dangling")
            os.setxattr("twin", "user.color", b"green\0\n")
            os.setxattr("deep", "user.kind", b"folder")
            with open("holes", "wb") as holes:
                for place in (0, 3 << 20, 1 << 30, (5 << 30) - 3):
                    holes.seek(place)
                    holes.write(b"end")
            open("hollow", "wb").truncate(7 << 20)
            os.utime("deep/er/text", ns=(10**18, 10**18 + 123456789))
            os.utime("link", ns=(10**18, 10**18 + 1), follow_symlinks=False)
            os.utime("shut", ns=(10**18, 10**18 + 987654321))
            `]);
            return "furnished";
  - when: { text: furnish }
    text: "Furnished."
  - when: { turn: 1, text: tempt }
    tools:
      - name: exec
        input:
          code: |
            const { execFileSync } = await import("node:child_process");
            execFileSync("sh", ["-c", "ln -s /etc/passwd out-a && ln -s ../../etc/passwd out-b && ln -s deep/../../etc out-c && mkfifo out-d && cp /bin/true tool && chmod 6755 tool"]);
            return "tempted";
  - when: { text: tempt }
    text: "Tempted."
  - when: { turn: 1, text: look }
    tools:
      - name: exec
        input:
          code: |
            const { execFileSync } = await import("node:child_process");
            return execFileSync("python3", ["-c", String.raw`
            import hashlib, os, stat
            def tell(path):
                about = os.lstat(path)
                words = [os.fsencode(path), oct(about.st_mode), about.st_uid, about.st_gid, about.st_nlink, about.st_mtime_ns]
                if stat.S_ISLNK(about.st_mode):
                    words.append(os.readlink(path))
                else:
                    words += [(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))]
                if stat.S_ISREG(about.st_mode):
                    words.append(about.st_size)
                    with open(path, "rb") as file:
                        for place in (0, 3 << 20, 1 << 30, (5 << 30) - 3):
                            file.seek(place)
                            words.append(hashlib.sha256(file.read(100000)).hexdigest()[:16])
                    if about.st_size > 1 << 20:
                        words.append(about.st_blocks < 2000)
                print(*words)
            for folder, folders, files in os.walk("."):
                folders.sort()
                for name in sorted(folders) + sorted(files):
                    tell(os.path.join(folder, name))
            `]).toString();
  - when: { text: look }
    text: "=== {{ result.0.text }}"
"##;

fn look(belljar: &Installation, session: &str) -> String {
    let said = Transcript::read(&belljar.done(&["run", "--json", "--session", session, "look"])).said();
    let (_, seen) = said.rsplit_once("=== ").expect("what it saw");
    serde_json::from_str(seen).expect("what it saw, as JSON")
}

/// What is said of what must not be done.
fn words(belljar: &Installation, arguments: &[&str]) -> String {
    let output = belljar.run(arguments);
    assert!(!output.status.success(), "{arguments:?} was done");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn threat_121_a_workspace_is_the_same_on_another_machine_and_nothing_leads_out_of_it() {
    let (here, there) = (Installation::start(JOB), Installation::start(JOB));
    here.done(&["run", "--session", "s", "furnish"]);
    let before = look(&here, "s");
    assert!(before.contains("user.color") && before.lines().count() > 12, "{before}");

    // What leads out stays behind, and what would make somebody else of whoever runs it.
    here.done(&["run", "--session", "s", "tempt"]);
    let tempting = look(&here, "s");
    assert!(
        tempting.contains("out-a") && tempting.contains("tool' 0o106755"),
        "{tempting}"
    );
    let archive = here.path("s.tar.zst");
    let file = archive.to_string_lossy().into_owned();
    here.done(&["snapshot", "export", "s", &file]);
    assert!(
        fs::metadata(&archive).expect("the archive").len() < 1 << 20,
        "its holes are packed"
    );
    let listed = testkit::run(Command::new("tar").args(["--zstd", "--list", "--verbose", "--file", &file]));
    assert!(listed.contains("link to") && !listed.contains("out-"), "{listed}");
    let refused = words(&here, &["snapshot", "export", "s", &file]);
    assert!(refused.contains("is there already"), "{refused}");

    there.done(&["snapshot", "import", "s", &file]);
    let arrived = look(&there, "s");
    let (tool, rest): (Vec<&str>, Vec<&str>) = arrived.lines().partition(|line| line.contains("/tool'"));
    assert_eq!(rest, before.lines().collect::<Vec<_>>());
    assert!(tool.len() == 1 && tool[0].contains("0o100755"), "{tool:?}");

    // The same from a file that nobody honest made: all of it is refused, in words, and nothing is changed.
    for (make, name, why) in [
        ("ln -s /etc/passwd evil", "evil", "leads out"),
        ("ln -s a/../../../etc evil", "evil", "leads out"),
        ("mknod evil c 1 3", "evil", "device"),
        ("mknod evil b 7 0", "evil", "device"),
        ("mkfifo evil", "evil", "pipe"),
        ("cp /bin/true evil && chmod 4755 evil", "evil", "set-uid"),
        ("cp /bin/true evil && chmod 2755 evil", "evil", "set-gid"),
    ] {
        let hostile = hostile(here.folder(), make);
        let refused = words(&there, &["snapshot", "import", "s", &hostile]);
        assert!(refused.contains(name) && refused.contains(why), "{make}: {refused}");
    }
    let slip = here.path("slip.tar.zst").to_string_lossy().into_owned();
    for name in ["../../evil", "/etc/evil"] {
        let mut tar = Command::new("tar");
        tar.args(["--create", "--zstd", "--absolute-names", "--file", &slip, "--transform"]);
        testkit::run(tar.arg(format!("s,.*,{name},")).arg("/etc/hostname"));
        let refused = words(&there, &["snapshot", "import", "s", &slip]);
        assert!(refused.contains("evil"), "{refused}");
    }
    let whole = fs::read(&archive).expect("the archive");
    fs::write(&slip, &whole[..whole.len() / 2]).expect("write a file");
    words(&there, &["snapshot", "import", "s", &slip]);
    assert_eq!(look(&there, "s"), arrived);
}

#[test]
fn a_snapshot_is_written_to_a_file_while_its_session_goes_on() {
    let (here, there) = (Installation::start(JOB), Installation::start(JOB));
    here.done(&["run", "--session", "s", "furnish"]);
    let then = look(&here, "s");
    here.done(&["snapshot", "save", "s", "--name", "then"]);
    here.done(&["run", "--session", "s", "tempt"]);
    let now = look(&here, "s");
    let before = there_is(&here);

    let file = here.path("then.tar.zst").to_string_lossy().into_owned();
    here.done(&["snapshot", "export", "s", &file, "--snapshot", "then"]);
    there.done(&["snapshot", "import", "s", &file]);
    assert_eq!(look(&there, "s"), then);
    assert_eq!(look(&here, "s"), now);
    let audited = here.done(&["audit", "--json"]);
    let told = audited.lines().find(|line| line.contains("session.exported"));
    assert!(told.is_some_and(|line| line.contains("snapshot")), "{audited}");

    testkit::eventually("what it was read in to be gone", || {
        (there_is(&here) == before).then_some(())
    });
    let refused = words(
        &here,
        &["snapshot", "export", "s", &file, "--force", "--snapshot", "never"],
    );
    assert!(refused.contains("no snapshot never"), "{refused}");
}

/// Sandboxes, and disks; what is kept of those comes and goes with each run.
fn there_is(belljar: &Installation) -> (Vec<u32>, BTreeSet<OsString>) {
    let pools = ["disks", "pool"].map(|name| fs::read_dir(belljar.data().join(name)));
    let disks = pools.into_iter().flatten().flatten();
    let names = disks.map(|disk| disk.expect("a disk").file_name());
    let disks: BTreeSet<OsString> = names
        .filter(|name| !name.to_string_lossy().contains("snapshot"))
        .collect();
    assert!(!disks.is_empty(), "there are no disks to see");
    (belljar.first_processes(), disks)
}

/// An archive of a good file and a bad one.
fn hostile(folder: &Path, make: &str) -> String {
    let archive = folder.join("hostile.tar.zst").to_string_lossy().into_owned();
    let script = "rm -rf hostile && mkdir hostile && cd hostile && echo good > aaa && eval \"$1\" && tar --create --zstd --file \"$2\" .";
    testkit::run(
        Command::new("sh")
            .args(["-ec", script, "sh", make, &archive])
            .current_dir(folder),
    );
    archive
}
