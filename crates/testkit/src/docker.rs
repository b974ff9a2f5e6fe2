//! Docker's engine with folders and a socket of its own, as long as this process lives.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use crate::command::prepared;
use crate::eventually;

const PREFIX: &str = "belljar-engine-";

/// The engine of this process.
pub struct DockerEngine {
    folder: PathBuf,
}

static ENGINE: OnceLock<Option<DockerEngine>> = OnceLock::new();

/// One that mounts parts of volumes (26 or later), which what is packaged may be too old for.
static NEWER: OnceLock<Option<DockerEngine>> = OnceLock::new();

impl DockerEngine {
    /// The engine, if one was started.
    pub fn that_runs() -> Option<&'static Self> {
        ENGINE.get().and_then(Option::as_ref)
    }

    /// The one that is packaged. Whoever asks a machine without it panics, and says what installs it.
    pub fn of_this_process() -> &'static Self {
        let engine = ENGINE.get_or_init(|| Self::start(Path::new("dockerd"), ""));
        let lacking = "dockerd is not here, and is to be tried: `scripts/prepare tests` installs it (docker.io)";
        engine.as_ref().expect(lacking)
    }

    /// The same of an engine that `scripts/prepare tests` has built, for the big tests; none where it was not.
    pub fn newer() -> Option<&'static Self> {
        let program = prepared("dockerd");
        NEWER.get_or_init(|| Self::start(&program, "-newer")).as_ref()
    }

    /// Makes a volume, and says where the engine has it.
    pub fn volume(&self, name: &str) -> PathBuf {
        let order = serde_json::json!({ "Name": name }).to_string();
        let asked = ask(
            &self.socket(),
            &format!(
                "POST /volumes/create HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{order}",
                order.len()
            ),
        );
        let answer = asked.expect("make a volume");
        assert!(answer.contains(" 201 "), "{answer}");
        self.folder.join("data/volumes").join(name).join("_data")
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("docker.sock")
    }

    /// What the engine keeps of containers that are there.
    pub fn containers(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.folder.join("data/containers")).expect("start Docker's engine");
        all.map(|entry| entry.expect("start Docker's engine").path()).collect()
    }

    fn start(program: &Path, mark: &str) -> Option<Self> {
        if Command::new(program).arg("--version").output().is_err() {
            println!(
                "{} is not here, so this engine of Docker's is not tried",
                program.display()
            );
            return None;
        }
        clear();
        let folder = std::env::temp_dir().join(format!("{PREFIX}{}{mark}", std::process::id()));
        fs::create_dir_all(&folder).expect("start Docker's engine");
        let log = fs::File::create(folder.join("log")).expect("start Docker's engine");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM"])
            .arg(program)
            .arg("--data-root")
            .arg(folder.join("data"))
            .arg("--exec-root")
            .arg(folder.join("exec"));
        command.arg("--pidfile").arg(folder.join("pid"));
        command
            .arg("--host")
            .arg(format!("unix://{}", folder.join("docker.sock").display()));
        command.args([
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
            "--userland-proxy=false",
        ]);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("start Docker's engine"))
            .stderr(log);
        // The engine ends with the thread that started it, which is this process's as long as it lives.
        thread::spawn(move || {
            let mut engine = command.spawn().expect("start Docker's engine");
            let ended = engine.wait();
            eprintln!("dockerd has ended: {ended:?}");
            thread::sleep(Duration::from_secs(u64::from(u32::MAX)));
        });
        let engine = Self { folder };
        eventually("Docker's engine answers", || answers(&engine.socket()).then_some(()));
        Some(engine)
    }
}

/// Whether an engine answers behind this socket.
fn answers(socket: &Path) -> bool {
    ask(socket, "GET /_ping HTTP/1.0\r\n\r\n").is_ok_and(|answer| answer.contains(" 200 "))
}

fn ask(socket: &Path, request: &str) -> std::io::Result<String> {
    let mut engine = UnixStream::connect(socket)?;
    engine.write_all(request.as_bytes())?;
    let mut answer = String::new();
    engine.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Removes the folders of engines whose test is gone.
fn clear() {
    for entry in fs::read_dir(std::env::temp_dir())
        .expect("start Docker's engine")
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let engine = fs::read_to_string(entry.path().join("pid")).unwrap_or_default();
        let process = process.split('-').next().unwrap_or_default();
        let lives = |process: &str| !process.is_empty() && Path::new("/proc").join(process.trim()).exists();
        if !lives(process) && !lives(&engine) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
