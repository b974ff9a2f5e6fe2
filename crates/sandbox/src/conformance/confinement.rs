//! What holds a sandbox in: limits, the link, a network that leads nowhere.

use std::time::Instant;

use super::{Subject, within};
use crate::{Limits, SandboxSpec, SandboxState, SandboxStatus, capture, inside};

/// The processor time that is spent to see that there is little of it, in seconds.
const SPENT: f64 = 0.2;
/// How long a program runs of which the machine counts what it spends, in seconds.
const SPUN: f64 = 2.0;

/// Tells where each connection was bound for, answers questions, and is the one that dials and asks.
const CAPTURED: &str = r#"
import errno, socket, struct, threading
def tell(family, server):
    while True:
        connection, _ = server.accept()
        if family == socket.AF_INET:
            raw = connection.getsockopt(socket.SOL_IP, 80, 16)
            host = raw[4:8]
        else:
            raw = connection.getsockopt(socket.IPPROTO_IPV6, 80, 28)
            host = raw[8:24]
        connection.sendall(b"%s %d" % (socket.inet_ntop(family, host).encode(), struct.unpack("!H", raw[2:4])[0]))
        connection.close()
def answer(server):
    while True:
        question, peer = server.recvfrom(100)
        server.sendto(b"answer to " + question, peer)
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    server = socket.create_server((address, TCP_PORT), family=family)
    threading.Thread(target=tell, args=(family, server), daemon=True).start()
for family, address in ((socket.AF_INET, "DNS_V4"), (socket.AF_INET6, "DNS_V6")):
    server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind((address, DNS_PORT))
    threading.Thread(target=answer, args=(server,), daemon=True).start()
def ask(family, address, port):
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.settimeout(30)
        try:
            asking.connect((address, port))
            asking.send(b"x")
            return asking.recv(100).decode()
        except OSError as error:
            return errno.errorcode.get(error.errno, "no answer")
for address, port in (("203.0.113.9", 22), ("198.51.100.7", 5432), ("10.0.0.1", 65535), ("169.254.169.254", 80),
                      ("8.8.8.8", 53), ("198.18.0.1", 443), ("2001:db8::9", 22), ("fd00:ec2::254", 80), ("2001:db8::9", 65535)):
    with socket.create_connection((address, port), timeout=30) as connection:
        print(connection.recv(100).decode())
for family, address in ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET, "198.18.0.1"), (socket.AF_INET6, "2001:4860:4860::8888")):
    print(address, 53, ask(family, address, 53))
for family, address in ((socket.AF_INET, "203.0.113.9"), (socket.AF_INET6, "2001:db8::9")):
    print(address, 443, ask(family, address, 443))
"#;

/// What it says where every port of every address leads to the runtime, and nothing anywhere else.
const ALL_CAPTURED: &str = "\
203.0.113.9 22
198.51.100.7 5432
10.0.0.1 65535
169.254.169.254 80
8.8.8.8 53
198.18.0.1 443
2001:db8::9 22
fd00:ec2::254 80
2001:db8::9 65535
8.8.8.8 53 answer to x
198.18.0.1 53 answer to x
2001:4860:4860::8888 53 answer to x
203.0.113.9 443 ECONNREFUSED
2001:db8::9 443 ECONNREFUSED";

impl Subject {
    /// One that takes what it can get, and one beside it.
    pub(super) async fn a_sandbox_at_its_limits_harms_itself_alone(&self) {
        let (greedy, neighbour) = (self.spec(), self.spec());
        let (taking, beside) = (self.create(&greedy).await, self.create(&neighbour).await);
        self.memory_ends(&taking).await;
        self.lives(&beside).await;
        match self.disk_limited {
            Ok(()) => self.the_disk_ends(&taking, &beside).await,
            Err(reason) => println!("the limit of a disk is not tried: {reason}"),
        }
        self.processes_end(&taking).await;
        self.lives(&beside).await;
        self.remove(&greedy).await;
        self.remove(&neighbour).await;
        self.the_processor_is_shared_out().await;
    }

    async fn lives(&self, status: &SandboxStatus) {
        assert_eq!(self.state(status.id).await, SandboxState::Running);
        assert_eq!(self.sh(status, "echo lives").await, "lives");
    }

    async fn memory_ends(&self, status: &SandboxStatus) {
        let much = 2 * self.limits.memory_bytes;
        let in_tmp = format!("head -c {much} /dev/zero > /tmp/much && echo taken");
        // Its files in memory are its memory too.
        for take in [
            format!("python3 -c 'x = bytearray({much}); print(\"taken\")'"),
            format!("head -c {much} /dev/zero > /dev/shm/much && echo taken"),
        ]
        .into_iter()
        // It may be on the disk.
        .chain(self.disk_limited.is_ok().then_some(in_tmp))
        {
            let first_to_go = "echo 1000 > /proc/self/oom_score_adj";
            let (said, code) = self.attempt(status, &format!("{first_to_go}; {take}")).await;
            assert!(code != 0 && !said.ends_with("taken"), "{take}\n{said}");
            self.sh(status, "rm -f /dev/shm/much /tmp/much").await;
        }
        self.lives(status).await;
    }

