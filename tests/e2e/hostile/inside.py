"""Tries to find a secret within the sandbox: files, processes, the kernel, devices, sockets, and everything that leads out of it.

Nothing here does harm where it succeeds: what would change the machine is opened for writing and never written.
"""

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

from common import REPORT, TOLD, attempt, keep, look, play, read

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

ARM = os.uname().machine == "aarch64"


def call(number, *arguments):
    """A system call by its number; its result, or the error's name."""
    ctypes.set_errno(0)
    converted = [argument if not isinstance(argument, int) else ctypes.c_long(argument) for argument in arguments]
    result = libc.syscall(ctypes.c_long(number), *converted)
    if result < 0:
        return errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))
    return result


# Numbers of x86_64, and of arm64 where they differ.
NUMBERS = {
    name: arm if ARM else intel
    for name, intel, arm in [
        ("ptrace", 101, 117),
        ("process_vm_readv", 310, 270),
        ("process_vm_writev", 311, 271),
        ("kcmp", 312, 272),
        ("pidfd_open", 434, 434),
        ("pidfd_getfd", 438, 438),
        ("userfaultfd", 323, 282),
        ("perf_event_open", 298, 241),
        ("io_uring_setup", 425, 425),
        ("bpf", 321, 280),
        ("add_key", 248, 217),
        ("request_key", 249, 218),
        ("keyctl", 250, 219),
        ("mount", 165, 40),
        ("umount2", 166, 39),
        ("pivot_root", 155, 41),
        ("chroot", 161, 51),
        ("setns", 308, 268),
        ("unshare", 272, 97),
        ("fsopen", 430, 430),
        ("open_tree", 428, 428),
        ("move_mount", 429, 429),
        ("mount_setattr", 442, 442),
        ("open_by_handle_at", 304, 265),
        ("name_to_handle_at", 303, 264),
        ("init_module", 175, 105),
        ("finit_module", 313, 273),
        ("kexec_load", 246, 104),
        ("syslog", 103, 116),
        ("fanotify_init", 300, 262),
        ("quotactl", 179, 60),
        ("swapon", 167, 224),
        ("acct", 163, 89),
        ("memfd_secret", 447, 447),
        ("process_madvise", 440, 440),
        ("setuid", 105, 146),
        ("setgid", 106, 144),
        ("setfsuid", 122, 151),
        ("sethostname", 170, 161),
        ("personality", 135, 92),
        ("lsm_set_self_attr", 460, 460),
        ("listmount", 458, 458),
        ("statmount", 457, 457),
        ("process_mrelease", 448, 448),
        ("clone", 56, 220),
    ]
}

NAMESPACES = {
    "user": 0x10000000,
    "mount": 0x20000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x8000000,
    "uts": 0x4000000,
    "cgroup": 0x2000000,
    "time": 0x80,
}


def processes():
    """Every process there may be, also those that do not show."""
    shown = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return sorted(set(shown) | set(range(1, 65)))


# --- Files -----------------------------------------------------------------------------------------------------------


def every_file():
    """Reads every file that there is, but the report."""
    count = total = 0
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) != REPORT]
        if folder.startswith("/proc/") and folder.count("/") > 4:
            folders[:] = []
        for name in files:
            path = os.path.join(folder, name)
            try:
                kind = os.lstat(path).st_mode
                if not stat.S_ISREG(kind):
                    keep("special-files", f"{path} {oct(kind)}")
                    if stat.S_ISSOCK(kind):
                        attempt(f"connect {path}", speak_to, path)
                    continue
                data = read(path)
            except OSError:
                continue
            count, total = count + 1, total + len(data)
            of_kernel = path.startswith(("/proc/", "/sys/"))
            look("files", f"{path}: ".encode() + data, 300 if of_kernel else 0)
    return f"{count} files, {total} bytes"


