//! The worker as the control plane meets it, with the real program, and with programs that are none.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::Notify;
use worker::{Config, Dialect, Fetch, FetchRequest, ScriptJob, ScriptLimits, Worker, WorkerError};

/// Workers of one test, which can be told from those of others by their path.
struct Workers {
    folder: TempDir,
}

impl Workers {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        symlink(env!("CARGO_BIN_EXE_belljar"), folder.path().join("belljar")).unwrap();
        Self { folder }
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("belljar")
    }

    fn config(&self) -> Config {
        Config {
            program: self.program(),
            ..Config::default()
        }
    }

    fn worker(&self) -> Worker {
        Worker::new(self.config())
    }

    /// The processes there are.
    fn processes(&self) -> Vec<Pid> {
        let program = self.program();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let named = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if let Some(pid) = named
                && line.split(|byte| *byte == 0).next() == Some(program.as_os_str().as_encoded_bytes())
            {
                found.push(pid);
            }
        }
        found
    }

    fn only(&self) -> Pid {
        let processes = self.processes();
        assert_eq!(processes.len(), 1, "{processes:?}");
        processes[0]
    }
}

/// A program that is no worker: what a shell does.
fn shell(script: &str) -> Worker {
    Worker::new(Config {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        start: Duration::from_secs(30),
        check: if script.ends_with(HANGS) {
            Duration::from_millis(300)
        } else {
            Duration::from_secs(30)
        },
        ..Config::default()
    })
}

/// How a script ends that never answers.
const HANGS: &str = "exec /bin/cat >/dev/null";

/// The shell's command that says a frame.
fn says(frame: &str) -> String {
    let length = u8::try_from(frame.len()).unwrap();
    format!("printf '\\{length:o}\\0\\0\\0%s' '{frame}';")
}

