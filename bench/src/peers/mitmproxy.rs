//! mitmproxy, from PyPI, as a proxy on loopback.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use tempfile::TempDir;

use super::{installed, listens};

/// A mitmproxy. Ends with its value.
pub(crate) struct Mitmproxy {
    pub(crate) address: SocketAddr,
    /// What a client must trust where connections are read.
    pub(crate) authority: PathBuf,
    process: Child,
    _folder: TempDir,
}

/// Tunnels, and reads nothing.
pub(crate) fn passing() -> anyhow::Result<Mitmproxy> {
    start(&["--ignore-hosts".to_owned(), ".*".to_owned()])
}

/// Reads every connection, and sets a bearer token in every request.
pub(crate) fn reading(upstream: &Path, token: &str) -> anyhow::Result<Mitmproxy> {
    start(&[
        "--set".to_owned(),
        format!("ssl_verify_upstream_trusted_ca={}", upstream.display()),
        "--modify-headers".to_owned(),
        format!("/~q/Authorization/Bearer {token}"),
    ])
}

fn start(arguments: &[String]) -> anyhow::Result<Mitmproxy> {
    let program = installed("mitmproxy/bin/mitmdump")?;
    let folder = tempfile::Builder::new()
        .prefix("bench-mitmproxy")
        .tempdir_in("/var/tmp")?;
    let port = testkit::free_port();
    let process = Command::new(program)
        .args([
            "--quiet",
            "--listen-host",
            "127.0.0.1",
            "--listen-port",
            &port.to_string(),
            "--set",
        ])
        .arg(format!("confdir={}", folder.path().display()))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.path().join("said"))?)
        .spawn()
        .context("mitmproxy could not be started")?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mitmproxy = Mitmproxy {
        address,
        authority: folder.path().join("mitmproxy-ca-cert.pem"),
        process,
        _folder: folder,
    };
    listens(address).context("mitmproxy does not listen")?;
    Ok(mitmproxy)
}

impl Drop for Mitmproxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