def speak_to(path):
    """What a socket says to whoever calls, and to a request."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(2)
        caller.connect(path)
        caller.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return caller.recv(65_536)


def places_of_the_host():
    """Paths of the machine, should any of them lead anywhere: as they are, and through the roots of processes."""
    for path in TOLD["paths"]:
        for before in ["", "/proc/1/root", "/proc/self/root", "/proc/1/cwd/..", "/proc/self/cwd/../../../../../.."]:
            attempt(f"host {before}{path}", read, before + path)
        attempt(f"host beside {path}", lambda path=path: os.listdir(os.path.dirname(path)))


def mounts():
    """Every place that a mount names: its source, the layers of the overlay, and what they lie beneath."""
    table = read("/proc/self/mountinfo").decode()
    keep("mountinfo", table)
    for word in set(table.replace(",", " ").replace("=", " ").replace(":", " ").split()):
        if word.startswith("/"):
            attempt(f"mount {word}", lambda word=word: " ".join(os.listdir(word)[:50]))
            attempt(f"beneath {word}", lambda word=word: " ".join(os.listdir(word + "/../..")[:50]))
    buffer = ctypes.create_string_buffer(65_536)
    for name in ["listmount", "statmount"]:
        asked = struct.pack("=IIQQQ", 32, 0, 0xFFFFFFFFFFFFFFFF, 0, 0)
        keep("mounts", f"{name}: {call(NUMBERS[name], asked, buffer, 65_536, 0)} {buffer.raw[:200]!r}")


def links_and_handles():
    """Hard links to what is not ours, files by their handles, files that were removed and are still open."""
    os.makedirs("tricks", exist_ok=True)
    for target in ["/run/belljar-runtime", "/etc/shadow", "/proc/1/environ", "/run/belljar/link.sock"]:
        attempt(f"hard link {target}", os.link, target, f"tricks/hard-{abs(hash(target))}")
        attempt(f"by handle {target}", by_handle, target)
    for pid in processes():
        for name in ["fd", "map_files"]:
            folder = f"/proc/{pid}/{name}"
            try:
                entries = os.listdir(folder)
            except OSError:
                continue
            if pid == os.getpid():
                continue
            for entry in entries:
                attempt(f"{folder}/{entry}", read_once, f"{folder}/{entry}")


def read_once(path):
    if stat.S_ISREG(os.stat(path).st_mode):
        return read(path)
    return os.readlink(path)


def by_handle(target):
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + b"\0" * 128)
    mount = ctypes.c_int()
    given = call(NUMBERS["name_to_handle_at"], -100, target.encode(), handle, ctypes.addressof(mount), 0)
    folder = os.open("/", os.O_RDONLY)
    outcomes = [f"named: {given}"]
    # Inode 2 is the root of the file system that a layer lies on.
    for inode in [2, 128, 256]:
        forged = struct.pack("=IiII", 8, 1, inode, 0)
        opened = call(NUMBERS["open_by_handle_at"], folder, forged, os.O_RDONLY)
        outcomes.append(f"{inode}: {opened}")
        if isinstance(opened, int):
            keep("found-by-handle", " ".join(os.listdir(opened)))
            os.close(opened)
    os.close(folder)
    return ", ".join(outcomes)


def tricks_for_those_who_fetch():
    """Things in the workspace that lead elsewhere for whoever copies them out or writes over them."""
    os.makedirs("tricks", exist_ok=True)
    targets = [
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/self/mem",
        "/run/belljar",
        "/run/belljar/link.sock",
        "/etc/shadow",
    ]
    for number, target in enumerate(targets + TOLD["paths"]):
        place = f"tricks/link-{number}"
        if not os.path.islink(place):
            os.symlink(target, place)
    for place, make in [("tricks/pipe", os.mkfifo), ("tricks/folder", lambda place: os.symlink("/run/belljar", place))]:
        if not os.path.lexists(place):
            attempt(f"make {place}", make, place)
    return " ".join(os.listdir("tricks"))


# --- Processes -------------------------------------------------------------------------------------------------------


def all_processes():
    """What /proc tells of every process, and what its memory holds."""
    files = [
        "environ",
        "cmdline",
        "maps",
        "smaps",
        "auxv",
        "stack",
        "syscall",
        "status",
        "wchan",
        "io",
        "limits",
        "timers",
    ]
    for pid in processes():
        for name in files:
            try:
                look(f"proc-{pid}", f"{name}: ".encode() + read(f"/proc/{pid}/{name}"), 2_000)
            except OSError as problem:
                keep(f"proc-{pid}", f"{name}: {problem.strerror}")
        if pid != os.getpid():
            attempt(f"memory of {pid}", memory, pid)
            attempt(f"remote read of {pid}", remote_read, pid)
            attempt(f"ptrace of {pid}", ptrace, pid)
            attempt(f"descriptors of {pid}", stolen_descriptors, pid)
            keep("outcomes", f"kcmp with {pid}: {call(NUMBERS['kcmp'], pid, os.getpid(), 0, 0, 0)}")
        for name in NAMESPACES:
            attempt(f"namespace {name} of {pid}", join, pid, name)


def ranges(pid):
    for line in read(f"/proc/{pid}/maps").decode().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if (
            line.split()[1].startswith("r")
            and end - begin < 64 << 20
            and "[vvar" not in line
            and "[vsyscall" not in line
        ):
            yield begin, end


def memory(pid):
    count = 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for begin, end in ranges(pid):
            try:
                file.seek(begin)
                data = file.read(end - begin)
            except (OSError, ValueError, OverflowError):
                continue
            count += len(data)
            look(f"memory-{pid}", data, 0)
    return f"{count} bytes were read"


def remote_read(pid):
    class Piece(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    buffer = ctypes.create_string_buffer(1 << 16)
    near = Piece(ctypes.addressof(buffer), len(buffer))
    # Where a program without randomisation begins, should the list of its places be hidden.
    for begin in [0x400000, 0x10000, 0x7FFFF7000000, 0x555555554000]:
        far = Piece(begin, len(buffer))
        got = call(NUMBERS["process_vm_readv"], pid, ctypes.addressof(near), 1, ctypes.addressof(far), 1, 0)
        if isinstance(got, int):
            look(f"memory-{pid}", buffer.raw[:got])
        elif got in ("EPERM", "ENOSYS", "EACCES"):
            return got
    return "tried"


def ptrace(pid):
    attached = call(NUMBERS["ptrace"], 16, pid, 0, 0)
    if attached == 0:
        keep("found-ptrace", f"attached to {pid}")
        call(NUMBERS["ptrace"], 17, pid, 0, 0)
    seized = call(NUMBERS["ptrace"], 0x4206, pid, 0, 0)
    return f"attach: {attached}, seize: {seized}"


def stolen_descriptors(pid):
    handle = call(NUMBERS["pidfd_open"], pid, 0)
    if not isinstance(handle, int):
        return handle
    taken = []
    for number in range(32):
        descriptor = call(NUMBERS["pidfd_getfd"], handle, number, 0)
        if isinstance(descriptor, int):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            keep("found-descriptor", f"{pid} {number} {name}")
            os.close(descriptor)
        taken.append(str(descriptor))
    os.close(handle)
    return " ".join(sorted(set(taken)))


def join(pid, name):
    descriptor = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
    try:
        return call(NUMBERS["setns"], descriptor, NAMESPACES[name])
    finally:
        os.close(descriptor)


def core_dumps():
    """A crash may leave memory behind; the pattern may run a program of the machine."""
    attempt("raise the limit of dumps", resource.setrlimit, resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    _, status = os.waitpid(child, 0)
    dumps = [name for name in os.listdir(".") if name.startswith("core")]
    for name in dumps:
        look("core", read(name), 0)
    return f"status {status}, dumps {dumps}, pattern {read('/proc/sys/kernel/core_pattern')!r}"


def become_another():
    """Root inside would see the runtime: by ids, by programs with a bit, by words that start programs."""
    for number in [0, 1, 65534]:
        keep(
            "outcomes", f"setuid {number}: {call(NUMBERS['setuid'], number)}, setgid: {call(NUMBERS['setgid'], number)}"
        )
    for words in [
        ["su", "-c", "cat /proc/1/environ"],
        ["sudo", "-n", "cat", "/proc/1/environ"],
        ["setpriv", "--reuid=0", "id"],
        ["newgrp", "root"],
        ["unshare", "-Ur", "cat", "/proc/1/environ"],
        ["unshare", "-Urpmf", "--mount-proc", "ps"],
        ["nsenter", "-t", "1", "-a", "env"],
        ["chroot", "/proc/1/root", "env"],
        ["mount", "-t", "proc", "proc", "/tmp"],
        ["ip", "link", "add", "dummy0", "type", "dummy"],
        ["nft", "list", "ruleset"],
        ["mount", "--bind", "/run", "/tmp"],
    ]:
        attempt(" ".join(words), program, words)


def program(words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    return done.stdout + done.stderr


# --- The kernel ------------------------------------------------------------------------------------------------------


def system_calls():
    """System calls that lead to other people's memory, to new namespaces, to mounts, to the kernel itself."""
    null, page = 0, ctypes.create_string_buffer(4_096)
    for name, arguments in [
        ("userfaultfd", (0o2000000,)),
        ("userfaultfd", (1,)),
        ("io_uring_setup", (8, page)),
        ("bpf", (0, page, 48)),
        ("bpf", (5, page, 48)),
        ("perf_event_open", (page, 0, -1, -1, 0)),
        ("perf_event_open", (page, 1, -1, -1, 0)),
        ("mount", (b"none", b"/tmp", b"tmpfs", 0, null)),
        ("mount", (b"/", b"/tmp", null, 4096, null)),
        ("umount2", (b"/run/belljar", 2)),
        ("umount2", (b"/proc", 2)),
        ("pivot_root", (b".", b".")),
        ("chroot", (b"/proc/1/root",)),
        ("fsopen", (b"ext4", 0)),
        ("fsopen", (b"proc", 0)),
        ("open_tree", (-100, b"/", 1)),
        ("move_mount", (-100, b"/", -100, b"/tmp", 0)),
        ("mount_setattr", (-100, b"/run/belljar", 0, page, 32)),
        ("init_module", (page, 1, b"")),
        ("finit_module", (-1, b"", 0)),
        ("kexec_load", (0, 0, null, 0xFF)),
        ("syslog", (3, page, 4_096)),
        ("syslog", (2, page, 0)),
        ("fanotify_init", (0, 0)),
        ("quotactl", (0, null, 0, null)),
        ("swapon", (b"/tmp/no", 0)),
        ("acct", (b"/tmp/no",)),
        ("memfd_secret", (0,)),
        ("setfsuid", (0,)),
        ("sethostname", (b"x", 1)),
        ("lsm_set_self_attr", (100, page, 32, 0)),
        ("process_vm_writev", (1, null, 0, null, 0, 0)),
        ("process_madvise", (1, null, 0, 20, 0)),
        ("clone", (0x10000000 | 17, 0, 0, 0, 0)),
    ]:
        outcome = call(NUMBERS[name], *arguments)
        if name == "clone" and outcome == 0:
            os._exit(0)
        if name == "syslog" and isinstance(outcome, int):
            look("kernel-log", page.raw)
        keep("outcomes", f"{name}{arguments!r}: {outcome}")
    for name, flag in NAMESPACES.items():
        keep("outcomes", f"unshare {name}: {in_a_child(lambda flag=flag: call(NUMBERS['unshare'], flag))}")
        both = flag | NAMESPACES["user"]
        keep("outcomes", f"unshare {name} with a user: {in_a_child(lambda both=both: call(NUMBERS['unshare'], both))}")


