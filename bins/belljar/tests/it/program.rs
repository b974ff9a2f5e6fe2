//! The program itself.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::world::World;

/// What a command came to.
#[derive(Debug)]
pub struct Came {
    pub code: i32,
    pub out: String,
    pub notes: String,
}

/// The program with an environment of its own.
pub fn belljar(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir(folder)
        .kill_on_drop(true);
    command
}

/// Runs a command to its end.
pub async fn run(mut command: Command, input: &str) -> Came {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that does not read its input may be gone by now.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output())
        .await
        .expect("an end")
        .unwrap();
    Came {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        notes: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Ada at her terminal.
pub async fn ada<S: AsRef<OsStr>>(world: &World, folder: &Path, words: &[S], input: &str) -> Came {
    let mut command = belljar(folder);
    command
        .env("BELLJAR_URL", &world.url)
        .env("BELLJAR_TOKEN", &world.ada)
        .args(words);
    run(command, input).await
}
