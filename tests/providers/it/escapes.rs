//! Attempts to get out, by whoever is inside.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use containers::DiskChoice;
use sandbox::SandboxProvider;

use crate::world::{By, ROOT, USER, World};

on_each!(
    the_machine_is_out_of_reach,
    threat_013_neighbours_and_the_machine_do_not_show,
    links_that_point_outside_lead_nowhere,
    threat_114_where_no_link_may_be_followed_none_is,
    threat_018_when_the_runtime_dies_nothing_goes_out,
);
on_each!(
    by_docker_in_volume,
    DockerInVolume: the_machine_is_out_of_reach,
    threat_013_neighbours_and_the_machine_do_not_show,
    links_that_point_outside_lead_nowhere,
    threat_114_where_no_link_may_be_followed_none_is,
    threat_018_when_the_runtime_dies_nothing_goes_out
);

/// What would change the machine, read it, or widen what a sandbox may.
const ATTEMPTS: [&str; 27] = [
    "echo 1 > /proc/sys/kernel/panic",
    "echo x > /proc/sys/kernel/core_pattern",
    "echo 1 > /proc/sys/net/ipv4/ip_forward",
    "echo x > /proc/sysrq-trigger",
    "head -c 1 /proc/kcore | grep -q .",
    "grep -q . /proc/keys",
    "grep -q . /proc/timer_list",
    "head -c 1 /proc/kmsg",
    "echo $$ > /sys/fs/cgroup/cgroup.procs",
    "echo 1 > /sys/fs/cgroup/memory/memory.limit_in_bytes",
    "mount -t tmpfs none /tmp",
    "mount -t proc none /tmp",
    "mount -t cgroup none /tmp",
    "mount -o remount,rw /run/belljar",
    "mount --bind / /tmp",
    "umount /run/belljar",
    "umount -l /proc/sys",
    "touch /run/belljar/new",
    "echo x >> /run/belljar-runtime",
    "echo x >> /etc/resolv.conf",
    "mknod /workspace/disk b 254 0",
    "mknod /workspace/memory c 1 1",
    "hostname other",
    "unshare --user true",
    "unshare --mount --net true",
    "nsenter -t 1 -n true",
    "ip link set lo down",
];

/// Of the machine: what must not be there, or not be opened. Each is tried alone.
const THINGS: [&str; 17] = [
    "/dev/mem",
    "/dev/kmsg",
    "/dev/port",
    "/dev/sda",
    "/dev/vda",
    "/dev/loop0",
    "/dev/loop-control",
    "/dev/fuse",
    "/dev/kvm",
    "/dev/net/tun",
    "/dev/mapper/control",
    "/sys/kernel",
    "/sys/fs/cgroup/memory",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/class/net",
    "/sys/firmware",
    "/proc/sched_debug",
];

async fn the_machine_is_out_of_reach(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    for uid in [USER, ROOT] {
        for attempt in ATTEMPTS {
            let (said, code) = living.attempt(uid, &format!("({attempt}) 2>&1")).await;
            assert!(
                code != 0 && code != 127,
                "{attempt} worked, or is not there, as {uid}: {said}"
            );
        }
        // Of its own a kernel of its own has one of these, of no use to who may mount nothing.
        let is_its_own = |thing: &&&str| by == By::RUNSC && **thing == "/dev/fuse";
        let all: Vec<_> = THINGS.iter().filter(|thing| !is_its_own(thing)).copied().collect();
        let all = all.join(" ");
        let there = living
            .run(uid, &format!("for thing in {all}; do (ls -d $thing && (ls -A $thing | grep . || head -c 1 $thing)) 2>/dev/null; done; true"))
            .await;
        assert_eq!(there, "", "as {uid}");
    }
    // What belongs to PID 1, who runs as root inside, is not the user's.
    for file in ["environ", "mem", "maps", "stack", "syscall", "auxv"] {
        let (said, code) = living.attempt(USER, &format!("head -c 1 /proc/1/{file} 2>&1")).await;
        assert_ne!(code, 0, "{file}: {said}");
    }
    for attempt in [
        "ls /proc/1/fd",
        "ls /proc/1/root/",
        "kill -9 1",
        "ls /run/belljar",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"/run/belljar/link.sock\")'",
    ] {
        let (said, code) = living.attempt(USER, &format!("({attempt}) 2>&1")).await;
        assert_ne!(code, 0, "{attempt} worked: {said}");
    }
    living.destroy().await;
}

