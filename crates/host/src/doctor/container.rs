//! Whether the OCI runtime makes a container with the confinement that sandboxes have.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use containers::filtered::trial::{self, Heard};
use containers::kernel::Kernel;
use containers::maker::IDS;
use containers::seccomp;
use sandbox::Limits;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::{Value, json};

use super::Machine;
use super::attempt::{Lack, NotDone, OrLacking, folder_in, unique_name};
use super::file_system::FIRST;

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

/// What the containers of trials may take: enough for a kernel of their own.
const LIMITS: Limits = Limits {
    cpu_millis: 1_000,
    memory_bytes: 256 << 20,
    pids: 16,
    ..Limits::LEAST
};

/// A container is made, up to the point where its program would start, and removed.
pub(super) fn container(machine: &Machine) -> Result<String, Lack> {
    let says = version(machine)?;
    let (name, folder) = (unique_name(), folder_in(&std::env::temp_dir())?);
    let root = folder.path().join("rootfs");
    let program = std::env::current_exe().or_lacking("this program does not find itself", "run it by its full path")?;
    let made = ["dev", "proc", "sys"]
        .iter()
        .try_for_each(|name| fs::create_dir_all(root.join(name)));
    let made = made.and_then(|()| fs::write(root.join("program"), ""));
    made.or_lacking("no files can be made in the temporary folder", "free some space there")?;
    let mut spec = spec(machine, &name, &root, &["/program"])?;
    let mount = json!({ "destination": "/program", "type": "bind", "source": program, "options": ["bind", "ro"] });
    if let Some(mounts) = spec["mounts"].as_array_mut() {
        mounts.push(mount);
    }
    run(machine, folder.path(), &name, &spec, "create")?;
    let version = says.lines().next().unwrap_or_default();
    Ok(format!("a container with namespaces of its own is made by {version}"))
}

const BUILD: &str = "belljar image build";

/// The image's shell runs in a container.
pub(super) fn image(machine: &Machine) -> Result<String, Lack> {
    let build = BUILD;
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
    run_shell(machine, &root, "exit 0").map_err(|lack| {
        Lack::lacking(
            format!("no program of the image {} runs: {}", image.display(), lack.says()),
            build,
        )
    })?;
    Ok(format!("programs of the image {} run", image.display()))
}

/// The list of system calls holds for what the OCI runtime starts: one that was built without it goes on and says
/// nothing. The image's shell looks. Where that is answered by a kernel of its own, what is looked at is whether it is.
pub(super) fn listed_calls(machine: &Machine) -> Result<String, Lack> {
    let runtime = machine.oci_runtime().display();
    let root = machine.image.as_ref().map(|image| image.join("rootfs").canonicalize());
    let Some(Ok(root)) = root else {
        let says =
            format!("whether {runtime} applies the list of system calls is found out with an image, and none is built");
        return Err(Lack::warning(says, BUILD));
    };
    let mend = "name another OCI runtime in sandbox.runtime (apt-get install runc)";
    if Kernel::for_version(&version(machine)?) == Kernel::Own {
        return own_kernel(machine, &root);
    }
    let said = run_shell(machine, &root, trial::SCRIPT)?;
    let wrong = match trial::heard(&said).or_lacking("the list of system calls cannot be tried", mend)? {
        Heard::Held => return Ok(format!("{runtime} applies the list of system calls")),
        Heard::Misread => {
            "gets rules about bits of an argument wrong, so it lets through what the list of system calls refuses"
        }
        Heard::Unfiltered => "starts programs without the list of system calls that it is told",
    };
    Err(Lack::lacking(
        format!("{runtime} {wrong}: it can make no sandboxes"),
        mend,
    ))
}

/// The kernel that answers in a container is not this machine's. Each sandbox tries that too, and the list besides.
fn own_kernel(machine: &Machine, root: &Path) -> Result<String, Lack> {
    let runtime = machine.oci_runtime().display();
    let file = "/proc/version";
    let said = run_shell(machine, root, &format!("read -r version < {file}; echo \"$version\""))?;
    let of_the_machine =
        fs::read_to_string(file).or_lacking(&format!("{file} cannot be read"), "mount -t proc none /proc")?;
    if said.contains(of_the_machine.trim()) {
        return Err(Lack::lacking(
            format!(
                "{runtime} says that it is gVisor, and this machine's kernel answers what it starts: it can make no sandboxes"
            ),
            "name the program that it really is in sandbox.runtime, or install gVisor's runsc",
        ));
    }
    Ok(format!(
        "{runtime} answers what it starts with a kernel of its own; each sandbox gives itself the list of system calls"
    ))
}

/// What a script of the image's shell says in a container.
fn run_shell(machine: &Machine, root: &Path, script: &str) -> Result<String, Lack> {
    let (name, folder) = (unique_name(), folder_in(&std::env::temp_dir())?);
    let spec = spec(machine, &name, root, &["/bin/sh", "-c", script])?;
    run(machine, folder.path(), &name, &spec, "run")
}

