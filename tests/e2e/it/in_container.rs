//! Belljar in a container of the engine that makes its sandboxes, as Docker Desktop needs it: with BELLJAR_TEST_FULL=1, as it
//! takes a newer engine than is packaged.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use testkit::{DockerEngine, eventually_asked, free_port, miniature, run};

use crate::lots::is_full;
use crate::program::{belljar, runtime};

const JOB: &str = r#"
steps:
  - when: { turn: 1, text: make }
    tools:
      - name: exec
        input:
          code: |
            const { mkdir, writeFile } = await import("node:fs/promises");
            await mkdir("deep", { recursive: true });
            await writeFile("deep/note", "first");
            return "made";
  - when: { text: make }
    text: "Made."
"#;

/// What the container and the volume are called.
const NAME: &str = "belljar-contained";
/// The engine's image of it: a shell, and what the test puts in.
const IMAGE: &str = "belljar-contained:latest";

/// A Belljar of which the engine's machine sees the volume alone.
struct Contained {
    engine: &'static DockerEngine,
    /// The volume, as the engine has it.
    data: PathBuf,
    /// Its configuration and its programs.
    folder: TempDir,
    port: u16,
}

impl Contained {
    fn start(engine: &'static DockerEngine, script: &str) -> Self {
        let contained = Self {
            engine,
            data: engine.volume(NAME),
            folder: TempDir::new().expect("make a folder"),
            port: free_port(),
        };
        miniature().install(&contained.data.join("images"));
        let rootfs = miniature().rootfs();
        let import = format!(
            "tar --create --numeric-owner --directory {} . | docker --host unix://{} import - {IMAGE}",
            rootfs.display(),
            engine.socket().display()
        );
        run(Command::new("sh").args(["-c", &import]));
        let folder = contained.folder.path();
        for (program, name) in [(belljar(), "belljar"), (runtime(), "belljar-runtime")] {
            fs::copy(program, folder.join(name)).expect("copy a program");
        }
        fs::write(folder.join("script.yaml"), script).expect("write the script");
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:{}\"\ndata = \"/var/lib/belljar\"\nuser = \"root\"\nmodel = \"scripted\"\n\n\
             [models.scripted]\nprovider = \"scripted\"\nscript = \"/etc/belljar/script.yaml\"\n\n\
             [sandbox]\nprovider = \"docker\"\ndocker_volume = \"{NAME}\"\nrun = \"/var/lib/belljar/run\"\n\
             program = \"/etc/belljar/belljar-runtime\"\nimage = \"{}\"\nmemory = \"256MiB\"\nwarm.most = 0\n",
            contained.port,
            miniature().digest,
        );
        fs::write(folder.join("belljar.toml"), config).expect("write the configuration");
        let settings = format!("{}:/etc/belljar:ro", folder.display());
        let socket = format!("{}:/var/run/docker.sock", engine.socket().display());
        let volume = format!("{NAME}:/var/lib/belljar");
        // Its images are links to there.
        let image = rootfs.parent().expect("an image's folder").display().to_string();
        let image = format!("{image}:{image}:ro");
        let mut start = contained.docker(&["run", "--detach", "--name", NAME, "--privileged", "--pid", "host"]);
        start.args(["--cgroupns", "host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup"]);
        // The engine of this test has no network of its own.
        start.args([
            "--network",
            "host",
            "--volume",
            &volume,
            "--volume",
            &socket,
            "--volume",
            &settings,
        ]);
        start.args([
            "--volume",
            &image,
            IMAGE,
            "/etc/belljar/belljar",
            "up",
            "--config",
            "/etc/belljar/belljar.toml",
        ]);
        run(&mut start);
        contained.wait_until_it_answers();
        contained
    }

    fn docker(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command
            .arg("--host")
            .arg(format!("unix://{}", self.engine.socket().display()));
        command.args(arguments);
        command
    }

    /// A command of a person on the machine around.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(belljar());
        command.args(arguments).stdin(Stdio::null());
        command.env("BELLJAR_URL", format!("http://127.0.0.1:{}", self.port));
        let token = fs::read_to_string(self.data.join("control/admin-token")).unwrap_or_default();
        command.env("BELLJAR_TOKEN", token.trim());
        command
    }

    fn done(&self, arguments: &[&str]) -> String {
        run(&mut self.command(arguments))
    }

    fn wait_until_it_answers(&self) {
        eventually_asked("Belljar in its container to answer", || {
            let asked = self.command(&["sandbox", "list"]).output();
            asked.expect("run belljar").status.success().then_some(())
        });
    }

    /// The ids of all sandboxes.
    fn sandboxes(&self) -> Vec<String> {
        let listed = self.done(&["sandbox", "list", "--json"]);
        let sandboxes = listed
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
        sandboxes
            .map(|sandbox| sandbox["id"].as_str().expect("an id").to_owned())
            .collect()
    }

    fn put(&self, session: &str, name: &str, words: &str) {
        let file = self.folder.path().join("put");
        fs::write(&file, words).expect("write a file");
        self.done(&["put", session, &file.to_string_lossy(), name]);
    }

    fn file(&self, session: &str, name: &str) -> String {
        self.done(&["get", session, name, "-"])
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = self.docker(&["logs", NAME]).output().expect("run docker");
            eprintln!("belljar said:\n{}{}", text(&logs.stdout), text(&logs.stderr));
        }
        for mut command in [
            self.command(&["sandbox", "rm", "--all", "--yes"]),
            self.docker(&["rm", "--force", NAME]),
        ] {
            let _ = command.output().expect("run a program");
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_belljar_in_a_container_works_forks_rewinds_and_finds_its_sandboxes_again() {
    let Some(engine) = is_full().then(DockerEngine::newer).flatten() else {
        println!("it is tried with BELLJAR_TEST_FULL=1 and an engine that mounts parts of volumes");
        return;
    };
    let belljar = Contained::start(engine, JOB);
    belljar.done(&["run", "--session", "s", "make files"]);
    assert_eq!(belljar.file("s", "deep/note"), "first");

    belljar.done(&["snapshot", "save", "s", "--name", "before"]);
    belljar.put("s", "deep/note", "second");
    let forks = belljar.done(&["fork", "s"]);
    belljar.done(&["snapshot", "restore", "s", "before"]);
    assert_eq!(belljar.file("s", "deep/note"), "first");
    let fork = forks.split_whitespace().next().expect("the fork's id");
    assert_eq!(belljar.file(fork, "deep/note"), "second");

    let before = belljar.sandboxes();
    run(&mut belljar.docker(&["restart", NAME]));
    belljar.wait_until_it_answers();
    assert_eq!(belljar.sandboxes(), before);
    assert_eq!(belljar.file("s", "deep/note"), "first");
    assert_eq!(belljar.sandboxes(), before, "none was made for what was there");

    let doctor = [
        "exec",
        NAME,
        "/etc/belljar/belljar",
        "doctor",
        "--config",
        "/etc/belljar/belljar.toml",
    ];
    let said = belljar.docker(&doctor).output().expect("run docker");
    let said = text(&said.stdout);
    for words in [
        "are folders in the volume belljar-contained",
        "sandboxes can run on this machine",
    ] {
        assert!(said.contains(words), "{said}");
    }
}
