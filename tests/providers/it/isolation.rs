//! What is inside stays inside, and the user is not root even there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use containers::DiskChoice;
use images::ImageFolder;
use sandbox::{ProviderError, SandboxProvider};
use tempfile::TempDir;

use crate::world::{By, ROOT, USER, World, words};

on_each!(
    pid_1_has_three_capabilities_and_no_more,
    every_namespace_is_the_sandbox_s_own,
    the_machine_s_mounts_show_nothing_of_a_sandbox,
);

#[tokio::test]
async fn threat_065_the_user_cannot_look_into_the_runtime() {
    let world = World::new(DiskChoice::Auto);
    let living = world.create().await;
    for file in ["environ", "mem", "maps", "fd", "cmdline", "root", "stat"] {
        let (said, code) = living.attempt(USER, &format!("ls /proc/1/{file} 2>&1")).await;
        assert!(code != 0 && said.contains("No such file"), "{file}: {said}");
    }
    let (said, code) = living.attempt(USER, "kill -9 1 2>&1").await;
    assert!(code != 0 && said.contains("not permitted"), "{said}");
    let (said, code) = living.attempt(USER, "ls /run/belljar 2>&1").await;
    assert!(code != 0 && said.contains("Permission denied"), "{said}");
    // Neither has root inside a way around the kernel, nor does it need one: group 0 sees the user's processes.
    assert_eq!(living.run(ROOT, "ls /proc/1/cmdline").await, "/proc/1/cmdline");
    // What the image says, and nothing of the machine's.
    let environment = living.run(ROOT, "tr '\\0' '\\n' < /proc/1/environ").await;
    assert!(
        environment.contains("PATH=") && !environment.contains("CARGO"),
        "{environment}"
    );
    living.destroy().await;
}

async fn pid_1_has_three_capabilities_and_no_more(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    let status = living.run(ROOT, "cat /proc/1/status").await;
    let has = |key: &str, value: &str| {
        let line = format!("{key}:\t{value}");
        assert!(status.lines().any(|found| found == line), "{line}\n{status}");
    };
    // KILL, SETGID and SETUID are bits 5, 6 and 7.
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        has(set, "00000000000000e0");
    }
    for set in ["CapInh", "CapAmb"] {
        has(set, "0000000000000000");
    }
    has("NoNewPrivs", "1");
    has("Seccomp", "2");
    let status = living.run(USER, "cat /proc/self/status").await;
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    living.destroy().await;
}

#[tokio::test]
async fn root_inside_is_nobody_outside() {
    let world = World::new(DiskChoice::Auto);
    let (one, two) = (world.create().await, world.create().await);
    assert_ne!(one.status.root_uid, two.status.root_uid);
    for living in [&one, &two] {
        assert_eq!(living.run(ROOT, "id -u").await, "0");
        let status = fs::read_to_string(format!("/proc/{}/status", living.pid(&world))).unwrap();
        let uid = living.status.root_uid;
        assert!(
            status.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}")),
            "{status}"
        );
    }
    one.destroy().await;
    two.destroy().await;
}

async fn every_namespace_is_the_sandbox_s_own(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let (one, two) = (world.create().await, world.create().await);
    // An engine that maps no users makes no namespace of users.
    let of_users: &[&str] = if by == By::Docker { &[] } else { &["user"] };
    for namespace in ["pid", "mnt", "ipc", "uts", "cgroup", "net"].iter().chain(of_users) {
        let of = |pid: String| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        let all = [
            of("self".into()),
            of(one.pid(&world).to_string()),
            of(two.pid(&world).to_string()),
        ];
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2], "{all:?}");
    }
    assert_eq!(
        one.run(USER, "hostname && ps -e -o pid= | wc -l").await.lines().next(),
        Some("sandbox")
    );
    one.destroy().await;
    two.destroy().await;
}