def in_a_child(act):
    """The exit code of a child that did it: 0 where it worked."""
    child = os.fork()
    if child == 0:
        outcome = act()
        os._exit(0 if isinstance(outcome, int) else 1)
    return os.waitpid(child, 0)[1] >> 8


def keyrings():
    """The kernel keeps keys of processes, users and sessions; those of the machine must not show."""
    buffer = ctypes.create_string_buffer(65_536)
    for ring in [-1, -2, -3, -4, -5, -6, -7, -8]:
        serial = call(NUMBERS["keyctl"], 0, ring, 0)
        for operation in [6, 11]:
            length = call(
                NUMBERS["keyctl"], operation, serial if isinstance(serial, int) else ring, buffer, len(buffer)
            )
            if isinstance(length, int):
                look("keyrings", buffer.raw[: min(length, len(buffer))])
    for serial in range(1, 200):
        length = call(NUMBERS["keyctl"], 11, serial, buffer, len(buffer))
        if isinstance(length, int):
            look("keyrings", buffer.raw[: min(length, len(buffer))])
    for path in ["/proc/keys", "/proc/key-users"]:
        attempt(path, read, path)
    added = call(NUMBERS["add_key"], b"user", b"x", b"y", 1, -3)
    asked = call(NUMBERS["request_key"], b"user", b"x", b"", -3)
    return f"add: {added}, request: {asked}"


