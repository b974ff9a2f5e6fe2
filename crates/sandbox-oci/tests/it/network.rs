//! Nothing leaves: every address leads to the runtime's ports, or nowhere.

use sandbox_oci::DiskChoice;

use crate::world::{ROOT, USER, World};

/// Stands where the runtime will, and answers whoever is captured with where they wanted to go.
const CAPTURE: &str = r#"
import socket, struct, threading, time
def serve(family, address):
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, 1))
    server.listen()
    while True:
        connection, _ = server.accept()
        if family == socket.AF_INET:
            raw = connection.getsockopt(socket.SOL_IP, 80, 16)
            text = "%s %d" % (socket.inet_ntop(family, raw[4:8]), struct.unpack("!H", raw[2:4])[0])
        else:
            raw = connection.getsockopt(socket.IPPROTO_IPV6, 80, 28)
            text = "%s %d" % (socket.inet_ntop(family, raw[8:24]), struct.unpack("!H", raw[2:4])[0])
        connection.sendall(text.encode())
        connection.close()
def answer(family, address):
    server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind((address, 53))
    while True:
        question, peer = server.recvfrom(100)
        server.sendto(b"answer to " + question, peer)
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    threading.Thread(target=serve, args=(family, address), daemon=True).start()
for family, address in ((socket.AF_INET, "198.18.0.1"), (socket.AF_INET6, "fdbe:11a6:a12::1")):
    threading.Thread(target=answer, args=(family, address), daemon=True).start()
time.sleep(600)
"#;

const CALLER: &str = r#"
import socket, time
def dial(address, port):
    for _ in range(2000):
        try:
            with socket.create_connection((address, port), timeout=30) as connection:
                return connection.recv(100).decode()
        except ConnectionRefusedError:
            time.sleep(0.01)
def ask(family, address):
    for _ in range(2000):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as asking:
                asking.settimeout(30)
                asking.connect((address, 53))
                asking.send(b"x")
                return asking.recv(100).decode()
        except ConnectionRefusedError:
            time.sleep(0.01)
for address, port in (("203.0.113.9", 22), ("198.51.100.7", 5432), ("10.0.0.1", 65535), ("169.254.169.254", 80),
                      ("8.8.8.8", 53), ("198.18.0.1", 443), ("2001:db8::9", 22), ("fd00:ec2::254", 80), ("2001:db8::9", 65535)):
    print(dial(address, port))
for family, address in ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET, "198.18.0.1"), (socket.AF_INET6, "2001:4860:4860::8888")):
    print(address, ask(family, address))
"#;

#[tokio::test]
async fn every_port_of_every_address_is_captured() {
    let world = World::new(DiskChoice::Auto);
    let living = world.create().await;
    let code = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, CAPTURE);
    living
        .run(
            ROOT,
            &format!("echo {code} | base64 -d > /tmp/capture.py; python3 /tmp/capture.py > /tmp/log 2>&1 & true"),
        )
        .await;
    let seen = living.python(USER, CALLER).await;
    let expected = "\
        203.0.113.9 22\n198.51.100.7 5432\n10.0.0.1 65535\n169.254.169.254 80\n8.8.8.8 53\n198.18.0.1 443\n\
        2001:db8::9 22\nfd00:ec2::254 80\n2001:db8::9 65535\n\
        8.8.8.8 answer to x\n198.18.0.1 answer to x\n2001:4860:4860::8888 answer to x";
    assert_eq!(seen, expected);
    living.destroy().await;
}

#[tokio::test]
async fn threat_014_nothing_but_tcp_and_questions_goes_anywhere() {
    let world = World::new(DiskChoice::Auto);
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

#[tokio::test]
async fn the_user_s_own_servers_are_untouched() {
    let world = World::new(DiskChoice::Auto);
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
