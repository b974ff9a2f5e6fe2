//! SSH through the broker: real clients, and OpenSSH's own server.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Output, Stdio};
use std::time::Duration;

use domain::SessionId;
use egress::{Limits, Outcome, Record};
use secret::Secret;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;

use crate::rig::{Setting, World};

const HOST: &str = "forge.test";
const SSHD: &str = "/usr/sbin/sshd";

/// How a server and a rule are made.
struct Making<'a> {
    /// More of the rule.
    rule: &'a str,
    /// What the rule pins, in place of the server's key.
    pin: Option<&'a str>,
    /// What kind of key the server has, and what kind the rule logs in with.
    host: &'a [&'a str],
    client: &'a [&'a str],
    /// More of the server's configuration.
    server: &'a str,
}

impl Default for Making<'_> {
    fn default() -> Self {
        Self {
            rule: "",
            pin: None,
            host: &["-t", "ed25519"],
            client: &["-t", "ed25519"],
            server: "",
        }
    }
}

/// A server, started anew for each connection, and a broker that leads to it.
struct Forge {
    world: World,
    folder: TempDir,
    /// Where programs of the sandbox connect.
    inside: u16,
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> String {
    let output = std::process::Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Forge {
    async fn new(rule: &str) -> Self {
        Self::made(Making {
            rule,
            ..Making::default()
        })
        .await
    }

    async fn made(making: Making<'_>) -> Self {
        let Making { rule, pin, server, .. } = making;
        assert!(
            Path::new(SSHD).exists(),
            "{SSHD} is not here: `scripts/prepare tests` installs it (openssh-server)"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for (key, kind) in [("host", making.host), ("client", making.client)] {
            run(
                "ssh-keygen",
                &[&["-q", "-N", "", "-C", "", "-f", key], kind].concat(),
                path,
            );
        }
        let shown = run("ssh-keygen", &["-l", "-f", "host.pub"], path);
        let pin = pin.unwrap_or_else(|| shown.split(' ').nth(1).unwrap()).to_owned();
        std::fs::copy(path.join("client.pub"), path.join("allowed")).unwrap();
        let at = path.display();
        let configuration = format!(
            "HostKey {at}/host\nAuthorizedKeysFile {at}/allowed\nStrictModes no\nPidFile none\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\nSetEnv HOME={at}\n{server}\n"
        );
        std::fs::write(path.join("sshd_config"), configuration).unwrap();
        // Where it puts itself away without rights; Debian makes it when the service starts.
        let _ = std::fs::create_dir_all("/run/sshd");
        let user = run("id", &["-un"], path);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let key: secret::Reference = "env:DEPLOY".parse().unwrap();
        let private = std::fs::read_to_string(path.join("client")).unwrap();
        std::fs::remove_file(path.join("client")).unwrap();
        let rules = format!(
            "[forge]\nhosts = [\"{HOST}:{port}\"]\nschemes = [\"ssh\"]\nnetworks = [\"127.0.0.0/8\"]\n\
             ssh = {{ user = \"{user}\", secret = \"env:DEPLOY\", host_keys = [\"{pin}\"]{rule} }}\n"
        );
        let world = World::with(
            &rules,
            Setting {
                secrets: BTreeMap::from([(key, Secret::new(private))]),
                ..Setting::default()
            },
        );
        world.names.lead(HOST, "127.0.0.1");
        let serving = path.to_owned();
        world.tasks.spawn_until_stopped(async move {
            let mut children = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                let stream = stream.into_std().unwrap();
                stream.set_nonblocking(false).unwrap();
                let (input, output) = (stream.try_clone().unwrap(), stream);
                let child = Command::new(SSHD)
                    .args(["-i", "-e", "-f"])
                    .arg(serving.join("sshd_config"))
                    .stdin(Stdio::from(std::os::fd::OwnedFd::from(input)))
                    .stdout(Stdio::from(std::os::fd::OwnedFd::from(output)))
                    .stderr(std::fs::File::create(serving.join("sshd.log")).unwrap())
                    .kill_on_drop(true)
                    .spawn()
                    .unwrap();
                children.push(child);
            }
        });
        let inside = Self::inside(&world, port).await;
        Self { world, folder, inside }
    }

    /// Leads programs into the broker as the runtime of a sandbox does.
    async fn inside(world: &World, port: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inside = listener.local_addr().unwrap().port();
        let (broker, tasks) = (world.broker.clone(), world.tasks.clone());
        let session = SessionId::new();
        world.tasks.spawn_until_stopped(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let admitted = broker.admit(session, HOST, port).unwrap();
                tasks.spawn_until_stopped(admitted.carry(stream));
            }
        });
        inside
    }

