//! What the sandbox's user must not reach: PID 1, its memory, its token, its link.

use crate::handler::TOKEN;
use crate::jail::Jail;

#[tokio::test]
async fn threat_065_the_user_can_neither_look_into_pid_1_nor_signal_it_nor_use_its_link() {
    let jail = Jail::claimed().await;
    jail.hands();
    let script = r"
import ctypes, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, what):
    try:
        what()
        print('POSSIBLE:', name)
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        pass
def trace(pid):
    if libc.ptrace(16, pid, 0, 0) != 0:
        raise PermissionError
def read_memory(pid):
    class Piece(ctypes.Structure):
        _fields_ = [('at', ctypes.c_void_p), ('length', ctypes.c_size_t)]
    mine = ctypes.create_string_buffer(16)
    local, remote = Piece(ctypes.addressof(mine), 16), Piece(0x400000, 16)
    if libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) < 0:
        raise PermissionError
hands = [int(p) for p in os.listdir('/proc') if p.isdigit() and open(f'/proc/{p}/cmdline', 'rb').read().split(b'\0')[1:2] == [b'hands']]
assert len(hands) <= 1, hands
for pid in [1, *hands]:
    for name in ('environ', 'mem', 'maps', 'stack', 'auxv', 'io', 'syscall'):
        attempt(f'{pid} {name}', lambda: open(f'/proc/{pid}/{name}', 'rb').read(1))
    for name in ('fd', 'fdinfo', 'map_files', 'task/1/fd'):
        attempt(f'{pid} {name}', lambda: os.listdir(f'/proc/{pid}/{name}'))
    for name in ('exe', 'cwd', 'root', 'fd/3', 'ns/mnt'):
        attempt(f'{pid} {name}', lambda: os.readlink(f'/proc/{pid}/{name}'))
    attempt(f'{pid} ptrace', lambda: trace(pid))
    attempt(f'{pid} process_vm_readv', lambda: read_memory(pid))
for number in (0, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
    attempt(f'signal {number}', lambda: os.kill(1, number))
attempt('link directory', lambda: os.listdir('/run/belljar'))
attempt('link socket', lambda: socket.socket(socket.AF_UNIX).connect('/run/belljar/link.sock'))
print('done')
";
    assert_eq!(jail.python(script).await, "done\n");
}

#[tokio::test]
async fn threat_065_the_token_stands_in_no_environment_and_no_command_line() {
    let jail = Jail::claimed().await;
    jail.hands();
    for (pid, line) in jail.processes() {
        assert!(!line.contains(TOKEN), "{line}");
        for file in ["environ", "cmdline", "comm", "status"] {
            let content = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(
                !content.windows(TOKEN.len()).any(|piece| piece == TOKEN.as_bytes()),
                "{pid} {file}"
            );
        }
    }
}

#[tokio::test]
async fn the_hands_are_another_user_without_any_capability() {
    let jail = Jail::claimed().await;
    let hands = jail.hands();
    let field = |pid: i32, name: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(field(hands, "Uid"), "1000 1000 1000 1000");
    assert_eq!(field(hands, "Gid"), "1000 1000 1000 1000");
    assert_eq!(field(hands, "Groups"), "");
    for set in ["CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(hands, set), "0000000000000000", "{set}");
    }
    assert_eq!(field(hands, "NoNewPrivs"), "1");
    let adjustment = |pid: i32| -> i32 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse().unwrap()
    };
    assert!(
        adjustment(hands) > adjustment(jail.pid),
        "PID 1 would die before the hands"
    );
    let session = std::fs::read_to_string(format!("/proc/{hands}/stat")).unwrap();
    assert_ne!(
        session.split_whitespace().nth(5),
        Some("0"),
        "the hands lead no session of their own: {session}"
    );
}

#[tokio::test]
async fn threat_018_nobody_inside_keeps_the_right_by_which_the_network_was_led() {
    let jail = Jail::claimed().await;
    let hands = jail.hands();
    for pid in [jail.pid, hands] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        // KILL, SETGID and SETUID are bits 5, 6 and 7: not NET_ADMIN, which the jail gave at first, nor what was needed to drop it.
        assert!(status.contains("CapBnd:\t00000000000000e0"), "{pid}: {status}");
        for set in ["CapInh", "CapAmb"] {
            assert!(status.contains(&format!("{set}:\t0000000000000000")), "{pid}: {status}");
        }
    }
    let script = r"
import socket
for protocol in (12, 0):
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
            print('open')
    except PermissionError:
        print('refused')
";
    // Whoever comes in from outside, as this does, is not bound by what PID 1 gave up; its children are.
    let inside = jail.call("exec", serde_json::json!({ "code": format!(
        "const {{ spawnSync }} = await import('node:child_process'); return spawnSync('python3', ['-c', {script:?}]).stdout.toString()"
    ) })).await;
    let said = crate::jail::words(&inside);
    assert!(said.contains("refused") && said.contains("open"), "{said}");
}

#[tokio::test]
async fn a_network_that_cannot_be_led_is_no_sandbox() {
    let mut command = std::process::Command::new("unshare");
    // The right to lead it, and none to give that up.
    let jail = "bwrap --die-with-parent --unshare-pid --unshare-net --as-pid-1 --cap-drop ALL --cap-add CAP_NET_ADMIN \
                --ro-bind / / --proc /proc \"$0\" pid1";
    let output = command
        .args(["--mount", "sh", "-c", jail, env!("CARGO_BIN_EXE_belljar-runtime")])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("it cannot be sealed") && said.contains("cannot be given up"),
        "{said}"
    );
}

#[tokio::test]
async fn without_the_list_of_system_calls_that_it_was_promised_it_does_not_begin() {
    let jail = "bwrap --die-with-parent --unshare-pid --as-pid-1 --ro-bind / / --proc /proc \"$0\" pid1 listed";
    let output = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", jail, env!("CARGO_BIN_EXE_belljar-runtime")])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(sandbox::inside::UNLISTED.into()));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the list of system calls was left out"), "{said}");
}

#[tokio::test]
async fn started_by_anybody_it_refuses() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_belljar-runtime"))
        .arg("pid1")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("runs only as the first process of a sandbox"), "{said}");
}
