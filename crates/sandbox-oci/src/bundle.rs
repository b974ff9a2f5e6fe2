//! What the OCI runtime is told: `config.json`.

use std::fs;
use std::path::{Path, PathBuf};

use containers::attempt::Attempt;
use containers::cgroup::Hierarchies;
use containers::confinement::{CAPABILITIES, HOSTNAME, MASKED, READ_ONLY, SLICE_MICROS, open_files};
use containers::kernel::Kernel;
use containers::maker::IDS;
use containers::mount::inodes;
use containers::seccomp;
use sandbox::{ProviderError, SandboxSpec, inside};
use serde_json::{Value, json};

use crate::root::shared;

/// What is told of one sandbox.
pub(crate) struct Told<'a> {
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) root: &'a Path,
    pub(crate) root_uid: u32,
    pub(crate) environment: &'a [String],
    pub(crate) hierarchies: &'a Hierarchies,
    /// Whose kernel answers.
    pub(crate) kernel: Kernel,
}

/// The whole of `config.json`.
pub(crate) fn config(told: &Told<'_>) -> Result<Value, ProviderError> {
    let mapping = json!([{ "containerID": 0, "hostID": told.root_uid, "size": IDS }]);
    Ok(json!({
        "ociVersion": "1.0.2",
        "root": { "path": told.root },
        "hostname": HOSTNAME,
        "process": {
            "user": { "uid": 0, "gid": 0, "umask": 0o022 },
            "args": [inside::RUNTIME, inside::RUNTIME_ARGUMENT, told.kernel.about_the_list()],
            "env": told.environment,
            "cwd": "/",
            "noNewPrivileges": true,
            "oomScoreAdj": told.kernel.score(),
            "capabilities": {
                "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
                "inheritable": [], "ambient": [],
            },
            "rlimits": rlimits(told),
        },
        "mounts": mounts(told),
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
            "seccomp": seccomp::profile(told.kernel.masks())?,
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    }))
}

fn rlimits(told: &Told<'_>) -> Value {
    let of_processes = told.kernel.inside(&told.spec.limits).map(u64::from);
    let all = [
        ("RLIMIT_CORE", Some(0)),
        ("RLIMIT_NOFILE", Some(open_files())),
        ("RLIMIT_NPROC", of_processes),
    ];
    let limit = |(name, most): (&str, Option<u64>)| Some(json!({ "type": name, "soft": most?, "hard": most? }));
    all.into_iter().filter_map(limit).collect()
}

/// What is mounted from within; everything else is part of the root file system already.
fn mounts(told: &Told<'_>) -> Vec<Value> {
    let mut mounts = vec![
        // Processes of another user do not show; group 0, the runtime's, sees all.
        json!({
            "destination": "/proc", "type": "proc", "source": "proc",
            "options": ["nosuid", "noexec", "nodev", "hidepid=invisible", "gid=0"],
        }),
        json!({
            "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "noexec", "strictatime", "mode=755", "size=64k"],
        }),
        json!({
            "destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        }),
    ];
    if told.kernel.brings_files() {
        let shown = |destination: &str, source: PathBuf| {
            json!({
                "destination": destination, "type": "bind", "source": source,
                "options": ["bind", "rw", "nosuid", "nodev"],
            })
        };
        mounts.extend([
            shown("/dev/shm", shared(told.root)),
            shown("/tmp", told.root.join("tmp")),
            json!({ "destination": "/sys", "type": "tmpfs", "source": "tmpfs", "options": ["ro", "mode=555", "size=4k"] }),
        ]);
    } else {
        let bytes = told.spec.limits.memory_bytes / 2;
        let (size, inodes) = (format!("size={bytes}"), format!("nr_inodes={}", inodes(bytes)));
        mounts.push(json!({
            "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
            "options": ["nosuid", "noexec", "nodev", "mode=1777", size, inodes],
        }));
    }
    mounts
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
        "pids": { "limit": told.kernel.outside(limits) },
        "cpu": { "quota": u64::from(limits.cpu_millis) * SLICE_MICROS / 1_000, "period": SLICE_MICROS },
        "devices": [{ "allow": false, "access": "rwm" }],
    })
}

pub(crate) fn write(folder: &Path, config: &Value) -> Result<(), ProviderError> {
    let path = folder.join("config.json");
    let attempt = || format!("write {}", path.display());
    fs::write(&path, serde_json::to_vec(config).attempt(attempt)?).attempt(attempt)
}
