//! Nothing leaves: every address leads to the runtime's ports, or nowhere.

use containers::DiskChoice;

use crate::world::{By, ROOT, USER, World};

on_each!(
    threat_014_nothing_but_tcp_and_questions_goes_anywhere,
    the_user_s_own_servers_are_untouched,
);
on_each!(
    by_docker_in_volume,
    DockerInVolume: threat_014_nothing_but_tcp_and_questions_goes_anywhere,
    the_user_s_own_servers_are_untouched
);

async fn threat_014_nothing_but_tcp_and_questions_goes_anywhere(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    let interfaces = living
        .run(USER, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
        .await;
    assert_eq!(interfaces, "lo");
    let script = r#"
import errno, socket
def attempt(name, act):
    try:
        act()
        print(name, "worked")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
def datagram(family, address, port):
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.settimeout(20)
        sender.connect((address, port))
        sender.send(b"x" * 1000)
        sender.recv(10)
attempt("quic", lambda: datagram(socket.AF_INET, "203.0.113.9", 443))
attempt("quic6", lambda: datagram(socket.AF_INET6, "2001:db8::9", 443))
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
own.bind(("0.0.0.0", 4433))
attempt("own", lambda: datagram(socket.AF_INET, "203.0.113.9", 4433))
attempt("ntp", lambda: datagram(socket.AF_INET, "203.0.113.9", 123))
attempt("ping", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("raw6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
"#;
    for uid in [USER, ROOT] {
        let said = living.python(uid, script).await;
        let refused = |name: &str, by: &[&str]| {
            let found = said.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            assert!(
                found.is_some_and(|found| by.contains(&found)),
                "{name} as {uid}:\n{said}"
            );
        };
        // Not even where somebody inside listens on that port.
        for name in ["quic", "quic6", "ntp", "own"] {
            refused(name, &["ECONNREFUSED"]);
        }
        for name in ["raw", "raw6", "packet", "vsock"] {
            refused(name, &["EPERM"]);
        }
        refused("ping", &["EPERM", "EACCES"]);
    }
    for change in [
        "ip link add dummy0 type dummy",
        "ip route del local default table local",
        "ip link set lo down",
        "ip address add 192.0.2.1/32 dev lo",
    ] {
        let (said, code) = living.attempt(ROOT, &format!("{change} 2>&1")).await;
        assert!(code != 0 && said.contains("not permitted"), "{change}: {said}");
    }
    living.destroy().await;
}

async fn the_user_s_own_servers_are_untouched(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    let script = r#"
import socket
for family, bound, dialled in ((socket.AF_INET, "0.0.0.0", "127.0.0.1"), (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
                               (socket.AF_INET, "127.3.2.1", "127.3.2.1"), (socket.AF_INET6, "::", "::1")):
    for port in (80, 5432, 65535):
        with socket.socket(family, socket.SOCK_STREAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((bound, port))
            server.listen()
            with socket.create_connection((dialled, port), timeout=30) as client:
                accepted, _ = server.accept()
                accepted.sendall(b"mine")
                assert client.recv(10) == b"mine"
    with socket.socket(family, socket.SOCK_DGRAM) as server, socket.socket(family, socket.SOCK_DGRAM) as client:
        server.bind((bound, 53))
        client.connect((dialled, 53))
        client.send(b"mine")
        server.settimeout(30)
        assert server.recv(10) == b"mine"
print("all mine")
"#;
    assert_eq!(living.python(USER, script).await, "all mine");
    living.destroy().await;
}
