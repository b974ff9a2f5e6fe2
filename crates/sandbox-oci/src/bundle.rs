//! What the OCI runtime is told: `config.json`.

mod seccomp;

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use sandbox::{ProviderError, SandboxSpec, inside};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::attempt::Attempt;
use crate::cgroup::Hierarchies;
use crate::root::IDS;

/// What hostname a sandbox has: the same for all, so that it tells nothing.
pub(crate) const HOSTNAME: &str = "sandbox";

/// All that PID 1 may do beyond what any user may: become the user, and end the user's processes.
const CAPABILITIES: [&str; 3] = ["CAP_KILL", "CAP_SETGID", "CAP_SETUID"];

/// Of /proc: what tells of the machine.
const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
];

/// Of /proc: what would change it.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// How many files a process may have open.
const OPEN_FILES: u64 = 65_536;

/// A processor's time is given out in slices of this, in microseconds.
const SLICE_MICROS: u64 = 100_000;

/// What is told of one sandbox.
pub(crate) struct Told<'a> {
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) root: &'a Path,
    pub(crate) network: &'a Path,
    pub(crate) root_uid: u32,
    pub(crate) environment: &'a [String],
    pub(crate) hierarchies: &'a Hierarchies,
}

/// The whole of `config.json`.
pub(crate) fn config(told: &Told<'_>) -> Result<Value, ProviderError> {
    let mapping = json!([{ "containerID": 0, "hostID": told.root_uid, "size": IDS }]);
    let limits = &told.spec.limits;
    // No more than this process may itself: who makes the container has no right to raise it.
    let files = getrlimit(Resource::Nofile)
        .maximum
        .map_or(OPEN_FILES, |most| most.min(OPEN_FILES));
    Ok(json!({
        "ociVersion": "1.0.2",
        "root": { "path": told.root },
        "hostname": HOSTNAME,
        "process": {
            "user": { "uid": 0, "gid": 0, "umask": 0o022 },
            "args": [inside::RUNTIME, inside::RUNTIME_ARGUMENT],
            "env": told.environment,
            "cwd": "/",
            "noNewPrivileges": true,
            "oomScoreAdj": 0,
            "capabilities": {
                "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
                "inheritable": [], "ambient": [],
            },
            "rlimits": [
                { "type": "RLIMIT_CORE", "soft": 0, "hard": 0 },
                { "type": "RLIMIT_NOFILE", "soft": files, "hard": files },
            ],
        },
        "mounts": mounts(limits.memory_bytes),
        "linux": {
            "namespaces": [
                { "type": "user" }, { "type": "pid" }, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" },
                { "type": "cgroup" }, { "type": "network", "path": told.network },
            ],
            "uidMappings": mapping,
            "gidMappings": mapping,
            "cgroupsPath": told.hierarchies.path(told.spec.id),
            "resources": resources(told),
            "seccomp": seccomp::profile()?,
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    }))
}

/// What is mounted from within; everything else is part of the root file system already.
fn mounts(memory_bytes: u64) -> Value {
    let shared = format!("size={}", memory_bytes / 2);
    json!([
        {
            // Processes of another user do not show; group 0, the runtime's, sees all.
            "destination": "/proc", "type": "proc", "source": "proc",
            "options": ["nosuid", "noexec", "nodev", "hidepid=invisible", "gid=0"],
        },
        {
            "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "noexec", "strictatime", "mode=755", "size=64k"],
        },
        {
            "destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        },
        {
            "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
            "options": ["nosuid", "noexec", "nodev", "mode=1777", shared],
        },
    ])
}

fn resources(told: &Told<'_>) -> Value {
    let limits = &told.spec.limits;
    let mut memory = json!({ "limit": limits.memory_bytes });
    // Memory and swap together: none is left for swap. Where the kernel keeps no such account there is nothing to say.
    if told.hierarchies.memory_is_unified() || told.hierarchies.offers("memory", "memory.memsw.limit_in_bytes") {
        memory["swap"] = limits.memory_bytes.into();
    }
    json!({
        "memory": memory,
        "pids": { "limit": limits.pids },
        "cpu": { "quota": u64::from(limits.cpu_millis) * SLICE_MICROS / 1_000, "period": SLICE_MICROS },
        "devices": [{ "allow": false, "access": "rwm" }],
    })
}

/// What an image says of itself, as far as it matters here.
#[derive(Debug, Deserialize)]
struct ImageConfiguration {
    #[serde(default)]
    config: ImageProcess,
}

#[derive(Debug, Default, Deserialize)]
struct ImageProcess {
    #[serde(default, rename = "Env")]
    environment: Vec<String>,
}

/// The environment that an image (its folder, with `rootfs` and `config.json`) gives its processes.
pub(crate) fn environment(spec: &SandboxSpec, image: &Path) -> Result<Vec<String>, ProviderError> {
    let missing = |reason: String| ProviderError::ImageMissing {
        image: spec.image.clone(),
        reason,
    };
    if !image.join("rootfs").is_dir() {
        return Err(missing(format!(
            "there is no {}; build it: belljar image build",
            image.join("rootfs").display()
        )));
    }
    let path = image.join("config.json");
    let text = fs::read(&path).map_err(|error| missing(format!("{} cannot be read: {error}", path.display())))?;
    let parsed: ImageConfiguration =
        serde_json::from_slice(&text).map_err(|error| missing(format!("{} is broken: {error}", path.display())))?;
    Ok(parsed.config.environment)
}

pub(crate) fn write(folder: &Path, config: &Value) -> Result<(), ProviderError> {
    let path = folder.join("config.json");
    let attempt = || format!("write {}", path.display());
    fs::write(&path, serde_json::to_vec(config).attempt(attempt)?).attempt(attempt)
}
