//! The list of system calls, tried from inside one by one.

use containers::DiskChoice;

use crate::world::{By, Living, ROOT, USER, World};

on_each!(calls_that_are_not_listed_do_not_work, ordinary_programs_work,);
on_each!(
    by_docker_in_volume,
    DockerInVolume: calls_that_are_not_listed_do_not_work,
    ordinary_programs_work
);

/// Each call with arguments with which the kernel itself would say something else, where there are such.
const SCRIPT: &str = r#"
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
calls = {
    "unshare": (272, 97, 0), "setns": (308, 268, -1, 0), "clone3": (435, 435, 0, 0), "mount": (165, 40, 0, 0, 0, 0, 0),
    "umount2": (166, 39, 0, 0), "pivot_root": (155, 41, 0, 0), "fsopen": (430, 430, 0, 0), "fsconfig": (431, 431, -1, 0, 0, 0, 0),
    "fsmount": (432, 432, -1, 0, 0), "open_tree": (428, 428, -1, 0, 0), "move_mount": (429, 429, -1, 0, -1, 0, 0),
    "mount_setattr": (442, 442, -1, 0, 0, 0, 0), "io_uring_setup": (425, 425, 1, 0), "io_uring_enter": (426, 426, -1, 0, 0, 0, 0, 0),
    "bpf": (321, 280, 999, 0, 0), "add_key": (248, 217, 0, 0, 0, 0, 0), "request_key": (249, 218, 0, 0, 0, 0),
    "keyctl": (250, 219, 0, 0, 0, 0, 0), "perf_event_open": (298, 241, 0, 0, 0, 0, 0), "userfaultfd": (323, 282, 1 << 30),
    "kexec_load": (246, 104, 0, 0, 0, 0), "init_module": (175, 105, 0, 0, 0), "finit_module": (313, 273, -1, 0, 0),
    "ptrace": (101, 117, 999, 0, 0, 0), "process_vm_readv": (310, 270, 0, 0, 0, 0, 0, 0),
    "process_vm_writev": (311, 271, 0, 0, 0, 0, 0, 0), "kcmp": (312, 272, 0, 0, 9, 0, 0), "pidfd_getfd": (438, 438, -1, 0, 0),
    "open_by_handle_at": (304, 265, -1, 0, 0), "name_to_handle_at": (303, 264, -1, 0, 0, 0, 0), "chroot": (161, 51, 0),
    "reboot": (169, 142, 0, 0, 0, 0), "swapon": (167, 224, 0, 0), "sethostname": (170, 161, 0, 0), "setdomainname": (171, 162, 0, 0),
    "settimeofday": (164, 170, 0, 0), "clock_settime": (227, 112, 0, 0), "acct": (163, 89, 0), "quotactl": (179, 60, 0, 0, 0, 0),
    "syslog": (103, 116, 99, 0, 0), "fanotify_init": (300, 262, 1 << 30, 0), "personality": (135, 92, 0x0400000),
    "memfd_secret": (447, 447, 0), "vhangup": (153, 58), "clone": (56, 220, 0x10000000 | 17, 0, 0, 0, 0),
    "clone_net": (56, 220, 0x40000000 | 17, 0, 0, 0, 0), "getpid": (39, 172), "seccomp": (317, 277, 999, 0, 0),
}
for name, (on_x86, elsewhere, *arguments) in calls.items():
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(on_x86 if x86 else elsewhere), *(ctypes.c_long(one) for one in arguments))
    print(name, "worked" if result >= 0 else errno.errorcode[ctypes.get_errno()])
for name, family, kind, protocol in (("packet", 17, 3, 0), ("vsock", 40, 1, 0), ("alg", 38, 5, 0), ("bluetooth", 31, 3, 1),
    ("netfilter", 16, 3, 12), ("audit", 16, 3, 9), ("xdp", 44, 3, 0), ("unix", 1, 1, 0), ("inet", 2, 1, 0), ("inet6", 10, 1, 0), ("route", 16, 3, 0),
    ("tcp", 2, 1 | 0o2004000, 6), ("udp", 2, 2 | 0o2000000, 17), ("udp6", 10, 2, 0), ("tcp6", 10, 1, 6),
    ("sctp", 2, 1, 132), ("seqpacket", 2, 5, 0), ("udplite", 2, 2, 136), ("l2tp", 2, 2, 115), ("mptcp6", 10, 1, 262), ("raw", 2, 3, 0)):
    ctypes.set_errno(0)
    result = libc.socket(family, kind, protocol)
    print("socket", name, "worked" if result >= 0 else errno.errorcode[ctypes.get_errno()])
"#;

async fn calls_that_are_not_listed_do_not_work(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    the_list_holds(&living).await;
    living.destroy().await;
}

/// Each call that is not listed is refused in a sandbox.
pub(crate) async fn the_list_holds(living: &Living) {
    for uid in [USER, ROOT] {
        let said = living.python(uid, SCRIPT).await;
        let mut seen = 0;
        for line in said.lines() {
            let (name, outcome) = line.rsplit_once(' ').unwrap();
            let expected = match name {
                "clone3" | "io_uring_setup" | "io_uring_enter" => "ENOSYS",
                "getpid" | "socket unix" | "socket inet" | "socket inet6" | "socket route" | "socket tcp"
                | "socket tcp6" | "socket udp" | "socket udp6" => "worked",
                // Known, and told nonsense.
                "seccomp" => "EINVAL",
                _ => "EPERM",
            };
            assert_eq!(outcome, expected, "{name} as {uid}");
            seen += 1;
        }
        assert_eq!(seen, 69, "{said}");
    }
}

async fn ordinary_programs_work(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    let threads = "import threading; t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()";
    assert_eq!(living.python(USER, threads).await, "thread");
    living.run(USER, "cd /tmp && git init -q x && cd x && echo a > a && git add a && git -c user.name=a -c user.email=a commit -qm a").await;
    assert_eq!(living.run(USER, "seq 1000 | sort -rn | head -1").await, "1000");
    living.destroy().await;
}
