//! What the OCI runtime is told: `config.json`.

use std::fs;
use std::path::Path;

use containers::attempt::Attempt;
use containers::cgroup::Hierarchies;
use containers::confinement::{CAPABILITIES, HOSTNAME, MASKED, READ_ONLY, SLICE_MICROS, open_files};
use containers::maker::IDS;
use containers::mount::inodes;
use containers::seccomp::{self, Masks};
use sandbox::{ProviderError, SandboxSpec, inside};
use serde_json::{Value, json};

/// What is told of one sandbox.
pub(crate) struct Told<'a> {
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) root: &'a Path,
    pub(crate) root_uid: u32,
    pub(crate) environment: &'a [String],
    pub(crate) hierarchies: &'a Hierarchies,
    /// How the OCI runtime reads rules about bits.
    pub(crate) masks: Masks,
}

/// The whole of `config.json`.
pub(crate) fn config(told: &Told<'_>) -> Result<Value, ProviderError> {
    let mapping = json!([{ "containerID": 0, "hostID": told.root_uid, "size": IDS }]);
    let limits = &told.spec.limits;
    let files = open_files();
    Ok(json!({
        "ociVersion": "1.0.2",
        "root": { "path": told.root },
        "hostname": HOSTNAME,
        "process": {
            "user": { "uid": 0, "gid": 0, "umask": 0o022 },
            "args": [inside::RUNTIME, inside::RUNTIME_ARGUMENT, inside::LISTED_ARGUMENT],
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
            // No network: it inherits the one that the OCI runtime is started in.
            "namespaces": [
                { "type": "user" }, { "type": "pid" }, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" },
                { "type": "cgroup" },
            ],
            "uidMappings": mapping,
            "gidMappings": mapping,
            "cgroupsPath": told.hierarchies.path(&told.spec.id.to_string()),
            "resources": resources(told),
            "seccomp": seccomp::profile(told.masks)?,
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    }))
}

/// What is mounted from within; everything else is part of the root file system already.
fn mounts(memory_bytes: u64) -> Value {
    let shared = format!("size={}", memory_bytes / 2);
    let inodes = format!("nr_inodes={}", inodes(memory_bytes / 2));
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
            "options": ["nosuid", "noexec", "nodev", "mode=1777", shared, inodes],
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

pub(crate) fn write(folder: &Path, config: &Value) -> Result<(), ProviderError> {
    let path = folder.join("config.json");
    let attempt = || format!("write {}", path.display());
    fs::write(&path, serde_json::to_vec(config).attempt(attempt)?).attempt(attempt)
}
