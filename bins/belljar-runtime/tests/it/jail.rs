//! The jail.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use domain::{RunLimits, SandboxId, SessionId, ToolCall, ToolCallId, ToolResult};
use link::server::{LinkHandler, Linked, Outfit};
use protocol::{Grants, PLACEHOLDER, ToControl, TurnReply};
use secret::Secret;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::handler::{Handler, TOKEN};

/// A jail whose network is left to the runtime.
const SCRIPT: &str = r#"
set -e
echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
exec bwrap --die-with-parent --unshare-pid --unshare-ipc --as-pid-1 --info-fd 3 \
    --cap-drop ALL --cap-add CAP_SETUID --cap-add CAP_SETGID --cap-add CAP_KILL $MORE_RIGHTS \
    $ROOT --proc /proc --dev /dev --tmpfs /run \
    --ro-bind "$JAIL/link" /run/belljar --ro-bind "$RUNTIME" /run/belljar-runtime \
    $WORKSPACE --bind "$JAIL/resolv.conf" /etc/resolv.conf \
    --chdir / --clearenv --setenv PATH /usr/local/bin:/usr/bin:/bin --setenv HOME /workspace \
    /run/belljar-runtime pid1 3>"$JAIL/info" 2>"$JAIL/log"
"#;

pub(crate) struct Jail {
    pub(crate) linked: Linked,
    pub(crate) handler: Arc<Handler>,
    pub(crate) events: mpsc::Receiver<ToControl>,
    pub(crate) session: SessionId,
    /// The runtime's process, as this machine numbers it.
    pub(crate) pid: i32,
    program: Child,
    folder: tempfile::TempDir,
}

/// What runs in one as long as it lives: PID 1, the hands, and who waits to start a program.
pub(crate) const AT_REST: [&str; 3] = [
    "/run/belljar-runtime pid1",
    "/run/belljar-runtime hands",
    "/proc/self/exe supervise",
];

impl Jail {
    /// A jail whose runtime is connected and belongs to nobody.
    pub(crate) async fn unclaimed() -> Self {
        let root = testkit::miniature().rootfs();
        Self::with_root(&format!("--ro-bind {} / --tmpfs /tmp", root.display()), |_| ()).await
    }

    /// The same with another root file system, as options of bwrap, in which `$JAIL` is a folder that was prepared.
    pub(crate) async fn with_root(root: &str, prepare: impl FnOnce(&Path)) -> Self {
        Self::with(root, "--bind $JAIL/workspace /workspace", prepare).await
    }

    /// The same with a workspace that has no more room than so many bytes. It is seen in the jail only.
    pub(crate) async fn with_little_room(bytes: u64) -> Self {
        let root = testkit::miniature().rootfs();
        let root = format!("--ro-bind {} / --tmpfs /tmp", root.display());
        let workspace = format!("--perms 0777 --size {bytes} --tmpfs /workspace");
        Self::with(&root, &workspace, |_| ()).await
    }

    async fn with(root: &str, workspace: &str, prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        prepare(path);
        for name in ["link", "workspace"] {
            std::fs::create_dir(path.join(name)).unwrap();
        }
        std::fs::set_permissions(path.join("link"), PermissionsExt::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(path.join("workspace"), Some(1000), Some(1000)).unwrap();
        std::fs::write(
            path.join("resolv.conf"),
            "nameserver 198.18.0.1\noptions timeout:5 attempts:1\n",
        )
        .unwrap();
        let (send, events) = mpsc::channel(1_000);
        let handler = Arc::new(Handler::new(send));
        let linked = listen(path, &handler);
        let program = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", SCRIPT])
            .env("ROOT", root.replace("$JAIL", &path.display().to_string()))
            .env("WORKSPACE", workspace.replace("$JAIL", &path.display().to_string()))
            .env("JAIL", path)
            .env("RUNTIME", env!("CARGO_BIN_EXE_belljar-runtime"))
            .env("MORE_RIGHTS", "--cap-add CAP_NET_ADMIN --cap-add CAP_SETPCAP")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut jail = Self {
            linked,
            handler,
            events,
            session: SessionId::new(),
            pid: 0,
            program,
            folder,
        };
        testkit::within("the runtime to connect", jail.linked.connected()).await;
        let info = testkit::eventually("the runtime's process id", || {
            let text = std::fs::read_to_string(jail.folder.path().join("info")).ok()?;
            serde_json::from_str::<Value>(&text).ok()
        });
        jail.pid = i32::try_from(info["child-pid"].as_i64().unwrap()).unwrap();
        jail
    }

    /// A jail in which a run is on that may use this.
    pub(crate) async fn granted(grants: Grants) -> Self {
        let jail = Self::claimed().await;
        jail.linked.prepare(true, grants).await.unwrap();
        // The order has been obeyed when the next one is.
        jail.call("exec", json!({ "code": "return 1" })).await;
        jail
    }

    /// A jail that belongs to a session.
    pub(crate) async fn claimed() -> Self {
        let jail = Self::unclaimed().await;
        jail.claim().await;
        jail
    }

    pub(crate) async fn claim(&self) {
        self.claim_again(false).await;
    }

    /// It is claimed once more by its session; `woken`: its processes are said to have been kept meanwhile.
    pub(crate) async fn claim_again(&self, woken: bool) {
        let outfit = Outfit {
            environment: BTreeMap::from([("API_KEY".to_owned(), PLACEHOLDER.to_owned())]),
            woken,
            ..Outfit::default()
        };
        let token = Secret::new(TOKEN);
        let claim = self.linked.claim(self.session, &token, outfit);
        testkit::within("the claim", claim).await.unwrap();
    }

    /// The control plane goes and comes back.
    pub(crate) async fn restart_control(&mut self) {
        self.linked.close();
        std::fs::remove_file(self.folder.path().join("link/link.sock")).unwrap();
        self.linked = listen(self.folder.path(), &self.handler);
        testkit::within("the runtime to come back", self.linked.connected()).await;
    }

    /// Runs a shell command in the jail as the sandbox's user, from outside the hands; gives back what it said.
    pub(crate) async fn shell(&self, script: &str) -> String {
        let mut command = self.enter();
        command.args(["--setuid=1000", "--setgid=1000", "--", "/bin/sh", "-c", script]);
        run(command).await
    }

    /// The same for a command that may be killed itself, so that nobody can say how it went.
    pub(crate) async fn shell_to_its_death(&self, script: &str) {
        let mut command = self.enter();
        command.args(["--setuid=1000", "--setgid=1000", "--", "/bin/sh", "-c", script]);
        tokio::task::spawn_blocking(move || command.status())
            .await
            .unwrap()
            .unwrap();
    }

    pub(crate) async fn python(&self, script: &str) -> String {
        let mut command = self.enter();
        command.args([
            "--setuid=1000",
            "--setgid=1000",
            "--",
            "/usr/bin/env",
            "python3",
            "-c",
            script,
        ]);
        run(command).await
    }

    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        command
            .arg(format!("--target={}", self.pid))
            .args(["--mount", "--pid", "--net", "--ipc"]);
        command
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.handler.seen.lock().unwrap().clone()
    }

