//! Where the clients are: what `scripts/prepare tests` brought, and what is compiled here, once, beside the compiler's output.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::try_run;
use crate::miniature::kept_folder;
use crate::upstream::Authority;

/// How long compiling the programs of `tests/clients` may take, where others compile too.
const LONG: Duration = Duration::from_secs(540);

/// What the package registries gave: `bin`, `node_modules`, `python`. Programs find it at `/clients`.
#[must_use]
pub fn brought() -> &'static Path {
    Path::new("/opt/belljar-tests/clients")
}

/// The programs of `tests/clients` and `client.go`, and `Client.java`: compiled by whoever asks first. Programs find them at `/built`.
///
/// # Panics
/// When one cannot be compiled.
#[must_use]
pub fn built() -> PathBuf {
    let folder = kept();
    let made = lock(&folder).and_then(|_lock| build(&folder));
    made.unwrap_or_else(|problem| {
        panic!("compile the clients: {problem}; scripts/prepare tests brings what that takes")
    });
    folder.join("built")
}

/// Who signs for the servers of a test of clients: the same always, as one of the clients is compiled with it.
///
/// # Panics
/// When it cannot be kept.
#[must_use]
pub fn authority() -> Authority {
    let folder = kept();
    let kept = lock(&folder).and_then(|_lock| Authority::kept(&folder.join("authority.key")));
    kept.unwrap_or_else(|problem| panic!("keep an authority: {problem}"))
}

fn kept() -> PathBuf {
    kept_folder().join("clients")
}

/// One at a time, of all tests on this machine.
fn lock(folder: &Path) -> Result<File, String> {
    let failed = |error: std::io::Error| format!("lock {}: {error}", folder.display());
    fs::create_dir_all(folder.join("built")).map_err(failed)?;
    let lock = File::create(folder.join("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    Ok(lock)
}

fn build(folder: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("write below {}: {error}", folder.display());
    let (sources, built) = (
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/clients"),
        folder.join("built"),
    );
    let certificate = folder.join("authority.der");
    if !certificate.exists() {
        let authority = Authority::kept(&folder.join("authority.key"))?;
        fs::write(&certificate, authority.der()).map_err(failed)?;
    }
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--locked", "--quiet", "--target-dir"])
        .arg(folder.join("target"))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients"))
        .env("CLIENT_AUTHORITY", &certificate);
    // Some crates are built anew where cargo says something else of the program that starts it.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_")) {
        if name != "CARGO_HOME" {
            cargo.env_remove(name);
        }
    }
    try_run(LONG, &mut cargo)?;
    let mut find = Command::new("find");
    find.arg(folder.join("target"))
        .args(["-path", "*/debug/reqwest-*", "-type", "f", "-executable"]);
    for program in try_run(LONG, &mut find)?.lines().map(Path::new) {
        let name = program.file_name().unwrap_or_default();
        replace_if_other(program, &built.join(name)).map_err(failed)?;
    }
    let go = ["/usr/local/go/bin/go", "/usr/bin/go"]
        .into_iter()
        .find(|go| Path::new(go).exists());
    let mut go = Command::new(go.unwrap_or("go"));
    go.args(["build", "-trimpath", "-o"])
        .arg(built.join("go-client"))
        .arg(sources.join("client.go"))
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", folder.join("go-cache"))
        .env("GOTOOLCHAIN", "local");
    try_run(LONG, &mut go)?;
    replace_if_other(&sources.join("Client.java"), &built.join("Client.java")).map_err(failed)
}

/// Copies a file, unless the same bytes are there.
fn replace_if_other(from: &Path, to: &Path) -> std::io::Result<()> {
    let content = fs::read(from)?;
    if fs::read(to).is_ok_and(|there| there == content) {
        return Ok(());
    }
    let half = to.with_extension("half");
    fs::copy(from, &half)?;
    fs::rename(half, to)
}
