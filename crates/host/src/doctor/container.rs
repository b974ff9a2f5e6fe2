//! Whether the OCI runtime makes a container with the confinement that sandboxes have.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::{Value, json};

use super::Machine;
use super::attempt::{Lack, NotDone, OrLacking, folder_in, unique_name};
use super::file_system::{COUNT, FIRST};

/// A system call that is forbidden fails, in this thread alone.
pub(super) fn filter(_machine: &Machine) -> Result<String, Lack> {
    let mend = "sandboxes need a kernel with CONFIG_SECCOMP_FILTER";
    let denied = rustix::io::Errno::DEADLK;
    let load = || -> Result<(), Box<dyn std::error::Error>> {
        let rules = BTreeMap::from([(libc::SYS_statfs, Vec::new())]);
        let answer = SeccompAction::Errno(denied.raw_os_error().unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, std::env::consts::ARCH.try_into()?)?;
        seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?;
        Ok(())
    };
    load().or_lacking("no filter of system calls can be loaded", mend)?;
    match rustix::fs::statfs("/") {
        Err(error) if error == denied => Ok("system calls can be forbidden".to_owned()),
        _ => Err(Lack::lacking("a forbidden system call works all the same", mend)),
    }
}

/// A container is made, up to the point where its program would start, and removed.
pub(super) fn container(machine: &Machine) -> Result<String, Lack> {
    let says = machine
        .run(machine.oci_runtime(), &["--version"], "")
        .map_err(|failed| lack(machine, failed))?;
    let (name, folder) = (unique_name(), folder_in(&std::env::temp_dir())?);
    let root = folder.path().join("rootfs");
    let program = std::env::current_exe().or_lacking("this program does not find itself", "run it by its full path")?;
    let made = ["dev", "proc", "sys"]
        .iter()
        .try_for_each(|name| fs::create_dir_all(root.join(name)));
    let made = made.and_then(|()| fs::write(root.join("program"), ""));
    made.or_lacking("no files can be made in the temporary folder", "free some space there")?;
    let mut spec = spec(&name, &root, &["/program"]);
    let mount = json!({ "destination": "/program", "type": "bind", "source": program, "options": ["bind", "ro"] });
    if let Some(mounts) = spec["mounts"].as_array_mut() {
        mounts.push(mount);
    }
    run(machine, folder.path(), &name, &spec, "create")?;
    let version = says.lines().next().unwrap_or_default();
    Ok(format!("a container with namespaces of its own is made by {version}"))
}

/// The image's shell runs in a container.
pub(super) fn image(machine: &Machine) -> Result<String, Lack> {
    let build = "belljar image build";
    let Some(image) = &machine.image else {
        return Err(Lack::lacking(
            "the image that sandboxes are made from is not built",
            build,
        ));
    };
    let text = fs::read_to_string(image.join("config.json"));
    let text = text.or_lacking(&format!("the image in {} is not whole", image.display()), build)?;
    let _: Value = serde_json::from_str(&text).or_lacking(
        &format!("the image's configuration in {} is broken", image.display()),
        build,
    )?;
    // It leads to the lowest layer, and OCI runtimes take no link.
    let root = image.join("rootfs").canonicalize();
    let root = root.or_lacking(&format!("the image in {} is not whole", image.display()), build)?;
    let (name, folder) = (unique_name(), folder_in(&std::env::temp_dir())?);
    let spec = spec(&name, &root, &["/bin/sh", "-c", "exit 0"]);
    run(machine, folder.path(), &name, &spec, "run").map_err(|lack| {
        Lack::lacking(
            format!("no program of the image {} runs: {}", image.display(), lack.says()),
            build,
        )
    })?;
    Ok(format!("programs of the image {} run", image.display()))
}

fn lack(machine: &Machine, failed: NotDone) -> Lack {
    let package = machine.oci_runtime().file_name().unwrap_or_default().to_string_lossy();
    failed.lack(
        machine.oci_runtime(),
        &package,
        "look at its message; another OCI runtime can be named in the configuration",
    )
}

fn run(machine: &Machine, folder: &Path, name: &str, spec: &Value, how: &str) -> Result<(), Lack> {
    fs::write(folder.join("config.json"), spec.to_string())
        .or_lacking("no files can be made in the temporary folder", "free some space there")?;
    let (state, bundle) = (folder.join("state"), folder.to_string_lossy());
    let state = state.to_string_lossy();
    let made = machine.run_quietly(folder, &["--root", &state, how, "--bundle", &bundle, name]);
    // Whatever came of it: a container that is not there is removed.
    let removed = machine.run(
        machine.oci_runtime(),
        &["--root", &state, "delete", "--force", name],
        "",
    );
    made.and(removed.map(|_| ())).map_err(|failed| lack(machine, failed))
}

impl Machine {
    fn oci_runtime(&self) -> &Path {
        self.command.as_deref().unwrap_or(Path::new("runc"))
    }

    /// Runs the OCI runtime with its output in a file: a container that was made holds on to pipes.
    fn run_quietly(&self, folder: &Path, arguments: &[&str]) -> Result<(), NotDone> {
        let log = folder.join("log");
        let command = self.oci_runtime().to_string_lossy();
        let script = "log=$1; shift; exec \"$@\" </dev/null >\"$log\" 2>&1";
        let log_name = log.to_string_lossy();
        let arguments: Vec<&str> = ["-c", script, "sh", &log_name, &command]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        let ran = self.run(Path::new("sh"), &arguments, "");
        ran.map(|_| ()).map_err(|_| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let last = said
                .lines()
                .rev()
                .find(|line| !line.trim().is_empty())
                .unwrap_or("it said nothing");
            NotDone::Failed(last.chars().take(400).collect())
        })
    }
}

/// A container like a sandbox's, on a small scale.
fn spec(name: &str, root: &Path, arguments: &[&str]) -> Value {
    let mapping = json!([{ "containerID": 0, "hostID": FIRST, "size": COUNT }]);
    let namespaces = ["user", "pid", "mount", "ipc", "uts", "cgroup", "network"].map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": root, "readonly": true },
        "hostname": "doctor",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": arguments,
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "noNewPrivileges": true,
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc", "options": ["hidepid=invisible", "gid=0"] },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"] },
        ],
        "linux": {
            "namespaces": namespaces,
            "uidMappings": mapping,
            "gidMappings": mapping,
            "cgroupsPath": format!("/{name}"),
            "resources": { "pids": { "limit": 16 }, "memory": { "limit": 64 << 20 } },
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{ "names": ["bpf"], "action": "SCMP_ACT_ERRNO" }],
            },
        },
    })
}
