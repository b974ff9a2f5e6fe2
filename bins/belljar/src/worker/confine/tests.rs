//! What a confined process cannot do. Each attempt is made by this test program itself, started anew for it.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::confine;

/// Names the attempt to the process that makes it.
const ATTEMPT: &str = "BELLJAR_TEST_ATTEMPT";

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
#[ignore = "the test below runs it, in a process of its own"]
fn attempt() {
    let wanted = std::env::var(ATTEMPT).unwrap();
    let (_, act) = ATTEMPTS.into_iter().find(|(name, _)| *name == wanted).unwrap();
    confine().unwrap();
    act();
}

#[test]
fn whatever_is_not_computing_ends_the_process() {
    for (name, _) in ATTEMPTS {
        let status = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "worker::confine::tests::attempt",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ATTEMPT, name)
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        if name == "computing" {
            assert!(status.success(), "{name}: {status}");
        } else {
            assert_eq!(status.signal(), Some(libc::SIGSYS), "{name}: {status}");
        }
    }
}