def devices():
    """The machine's disks, memory and consoles, as they are called or made anew."""
    names = [
        "mem",
        "kmem",
        "port",
        "kmsg",
        "sda",
        "sda1",
        "vda",
        "vda1",
        "nvme0n1",
        "loop0",
        "loop1",
        "loop-control",
        "dm-0",
        "btrfs-control",
        "fuse",
        "kvm",
        "vsock",
        "vhost-vsock",
        "net/tun",
        "mapper/control",
        "console",
        "tty",
        "tty0",
        "tty1",
        "ttyS0",
        "hvc0",
        "input/event0",
        "snapshot",
        "userfaultfd",
        "autofs",
        "cuse",
        "rtc0",
        "watchdog",
    ]
    for name in names:
        attempt(f"device {name}", lambda name=name: read(f"/dev/{name}", 4_096))
    for number, (kind, major, minor) in enumerate(
        [
            ("b", 8, 0),
            ("b", 254, 0),
            ("b", 252, 0),
            ("b", 7, 0),
            ("b", 7, 1),
            ("b", 259, 0),
            ("c", 1, 1),
            ("c", 1, 2),
            ("c", 1, 11),
            ("c", 10, 200),
        ]
    ):
        for folder in ["/tmp", "/workspace", "/dev", "/dev/shm"]:
            place = f"{folder}/node-{number}"
            mode = (stat.S_IFBLK if kind == "b" else stat.S_IFCHR) | 0o666
            attempt(
                f"make {kind} {major}:{minor} in {folder}",
                lambda place=place, mode=mode, id=(major, minor): (
                    os.mknod(place, mode, os.makedev(*id)),
                    read(place, 4_096),
                )[1],
            )
    for descriptor in [0, 1, 2]:
        for byte in b"x\n":
            attempt("push into a terminal", fcntl.ioctl, descriptor, 0x5412, bytes([byte]))


