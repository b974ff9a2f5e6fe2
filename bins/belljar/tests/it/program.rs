//! The program itself.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

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

/// Runs a command of which nobody reads what it prints, and nobody what it says about it where `deaf`: its code, and what it said.
pub async fn unread(mut command: Command, deaf: bool) -> (i32, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let notes = if deaf {
        Stdio::from(writer.try_clone().unwrap())
    } else {
        Stdio::piped()
    };
    let child = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(notes)
        .spawn()
        .unwrap();
    let output = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output())
        .await
        .expect("an end")
        .unwrap();
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8(output.stderr).unwrap(),
    )
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

/// A command that prints as things happen.
pub struct Printing {
    program: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Printing {
    /// Starts it. It is killed when this is dropped.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut program = command.spawn().unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines();
        Self { program, lines }
    }

    /// Waits for the next line.
    pub async fn line(&mut self) -> String {
        let line = tokio::time::timeout(Duration::from_secs(60), self.lines.next_line()).await;
        line.expect("a line").unwrap().expect("it goes on")
    }

    /// Whether it still runs.
    pub fn goes_on(&mut self) -> bool {
        self.program.try_wait().unwrap().is_none()
    }
}

/// Ada at a terminal, which `script` of util-linux makes.
pub struct Terminal {
    program: Child,
    keys: ChildStdin,
    screen: ChildStdout,
    seen: String,
    /// How much of it was looked for already.
    looked: usize,
    go: std::path::PathBuf,
}

impl Terminal {
    /// Opens one, in which the program begins when it is told to.
    pub fn open(world: &World, folder: &Path, words: &str) -> Self {
        let go = folder.join("go");
        let belljar = env!("CARGO_BIN_EXE_belljar");
        let command = format!(
            "until [ -e {} ]; do sleep 0.02; done; exec {belljar} {words}",
            go.display()
        );
        let mut program = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("SHELL", "/bin/sh")
            .env("BELLJAR_URL", &world.url)
            .env("BELLJAR_TOKEN", &world.ada)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            keys: program.stdin.take().unwrap(),
            screen: program.stdout.take().unwrap(),
            program,
            seen: String::new(),
            looked: 0,
            go,
        }
    }

    /// The program begins.
    pub fn goes(&self) {
        std::fs::write(&self.go, "").unwrap();
    }

    pub async fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).await.unwrap();
    }

    /// Waits until this is on the screen, behind what was waited for before.
    pub async fn shows(&mut self, words: &str) {
        let shown = async {
            loop {
                if let Some(place) = self.seen[self.looked..].find(words) {
                    self.looked += place + words.len();
                    return;
                }
                let mut bytes = [0; 4_096];
                let length = self.screen.read(&mut bytes).await.unwrap();
                assert!(length > 0, "the program ended: {:?}", self.seen);
                self.seen.push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        };
        let shown = tokio::time::timeout(Duration::from_secs(60), shown).await;
        assert!(shown.is_ok(), "{words:?} is not on the screen: {:?}", self.seen);
    }

    /// Everything that was on the screen.
    pub fn seen(&self) -> &str {
        &self.seen
    }

    /// Waits for the program's end, and gives its code.
    pub async fn ends(&mut self) -> i32 {
        let mut rest = Vec::new();
        self.screen.read_to_end(&mut rest).await.unwrap();
        self.seen.push_str(&String::from_utf8_lossy(&rest));
        self.program.wait().await.unwrap().code().unwrap_or(-1)
    }
}