fn version(machine: &Machine) -> Result<String, Lack> {
    let said = machine.run(machine.oci_runtime(), &["--version"], "");
    said.map_err(|failed| lack(machine, failed))
}

/// OCI runtimes that Debian has packages of, which are called as they are.
const PACKAGES: [&str; 2] = ["crun", "runc"];

fn lack(machine: &Machine, failed: NotDone) -> Lack {
    let runtime = machine.oci_runtime();
    let (name, another) = (
        runtime.display(),
        "name another OCI runtime in sandbox.runtime, such as runc (apt-get install runc)",
    );
    let is_path = runtime.components().count() > 1;
    let place = if is_path { "there" } else { "in PATH" };
    match failed {
        NotDone::Missing if PACKAGES.iter().any(|package| runtime == Path::new(package)) => Lack::lacking(
            format!("the OCI runtime {name} is not there"),
            format!("apt-get install {name}"),
        ),
        NotDone::Missing => Lack::lacking(
            format!("the OCI runtime {name}, which sandbox.runtime names, is not {place}"),
            format!("put it {place}, or {another}"),
        ),
        NotDone::Forbidden if runtime.is_dir() => Lack::lacking(
            format!("{name}, which sandbox.runtime names, is a folder and no OCI runtime"),
            format!("name the program in it, or {another}"),
        ),
        NotDone::Forbidden => {
            let file = if is_path {
                name.to_string()
            } else {
                format!("\"$(which -a {name} | head -1)\"")
            };
            Lack::lacking(
                format!("the OCI runtime {name}, which sandbox.runtime names, may not be executed"),
                format!("chmod +x {file}, if its file system is not mounted with noexec; or {another}"),
            )
        }
        NotDone::Failed(said) => Lack::lacking(
            format!("the OCI runtime {name} fails: {said}"),
            format!("look at its message; or {another}"),
        ),
    }
}

/// Makes a container, and gives what was said until the OCI runtime ended.
fn run(machine: &Machine, folder: &Path, name: &str, spec: &Value, how: &str) -> Result<String, Lack> {
    fs::write(folder.join("config.json"), spec.to_string())
        .or_lacking("no files can be made in the temporary folder", "free some space there")?;
    let (state, bundle) = (folder.join("state"), folder.to_string_lossy());
    let (state, kernel) = (state.to_string_lossy(), Kernel::for_version(&version(machine)?));
    let mut arguments = vec!["--root", &*state];
    arguments.extend(kernel.arguments());
    arguments.extend([how, "--bundle", &bundle, name]);
    let made = machine.run_quietly(folder, &arguments);
    // Whatever came of it: a container that is not there is removed.
    let removed = machine.run(
        machine.oci_runtime(),
        &["--root", &state, "delete", "--force", name],
        "",
    );
    let said = made.map_err(|failed| lack(machine, failed))?;
    removed.map(|_| said).map_err(|failed| lack(machine, failed))
}

impl Machine {
    fn oci_runtime(&self) -> &Path {
        self.command.as_deref().unwrap_or(Path::new("runc"))
    }

    /// Runs the OCI runtime with its output in a file: a container that was made holds on to pipes.
    fn run_quietly(&self, folder: &Path, arguments: &[&str]) -> Result<String, NotDone> {
        let log = folder.join("log");
        let command = self.oci_runtime().to_string_lossy();
        let script = "log=$1; shift; exec \"$@\" </dev/null >\"$log\" 2>&1";
        let log_name = log.to_string_lossy();
        let arguments: Vec<&str> = ["-c", script, "sh", &log_name, &command]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        let ran = self.run(Path::new("sh"), &arguments, "");
        let mut said = String::new();
        // What could be read is what it said.
        let _ = fs::File::open(&log).map(|log| log.take(1 << 20).read_to_string(&mut said));
        if ran.is_ok() {
            return Ok(said);
        }
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        Err(NotDone::Failed(
            last.unwrap_or("it said nothing").chars().take(400).collect(),
        ))
    }
}

/// A container like a sandbox's, on a small scale.
fn spec(machine: &Machine, name: &str, root: &Path, arguments: &[&str]) -> Result<Value, Lack> {
    let kernel = Kernel::for_version(&version(machine)?);
    let list = seccomp::profile(kernel.masks());
    let list = list.or_lacking("the list of system calls cannot be read", "report this as a fault")?;
    let mapping = json!([{ "containerID": 0, "hostID": FIRST, "size": IDS }]);
    let namespaces = ["user", "pid", "mount", "ipc", "uts", "cgroup", "network"].map(|kind| json!({ "type": kind }));
    Ok(json!({
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
            "resources": { "pids": { "limit": kernel.outside(&LIMITS) }, "memory": { "limit": LIMITS.memory_bytes } },
            "seccomp": trial::with_probe(list, kernel.masks()),
        },
    }))
}
