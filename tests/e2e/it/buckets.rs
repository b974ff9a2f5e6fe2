//! Workspaces that are kept by other people's servers that speak S3: `s3s-fs`, which checks signatures and checksums, and `moto`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use testkit::{S3Server, eventually_asked};

use crate::installation::Installation;
use crate::jobs::{PLACEMENTS, watched};
use crate::lots::is_full;
use crate::transcript::Transcript;
use crate::workspaces::{files, holds};

/// Files of every kind that is kept, larger than a piece too; then some are removed, renamed, and written anew.
const JOB: &str = r##"
steps:
  - when: { turn: 1, text: make }
    tools:
      - name: exec
        input:
          code: |
            const { chmod, mkdir, symlink, truncate, utimes, writeFile } = await import("node:fs/promises");
            await mkdir("deep/er/empty", { recursive: true });
            await mkdir("goes/with/all", { recursive: true });
            for (let at = 0; at < 40; at += 1) await writeFile(`deep/er/${at}`, `file ${at}\n`.repeat(at));
            await writeFile("goes/with/all/of it", "and is gone");
            await writeFile("large", Buffer.from(Array.from({ length: 9 << 20 }, (_, at) => (at * at) % 251)));
            await writeFile("empty", "");
            await writeFile("old name", "under another name");
            await chmod("old name", 0o640);
            await symlink("deep/er/7", "link");
            await writeFile("sparse", "beginning");
            await truncate("sparse", 20 << 20);
            await utimes("empty", 1000000000, 1000000000);
            return "made";
  - when: { turn: 1, text: change }
    tools:
      - name: exec
        input:
          code: |
            const { appendFile, rename, rm, writeFile } = await import("node:fs/promises");
            await rm("goes", { recursive: true });
            await rm("deep/er/3");
            await rename("old name", "new name");
            await rename("deep", "moved");
            await writeFile("moved/er/5", "written anew");
            await appendFile("large", "and its end");
            return "changed";
  - when: { turn: 1, text: mark }
    tools:
      - name: write
        input: { path: mark, content: "nobody wants it any more" }
  - when: { turn: 1, text: look }
    tools:
      - name: safebash
        input: { command: ls }
  - when: { text: make }
    text: "Made."
  - when: { text: mark }
    text: "Marked."
  - when: { text: look }
    text: "There is {{ result.0.text }}"
  - when: { text: change }
    text: "Changed."
  - when: { text: again }
    text: "Here again."
"##;

/// Five gigabytes of which nearly all is holes, a file that is written anew ten times a second, and many small ones: with how many.
const MUCH: &str = r##"
steps:
  - when: { turn: 1, text: make }
    tools:
      - name: exec
        input:
          code: |
            const fs = require("node:fs");
            const sparse = fs.openSync("sparse", "w");
            fs.ftruncateSync(sparse, 5e9);
            fs.writeSync(sparse, "in the middle", 3e9);
            for (let at = 0; at < COUNT; at += 1) {
              if (at < 97) fs.mkdirSync(`many/${at}`, { recursive: true });
              fs.writeFileSync(`many/${at % 97}/file ${at}`, `${at}`);
            }
            for (let at = 1; at <= 30; at += 1) {
              fs.writeFileSync("restless", `written ${at} times`);
              await new Promise((done) => setTimeout(done, 100));
            }
            return "made";
  - when: { turn: 1, text: look }
    tools:
      - name: exec
        input:
          code: |
            const { execSync } = require("node:child_process");
            const sum = execSync(`cat restless; stat -c ' %s' sparse; dd if=sparse bs=1000 skip=3000000 count=1 2>/dev/null | head -c 13;
              find many -type f | wc -l; find many -type f | sort | tr '\\n' '\\0' | xargs -0 cat | sha256sum`).toString();
            return { sum, holes: require("node:fs").statSync("sparse").blocks < 32768 };
  - when: { text: make }
    text: "Made."
  - when: { text: look }
    text: "There is {{ result.0.text }}"
"##;

/// How long a bucket is gone in the big tests.
const GONE: Duration = Duration::from_secs(600);