def switches_of_the_kernel():
    """Files whose writing changes the machine: they are opened for writing, and nothing is written."""
    for path in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hotplug",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sysrq-trigger",
        "/proc/self/oom_score_adj",
        "/proc/1/oom_score_adj",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/net/ipv4/ip_unprivileged_port_start",
        "/proc/self/uid_map",
        "/proc/1/uid_map",
        "/proc/self/setgroups",
        "/proc/1/attr/current",
        "/sys/kernel/uevent_helper",
        "/sys/power/state",
        "/sys/kernel/debug",
        "/sys/kernel/tracing/trace",
        "/sys/kernel/security",
        "/sys/firmware/efi/efivars",
        "/proc/kcore",
        "/proc/kallsyms",
        "/proc/kpagecount",
        "/proc/1/mem",
        "/proc/1/root/etc/passwd",
        "/run/belljar-runtime",
        "/run/belljar",
        "/run/belljar/link.sock",
        "/run/belljar-trust",
        "/etc/resolv.conf",
        "/etc/passwd",
    ]:
        attempt(f"write {path}", lambda path=path: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)))
        attempt(f"read {path}", lambda path=path: read(path, 65_536))
    for folder, folders, files in os.walk("/sys/fs/cgroup"):
        for name in files:
            place = os.path.join(folder, name)
            if name in (
                "release_agent",
                "notify_on_release",
                "cgroup.procs",
                "tasks",
                "memory.max",
                "memory.limit_in_bytes",
                "devices.allow",
                "pids.max",
                "cgroup.kill",
                "cgroup.freeze",
            ):
                attempt(f"write {place}", lambda place=place: os.close(os.open(place, os.O_WRONLY)))
        attempt(f"group in {folder}", os.mkdir, os.path.join(folder, "mine"))