    async fn the_disk_ends(&self, status: &SandboxStatus, neighbour: &SandboxStatus) {
        let mebibytes = (self.limits.disk_bytes >> 20) * 3 / 2;
        let write = |count: u64| format!("dd if=/dev/zero of=much bs=1M count={count} conv=fsync 2>&1");
        let (said, code) = self.attempt(status, &write(mebibytes)).await;
        assert!(
            code != 0 && (said.contains("No space left on device") || said.contains("Disk quota exceeded")),
            "{said}"
        );
        self.sh(neighbour, &write(mebibytes / 4)).await;
        self.sh(status, "rm much && sync && echo room > small && sync").await;
    }

    async fn processes_end(&self, status: &SandboxStatus) {
        let most = self.limits.pids;
        let bomb = format!("for i in $(seq {}); do sleep 600 > /dev/null 2>&1 & done", 2 * most);
        self.attempt(status, &bomb).await;
        let usage = within("usage", self.provider.usage(status.id)).await;
        let pids = usage.expect("ask for the usage").pids;
        assert!(pids <= most && pids > most / 2, "{pids} of {most} processes");
    }

    /// As seen from within: whoever may have a tenth of a processor waits for the most part. A machine that is slow, or busy
    /// with other things, makes that more and never less.
    async fn the_processor_is_shared_out(&self) {
        let spec = SandboxSpec {
            limits: Limits {
                cpu_millis: 100,
                ..self.limits
            },
            ..self.spec()
        };
        let made = self.create(&spec).await;
        let spend = format!(
            "python3 -c 'import time; began = time.monotonic()\nwhile time.process_time() < {SPENT}: pass\nprint(time.monotonic() - began)'"
        );
        let took: f64 = self.sh(&made, &spend).await.parse().expect("a number of seconds");
        if took <= SPENT * 4.0 {
            self.the_machine_counts_little(&made).await;
        }
        let usage = within("usage", self.provider.usage(spec.id)).await;
        let usage = usage.expect("ask for the usage");
        assert!(usage.cpu_micros >= 200_000 && usage.memory_bytes > 0, "{usage:?}");
        self.remove(&spec).await;
    }

    /// Where a kernel inside takes waiting for spending, the machine says what a program was given that never stops.
    async fn the_machine_counts_little(&self, made: &SandboxStatus) {
        let counted = async || {
            let usage = within("usage", self.provider.usage(made.id)).await;
            usage.expect("ask for the usage").cpu_micros
        };
        let spin = format!(
            "python3 -c 'import time; began = time.monotonic()\nwhile time.monotonic() - began < {SPUN}: pass'"
        );
        let (before, began) = (counted().await, Instant::now());
        self.sh(made, &spin).await;
        let (spent, took) = (counted().await - before, began.elapsed().as_micros());
        assert!(
            spent > 0 && u128::from(spent) * 4 < took,
            "{spent} µs of a tenth of a processor in {took} µs"
        );
    }

    pub(super) async fn the_link_is_the_runtime_s_alone(&self) {
        let spec = self.spec();
        let made = self.create(&spec).await;
        let link = format!("{}/{}", inside::LINK_DIRECTORY, inside::LINK_SOCKET);
        let dial = format!(
            "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{link}\")' 2>&1; ls {} 2>&1",
            inside::LINK_DIRECTORY
        );
        let (said, code) = self.attempt(&made, &dial).await;
        assert!(code != 0 && said.matches("ermission denied").count() == 2, "{said}");
        self.remove(&spec).await;
    }

    pub(super) async fn nothing_leaves_but_what_the_runtime_carries(&self) {
        let spec = self.spec();
        let made = self.create(&spec).await;
        let script = CAPTURED
            .replace("TCP_PORT", &capture::TCP_PORT.to_string())
            .replace("DNS_PORT", &capture::DNS_PORT.to_string())
            .replace("DNS_V4", &capture::DNS_ADDRESS.to_string())
            .replace("DNS_V6", &capture::DNS_ADDRESS_V6.to_string());
        let said = self.sh(&made, &format!("python3 - <<'END'{script}END\n")).await;
        assert_eq!(said, ALL_CAPTURED);
        let devices = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '";
        assert_eq!(self.sh(&made, devices).await, "lo");
        self.remove(&spec).await;
    }
}
