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

use crate::world::{By, Living, ROOT, USER, World};

on_each!(
    threat_065_the_user_cannot_look_into_the_runtime,
    pid_1_has_three_capabilities_and_no_more,
    every_namespace_is_the_sandbox_s_own,
    the_machine_s_mounts_show_nothing_of_a_sandbox,
);
on_each!(
    by_docker_in_volume,
    DockerInVolume: threat_065_the_user_cannot_look_into_the_runtime,
    pid_1_has_three_capabilities_and_no_more,
    every_namespace_is_the_sandbox_s_own,
    the_machine_s_mounts_show_nothing_of_a_sandbox
);

async fn threat_065_the_user_cannot_look_into_the_runtime(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    if matches!(by, By::Oci(_)) && by != By::RUNSC {
        for file in ["environ", "mem", "maps", "fd", "cmdline", "root", "stat"] {
            let (said, code) = living.attempt(USER, &format!("ls /proc/1/{file} 2>&1")).await;
            assert!(code != 0 && said.contains("No such file"), "{file}: {said}");
        }
    }
    // An engine's /proc, and that of a kernel of its own, show names.
    for look in [
        "cat /proc/1/environ",
        "head -c 1 /proc/1/mem",
        "cat /proc/1/maps",
        "ls /proc/1/fd",
        "ls /proc/1/root/",
    ] {
        let (said, code) = living.attempt(USER, &format!("{look} 2>&1")).await;
        assert!(
            code != 0 && (said.contains("denied") || said.contains("No such file")),
            "{look}: {said}"
        );
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
    let of_users: &[&str] = if matches!(by, By::Oci(_)) { &["user"] } else { &[] };
    // A kernel of its own is in the machine's namespace of groups, and shows others inside.
    let of_groups: &[&str] = if by == By::RUNSC { &[] } else { &["cgroup"] };
    for namespace in ["pid", "mnt", "ipc", "uts", "net"]
        .iter()
        .chain(of_users)
        .chain(of_groups)
    {
        let of = |pid: String| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        let all = [
            of("self".into()),
            of(one.pid(&world).to_string()),
            of(two.pid(&world).to_string()),
        ];
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2], "{all:?}");
    }
    let groups = one.run(USER, "cat /proc/self/cgroup").await;
    assert!(!groups.contains(&one.spec.id.to_string()), "{groups}");
    assert_eq!(
        one.run(USER, "hostname && ps -e -o pid= | wc -l").await.lines().next(),
        Some("sandbox")
    );
    one.destroy().await;
    two.destroy().await;
}

async fn the_machine_s_mounts_show_nothing_of_a_sandbox(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    living.run(USER, "true").await;
    let run = world.config.run.join("sandboxes").to_string_lossy().into_owned();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(&run), "{table}");
    // Inside: neither the image's place nor the disk's, nor the machine's root.
    let inside = living.run(USER, "cat /proc/self/mountinfo").await;
    let places: Vec<_> = inside.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    // To a kernel of its own all that comes from the machine is one mount.
    assert!(
        by == By::RUNSC || places.contains(&"/workspace") && places.contains(&"/run/belljar"),
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

/// What an OCI runtime does to the list of system calls; all else it does as it is told.
#[derive(Clone, Copy)]
enum Wrong {
    /// As if it was built without seccomp.
    LeftOut,
    /// Mask and value of rules about bits.
    Exchanged,
    Nothing,
}

/// One that does so, and says that it is `version`. It is this program, and knows no options but that program's.
fn oci_runtime(folder: &Path, wrong: Wrong, version: &str, program: &str) -> PathBuf {
    let change = match wrong {
        Wrong::LeftOut => "del told['linux']['seccomp']",
        Wrong::Exchanged => {
            "for rule in told['linux']['seccomp']['syscalls']:
    for of in rule.get('args') or []:
        if of['op'] == 'SCMP_CMP_MASKED_EQ':
            of['value'], of['valueTwo'] = of.get('valueTwo', 0), of.get('value', 0)"
        }
        Wrong::Nothing => "",
    };
    let script = format!(
        r#"#!/bin/sh
[ "$*" != --version ] || {{ echo '{version}'; exit; }}
for word in "$@"; do
    shift
    case $word in --*=*) ;; *) set -- "$@" "$word" ;; esac
    [ ! -f "$word/config.json" ] || python3 -c "
import json, sys
told = json.load(open(sys.argv[1]))
{change}
json.dump(told, open(sys.argv[1], 'w'))" "$word/config.json" || exit 1
done
exec {program} "$@"
"#
    );
    let command = folder.join("runs");
    fs::write(&command, script).unwrap();
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
    command
}

/// The program that the others are, unless they are another.
const RUNC: &str = "runc";
const SAYS_RUNC: &str = "runc version 1.1.5";
/// The one that is known to exchange them.
const SAYS_YOUKI: &str = "youki version: 0.7.0";

fn is_refused<T>(refused: &Result<T, ProviderError>, why: &str) -> bool {
    matches!(refused, Err(ProviderError::Machine { lacks }) if lacks.contains(why))
}

const NO_LIST: &str = "no list of system calls";
const MISREAD: &str = "lets users make namespaces";

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

    /// How many containers it keeps.
    fn containers(&self) -> usize {
        fs::read_dir(self.folder.path().join("data/containers"))
            .unwrap()
            .count()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}