    pub(crate) fn play(&self, replies: impl IntoIterator<Item = TurnReply>) {
        *self.handler.replies.lock().unwrap() = replies.into_iter().collect::<VecDeque<_>>();
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn workspace(&self) -> std::path::PathBuf {
        self.folder.path().join("workspace")
    }

    pub(crate) async fn event(&mut self) -> ToControl {
        testkit::within("an event", self.events.recv()).await.unwrap()
    }

    /// Everything that lives in the jail: process ids as this machine numbers them, and command lines.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let namespace = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let Some(ours) = namespace(self.pid) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
                continue;
            };
            if namespace(pid).as_ref() == Some(&ours) {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned()));
            }
        }
        found
    }

    /// What runs in it, in the order in which it was started: this machine's numbers begin anew when they have run out.
    pub(crate) fn commands(&self) -> Vec<String> {
        testkit::eventually("what has just been executed to say what it is", || {
            let mut processes: Vec<_> = self
                .processes()
                .into_iter()
                .filter_map(|(pid, line)| Some((number_within(pid)?, line)))
                .collect();
            processes.sort_unstable();
            let lines: Vec<_> = processes.into_iter().map(|(_, line)| line).collect();
            (!lines.contains(&String::new())).then_some(lines)
        })
    }

    /// Looks that nothing runs in it but what always does. Who waits to start a program may be about to be replaced.
    pub(crate) fn assert_at_rest(&self) {
        let commands = self.commands();
        assert!(commands == AT_REST || commands == AT_REST[..2], "{commands:?}");
    }

    pub(crate) fn process(&self, command: &str) -> Option<i32> {
        self.processes()
            .into_iter()
            .find(|(_, line)| line.contains(command))
            .map(|(pid, _)| pid)
    }

    pub(crate) fn hands(&self) -> i32 {
        testkit::eventually("the hands", || self.process("belljar-runtime hands"))
    }

    pub(crate) async fn call(&self, name: &str, input: Value) -> ToolResult {
        let call = tool_call("1", name, input);
        testkit::within("the call", self.linked.call(call, limits()))
            .await
            .unwrap()
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
        if std::thread::panicking() {
            eprintln!(
                "the runtime said: {}",
                std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
            );
        }
    }
}

pub(crate) fn tool_call(id: &str, name: &str, input: Value) -> ToolCall {
    ToolCall {
        id: ToolCallId(id.into()),
        name: name.into(),
        input,
    }
}

pub(crate) fn limits() -> RunLimits {
    RunLimits {
        tool_seconds: 40,
        ..RunLimits::default()
    }
}

pub(crate) fn exec(id: &str, code: &str) -> ToolCall {
    tool_call(id, "exec", json!({ "code": code }))
}

/// The words of a result.
pub(crate) fn words(result: &ToolResult) -> String {
    serde_json::to_string(&result.content).unwrap()
}

/// What a process is numbered in the innermost namespace that it is in.
fn number_within(pid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

fn listen(folder: &Path, handler: &Arc<Handler>) -> Linked {
    let listener = UnixListener::bind(folder.join("link/link.sock")).unwrap();
    let erased: Arc<dyn LinkHandler> = handler.clone();
    link::server::serve(listener, SandboxId::new(), 0, erased, &handler.tasks).unwrap()
}

async fn run(mut command: Command) -> String {
    tokio::task::spawn_blocking(move || testkit::run(&mut command))
        .await
        .unwrap()
}