    /// What a user of the sandbox has of SSH: the host key that they were told to trust, and no key.
    fn options(&self) -> Vec<String> {
        let known = self.folder.path().join("known_hosts");
        std::fs::write(&known, self.world.broker.known_hosts()).unwrap();
        [
            "-F/dev/null".to_owned(),
            format!("-p{}", self.inside),
            format!("-oGlobalKnownHostsFile={}", known.display()),
            "-oUserKnownHostsFile=/dev/null".to_owned(),
            "-oStrictHostKeyChecking=yes".to_owned(),
            "-oBatchMode=yes".to_owned(),
            "-oIdentityFile=/dev/null".to_owned(),
            "-oIdentityAgent=none".to_owned(),
        ]
        .to_vec()
    }

    async fn ssh(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("ssh");
        command.args(self.options()).args(arguments).kill_on_drop(true);
        testkit::within("ssh ends", command.stdin(Stdio::null()).output())
            .await
            .unwrap()
    }

    async fn told(&self) -> (String, u16, Result<(), &'static str>, Record) {
        let record = self.world.told().await;
        assert_eq!((record.protocol, record.host.as_str()), ("ssh", HOST));
        let request = record.request.clone().unwrap();
        let outcome = match &record.outcome {
            Outcome::Allowed => Ok(()),
            Outcome::Denied(denied) => Err(denied.code.as_str()),
        };
        (request.path, request.status, outcome, record)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn threat_015_a_command_runs_with_a_key_that_the_sandbox_does_not_have() {
    let forge = Forge::new("").await;
    let output = forge.ssh(&["127.0.0.1", "echo out; echo err >&2; exit 7"]).await;
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(7), "out\n"),
        "{}",
        text(&output.stderr)
    );
    assert!(text(&output.stderr).contains("err"));
    let (command, status, outcome, record) = forge.told().await;
    assert_eq!(
        (command.as_str(), status, outcome),
        ("echo out; echo err >&2; exit 7", 7, Ok(()))
    );
    assert_eq!((record.rule.as_deref(), record.received), (Some("forge"), 8));
}

#[tokio::test]
async fn much_passes_both_ways_at_once() {
    let forge = Forge::new("").await;
    let mut command = Command::new("ssh");
    command
        .args(forge.options())
        .args(["127.0.0.1", "cat"])
        .kill_on_drop(true);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let bytes: Vec<u8> = (0..24_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    let sending = async {
        input.write_all(&bytes).await.unwrap();
        drop(input);
    };
    let mut heard = Vec::new();
    let (_, received) = testkit::within("all of it came back", async {
        tokio::join!(sending, output.read_to_end(&mut heard))
    })
    .await;
    received.unwrap();
    assert!(heard == bytes, "{} of {} bytes", heard.len(), bytes.len());
    assert!(testkit::within("ssh ends", child.wait()).await.unwrap().success());
    let (_, _, _, record) = forge.told().await;
    assert_eq!((record.sent, record.received), (24_000_000, 24_000_000));
}

/// As where a program's output goes to something slow: all that may wait in both directions waits, and then goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_command_goes_on_when_all_its_room_was_taken_in_both_directions() {
    const BYTES: u32 = 64 << 20;
    let forge = Forge::new("").await;
    let mut command = Command::new("ssh");
    command
        .args(forge.options())
        .args(["127.0.0.1", "cat"])
        .kill_on_drop(true);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let bytes: Vec<u8> = (0..BYTES)
        .map(|number| number.wrapping_mul(0x9E37_79B1).to_be_bytes()[0])
        .collect();
    let (full, mut is_full) = tokio::sync::watch::channel(false);
    let sending = async {
        for piece in bytes.chunks(64 << 10) {
            let mut writing = pin!(input.write_all(piece));
            // Who waits this long waits for somebody to read.
            if timeout(Duration::from_secs(3), &mut writing).await.is_err() {
                full.send_replace(true);
                writing.await.unwrap();
            }
        }
        drop(input);
    };
    let mut heard = Vec::new();
    let reading = async {
        is_full.wait_for(|is_full| *is_full).await.unwrap();
        output.read_to_end(&mut heard).await.unwrap();
    };
    testkit::within("all of it came back", async { tokio::join!(sending, reading) }).await;
    assert!(heard == bytes, "{} of {} bytes", heard.len(), bytes.len());
    assert!(testkit::within("ssh ends", child.wait()).await.unwrap().success());
    let (_, status, _, record) = forge.told().await;
    assert_eq!((status, record.sent, record.received), (0, BYTES.into(), BYTES.into()));
}

