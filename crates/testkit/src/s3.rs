//! Two services that speak S3, from nowhere near this program's makers: `moto`, which believes everybody, and `s3s-fs`, which checks
//! signatures and checksums.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::{eventually, free_port, program};

/// How often one is started.
const STARTS: usize = 3;

/// One of them, in a folder of its own. Ends with its value.
pub struct S3Server {
    /// What starts it.
    command: Command,
    process: Child,
    port: u16,
    folder: TempDir,
}

impl S3Server {
    /// The bucket that each has.
    pub const BUCKET: &str = "workspaces";
    /// The keys that `s3s-fs` takes.
    pub const ACCESS_KEY: &str = "AKEXAMPLE";
    /// See [`Self::ACCESS_KEY`].
    pub const SECRET_KEY: &str = "an-example-of-a-secret-key";

    /// `s3s-fs`: each object is a file in its folder.
    pub fn s3s() -> Self {
        Self::start("s3s-fs", |command, folder, port| {
            std::fs::create_dir(folder.join(Self::BUCKET)).expect("make a bucket");
            command
                .args(["--host", "127.0.0.1", "--port", port])
                .args(["--access-key", Self::ACCESS_KEY, "--secret-key", Self::SECRET_KEY])
                .arg(folder);
        })
    }

    /// `moto`.
    pub fn moto() -> Self {
        let server = Self::start("moto_server", |command, _, port| {
            command.args(["-H", "127.0.0.1", "-p", port]);
        });
        // It has no bucket yet, and takes this from anybody.
        let mut connection = TcpStream::connect(("127.0.0.1", server.port)).expect("connect to moto");
        let ask = format!(
            "PUT /{} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            Self::BUCKET
        );
        connection.write_all(ask.as_bytes()).expect("ask moto");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("hear moto");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        server
    }

    /// `moto`, which believes so many requests and checks all others; without a bucket.
    pub fn moto_that_checks_after(requests: u32) -> Self {
        Self::start("moto_server", |command, _, port| {
            command
                .args(["-H", "127.0.0.1", "-p", port])
                .env("INITIAL_NO_AUTH_ACTION_COUNT", requests.to_string());
        })
    }

    fn start(name: &str, prepare: impl Fn(&mut Command, &Path, &str)) -> Self {
        // Somebody else may have taken the port by then; it ends at once.
        let started = (0..STARTS).find_map(|_| {
            let folder = TempDir::with_prefix("belljar-s3-").expect("make a folder");
            let port = free_port();
            let mut command = Command::new(program(name));
            prepare(&mut command, folder.path(), &port.to_string());
            let mut process = command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| panic!("start {command:?} (`scripts/prepare tests` installs it): {error}"));
            listens(&mut process, port).then_some(Self {
                command,
                process,
                port,
                folder,
            })
        });
        started.unwrap_or_else(|| panic!("{name} ended {STARTS} times before it listened"))
    }

    /// Ends it; its folder stays.
    pub fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again where it was.
    pub fn start_again(&mut self) {
        self.process = self.command.spawn().expect("start a service that speaks S3 again");
        assert!(
            listens(&mut self.process, self.port),
            "somebody else has taken port {}",
            self.port
        );
    }

    /// Where it listens, on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Waits until it listens, or has ended: which of both.
fn listens(process: &mut Child, port: u16) -> bool {
    eventually("a service that speaks S3 to listen", || {
        let connected = TcpStream::connect(("127.0.0.1", port)).is_ok_and(|stream| !is_to_itself(&stream));
        let has_ended = process.try_wait().expect("ask for the service").is_some();
        (connected || has_ended).then_some(!has_ended)
    })
}

/// A connection to a port at which nobody listens yet may come from that same port.
fn is_to_itself(stream: &TcpStream) -> bool {
    stream.local_addr().ok() == stream.peer_addr().ok()
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop();
    }
}
