//! Servers from Debian's packages, on free ports of this machine, until the tests end.

use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

use services::Trust;

use crate::tls::Authority;

/// Whose certificate every server shows: of its address, and of no name.
static AUTHORITY: LazyLock<Authority> = LazyLock::new(Authority::new);

/// Who trusts the servers, and who trusts somebody else.
pub(crate) fn trust(is_right: bool) -> Trust {
    if is_right {
        AUTHORITY.trust()
    } else {
        Authority::new().trust()
    }
}

/// How long a server may take to answer for the first time.
const STARTS: Duration = Duration::from_secs(120);

/// A server that ends with this process, and its folder.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) folder: PathBuf,
}

/// Starts one. `script` gets the folder and the port as `$1` and `$2`, and becomes the server's user where it must.
pub(crate) fn start(name: &str, script: &'static str, answers: impl Fn(&Server) -> bool) -> Server {
    let port = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let folder = std::env::temp_dir().join(format!("belljar-test-{name}-{}-{port}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let (certificate, key) = AUTHORITY.pem("127.0.0.1");
    for (name, text) in [("certificate.pem", certificate), ("key.pem", key)] {
        let mut private = std::fs::OpenOptions::new();
        let mut file = private
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(folder.join(name))
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }
    let server = Server { port, folder };
    let (folder, (sender, started)) = (server.folder.clone(), mpsc::channel());
    // The kernel ends the script when the thread that started it does, which is when the tests end.
    std::thread::spawn(move || {
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "sh", "-c", script, "sh"])
            .arg(&folder)
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        sender.send(()).unwrap();
        let _child = child;
        loop {
            std::thread::park();
        }
    });
    started.recv().unwrap();
    let begun = Instant::now();
    while !answers(&server) {
        let log = || std::fs::read_to_string(server.folder.join("log")).unwrap_or_default();
        assert!(begun.elapsed() < STARTS, "{name} does not answer: {}", log());
        std::thread::sleep(Duration::from_millis(5));
    }
    server
}

/// Runs a program to its end, and gives what it says.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let done = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        Ok(said)
    } else {
        Err(format!("{program}: {said}{}", String::from_utf8_lossy(&done.stderr)))
    }
}

/// Every file below a folder but those that a server writes all the time.
pub(crate) fn files(folder: &Path, passing: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            let shown = path.display().to_string();
            if passing.iter().any(|part| shown.contains(part)) {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                waiting.push(path);
            } else {
                found.push(shown);
            }
        }
    }
    found.sort();
    found
}