/// An installation that plays this and keeps workspaces there.
fn keeps_in(server: &S3Server, script: &str) -> Installation {
    with_loops_in(PLACEMENTS[0], server, script)
}

/// The same, with loops in this place.
fn with_loops_in(placement: &str, server: &S3Server, script: &str) -> Installation {
    let keys = format!("---\nplacement = \"{placement}\"\nfreeze_after = \"500ms\"\nhibernate_after = \"2s\"\n");
    let belljar = Installation::prepare(script, &keys);
    belljar.have_room();
    let keys = [("access", S3Server::ACCESS_KEY), ("secret", S3Server::SECRET_KEY)];
    let [access, secret] = keys.map(|(name, key)| {
        let path = belljar.path(name);
        fs::write(&path, key).expect("write a key");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("keep a key");
        path.display().to_string()
    });
    belljar.configure(&format!(
        "[objects]\nkind = \"s3\"\nendpoint = \"{}\"\nbucket = \"{}\"\nprefix = \"here\"\n\
         path_style = true\nplain_http = true\naccess_key = \"file:{access}\"\nsecret_key = \"file:{secret}\"\n",
        server.url(),
        S3Server::BUCKET
    ));
    belljar.start_host();
    belljar.start_serve();
    belljar
}

/// Waits until a session's sandbox is in this state.
fn is_now(belljar: &Installation, session: &str, state: &str) {
    let id = belljar.id(session);
    belljar.wait_for(&id, state, |seen| {
        seen.of("sandbox").last().is_some_and(|event| event["state"] == state)
    });
}

/// A workspace that loses its disk twice: with its machine, and as it is put away.
fn outlives_its_disks(belljar: &Installation) {
    belljar.done(&["run", "--session", "s", "make files"]);
    let made = files(belljar, "s");
    assert!(made.contains("regular file 640 1000 1000 18 1 "), "{made}");
    // By then all is kept that there is.
    is_now(belljar, "s", "hibernated");
    belljar.move_to_another_machine();
    assert_eq!(files(belljar, "s"), made);

    belljar.done(&["run", "--session", "s", "change them"]);
    let changed = files(belljar, "s");
    belljar.done(&["archive", "s"]);
    is_now(belljar, "s", "archived");
    belljar.done(&["run", "--session", "s", "again"]);
    assert_eq!(files(belljar, "s"), changed);
    for (path, is_there) in [
        ("/workspace/goes", false),
        ("/workspace/deep", false),
        ("/workspace/old name", false),
        ("/workspace/moved/er/3'", false),
        ("/workspace/moved/er/5", true),
        ("/workspace/moved/er/empty", true),
        ("/workspace/new name", true),
    ] {
        assert_eq!(changed.contains(path), is_there, "{path}\n{changed}");
    }
    assert_eq!(belljar.file("s", "moved/er/5"), "written anew");
    belljar.transcript("s").assert_whole();
    let own = belljar.data().join("control/objects");
    assert!(!own.exists(), "they are kept on this machine, too");
}

#[test]
fn a_workspace_that_s3s_keeps_outlives_its_disks() {
    let server = S3Server::s3s();
    outlives_its_disks(&keeps_in(&server, JOB));
    assert!(holds(&server.folder().join(S3Server::BUCKET), b"written anew"));
}

#[test]
fn a_workspace_that_moto_keeps_outlives_its_disks() {
    outlives_its_disks(&keeps_in(&S3Server::moto(), JOB));
}

#[test]
fn holes_a_restless_file_and_many_small_ones_are_kept_in_a_bucket() {
    let count = if is_full() { 100_000 } else { 1_000 };
    let server = S3Server::s3s();
    let belljar = keeps_in(&server, &MUCH.replace("COUNT", &count.to_string()));
    belljar.done(&["run", "--session", "s", "make files"]);
    let look = || {
        belljar.done(&["run", "--session", "s", "look"]);
        let said = belljar.transcript("s").said();
        let (_, last) = said.rsplit_once("There is ").expect("what there is");
        last.to_owned()
    };
    let made = look();
    let number = format!("in the middle{count}\\n");
    for expected in ["written 30 times 5000000000", &number, "\"holes\":true"] {
        assert!(made.contains(expected), "{expected}: {made}");
    }
    belljar.done(&["archive", "s"]);
    is_now(&belljar, "s", "archived");
    assert!(holds(&server.folder().join(S3Server::BUCKET), b"written 30 times"));
    // So many take longer than a call waits, which says so and does nothing.
    let back = eventually_asked("the files to be back", || {
        let said = look();
        (!said.contains("still being brought back")).then_some(said)
    });
    assert_eq!(back, made);
}