fn ready() -> String {
    says(r#"{"ready":{"version":1}}"#)
}

fn job(source: &str) -> ScriptJob {
    ScriptJob {
        source: source.to_owned(),
        arguments: json!({ "n": 2 }),
        functions: vec!["fetch".to_owned()],
        limits: ScriptLimits::default(),
    }
}

/// Answers with what it was asked; what is asked for "trouble" fails.
struct Echo;

#[async_trait]
impl Fetch for Echo {
    async fn fetch(&self, request: FetchRequest) -> Result<Value, String> {
        assert_eq!(request.name, "fetch");
        match request.arguments.as_slice() {
            [Value::String(word), ..] if word == "trouble" => Err("no way to trouble".to_owned()),
            arguments => Ok(json!({ "echo": arguments })),
        }
    }
}

#[tokio::test]
async fn statements_are_checked_and_the_process_stays() {
    let workers = Workers::new();
    let worker = workers.worker();
    assert_eq!(workers.processes(), [], "nothing is started before there is a job");
    let checked = worker
        .check_sql(Dialect::Postgres, "select lower(a), mine(b) from s.t where c = $1")
        .await
        .unwrap();
    assert_eq!(
        checked.text,
        "SELECT pg_catalog.lower(a), mine(b) FROM s.t WHERE c = $1"
    );
    assert_eq!(
        (checked.parameters, checked.relations[0].to_string()),
        (1, "s.t".to_owned())
    );
    assert_eq!(checked.functions[0].to_string(), "mine");
    let process = workers.only();
    for dialect in [Dialect::Postgres, Dialect::MySql, Dialect::Snowflake, Dialect::Sqlite] {
        assert_eq!(
            worker.check_sql(dialect, "SELECT a FROM t").await.unwrap().text,
            "SELECT a FROM t"
        );
        let refused = worker.check_sql(dialect, "DELETE FROM t").await.unwrap_err();
        assert!(
            matches!(&refused, WorkerError::Refused { remedy, .. } if !remedy.is_empty()),
            "{refused}"
        );
    }
    assert_eq!(workers.only(), process, "a refusal is no reason to start another");
    let long = format!("SELECT '{}'", "x".repeat(300 << 10));
    let refused = worker.check_sql(Dialect::Postgres, &long).await.unwrap_err();
    assert!(matches!(refused, WorkerError::Limit { .. }), "{refused}");
}

#[tokio::test]
async fn a_checker_is_replaced_after_so_many_statements() {
    let workers = Workers::new();
    let worker = Worker::new(Config {
        checkers: 1,
        checks_each: 3,
        ..workers.config()
    });
    let mut processes = Vec::new();
    for statement in ["SELECT 1", "DELETE FROM t", "SELECT 2", "SELECT 3", "SELECT 4"] {
        // A refusal is as much work as a yes.
        let _ = worker.check_sql(Dialect::Postgres, statement).await;
        processes.push(workers.processes());
    }
    assert_eq!(processes[0].len(), 1);
    assert_eq!(processes[0], processes[1]);
    assert_ne!(processes[1], processes[3]);
    assert_eq!(processes[3], processes[4]);
}

#[tokio::test]
async fn scripts_compute_and_what_they_fetch_is_fetched_by_the_parent() {
    let workers = Workers::new();
    let worker = workers.worker();
    let source = "
        const all = await Promise.all([1, 2, 3].map(i => fetch('a', i * args.n)));
        try { await fetch('trouble'); } catch (error) { all.push(error.message); }
        return { all, sum: all.length };";
    let result = worker.run_script(job(source), &Echo).await.unwrap();
    let echo = |i: u32| json!({ "echo": ["a", i] });
    assert_eq!(
        result.value,
        json!({ "all": [echo(2), echo(4), echo(6), "no way to trouble"], "sum": 4 })
    );

    let failed = worker
        .run_script(job("const a = 1;\nif (a) {\n  nowhere();\n}"), &Echo)
        .await
        .unwrap_err();
    assert!(
        matches!(&failed, WorkerError::Failed { line: Some(3), message } if message.contains("nowhere")),
        "{failed}"
    );
    let uncaught = worker
        .run_script(job("await fetch('trouble')"), &Echo)
        .await
        .unwrap_err();
    assert!(uncaught.to_string().contains("no way to trouble"), "{uncaught}");
    let undeclared = worker.run_script(job("await other('x')"), &Echo).await.unwrap_err();
    assert!(undeclared.to_string().contains("other"), "{undeclared}");
}

#[tokio::test]
async fn a_script_that_uses_too_much_is_stopped_and_told() {
    let workers = Workers::new();
    let worker = workers.worker();
    let limited = |source: &str, limits: ScriptLimits| {
        let mut job = job(source);
        job.limits = limits;
        job
    };
    let usual = ScriptLimits::default();
    let cases = [
        (limited("for (;;);", ScriptLimits { fuel: 10, ..usual }), "fuel"),
        (
            limited(
                "for (;;);",
                ScriptLimits {
                    time: Duration::from_millis(200),
                    fuel: u64::MAX,
                    ..usual
                },
            ),
            "longer than 0.2 s",
        ),
        (
            limited(
                "const a = []; for (;;) a.push('x'.repeat(1000) + a.length)",
                ScriptLimits {
                    memory_bytes: 8 << 20,
                    ..usual
                },
            ),
            "memory",
        ),
        (
            limited(
                "return 'x'.repeat(5000)",
                ScriptLimits {
                    output_bytes: 4096,
                    ..usual
                },
            ),
            "may return 4096",
        ),
        (
            limited(
                "for (let i = 0; i < 4; i++) await fetch(i)",
                ScriptLimits { calls: 3, ..usual },
            ),
            "3 calls",
        ),
    ];
    for (job, words) in cases {
        let stopped = worker.run_script(job, &Echo).await.unwrap_err();
        assert!(
            matches!(&stopped, WorkerError::Limit { .. }) && stopped.to_string().contains(words),
            "{words}: {stopped}"
        );
    }
    // More than the process itself may have: it breaks down, and the next one works.
    let bomb = limited(
        "const a = []; for (;;) a.push(new Uint8Array(64 << 20).fill(1))",
        ScriptLimits {
            memory_bytes: u64::MAX,
            ..usual
        },
    );
    let stopped = worker.run_script(bomb, &Echo).await.unwrap_err();
    assert!(
        matches!(stopped, WorkerError::Limit { .. } | WorkerError::Crashed { .. }),
        "{stopped}"
    );
    assert_eq!(worker.run_script(job("return 1"), &Echo).await.unwrap().value, 1);
}

/// Says which process ran the script.
struct Process<'a>(&'a Workers, Mutex<Vec<Pid>>);

#[async_trait]
impl Fetch for Process<'_> {
    async fn fetch(&self, _request: FetchRequest) -> Result<Value, String> {
        self.1.lock().unwrap().push(self.0.only());
        Ok(Value::Null)
    }
}

