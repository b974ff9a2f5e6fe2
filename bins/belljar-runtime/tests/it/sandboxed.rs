//! The runtime where it belongs: in a sandbox of the real provider, with its user namespace, its system call list, its
//! hidden processes and its own network.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use containers::{Config, ContainerProvider};
use domain::{SandboxId, SessionId};
use images::ImageFolder;
use link::server::{LinkHandler, Linked, Outfit};
use protocol::ToControl;
use sandbox::{Limits, SandboxProvider, SandboxSpec};
use secret::Secret;
use serde_json::json;
use testkit::DockerEngine;
use tokio::sync::mpsc;

use crate::handler::{Handler, TOKEN};
use crate::jail::{exec, limits, tool_call, words};

static WORLDS: AtomicU32 = AtomicU32::new(0);

/// By what its container is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    Runc,
    Docker,
}

impl By {
    fn open(self, config: Config) -> ContainerProvider {
        let images = Arc::new(ImageFolder::open(config.data.join("images")));
        let opened = match self {
            Self::Runc => sandbox_oci::open("runc", config, images),
            Self::Docker => {
                let engine = DockerEngine::of_this_process();
                sandbox_docker::open(&engine.socket(), None, config, images)
            }
        };
        opened.unwrap()
    }
}

/// Runs each of these in a container by each maker that this machine has.
macro_rules! on_each {
    ($($name:ident),* $(,)?) => {
        mod by_runc {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(super::By::Runc).await;
                }
            )*
        }
        mod by_docker {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(super::By::Docker).await;
                }
            )*
        }
    };
}

on_each!(
    every_tool_works_and_nothing_of_a_stopped_call_is_left,
    who_kills_his_supervisor_dies_too_and_so_does_what_he_left_behind,
    a_fork_bomb_is_over_when_it_is_stopped_and_the_sandbox_is_of_use_again,
    whatever_a_program_connects_to_goes_over_the_link_and_pid_1_is_out_of_reach,
);

pub(crate) struct Sandboxed {
    pub(crate) linked: Linked,
    pub(crate) session: SessionId,
    handler: Arc<Handler>,
    events: tokio::sync::Mutex<mpsc::Receiver<ToControl>>,
    by: By,
    config: Config,
    _folder: tempfile::TempDir,
}

impl Sandboxed {
    pub(crate) async fn new() -> Self {
        Self::by(By::Runc).await
    }

    async fn by(by: By) -> Self {
        let folder = tempfile::TempDir::with_prefix("belljar-").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
        let mut config = Config::new(folder.path().join("data"), env!("CARGO_BIN_EXE_belljar-runtime"));
        config.run = folder.path().join("run");
        config.pool_bytes = 2 << 30;
        // Each test has a provider that believes it has all of the ids.
        config.first_uid = 900_000_000 + WORLDS.fetch_add(1, Ordering::Relaxed) * 2 * 65_536;
        let miniature = testkit::miniature();
        miniature.install(&config.data.join("images"));
        let provider = by.open(config.clone());
        let spec = SandboxSpec {
            id: SandboxId::new(),
            session: SessionId::new(),
            image: miniature.digest.parse().unwrap(),
            limits: Limits {
                cpu_millis: 2_000,
                memory_bytes: 512 << 20,
                pids: 128,
                disk_bytes: 256 << 20,
            },
            builder: false,
        };
        let status = provider.create(&spec).await.unwrap();
        let listener = provider.link(spec.id).await.unwrap();
        let (send, events) = mpsc::channel(1_000);
        let handler = Arc::new(Handler::new(send));
        let erased: Arc<dyn LinkHandler> = handler.clone();
        let linked = link::server::serve(listener, spec.id, status.root_uid, erased, &handler.tasks).unwrap();
        testkit::within("the runtime", linked.connected()).await;
        let token = Secret::new(TOKEN);
        let claim = linked.claim(spec.session, &token, Outfit::default());
        testkit::within("the claim", claim).await.unwrap();
        Self {
            linked,
            session: spec.session,
            handler,
            events: events.into(),
            by,
            config,
            _folder: folder,
        }
    }

    pub(crate) async fn exec(&self, code: &str) -> String {
        let call = self.linked.call(exec("1", code), limits());
        words(&testkit::within("the call", call).await.unwrap())
    }
}

impl Drop for Sandboxed {
    fn drop(&mut self) {
        let (by, config) = (self.by, self.config.clone());
        // The test's own thread is one of tokio's, which must not wait.
        let cleaned = std::thread::spawn(move || {
            let provider = by.open(config);
            let waiting = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            waiting.block_on(async {
                for status in provider.list().await.unwrap() {
                    provider.destroy(status.id).await.unwrap();
                }
            });
            provider.close().unwrap();
        })
        .join();
        assert!(std::thread::panicking() || cleaned.is_ok(), "could not clean up");
    }
}