# --- Sockets ---------------------------------------------------------------------------------------------------------


def sockets():
    """Families of sockets that see other people's packets or speak to the machine."""
    kinds = {
        "AF_PACKET": 17,
        "AF_NETLINK": 16,
        "AF_VSOCK": 40,
        "AF_ALG": 38,
        "AF_XDP": 44,
        "AF_KEY": 15,
        "AF_BLUETOOTH": 31,
        "AF_TIPC": 30,
        "AF_SMC": 43,
    }
    for name, family in kinds.items():
        for kind in [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET]:
            for protocol in range(0, 22) if name == "AF_NETLINK" else [0, 3]:
                attempt(f"{name} {kind} {protocol}", make_and_listen, family, kind, protocol)
    for protocol in [socket.IPPROTO_ICMP, socket.IPPROTO_RAW, socket.IPPROTO_TCP]:
        attempt(f"raw {protocol}", make_and_listen, socket.AF_INET, socket.SOCK_RAW, protocol)
    attempt("ping", make_and_listen, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    for cid in [0, 1, 2, 3]:
        for port in [1, 22, 80, 1024, 9000, 52, 5000]:
            attempt(f"vsock {cid}:{port}", vsock, cid, port)


def make_and_listen(family, kind, protocol):
    with socket.socket(family, kind, protocol) as made:
        made.settimeout(0.05)
        if family == 16:
            made.bind((0, 0))
            made.send(struct.pack("=IHHIIB3x", 20, 18, 0x301, 1, 0, 0))
        return made.recv(65_536)


def vsock(cid, port):
    with socket.socket(40, socket.SOCK_STREAM) as caller:
        caller.settimeout(0.5)
        caller.connect((cid, port))
        return caller.recv(4_096)


def abstract_sockets():
    """Names that belong to no file: those that show, and those of the machine that were told."""
    table = read("/proc/net/unix").decode(errors="replace")
    keep("unix-sockets", table)
    names = {line.split()[-1][1:] for line in table.splitlines() if line.split()[-1].startswith("@")}
    for name in sorted(names | {TOLD["abstract"], "/org/freedesktop/systemd1/notify", "belljar", "containerd"}):
        attempt(f"abstract {name}", speak_to, "\0" + name)


def the_link():
    """The way to the control plane itself."""
    for path in ["/run/belljar/link.sock", "/run/belljar", "/run/belljar/../belljar/link.sock"]:
        attempt(f"speak to {path}", speak_to, path)
        attempt(f"list {path}", os.listdir, path)
        attempt(f"move {path}", os.rename, path, "/tmp/away")
        attempt(f"remove {path}", os.unlink, path)
        attempt(f"mode of {path}", os.chmod, path, 0o777)
    attempt("replace the folder", os.symlink, "/tmp", "/run/belljar/mine")
    attempt("a socket in its place", lambda: socket.socket(socket.AF_UNIX).bind("/run/belljar-services.sock"))


def signals():
    """To the runtime, which must not feel it."""
    for number in [
        0,
        signal.SIGHUP,
        signal.SIGTERM,
        signal.SIGSTOP,
        signal.SIGSEGV,
        signal.SIGQUIT,
        signal.SIGABRT,
        signal.SIGKILL,
    ]:
        attempt(f"signal {number}", os.kill, 1, number)


# --- At random -------------------------------------------------------------------------------------------------------


def somebodys_file(dice):
    pid = dice.choice(processes())
    name = dice.choice(
        [
            "environ",
            "mem",
            "maps",
            "fd/3",
            "fd/7",
            "root/proc/1/environ",
            "cwd/../proc/1/environ",
            "task/1/environ",
            "exe",
            "clear_refs",
            "pagemap",
            "fdinfo/3",
            "net/unix",
            "ns/mnt",
            "attr/prev",
            "personality",
            "stack",
            "timerslack_ns",
        ]
    )
    return read(f"/proc/{pid}/{name}", 65_536)


def somebodys_memory(dice):
    pid = dice.choice(processes())
    if pid == os.getpid():
        return "oneself"
    return dice.choice([memory, remote_read, ptrace, stolen_descriptors])(pid)


def a_new_process_at_its_birth(dice):
    """Whoever is quick may see a process before it has become somebody else."""
    end = time.monotonic() + 0.3
    seen = set(processes())
    while time.monotonic() < end:
        newest = dice.randrange(1, 400)
        if newest not in seen and os.path.exists(f"/proc/{newest}"):
            for name in ["environ", "maps", "cmdline"]:
                attempt(f"newborn {name}", read, f"/proc/{newest}/{name}")


def a_crooked_path(dice):
    parts = [
        "..",
        ".",
        "proc",
        "self",
        "1",
        "root",
        "cwd",
        "run",
        "belljar",
        "link.sock",
        "task",
        "environ",
        "fd",
        "0",
        "3",
        "etc",
        "dev",
        "sys",
        "workspace",
        "tricks",
        "folder",
    ]
    path = "/" + "/".join(dice.choice(parts) for _ in range(dice.randrange(2, 9)))
    if os.path.isdir(path):
        return " ".join(os.listdir(path)[:40])
    return read(path, 65_536) if stat.S_ISREG(os.stat(path).st_mode) else "no file"


def swapped_while_it_is_fetched(dice):
    """A file that is a link at every second look, for whoever copies it out meanwhile."""
    os.makedirs("tricks", exist_ok=True)
    target = dice.choice(["/proc/self/environ", "/proc/1/environ", "/run/belljar/link.sock"] + TOLD["paths"])
    for number in range(40):
        with open("tricks/next", "w") as file:
            file.write("a file")
        os.replace("tricks/next", "tricks/swapped")
        os.symlink(target, "tricks/next")
        os.replace("tricks/next", "tricks/swapped")


def everything_used_up(dice):
    """What is refused must also be refused when nothing is left."""
    what = dice.choice(["descriptors", "processes", "disk", "memory"])
    if what == "descriptors":
        held = []
        try:
            while len(held) < 5_000:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        outcome = attempt("without descriptors", lambda: open("/proc/1/environ").read())
        for descriptor in held:
            os.close(descriptor)
        return outcome
    if what == "processes":
        children = []
        try:
            while len(children) < 60:
                child = os.fork()
                if child == 0:
                    time.sleep(30)
                    os._exit(0)
                children.append(child)
        except OSError:
            pass
        outcome = attempt("without processes", lambda: read("/proc/1/environ"))
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return outcome
    if what == "disk":
        try:
            with open("filler", "wb") as file:
                for _ in range(20):
                    file.write(os.urandom(1 << 20))
        except OSError as problem:
            keep("outcomes", f"full: {problem}")
        outcome = attempt("without room", lambda: read("/proc/1/environ"))
        os.unlink("filler")
        return outcome
    child = os.fork()
    if child == 0:
        pieces = [os.urandom(1 << 20) for _ in range(dice.randrange(20, 120))]
        os._exit(len(pieces) % 2)
    return os.waitpid(child, 0)[1]


def a_forbidden_call(dice):
    name = dice.choice([name for name in NUMBERS if name not in ("clone", "setuid", "setgid")])
    page = ctypes.create_string_buffer(os.urandom(64))
    return in_a_child(
        lambda: call(NUMBERS[name], *[dice.choice([0, 1, -1, 3, 64, page]) for _ in range(dice.randrange(1, 6))])
    )


if __name__ == "__main__":
    play(
        [
            tricks_for_those_who_fetch,
            all_processes,
            mounts,
            places_of_the_host,
            links_and_handles,
            core_dumps,
            become_another,
            system_calls,
            keyrings,
            devices,
            switches_of_the_kernel,
            sockets,
            abstract_sockets,
            the_link,
            signals,
            every_file,
        ],
        [
            somebodys_file,
            somebodys_memory,
            a_new_process_at_its_birth,
            a_crooked_path,
            swapped_while_it_is_fetched,
            everything_used_up,
            a_forbidden_call,
        ],
    )
    sys.stdout.flush()