#[tokio::test]
async fn each_script_has_a_process_of_its_own() {
    let workers = Workers::new();
    let worker = workers.worker();
    let seen = Process(&workers, Mutex::default());
    for _ in 0..2 {
        worker
            .run_script(job("globalThis.left = 1; await fetch()"), &seen)
            .await
            .unwrap();
        // It was killed with its job; the kernel may take a moment.
        while !workers.processes().is_empty() {
            tokio::task::yield_now().await;
        }
    }
    let seen = seen.1.into_inner().unwrap();
    assert_ne!(seen[0], seen[1]);
}

/// Kills the process that asks.
struct Murder<'a>(&'a Workers);

#[async_trait]
impl Fetch for Murder<'_> {
    async fn fetch(&self, _request: FetchRequest) -> Result<Value, String> {
        kill_process(self.0.only(), Signal::KILL).unwrap();
        Ok(Value::Null)
    }
}

#[tokio::test]
async fn a_worker_that_dies_is_told_and_replaced() {
    let workers = Workers::new();
    let worker = workers.worker();
    let died = worker
        .run_script(job("await fetch(); return 1"), &Murder(&workers))
        .await
        .unwrap_err();
    assert!(
        matches!(&died, WorkerError::Crashed { how, .. } if how == "it was killed"),
        "{died}"
    );

    worker.check_sql(Dialect::Postgres, "SELECT 1").await.unwrap();
    let first = workers.only();
    kill_process(first, Signal::KILL).unwrap();
    // Until it can be waited for it seems to live.
    let state = format!("/proc/{}/stat", first.as_raw_nonzero());
    while std::fs::read_to_string(&state).is_ok_and(|state| !state.contains(") Z ")) {
        tokio::task::yield_now().await;
    }
    // It had no job, so nobody notices.
    worker.check_sql(Dialect::Postgres, "SELECT 1").await.unwrap();
    assert_ne!(workers.only(), first);
}

#[tokio::test]
async fn a_worker_that_stands_still_is_killed_at_the_deadline() {
    let workers = Workers::new();
    let worker = Worker::new(Config {
        check: Duration::from_millis(300),
        ..workers.config()
    });
    // The first may take its time to start, and be slow on a busy machine.
    while worker.check_sql(Dialect::Postgres, "SELECT 1").await.is_err() {}
    let stopped = workers.only();
    kill_process(stopped, Signal::STOP).unwrap();
    let late = worker.check_sql(Dialect::Postgres, "SELECT 1").await.unwrap_err();
    assert!(matches!(late, WorkerError::Late { .. }), "{late}");
    while workers.processes().contains(&stopped) {
        tokio::task::yield_now().await;
    }
    while worker.check_sql(Dialect::Postgres, "SELECT 1").await.is_err() {}
}