/// What the doctor finds of an engine that makes containers so, and what comes of a sandbox of it; nothing is left of that.
async fn of_an_engine(how: Wrong) -> [Result<(), ProviderError>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(&oci_runtime(folder.path(), how, SAYS_RUNC, RUNC));
    let asked = testkit::eventually("the engine answers", || {
        sandbox_docker::Engine::connect(&engine.socket(), false).ok()
    });
    let world = World::by(By::DockerAt(engine.socket().leak()), DiskChoice::Ext4);
    let library = ImageFolder::open(world.config.data.join("images"));
    let tried = sandbox_docker::try_image(&asked, &library, &world.image, &world.config.data, None);
    let made = world.provider.create(&world.spec()).await;
    if let Ok(made) = &made {
        world.provider.destroy(made.id).await.unwrap();
    }
    nothing_is_left(&world).await;
    assert_eq!(engine.containers(), 0, "a container is left");
    [tried, made.map(|_| ())]
}

async fn nothing_is_left(world: &World) {
    assert!(world.files().is_empty(), "{:?}", world.files());
    assert!(world.provider.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn an_engine_that_filters_no_system_calls_makes_no_sandbox() {
    for refused in of_an_engine(Wrong::LeftOut).await {
        assert!(is_refused(&refused, NO_LIST), "{refused:?}");
    }
}

#[tokio::test]
async fn an_engine_that_exchanges_mask_and_value_makes_no_sandbox() {
    for refused in of_an_engine(Wrong::Exchanged).await {
        assert!(is_refused(&refused, MISREAD), "{refused:?}");
    }
}

#[tokio::test]
async fn an_engine_with_another_oci_runtime_makes_sandboxes() {
    for made in of_an_engine(Wrong::Nothing).await {
        made.unwrap();
    }
}

/// What comes of a sandbox of an OCI runtime that does so, and says that it is `version`; nothing is left of one that is refused.
async fn of_an_oci_runtime(how: Wrong, version: &str) -> Result<(), ProviderError> {
    let folder = tempfile::tempdir().unwrap();
    let command = oci_runtime(folder.path(), how, version, RUNC);
    of_this_oci_runtime(&command).await
}

async fn of_this_oci_runtime(command: &Path) -> Result<(), ProviderError> {
    let world = World::by(By::Oci(command.to_string_lossy().into_owned().leak()), DiskChoice::Ext4);
    let spec = world.spec();
    if let Err(refused) = world.provider.create(&spec).await {
        nothing_is_left(&world).await;
        return Err(refused);
    }
    let status = world.provider.status(spec.id).await.unwrap();
    let living = Living::of(Arc::clone(&world.provider) as _, status);
    for attempt in [
        "unshare --user true",
        "python3 -c 'import socket; socket.socket(socket.AF_INET, 5, 132)'",
    ] {
        let (said, code) = living.attempt(USER, &format!("{attempt} 2>&1")).await;
        assert!(code != 0 && said.contains("not permitted"), "{attempt}: {said}");
    }
    living.destroy().await;
    Ok(())
}

#[tokio::test]
async fn an_oci_runtime_that_filters_no_system_calls_is_refused() {
    for version in [SAYS_RUNC, SAYS_YOUKI] {
        let refused = of_an_oci_runtime(Wrong::LeftOut, version).await;
        assert!(is_refused(&refused, NO_LIST), "{version}: {refused:?}");
    }
}

/// It compares bits of arguments with the mask, and calls the value a mask.
#[tokio::test]
async fn an_oci_runtime_that_exchanges_mask_and_value_is_refused_unless_it_is_known_to() {
    let refused = of_an_oci_runtime(Wrong::Exchanged, SAYS_RUNC).await;
    assert!(is_refused(&refused, MISREAD), "{refused:?}");
    let refused = of_an_oci_runtime(Wrong::Exchanged, "youki version: 0.7.1").await;
    assert!(is_refused(&refused, MISREAD), "{refused:?}");
    of_an_oci_runtime(Wrong::Exchanged, SAYS_YOUKI).await.unwrap();
}

/// One that is known to exchange them and was repaired.
#[tokio::test]
async fn an_oci_runtime_that_exchanges_no_more_is_not_told_them_exchanged_unseen() {
    let refused = of_an_oci_runtime(Wrong::Nothing, SAYS_YOUKI).await;
    assert!(is_refused(&refused, MISREAD), "{refused:?}");
}

/// A wrong name for a program whose containers this machine's kernel answers, whether it applies the list or not.
#[tokio::test]
async fn an_oci_runtime_that_only_says_that_it_is_gvisor_is_refused() {
    for how in [Wrong::Nothing, Wrong::LeftOut] {
        let refused = of_an_oci_runtime(how, "runsc version release-20260905.0").await;
        assert!(is_refused(&refused, "this machine's kernel answers"), "{refused:?}");
    }
}

#[tokio::test]
async fn runsc_that_says_that_it_is_another_is_refused() {
    if By::RUNSC.is_here() {
        let folder = tempfile::tempdir().unwrap();
        let program = format!("{} --gofer-network-namespace=new", testkit::program("runsc").display());
        let command = oci_runtime(folder.path(), Wrong::Nothing, SAYS_RUNC, &program);
        let refused = of_this_oci_runtime(&command).await;
        // One of four trials it refuses by itself, to who has no right to change its root.
        assert!(is_refused(&refused, MISREAD), "{refused:?}");
    }
}
