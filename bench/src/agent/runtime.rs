//! How fast the runtime is there, by itself: in a jail that stands ready, so that only its own start is timed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use domain::{SandboxId, SessionId};
use lifecycle::Tasks;
use link::server::Outfit;
use secret::Secret;
use tokio::time::timeout;

use crate::installation::Programs;
use crate::sample::{Sample, WARM_UPS};
use crate::sandboxes::{Nobody, outfit};

/// The network that a sandbox has, and a shell that waits for a line before it becomes the runtime.
const JAIL: &str = r#"
set -e
ip link set lo up
ip address add 198.18.0.1/32 dev lo
ip -6 address add fdbe:11a6:a12::1/128 dev lo nodad
echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
exec bwrap --die-with-parent --unshare-pid --unshare-ipc --as-pid-1 \
    --cap-drop ALL --cap-add CAP_SETUID --cap-add CAP_SETGID --cap-add CAP_KILL \
    --ro-bind "$ROOT" / --proc /proc --dev /dev --tmpfs /tmp --tmpfs /run \
    --ro-bind "$JAIL/link" /run/belljar --ro-bind "$RUNTIME" /run/belljar-runtime --bind "$JAIL/workspace" /workspace \
    --chdir / --clearenv --setenv PATH /usr/local/bin:/usr/bin:/bin --setenv HOME /workspace \
    /bin/sh -c 'echo standing by; read go; exec /run/belljar-runtime pid1'
"#;

/// From the runtime's start until it has accepted a session.
pub(super) async fn time_start(programs: &Programs, count: usize) -> anyhow::Result<Sample> {
    let outfit = outfit()?;
    let mut sample = Sample::default();
    for number in 0..count + WARM_UPS {
        let took = start_once(programs, outfit.clone()).await?;
        if number >= WARM_UPS {
            sample.add(took);
        }
    }
    Ok(sample)
}

async fn start_once(programs: &Programs, outfit: Outfit) -> anyhow::Result<Duration> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    for name in ["link", "workspace"] {
        std::fs::create_dir(folder.path().join(name))?;
    }
    std::os::unix::fs::chown(folder.path().join("workspace"), Some(1000), Some(1000))?;
    let tasks = Tasks::new();
    let listener = UnixListener::bind(folder.path().join("link/link.sock"))?;
    listener.set_nonblocking(true)?;
    let linked = link::server::serve(listener, SandboxId::new(), 0, Arc::new(Nobody::default()), &tasks)?;
    let child = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", JAIL])
        .env("ROOT", testkit::miniature().rootfs())
        .env("JAIL", folder.path())
        .env("RUNTIME", &programs.runtime)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("the jail could not be started")?;
    let mut jail = Jail(child);
    let mut line = String::new();
    BufReader::new(jail.0.stdout.as_mut().context("its output is piped")?).read_line(&mut line)?;
    let mut input = jail.0.stdin.take().context("its input is piped")?;
    let began = Instant::now();
    input.write_all(b"go\n")?;
    let ready = async {
        linked.connected().await;
        linked.claim(SessionId::new(), &Secret::new("bench"), outfit).await
    };
    timeout(Duration::from_secs(30), ready)
        .await
        .context("the runtime did not answer")??;
    let took = began.elapsed();
    linked.close();
    drop(jail);
    tasks.shut_down(Duration::from_secs(5)).await;
    Ok(took)
}

/// Ends with its value: bwrap takes all inside with it.
struct Jail(Child);

impl Drop for Jail {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