#[tokio::test]
async fn what_is_no_worker_is_killed_and_its_words_are_told() {
    let cases = [
        ("echo this is no frame at all".to_owned(), "nonsense"),
        (says("{\"ready\":{\"version\":1"), "nonsense"),
        (says(r#"{"ready":{"version":7}}"#), "version 7"),
        (says(r#"{"refused":{"why":"x","remedy":"y"}}"#), "nonsense"),
        (says(r#"{"unconfined":{"why":"no filter"}}"#), "no filter"),
        ("exit 3".to_owned(), "code 3"),
        ("kill -SEGV $$".to_owned(), "memory that is not there"),
        ("kill -ABRT $$".to_owned(), "want of memory"),
        (format!("{} {HANGS}", ready()), "within 0.3 s"),
        (
            format!("{} /usr/bin/head -c 1 >/dev/null; kill -SYS $$", ready()),
            "may not have",
        ),
        (
            format!("{} /usr/bin/head -c 1 >/dev/null; printf 'AAAAAAAAAAAA'", ready()),
            "nonsense",
        ),
        (
            format!("{} {} read x", ready(), says(r#"{"returned":{"value":1}}"#)),
            "not asked",
        ),
        (format!("{} exec >/dev/null; exec /bin/cat", ready()), "closed its pipe"),
    ];
    for (script, words) in cases {
        let failed = shell(&script)
            .check_sql(Dialect::Postgres, "SELECT 1\n")
            .await
            .unwrap_err();
        assert!(failed.to_string().contains(words), "{script}: {failed}");
        assert!(!matches!(failed, WorkerError::Refused { .. }), "{script}");
    }
    let lost = Worker::new(Config {
        program: "/nowhere/belljar".into(),
        ..Config::default()
    });
    let failed = lost.check_sql(Dialect::Postgres, "SELECT 1").await.unwrap_err();
    assert!(failed.to_string().contains("/nowhere/belljar"), "{failed}");
    // A call that the job does not know of is no call.
    let uninvited = format!(
        "{} {} exec /bin/cat >/dev/null",
        ready(),
        says(r#"{"call":{"call":0,"name":"open","arguments":[]}}"#)
    );
    let failed = shell(&uninvited).run_script(job("return 1"), &Echo).await.unwrap_err();
    assert!(failed.to_string().contains("open"), "{failed}");
}

/// Answers when it is told to.
struct Slow {
    asked: Notify,
    go: Notify,
}

#[async_trait]
impl Fetch for Slow {
    async fn fetch(&self, _request: FetchRequest) -> Result<Value, String> {
        self.asked.notify_one();
        self.go.notified().await;
        Ok(Value::Null)
    }
}

#[tokio::test]
async fn only_so_many_wait() {
    let workers = Workers::new();
    let worker = Worker::new(Config {
        scripts: 1,
        waiting: 1,
        ..workers.config()
    });
    let slow = Slow {
        asked: Notify::new(),
        go: Notify::new(),
    };
    let first = worker.run_script(job("await fetch(); return 1"), &slow);
    let others = async {
        slow.asked.notified().await;
        let second = worker.run_script(job("return 2"), &Echo);
        let third = async {
            let busy = worker.run_script(job("return 3"), &Echo).await.unwrap_err();
            assert!(matches!(busy, WorkerError::Busy { waiting: 1 }), "{busy}");
            slow.go.notify_one();
        };
        tokio::join!(biased; second, third).0
    };
    let (first, second) = tokio::join!(first, others);
    assert_eq!((first.unwrap().value, second.unwrap().value), (json!(1), json!(2)));
}

/// What the kernel says of a worker that is ready.
async fn state_of_ready(mut command: Command) -> (tokio::process::Child, PathBuf) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut announced = [0; 4];
    let output = child.stdout.as_mut().unwrap();
    output.read_exact(&mut announced).await.unwrap();
    let mut frame = vec![0; usize::try_from(u32::from_le_bytes(announced)).unwrap()];
    output.read_exact(&mut frame).await.unwrap();
    assert_eq!(frame, br#"{"ready":{"version":1}}"#);
    let folder = Path::new("/proc").join(child.id().unwrap().to_string());
    (child, folder)
}

#[tokio::test]
async fn a_worker_holds_nothing_and_may_do_nothing() {
    let mut root = Command::new(env!("CARGO_BIN_EXE_belljar"));
    root.arg("worker").env("ANTHROPIC_API_KEY", "sk-canary");
    // A file that its parent forgot to close.
    let forgotten = std::fs::File::open("/etc/passwd").unwrap();
    rustix::io::fcntl_setfd(&forgotten, rustix::io::FdFlags::empty()).unwrap();
    let (_child, folder) = state_of_ready(root).await;
    assert_eq!(
        std::fs::read(folder.join("environ")).unwrap(),
        b"",
        "an environment is left"
    );
    let mut open: Vec<_> = std::fs::read_dir(folder.join("fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    open.sort();
    assert_eq!(open, ["0", "1", "2"]);
    let status = std::fs::read_to_string(folder.join("status")).unwrap();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "Threads:\t1"] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    let limits = std::fs::read_to_string(folder.join("limits")).unwrap();
    for limit in ["Max address space", "Max open files", "Max processes", "Max file size"] {
        let line = limits.lines().find(|line| line.starts_with(limit)).unwrap();
        assert!(!line.contains("unlimited"), "{line}");
    }
}

#[tokio::test]
async fn an_ordinary_user_can_run_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // A copy in a folder that everybody may look into.
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("belljar");
    // By another process: one that this starts meanwhile would hold the copy open to be written, and nobody could run it.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_belljar"))
        .arg(&copy)
        .status()
        .await;
    assert!(copied.unwrap().success());
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), readable).unwrap();
    let mut nobody = Command::new("setpriv");
    nobody
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&copy)
        .arg("worker");
    let (_child, folder) = state_of_ready(nobody).await;
    let status = std::fs::read_to_string(folder.join("status")).unwrap();
    assert!(
        status.contains("Uid:\t65534\t65534") && status.contains("Seccomp:\t2"),
        "{status}"
    );
}