/// The library's ends run on threads of their own, and commands share connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn much_passes_both_ways_in_commands_that_share_a_connection() {
    const COMMANDS: usize = 6;
    const BYTES: usize = 6_000_000;
    let forge = Forge::new("").await;
    let socket = format!("-S{}", forge.folder.path().join("shared").display());
    let ssh = |arguments: &[&str]| {
        let mut command = Command::new("ssh");
        command.args(forge.options()).arg(&socket).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        command
    };
    // It says so when others can share it.
    let mut first = ssh(&["-M", "127.0.0.1", "echo ready; cat"]).spawn().unwrap();
    let mut ready = [0; 6];
    let said = first.stdout.as_mut().unwrap();
    testkit::within("a command runs", said.read_exact(&mut ready))
        .await
        .unwrap();
    let mut running = tokio::task::JoinSet::new();
    for number in 0..COMMANDS {
        let takes = number % 2 == 0;
        let remote = if takes {
            "wc -c".to_owned()
        } else {
            format!("head -c {BYTES} /dev/zero")
        };
        let mut child = ssh(&["127.0.0.1", &remote]).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        running.spawn(async move {
            if takes {
                input.write_all(&vec![0; BYTES]).await.unwrap();
            }
            drop(input);
            let output = child.wait_with_output().await.unwrap();
            assert!(output.status.success(), "{:?}", output.status);
            if takes {
                assert_eq!(text(&output.stdout).trim(), BYTES.to_string());
            } else {
                assert_eq!(output.stdout.len(), BYTES);
            }
        });
    }
    testkit::within("all of it passed", running.join_all()).await;
    drop(first.stdin.take());
    assert!(testkit::within("ssh ends", first.wait()).await.unwrap().success());
    for _ in 0..COMMANDS {
        let (_, status, outcome, record) = forge.told().await;
        let most = record.sent.max(record.received);
        assert_eq!((status, outcome, most), (0, Ok(()), BYTES as u64));
    }
}

