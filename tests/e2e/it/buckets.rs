//! Workspaces that are kept by other people's servers that speak S3: `s3s-fs`, which checks signatures and checksums, and `moto`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use testkit::{eventually, free_port};

use crate::installation::Installation;
use crate::wanders::files;

const BUCKET: &str = "workspaces";
const ACCESS_KEY: &str = "AKEXAMPLE";
const SECRET_KEY: &str = "an-example-of-a-secret-key";

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

/// A server that speaks S3, and has the bucket.
struct Service {
    process: Child,
    port: u16,
    folder: TempDir,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Service {
    fn start(name: &str, arguments: impl Fn(&Path, &str) -> Vec<String>) -> Self {
        let folder = TempDir::with_prefix("belljar-s3-").expect("make a folder");
        fs::create_dir(folder.path().join(BUCKET)).expect("make a bucket");
        let port = free_port();
        let mut command = Command::new(program(name));
        command.args(arguments(folder.path(), &port.to_string()));
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("start {command:?} (`scripts/prepare tests` installs it): {error}"));
        eventually("the service to listen", || TcpStream::connect(("127.0.0.1", port)).ok());
        Self { process, port, folder }
    }

    fn s3s() -> Self {
        Self::start("s3s-fs", |folder, port| {
            let words = ["--host", "127.0.0.1", "--port", port, "--access-key", ACCESS_KEY];
            let words = words.into_iter().chain(["--secret-key", SECRET_KEY]);
            let folder = folder.to_string_lossy().into_owned();
            words.map(str::to_owned).chain([folder]).collect()
        })
    }

    fn moto() -> Self {
        let service = Self::start("moto_server", |_, port| {
            ["-H", "127.0.0.1", "-p", port].map(str::to_owned).to_vec()
        });
        // It has no bucket yet, and takes this from anybody.
        let mut connection = TcpStream::connect(("127.0.0.1", service.port)).expect("connect to the service");
        let ask =
            format!("PUT /{BUCKET} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        connection.write_all(ask.as_bytes()).expect("ask the service");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("hear the service");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        service
    }

    /// An installation that keeps workspaces here.
    fn installation(&self) -> Installation {
        let sleepy = "---\nfreeze_after = \"500ms\"\nhibernate_after = \"2s\"\n";
        let belljar = Installation::prepare(JOB, sleepy);
        let [access, secret] = [("access", ACCESS_KEY), ("secret", SECRET_KEY)].map(|(name, key)| {
            let path = belljar.path(name);
            fs::write(&path, key).expect("write a key");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("keep a key");
            path.display().to_string()
        });
        belljar.configure(&format!(
            "[objects]\nkind = \"s3\"\nendpoint = \"http://127.0.0.1:{}\"\nbucket = \"{BUCKET}\"\nprefix = \"here\"\n\
             path_style = true\nplain_http = true\naccess_key = \"file:{access}\"\nsecret_key = \"file:{secret}\"\n",
            self.port
        ));
        belljar.start_host();
        belljar.start_serve();
        belljar
    }
}

/// A program where `scripts/prepare tests` puts it, or the machine's own.
fn program(name: &str) -> PathBuf {
    let own = std::env::var_os("BELLJAR_TEST_PROGRAMS").map_or_else(|| "/opt/belljar-tests/bin".into(), PathBuf::from);
    let own = own.join(name);
    if own.exists() { own } else { name.into() }
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

/// Whether a file with this content is in a folder or below it.
fn holds(folder: &Path, content: &[u8]) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        if path.is_dir() {
            holds(&path, content)
        } else {
            fs::read(&path).is_ok_and(|found| found == content)
        }
    })
}

#[test]
fn a_workspace_that_s3s_keeps_outlives_its_disks() {
    let service = Service::s3s();
    outlives_its_disks(&service.installation());
    assert!(holds(&service.folder.path().join(BUCKET), b"written anew"));
}

#[test]
fn a_workspace_that_moto_keeps_outlives_its_disks() {
    let service = Service::moto();
    outlives_its_disks(&service.installation());
}