async fn threat_013_neighbours_and_the_machine_do_not_show(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let (one, two) = (world.create().await, world.create().await);
    let marker = "a-word-of-the-machine-that-nobody-inside-may-read";
    fs::write(world.folder().join("secret"), marker).unwrap();
    let mut outside = Command::new("sleep")
        .arg("86399.25")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    two.run(
        USER,
        &format!("echo {marker} > /workspace/secret && (sleep 86399.75 > /dev/null 2>&1 &)"),
    )
    .await;
    for uid in [USER, ROOT] {
        let seen = one.run(uid, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await;
        assert!(!seen.contains("86399"), "{seen}");
        let (found, _) = one
            .attempt(
                uid,
                &format!(
                    "ls {} 2>&1; grep -rsl {marker} /workspace /tmp /var /etc /home /run /dev/shm",
                    world.folder().display()
                ),
            )
            .await;
        assert!(!found.contains("secret"), "{found}");
    }
    // What one leaves in shared memory is not there for the other.
    one.run(USER, "echo x > /dev/shm/mine").await;
    assert_eq!(two.run(USER, "ls /dev/shm").await, "");
    outside.kill().unwrap();
    outside.wait().unwrap();
    one.destroy().await;
    two.destroy().await;
}

/// Whoever is inside leaves links to this folder of the machine, pipes and odd names where the machine's side looks.
fn traps(folder: &str) -> String {
    format!(
        "cd /workspace && for name in upper work workspace tmp home var-tmp disk link rootfs; do ln -sfn {folder} $name; done \
         && ln -s /proc/1/root root && ln -s /dev/sda device && mkfifo pipe && ln -s loop loop && touch \"$(printf 'a\\nb')\""
    )
}

async fn links_that_point_outside_lead_nowhere(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    // A folder of the test's own: others change what is in `/etc` meanwhile.
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().to_str().unwrap();
    fs::write(outside.path().join("file"), "of the machine").unwrap();
    let there = || {
        let look = |path: &Path| {
            let about = fs::symlink_metadata(path).unwrap();
            let changed = (about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec());
            (path.to_owned(), about.mode(), about.uid(), about.gid(), changed)
        };
        let inside = fs::read_dir(outside.path()).unwrap();
        let mut all: Vec<_> = inside.map(|entry| look(&entry.unwrap().path())).collect();
        all.push(look(outside.path()));
        all
    };
    let before = there();
    living.run(USER, &traps(folder)).await;
    // As root inside too, who may change what the user may not.
    let as_root = format!("rm -rf /tmp/* ; ln -sfn {folder} /var/tmp/x; ln -sfn {folder} /tmp/workspace");
    living.attempt(ROOT, &as_root).await;
    let snapshot = domain::SnapshotId::new();
    world.provider.snapshot(living.spec.session, snapshot).await.unwrap();
    let mut spec = world.spec();
    spec.session = living.spec.session;
    living.destroy().await;
    let again = world.create_as(&spec).await;
    assert_eq!(
        again.run(USER, "readlink /workspace/workspace /workspace/root").await,
        format!("{folder}\n/proc/1/root")
    );
    again.destroy().await;
    world.provider.remove_disk(spec.session).await.unwrap();
    world.provider.remove_snapshot(snapshot).await.unwrap();
    assert_eq!(there(), before);
}

/// As tools open files: by `openat2`, beneath a folder and over no link of any kind.
const OPENINGS: &str = r#"
import ctypes, errno, os, struct
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("/workspace/opened/a", exist_ok=True)
os.chdir("/workspace/opened")
open("a/file", "w").write("inside")
for name, target in (("away", "/etc"), ("file", "/etc/passwd"), ("near", "a"), ("magic", "/proc/self/root"), ("a/up", "../../..")):
    os.symlink(target, name)
folder = os.open(".", os.O_PATH)
beneath, no_symlinks, no_magic_links = 8, 4, 2
for path in ("a/file", "away/passwd", "file", "near/file", "magic/etc/passwd", "a/up/etc/passwd", "../../etc/passwd", "/etc/passwd"):
    for flags in (os.O_RDONLY, os.O_PATH):
        how = struct.pack("QQQ", flags, 0, beneath | no_symlinks | no_magic_links)
        ctypes.set_errno(0)
        opened = libc.syscall(ctypes.c_long(437), ctypes.c_long(folder), path.encode(), how, ctypes.c_long(len(how)))
        print(path, "opened" if opened >= 0 else errno.errorcode[ctypes.get_errno()])
"#;

async fn threat_114_where_no_link_may_be_followed_none_is(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    let said = living.python(USER, OPENINGS).await;
    for line in said.lines() {
        let (path, came) = line.rsplit_once(' ').unwrap();
        let expected = match path {
            "a/file" => "opened",
            "../../etc/passwd" | "/etc/passwd" => "EXDEV",
            _ => "ELOOP",
        };
        assert_eq!(came, expected, "{path}");
    }
    assert_eq!(said.lines().count(), 16, "{said}");
    living.destroy().await;
}

async fn threat_018_when_the_runtime_dies_nothing_goes_out(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    // Nobody serves the runtime's ports, as if it had stopped to: what was captured is refused, and goes no other way.
    let dial = r#"
import errno, socket
for family, address in ((socket.AF_INET, "198.51.100.7"), (socket.AF_INET, "10.0.0.1"), (socket.AF_INET, "169.254.169.254"), (socket.AF_INET6, "2001:db8::7")):
    for port in (22, 53, 80, 443):
        with socket.socket(family, socket.SOCK_STREAM) as dialling:
            dialling.settimeout(20)
            print(errno.errorcode.get(dialling.connect_ex((address, port)), "went"))
"#;
    let said = living.python(USER, dial).await;
    assert_eq!(said, ["ECONNREFUSED"; 16].join("\n"));
    // And with PID 1 everything that could try ends.
    let inside = living.run(USER, "(sleep 86398 > /dev/null 2>&1 &); echo begun").await;
    assert_eq!(inside, "begun");
    testkit::run(Command::new("kill").args(["-9", &living.pid(&world).to_string()]));
    testkit::eventually("every process ends with PID 1", || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = all.map(|entry| fs::read(entry.path().join("cmdline")).unwrap_or_default());
        (!lines.any(|line| line.starts_with(b"sleep\086398"))).then_some(())
    });
    living.destroy().await;
}