#[tokio::test]
async fn threat_015_no_shell_no_terminal_no_subsystem_and_no_forwarding() {
    let forge = Forge::new("").await;
    let output = forge.ssh(&["127.0.0.1"]).await;
    assert_eq!(output.status.code(), Some(255));
    assert!(
        text(&output.stderr).contains("gives no shell"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(forge.told().await.2, Err("not_in_rule"));

    let output = forge.ssh(&["-s", "127.0.0.1", "sftp"]).await;
    assert_eq!(output.status.code(), Some(255));
    assert!(
        text(&output.stderr).contains("`subsystems`"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(forge.told().await.0, "subsystem sftp");

    let output = forge.ssh(&["-tt", "127.0.0.1", "test -t 0 && echo terminal"]).await;
    assert!(!text(&output.stdout).contains("terminal"), "{output:?}");
    assert!(
        text(&output.stderr).contains("PTY allocation request failed"),
        "{output:?}"
    );

    let output = forge.ssh(&["-W", "127.0.0.1:1", "127.0.0.1"]).await;
    assert!(
        !output.status.success() && text(&output.stderr).contains("open failed"),
        "{output:?}"
    );
    let output = forge
        .ssh(&[
            "-oExitOnForwardFailure=yes",
            "-R",
            "0:127.0.0.1:1",
            "127.0.0.1",
            "echo ran",
        ])
        .await;
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    // The client asks for both: it has an agent and a display.
    let mut command = Command::new("ssh-agent");
    command
        .arg("-a")
        .arg(forge.folder.path().join("agent"))
        // What is said first counts.
        .args(["ssh", "-oIdentityAgent=SSH_AUTH_SOCK"])
        .args(forge.options())
        .args(["-v", "-A", "-Y", "127.0.0.1", "echo \"$SSH_AUTH_SOCK$DISPLAY.\""])
        .env("DISPLAY", ":0")
        .kill_on_drop(true);
    let output = testkit::within("ssh ends", command.stdin(Stdio::null()).output())
        .await
        .unwrap();
    let words = text(&output.stderr);
    for asked in [
        "Requesting authentication agent forwarding",
        "X11 forwarding request failed",
    ] {
        assert!(words.contains(asked), "{asked}: {words}");
    }
    assert_eq!(text(&output.stdout), ".\n", "{words}");
}

#[tokio::test]
async fn threat_015_a_host_with_another_key_is_refused_in_words() {
    let other = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let making = Making {
        pin: Some(other),
        ..Making::default()
    };
    let forge = Forge::made(making).await;
    let output = forge.ssh(&["127.0.0.1", "echo ran"]).await;
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(255), ""));
    let words = text(&output.stderr);
    assert!(
        words.contains("does not pin") && words.contains("`host_keys`"),
        "{words}"
    );
    assert_eq!(forge.told().await.2, Err("untrusted"));
}

#[tokio::test]
async fn threat_015_a_host_may_show_a_key_of_rsa_and_sign_by_sha2() {
    for algorithm in ["rsa-sha2-256", "rsa-sha2-512"] {
        let making = Making {
            host: &["-t", "rsa", "-b", "2048"],
            server: &format!("HostKeyAlgorithms {algorithm}"),
            ..Making::default()
        };
        let forge = Forge::made(making).await;
        let output = forge.ssh(&["127.0.0.1", "echo yes"]).await;
        assert_eq!(text(&output.stdout), "yes\n", "{algorithm}: {output:?}");
        assert_eq!(forge.told().await.2, Ok(()));
    }
}

#[tokio::test]
async fn threat_015_no_host_shows_itself_by_sha1_or_a_short_key() {
    let rsa: [&[&str]; 2] = [&["-t", "rsa", "-b", "2048"], &["-t", "rsa", "-b", "1024"]];
    for (host, server, words, code) in [
        (rsa[0], "HostKeyAlgorithms ssh-rsa", "not by SHA-1", "unreachable"),
        (rsa[1], "", "has 1024 bits", "untrusted"),
    ] {
        let making = Making {
            host,
            server,
            ..Making::default()
        };
        let forge = Forge::made(making).await;
        let output = forge.ssh(&["127.0.0.1", "echo ran"]).await;
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(255), ""));
        assert!(text(&output.stderr).contains(words), "{output:?}");
        assert_eq!(forge.told().await.2, Err(code));
    }
}

#[tokio::test]
async fn nobody_logs_in_with_a_key_of_rsa_and_that_is_said() {
    let making = Making {
        client: &["-t", "rsa", "-b", "2048"],
        ..Making::default()
    };
    let forge = Forge::made(making).await;
    let output = forge.ssh(&["127.0.0.1", "echo ran"]).await;
    assert!(text(&output.stderr).contains("is one of RSA"), "{output:?}");
    assert_eq!(forge.told().await.2, Err("no_secret"));
}