async fn the_machine_s_mounts_show_nothing_of_a_sandbox(by: By) {
    let world = World::by(by, DiskChoice::Btrfs);
    let living = world.create().await;
    living.run(USER, "true").await;
    let run = world.config.run.join("sandboxes").to_string_lossy().into_owned();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(&run), "{table}");
    // Inside: neither the image's place nor the disk's, nor the machine's root.
    let inside = living.run(USER, "cat /proc/self/mountinfo").await;
    let places: Vec<_> = inside.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    assert!(
        places.contains(&"/workspace") && places.contains(&"/run/belljar"),
        "{inside}"
    );
    assert!(
        places
            .iter()
            .all(|place| !place.starts_with(&run) && !place.contains("lower")),
        "{inside}"
    );
    world.provider.destroy(living.spec.id).await.unwrap();
}

/// An OCI runtime that was built without seccomp: it makes containers as it is told, but for that.
const WITHOUT_FILTER: &str = r#"#!/bin/sh
for word in "$@"; do
    [ ! -f "$word/config.json" ] || python3 -c '
import json, sys
told = json.load(open(sys.argv[1]))
del told["linux"]["seccomp"]
json.dump(told, open(sys.argv[1], "w"))' "$word/config.json"
done
exec runc "$@"
"#;

fn without_filter(folder: &Path) -> PathBuf {
    let command = folder.join("runs");
    fs::write(&command, WITHOUT_FILTER).unwrap();
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
    command
}

fn is_unfiltered<T>(refused: &Result<T, ProviderError>) -> bool {
    matches!(refused, Err(ProviderError::Machine { lacks }) if lacks.contains("no list of system calls"))
}

/// An engine that makes containers by this command, as long as it is held.
struct Engine {
    folder: TempDir,
    process: Child,
}

impl Engine {
    fn start(command: &Path) -> Self {
        let folder = TempDir::with_prefix("belljar-other-engine-").unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut process = Command::new("setpriv");
        process.args([
            "--pdeathsig",
            "TERM",
            "dockerd",
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
        ]);
        process.arg(format!("--add-runtime=other={}", command.display()));
        process.arg("--default-runtime=other");
        for (option, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
            process.arg(option).arg(folder.path().join(name));
        }
        process.arg(format!("--host=unix://{}", folder.path().join("docker.sock").display()));
        process
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let process = process.spawn().unwrap();
        Self { folder, process }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("docker.sock")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn the_trial_of_an_engine_sees_that_no_system_calls_are_filtered() {
    if !By::Docker.is_here() {
        return;
    }
    let world = World::new(DiskChoice::Ext4);
    let command = without_filter(world.folder());
    let (config, digest) = (world.config.clone(), world.image.clone());
    let tried = tokio::task::spawn_blocking(move || {
        let engine = Engine::start(&command);
        let library = Arc::new(ImageFolder::open(config.data.join("images")));
        let asked = testkit::eventually("the engine answers", || {
            sandbox_docker::Engine::connect(&engine.socket(), false).ok()
        });
        let tried = sandbox_docker::try_image(&asked, &*library, &digest, &config.data, None);
        (engine, tried)
    });
    let (engine, tried) = tried.await.unwrap();
    assert!(is_unfiltered(&tried), "{tried:?}");
    drop(engine);
}

/// It compares bits of arguments with the mask, and calls the value a mask.
#[tokio::test]
async fn an_oci_runtime_that_exchanges_mask_and_value_is_refused() {
    let world = World::new(DiskChoice::Ext4);
    let command = world.folder().join("exchanges");
    fs::write(&command, "#!/bin/sh\necho youki version 0.7.0\n").unwrap();
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
    let mut config = world.config.clone();
    config.run = world.folder().join("other");
    let by = By::Oci(command.to_string_lossy().into_owned().leak());
    let opened = tokio::task::spawn_blocking(move || by.open(config)).await.unwrap();
    let refused = words(&opened.unwrap_err());
    assert!(refused.contains("lets users make namespaces"), "{refused}");
}

#[tokio::test]
async fn an_oci_runtime_that_filters_no_system_calls_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let command = without_filter(folder.path());
    let world = World::by(By::Oci(command.to_string_lossy().into_owned().leak()), DiskChoice::Ext4);
    let spec = world.spec();
    let refused = world.provider.create(&spec).await;
    assert!(is_unfiltered(&refused), "{refused:?}");
    assert!(world.files().is_empty(), "{:?}", world.files());
    assert!(world.provider.list().await.unwrap().is_empty());
}