#[test]
fn while_a_bucket_is_gone_work_goes_on_and_all_is_kept_afterwards() {
    let gone_for = if is_full() { GONE } else { Duration::ZERO };
    let mut server = S3Server::s3s();
    let belljar = keeps_in(&server, JOB);
    belljar.done(&["run", "--session", "s", "make files"]);
    is_now(&belljar, "s", "hibernated");
    server.stop();
    let until = Instant::now() + gone_for;
    let file = belljar.path("file");
    let mut count = 0;
    while count < 2 || Instant::now() < until {
        count += 1;
        fs::write(&file, format!("file {count}")).expect("write a file");
        let name = format!("meanwhile {count}");
        belljar.done(&["put", "s", &file.to_string_lossy(), &name]);
        // It sleeps in between, and is woken.
        is_now(&belljar, "s", "hibernated");
        assert_eq!(belljar.file("s", "meanwhile 1"), "file 1");
    }
    let last = format!("meanwhile {count}");
    if is_full() {
        // A moment is not worth a word.
        let told = |seen: &Transcript| seen.of("files").any(|event| event["state"] == "unkept");
        belljar.wait_for(&belljar.id("s"), "word of files that are not kept", told);
    }
    let before = files(&belljar, "s");
    assert!(before.contains(&last), "{before}");
    server.start_again();
    belljar.done(&["archive", "s"]);
    is_now(&belljar, "s", "archived");
    assert_eq!(files(&belljar, "s"), before);
    assert_eq!(belljar.file("s", &last), format!("file {count}"));
    belljar.transcript("s").assert_whole();
}

#[test]
fn a_call_that_waits_for_files_is_not_made_once_its_run_is_cancelled() {
    for placement in PLACEMENTS {
        let mut server = S3Server::s3s();
        let belljar = with_loops_in(placement, &server, JOB);
        belljar.done(&["run", "--session", "s", "make files"]);
        belljar.done(&["archive", "s"]);
        is_now(&belljar, "s", "archived");
        server.stop();
        let mut run = watched(&belljar, &["run", "--session", "s", "mark it"]);
        let is_called = |seen: &Transcript| seen.of("tool_started").any(|event| event["name"] == "write");
        belljar.wait_for("s", "the call", is_called);
        belljar.done(&["cancel", "s"]);
        run.wait().expect("the run's watcher ends");
        assert_eq!(belljar.transcript("s").last_state(), "cancelled", "{placement}");
        server.start_again();
        let there = belljar.done(&["run", "--session", "s", "look"]);
        assert!(there.contains("old name"), "{placement}: {there}");
        assert!(!there.contains("mark"), "{placement}: {there}");
    }
}

#[test]
fn threat_123_a_presigned_url_is_nowhere_but_in_who_uses_it() {
    let server = S3Server::s3s();
    let belljar = keeps_in(&server, JOB);
    belljar.done(&["run", "--session", "s", "make files"]);
    belljar.done(&["archive", "s"]);
    is_now(&belljar, "s", "archived");
    belljar.done(&["run", "--session", "s", "again"]);
    belljar.done(&["backup", &belljar.path("copy").to_string_lossy()]);
    let said = ["serve", "host"].map(|role| belljar.log(role)).join("\n") + &belljar.done(&["audit", "--json"]);
    assert!(!said.contains("X-Amz"), "{said}");
    let kept = fs::read(belljar.path("copy")).expect("read the copy");
    for part in ["X-Amz-Signature", "X-Amz-Credential"] {
        let there = kept.windows(part.len()).any(|window| window == part.as_bytes());
        assert!(!there, "{part} is in the store");
    }
}