async fn every_tool_works_and_nothing_of_a_stopped_call_is_left(by: By) {
    let sandbox = Sandboxed::by(by).await;
    for (name, input, expected) in [
        (
            "write",
            json!({"path": "/workspace/a.txt", "content": "alpha\n"}),
            "a.txt",
        ),
        ("read", json!({"path": "/workspace/a.txt"}), "alpha"),
        (
            "edit",
            json!({"path": "/workspace/a.txt", "old": "alpha", "new": "beta"}),
            "beta",
        ),
        ("safebash", json!({"command": "wc -l a.txt"}), "1 a.txt"),
        (
            "exec",
            json!({"code": "console.log('so'); return process.getuid() + 41"}),
            "1041",
        ),
    ] {
        let call = sandbox.linked.call(tool_call(name, name, input), limits());
        let result = testkit::within("the call", call).await.unwrap();
        assert!(
            !result.is_error && words(&result).contains(expected),
            "{name}: {result:?}"
        );
        let mut events = sandbox.events.lock().await;
        let told: Vec<ToControl> = std::iter::from_fn(|| events.try_recv().ok()).collect();
        let tells = |told: &ToControl| matches!(told, ToControl::Progress { call, .. } if call.0 == name);
        assert!(told.iter().any(tells), "{name}: {told:?}");
    }
    let forever = exec(
        "forever",
        "(await import('node:child_process')).spawn('sleep', ['10005']); await new Promise(done => setTimeout(done, 1e6))",
    );
    let call = sandbox.linked.call(forever, limits());
    let stop = async {
        testkit::eventually_async("the call's process", async || {
            let processes = sandbox.exec(COUNT).await;
            (!processes.contains("alone")).then_some(())
        })
        .await;
        sandbox.linked.stop().await.unwrap();
    };
    let (stopped, ()) = testkit::within("the stop", async { tokio::join!(call, stop) }).await;
    assert!(stopped.unwrap().is_error);
    assert!(sandbox.exec(COUNT).await.contains("alone"));
}

async fn who_kills_his_supervisor_dies_too_and_so_does_what_he_left_behind(by: By) {
    let sandbox = Sandboxed::by(by).await;
    let code = r"
const { spawn } = await import('node:child_process');
spawn('sleep', ['10006'], { detached: true, stdio: 'ignore' }).unref();
process.kill(process.ppid, 'SIGKILL');
await new Promise(done => setTimeout(done, 1e6));
";
    let result = testkit::within("the call", sandbox.linked.call(exec("1", code), limits()))
        .await
        .unwrap();
    assert!(result.is_error, "{result:?}");
    testkit::eventually_async("the sleeper's end", async || {
        sandbox.exec(COUNT).await.contains("alone").then_some(())
    })
    .await;
}

/// Says whether somebody sleeps.
const COUNT: &str = r"
const { readdirSync, readFileSync } = await import('node:fs');
const sleeps = readdirSync('/proc').filter(name => {
    try { return readFileSync(`/proc/${name}/cmdline`, 'utf8').startsWith('sleep'); } catch { return false; }
});
return sleeps.length ? `asleep: ${sleeps}` : 'alone';
";

async fn a_fork_bomb_is_over_when_it_is_stopped_and_the_sandbox_is_of_use_again(by: By) {
    let sandbox = Sandboxed::by(by).await;
    let bomb = exec(
        "bomb",
        r"
const { spawn } = await import('node:child_process');
spawn('sh', ['-c', 'bomb() { bomb | bomb & }; bomb'], { stdio: 'ignore', detached: true }).on('error', () => {});
console.log('lit');
await new Promise(done => setTimeout(done, 1e6));
",
    );
    let call = sandbox.linked.call(bomb, limits());
    let stop = async {
        // It has begun; how far it got is its own affair.
        let lit = async |events: &mut mpsc::Receiver<ToControl>| {
            while !matches!(events.recv().await, Some(ToControl::Progress { text, .. }) if text.contains("lit")) {}
        };
        let mut events = sandbox.events.lock().await;
        testkit::within("the bomb to be lit", lit(&mut events)).await;
        sandbox.linked.stop().await.unwrap();
    };
    let (result, ()) = testkit::within("the stop", async { tokio::join!(call, stop) }).await;
    assert!(result.unwrap().is_error);
    assert!(sandbox.exec("return 'of use'").await.contains("of use"));
}

async fn whatever_a_program_connects_to_goes_over_the_link_and_pid_1_is_out_of_reach(by: By) {
    let sandbox = Sandboxed::by(by).await;
    let said = sandbox
        .exec(
            r"
const net = await import('node:net');
const dns = await import('node:dns/promises');
const fs = await import('node:fs');
const connect = (host, port) => new Promise(done => {
    const socket = net.connect({ host, port });
    socket.on('data', () => done('data')).on('error', error => done(error.code)).on('close', () => done('closed'));
    socket.on('connect', () => socket.write('hello'));
});
const attempt = work => { try { work(); return 'possible'; } catch (error) { return error.code; } };
return {
    four: await connect('192.0.2.1', 22), six: await connect('2001:db8::1', 65535),
    good: await connect('good.test', 5432),
    bad: await dns.lookup('bad.test').then(() => 'resolved', error => error.code),
    environment: attempt(() => fs.readFileSync('/proc/1/environ')), memory: attempt(() => fs.openSync('/proc/1/mem')),
    kill: attempt(() => process.kill(1, 'SIGKILL')), link: attempt(() => fs.readdirSync('/run/belljar')),
};
",
        )
        .await;
    for expected in [
        r#"\"four\":\"ECONNRESET\""#,
        r#"\"six\":\"ECONNRESET\""#,
        r#"\"good\":\"data\""#,
        r#"\"bad\":\"ENOTFOUND\""#,
    ] {
        assert!(said.replace(' ', "").contains(expected), "{expected} in {said}");
    }
    assert!(!said.contains("possible"), "{said}");
    let seen = sandbox.handler.seen.lock().unwrap().clone();
    for expected in [
        "connect 192.0.2.1 22",
        "connect 2001:db8::1 65535",
        "connect good.test 5432",
        "resolve bad.test",
    ] {
        assert!(seen.iter().any(|seen| seen == expected), "{expected} in {seen:?}");
    }
    // Nothing was said but progress: the hands are the first ones.
    while let Ok(event) = sandbox.events.lock().await.try_recv() {
        assert!(matches!(event, ToControl::Progress { .. }), "{event:?}");
    }
}
