//! The control plane is replaced, as an upgrade does: nobody who connects is refused, and no run ends because of it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testkit::eventually;

use crate::installation::Installation;
use crate::processes;
use crate::program::belljar as program;

/// Waits in a tool until the workspace holds `go.txt`.
const JOB: &str = r#"
steps:
  - when: { turn: 1 }
    tools:
      - name: exec
        input:
          code: |
            import { access } from "node:fs/promises";
            while (!(await access("go.txt").then(() => true, () => false))) await new Promise((done) => setTimeout(done, 20));
            return "gone";
  - when: { turn: 2 }
    text: "The wait is over."
"#;

/// A process that is told to end with the value, and waited for.
struct Running(Option<Child>);

impl Running {
    /// Starts it and waits until it listens.
    fn start(mut command: Command, ready: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("start belljar");
        let mut lines = BufReader::new(child.stdout.take().expect("its output is piped")).lines();
        let said = lines.by_ref().map_while(Result::ok).any(|line| line.starts_with(ready));
        assert!(said, "belljar ended before it was ready");
        // Read on, so that it can go on speaking.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self(Some(child))
    }

    /// Has it read its configuration anew.
    fn hang_up(&self) {
        let id = self.0.as_ref().expect("it runs").id();
        let told = Command::new("kill").args(["-HUP", &id.to_string()]).status();
        assert!(told.expect("run kill").success(), "process {id} is gone");
    }

    fn end(&mut self) {
        if let Some(mut child) = self.0.take() {
            terminate(child.id());
            child.wait().expect("wait for belljar");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn terminate(id: u32) {
    let told = Command::new("kill").args(["-TERM", &id.to_string()]).status();
    assert!(told.expect("run kill").success(), "process {id} is gone");
}

/// Starts work that waits, and waits until it has begun.
fn waiting(belljar: &Installation) -> Child {
    let mut command = belljar.command(&["run", "--json", "--session", "s", "wait for it"]);
    let child = command.stdout(Stdio::null()).spawn().expect("run belljar");
    belljar.wait_for("s", "the tool to begin", |seen| {
        seen.of("tool_started").next().is_some()
    });
    child
}

/// Lets the work end, which must end well.
fn ends_well(belljar: &Installation, mut run: Child) {
    let go = belljar.path("go.txt");
    fs::write(&go, "go").expect("write a file");
    belljar.done(&["put", "s", &go.to_string_lossy()]);
    assert!(run.wait().expect("wait for belljar").success(), "the run ended badly");
    let transcript = belljar.transcript("s");
    transcript.assert_whole();
    assert_eq!(transcript.said(), "The wait is over.");
    assert_eq!(transcript.last_state(), "done");
}

/// A request that is sent now, and answered when somebody is there.
fn ask(belljar: &Installation) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", belljar.port())).expect("a connection was refused");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("set a limit");
    let request = "GET /healthz HTTP/1.1\r\nhost: belljar\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("send a request");
    stream
}

fn is_answered(mut stream: TcpStream) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
}

#[test]
fn who_connects_while_up_replaces_the_control_plane_is_served() {
    let belljar = Installation::prepare(JOB, "");
    let config = belljar.path("belljar.toml");
    let mut up = Command::new(program());
    up.arg("up").arg("--config").arg(&config);
    let _up = Running::start(up, "Belljar is at ");
    let run = waiting(&belljar);

    let serve = || processes::running(&["serve", &config.to_string_lossy()]);
    let [before] = serve()[..] else { panic!("{:?}", serve()) };
    terminate(before);
    // Asked again and again until another process is there, and whoever asked is answered.
    let mut asked = Vec::new();
    eventually("another control plane", || {
        asked.push(ask(&belljar));
        serve().iter().any(|id| *id != before).then_some(())
    });
    asked.into_iter().for_each(is_answered);
    ends_well(&belljar, run);
}

#[test]
fn a_changed_configuration_counts_once_up_is_told_and_mistakes_never_do() {
    let belljar = Installation::prepare(JOB, "");
    let file = belljar.path("belljar.toml");
    let mut up = Command::new(program());
    up.arg("up").arg("--config").arg(&file).stdin(Stdio::null());
    let said = belljar.path("said");
    up.stderr(fs::File::create(&said).expect("make a file"));
    let up = Running::start(up, "Belljar is at ");
    let run = waiting(&belljar);
    let serve = || processes::running(&["serve", &file.to_string_lossy()]);
    let [before] = serve()[..] else { panic!("{:?}", serve()) };
    let says = |words: &str| {
        eventually(
            &format!("{words}; {}", fs::read_to_string(&said).unwrap_or_default()),
            || fs::read_to_string(&said).ok()?.contains(words).then_some(()),
        );
    };

    let good = fs::read_to_string(&file).expect("the configuration");
    let listen = format!("\"127.0.0.1:{}\"", belljar.port());
    for (bad, why) in [
        (
            format!("{good}\n[egress.rules.code]\nhost = [\"code.example\"]\n"),
            "unknown field `host`",
        ),
        (
            good.replace(&listen, "\"127.0.0.1:9\""),
            "another server.listen counts when",
        ),
    ] {
        fs::write(&file, bad).expect("write the configuration");
        up.hang_up();
        says(why);
        is_answered(ask(&belljar));
        assert_eq!(serve(), [before], "{why}");
    }

    let rule = "\n[egress.rules.code]\nhosts = [\"code.example\"]\nschemes = [\"https\"]\n";
    fs::write(&file, good + rule).expect("write the configuration");
    up.hang_up();
    let asked: Vec<TcpStream> = (0..20).map(|_| ask(&belljar)).collect();
    says("the configuration was read anew");
    assert!(serve().iter().all(|id| *id != before), "it was not replaced");
    asked.into_iter().for_each(is_answered);
    ends_well(&belljar, run);
}

#[test]
fn a_socket_that_systemd_hands_over_waits_for_the_next_process() {
    let belljar = Installation::prepare(JOB, "");
    belljar.start_host();
    let listener = TcpListener::bind(("127.0.0.1", belljar.port())).expect("listen");
    let serve = || {
        // The shell is the process that becomes the control plane, and so knows its number.
        let script = "exec 3<&0 0</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(program()).arg("serve");
        command.arg("--config").arg(belljar.path("belljar.toml"));
        let socket = OwnedFd::from(listener.try_clone().expect("one more descriptor"));
        command.stdin(Stdio::from(socket));
        Running::start(command, "ready: ")
    };
    let mut first = serve();
    let run = waiting(&belljar);
    first.end();
    // Nobody is there.
    let asked = ask(&belljar);
    let _second = serve();
    is_answered(asked);
    ends_well(&belljar, run);
}
