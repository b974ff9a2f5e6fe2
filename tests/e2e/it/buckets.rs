//! Workspaces that are kept by other people's servers that speak S3: `s3s-fs`, which checks signatures and checksums, and `moto`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use testkit::S3Server;

use crate::installation::Installation;
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
  - when: { text: make }
    text: "Made."
  - when: { text: change }
    text: "Changed."
  - when: { text: again }
    text: "Here again."
"##;

/// An installation that keeps workspaces there.
fn keeps_in(server: &S3Server) -> Installation {
    let sleepy = "---\nfreeze_after = \"500ms\"\nhibernate_after = \"2s\"\n";
    let belljar = Installation::prepare(JOB, sleepy);
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

/// A workspace that loses its disk twice: with its machine, and as it is put away.
fn outlives_its_disks(belljar: &Installation) {
    belljar.done(&["run", "--session", "s", "make files"]);
    let made = files(belljar, "s");
    assert!(made.contains("regular file 640 1000 1000 18 1 "), "{made}");
    let id = belljar.id("s");
    let is_now = |state: &'static str| {
        belljar.wait_for(&id, state, |seen| {
            seen.of("sandbox").last().is_some_and(|event| event["state"] == state)
        });
    };
    // By then all is kept that there is.
    is_now("hibernated");
    belljar.move_to_another_machine();
    assert_eq!(files(belljar, "s"), made);

    belljar.done(&["run", "--session", "s", "change them"]);
    let changed = files(belljar, "s");
    belljar.done(&["archive", "s"]);
    is_now("archived");
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
    outlives_its_disks(&keeps_in(&server));
    assert!(holds(&server.folder().join(S3Server::BUCKET), b"written anew"));
}

#[test]
fn a_workspace_that_moto_keeps_outlives_its_disks() {
    outlives_its_disks(&keeps_in(&S3Server::moto()));
}
