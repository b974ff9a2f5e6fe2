//! What a confined process cannot do. Each attempt is made by this test program itself, started anew for it.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::{confine, confine_to};

/// Names the attempt to the process that makes it.
const ATTEMPT: &str = "BELLJAR_TEST_ATTEMPT";

/// Names the file of one that is confined to it.
const DATABASE: &str = "BELLJAR_TEST_DATABASE";

/// What is attempted after confinement. The first is what work is made of, and goes well.
const ATTEMPTS: [(&str, fn()); 9] = [
    ("computing", || {
        let much: Vec<u64> = (0..1_000_000).collect();
        assert!(much.iter().sum::<u64>() > 0);
        assert!(sql::check(sql::Dialect::Postgres, "SELECT lower(a) FROM t").is_ok());
    }),
    ("reading a file", || drop(std::fs::read("/etc/passwd"))),
    ("writing a file", || {
        drop(std::fs::write("/tmp/belljar-worker-was-here", "x"));
    }),
    ("a port", || drop(std::net::TcpListener::bind("127.0.0.1:0"))),
    ("a datagram", || drop(std::net::UdpSocket::bind("127.0.0.1:0"))),
    ("a unix socket", || {
        drop(std::os::unix::net::UnixStream::connect("/run/nothing.sock"));
    }),
    ("a program", || drop(Command::new("/bin/true").spawn())),
    ("a thread", || drop(std::thread::Builder::new().spawn(|| ()))),
    ("a signal", || {
        let _ = rustix::process::test_kill_process(rustix::process::getppid().expect("a parent"));
    }),
];

#[test]
#[ignore = "the tests below run it, in a process of its own"]
fn attempt() {
    let wanted = std::env::var(ATTEMPT).unwrap();
    if let Ok(database) = std::env::var(DATABASE) {
        confine_to(database.as_ref(), 60).unwrap();
        assert!(std::fs::read(&database).is_ok());
        let refused = |result: std::io::Result<()>| {
            assert!(result.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied));
        };
        refused(std::fs::read("/etc/passwd").map(drop));
        refused(std::fs::OpenOptions::new().append(true).open(&database).map(drop));
        refused(std::fs::write(format!("{database}-journal"), "x"));
        refused(std::fs::read("/proc/self/environ").map(drop));
    }
    let (_, act) = ATTEMPTS.into_iter().find(|(name, _)| *name == wanted).unwrap();
    if std::env::var(DATABASE).is_err() {
        confine().unwrap();
    }
    act();
}

fn attempted(name: &str, database: Option<&std::path::Path>) -> std::process::ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "worker::confine::tests::attempt",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ATTEMPT, name)
        .envs(database.map(|database| (DATABASE, database)))
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap()
}

#[test]
fn whatever_is_not_computing_ends_the_process() {
    for (name, _) in ATTEMPTS {
        let status = attempted(name, None);
        if name == "computing" {
            assert!(status.success(), "{name}: {status}");
        } else {
            assert_eq!(status.signal(), Some(libc::SIGSYS), "{name}: {status}");
        }
    }
}

#[test]
fn who_reads_a_file_can_open_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("some.db");
    std::fs::write(&database, "some").unwrap();
    for (name, _) in ATTEMPTS {
        // Files are Landlock's to refuse, which is tried before each.
        let status = attempted(name, Some(&database));
        if matches!(name, "computing" | "reading a file" | "writing a file") {
            assert!(status.success(), "{name}: {status}");
        } else {
            assert_eq!(status.signal(), Some(libc::SIGSYS), "{name}: {status}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