#[tokio::test]
async fn threat_015_only_commands_of_the_rule_run() {
    let forge = Forge::new(", commands = [\"echo *\"], subsystems = [\"sftp\"]").await;
    let output = forge.ssh(&["127.0.0.1", "echo yes"]).await;
    assert_eq!(text(&output.stdout), "yes\n", "{output:?}");
    assert_eq!(forge.told().await.2, Ok(()));
    let marker = forge.folder.path().join("marker");
    for command in [
        format!("touch {}", marker.display()),
        format!("echo a; touch {}", marker.display()),
    ] {
        let output = forge.ssh(&["127.0.0.1", &command]).await;
        assert!(
            output.stdout.is_empty() && text(&output.stderr).contains("`commands`"),
            "{output:?}"
        );
        let (shown, status, outcome, _) = forge.told().await;
        assert_eq!((shown, status, outcome), (command, 255, Err("not_in_rule")));
    }
    assert!(!marker.exists());
    let output = forge.ssh(&["-s", "127.0.0.1", "sftp"]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[tokio::test]
async fn threat_015_git_clones_and_pushes_over_ssh_without_a_key() {
    let forge = Forge::new("").await;
    let path = forge.folder.path();
    run("git", &["init", "-q", "--bare", "-b", "main", "app.git"], path);
    let options = forge.options();
    let program = path.join("as-in-a-sandbox");
    std::fs::write(&program, format!("#!/bin/sh\nexec ssh {} \"$@\"\n", options.join(" "))).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let git = |arguments: Vec<String>, folder: PathBuf| {
        let program = program.clone();
        async move {
            let output = Command::new("git")
                .args(["-c", "user.name=a", "-c", "user.email=a@b.test"])
                .args(&arguments)
                .current_dir(folder)
                .env("GIT_SSH", program)
                .env("GIT_SSH_VARIANT", "ssh")
                .kill_on_drop(true)
                .output();
            let output = testkit::within("git ends", output).await.unwrap();
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        }
    };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let from = format!("127.0.0.1:{}/app.git", path.display());
    git(words(&format!("clone -q {from} one")), path.to_owned()).await;
    let many: String = (0..200_000)
        .map(|number: u64| format!("{}\n", number * number))
        .collect();
    std::fs::write(path.join("one/numbers"), &many).unwrap();
    git(words("add numbers"), path.join("one")).await;
    git(words("commit -q -m numbers"), path.join("one")).await;
    git(words("push -q origin HEAD:main"), path.join("one")).await;
    git(words(&format!("clone -q {from} two")), path.to_owned()).await;
    assert!(std::fs::read_to_string(path.join("two/numbers")).unwrap() == many);
    let mut commands = Vec::new();
    for _ in 0..3 {
        let (command, status, _, _) = forge.told().await;
        assert_eq!(status, 0);
        commands.push(command.split(' ').next().unwrap().to_owned());
    }
    assert_eq!(commands, ["git-upload-pack", "git-receive-pack", "git-upload-pack"]);
}

#[tokio::test]
async fn threat_015_who_does_not_log_in_keeps_no_place() {
    let limits = Limits {
        opening: Duration::from_millis(100),
        ..Limits::default()
    };
    let pin = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU";
    let rules = format!(
        "[forge]\nhosts = [\"{HOST}:22\"]\nschemes = [\"ssh\"]\n\
         ssh = {{ user = \"git\", secret = \"env:DEPLOY\", host_keys = [\"{pin}\"] }}\n"
    );
    let setting = Setting {
        limits: Some(limits),
        ..Setting::default()
    };
    let world = World::with(&rules, setting);
    for said in [&b""[..], b"SSH-2.0-client\r\n"] {
        let mut tunnel = world.tunnel(SessionId::new(), HOST, 22).unwrap();
        tunnel.write_all(said).await.unwrap();
        let mut heard = Vec::new();
        // It may be closed before all was heard.
        let _ = testkit::within("the end", tunnel.read_to_end(&mut heard)).await;
        assert_eq!(world.told_denied().await, ("ssh", "nothing_said"));
    }
}

#[tokio::test]
async fn threat_015_ssh_passes_by_no_tcp_rule_whoever_begins() {
    let world = World::new("[raw]\nhosts = [\"raw.test:*\"]\nschemes = [\"tcp\"]\nnetworks = [\"127.0.0.0/8\"]");
    let echo = world.server(crate::rig::echo).await;
    let server = world
        .server(|mut stream| async move { stream.write_all(b"SSH-2.0-server\r\n").await })
        .await;
    world.names.lead("raw.test", "127.0.0.1");
    let session = SessionId::new();
    let silent = world
        .server(|mut stream| async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map(drop) })
        .await;
    let mut tunnel = world.tunnel(session, "raw.test", silent.port()).unwrap();
    for piece in [&b"SS"[..], b"H-2.0-client\r\n"] {
        tunnel.write_all(piece).await.unwrap();
    }
    let mut heard = Vec::new();
    // It may be closed before all was said.
    let _ = testkit::within("the end", tunnel.read_to_end(&mut heard)).await;
    assert!(heard.is_empty());
    assert_eq!(world.told_denied().await, ("tcp", "protocol"));
    let mut tunnel = world.tunnel(session, "raw.test", server.port()).unwrap();
    let _ = testkit::within("the end", tunnel.read_to_end(&mut heard)).await;
    assert!(!heard.ends_with(b"server\r\n"), "{heard:?}");
    assert_eq!(world.told_denied().await, ("tcp", "protocol"));
    // What only looks like it for a moment passes.
    let tunnel = world.tunnel(session, "raw.test", echo.port()).unwrap();
    assert_eq!(
        crate::rig::exchange(tunnel, b"SSL, S, SSH").await.unwrap(),
        b"SSL, S, SSH"
    );
}
