//! The proxy for programs that insist on one: the same way out, with words.

use serde_json::{Value, json};

use crate::jail::Jail;

const RAW: &str = r"
import socket, struct
def raw(first, *more):
    s = socket.create_connection(('127.0.0.1', 3128), 20)
    s.settimeout(20)
    s.sendall(first)
    got = s.recv(4096)
    for piece in more:
        s.sendall(piece)
        got += b' | ' + s.recv(4096)
    return got
def socks(kind, address, port, *more, command=1):
    request = bytes([5, command, 0, kind]) + address + struct.pack('>H', port)
    return raw(bytes([5, 1, 0]), request, *more)
def name(text):
    return bytes([len(text)]) + text
";

#[tokio::test]
async fn a_tunnel_is_opened_by_its_name_over_http_and_socks() {
    let jail = Jail::claimed().await;
    let script = format!(
        r"{RAW}
print(raw(b'CONNECT GOOD.test:5432 HTTP/1.1\r\nHost: x\r\n\r\n', b'hello').split(b'\r\n')[0], end=' ')
print(raw(b'CONNECT GOOD.test:5432 HTTP/1.1\r\nHost: x\r\n\r\n', b'hello').split(b' | ')[1])
print(socks(3, name(b'Good.test.'), 5432, b'hello'))
given = socket.inet_aton(socket.getaddrinfo('good.test', 5432, socket.AF_INET)[0][4][0])
print(socks(1, given, 5432, b'hello')[-5:])
"
    );
    assert_eq!(
        jail.python(&script).await,
        "b'HTTP/1.1 200 OK' b'hello'\n\
         b'\\x05\\x00 | \\x05\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00 | hello'\n\
         b'hello'\n"
    );
    let connects: Vec<_> = jail
        .seen()
        .into_iter()
        .filter(|seen| seen.starts_with("connect"))
        .collect();
    assert_eq!(connects, ["connect good.test 5432"; 4]);
}

#[tokio::test]
async fn a_denial_is_json_with_reason_and_remedy_or_the_code_that_socks_has_for_it() {
    let jail = Jail::claimed().await;
    for target in ["bad.test", "192.0.2.1", "[2001:db8::1]"] {
        let script = format!("{RAW}\nprint(raw(b'CONNECT {target}:443 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n').decode())");
        let said = jail.python(&script).await;
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 403"), "{said}");
        let expected = json!({ "error": {
            "code": "no_rule", "rule": null, "message": "no rule allows it", "remedy": "ask for access",
        } });
        assert_eq!(serde_json::from_str::<Value>(body).unwrap(), expected);
    }
    let script = format!(
        r"{RAW}
print(socks(3, name(b'bad.test'), 443)[5:7], socks(1, bytes([192, 0, 2, 1]), 443)[5:7], socks(4, bytes(16), 443)[5:7])
print(socks(3, name(b'good.test'), 53, command=3)[5:7], socks(3, name(b'good.test'), 53, command=2)[5:7])
print(raw(bytes([5, 1, 2])))
"
    );
    assert_eq!(
        jail.python(&script).await,
        "b'\\x05\\x02' b'\\x05\\x02' b'\\x05\\x02'\nb'\\x05\\x07' b'\\x05\\x07'\nb'\\x05\\xff'\n"
    );
    let seen = jail.seen();
    assert!(seen.contains(&"connect 2001:db8::1 443".to_owned()), "{seen:?}");
}

#[tokio::test]
async fn threat_027_a_name_with_any_other_byte_asks_nobody() {
    let jail = Jail::claimed().await;
    let script = format!(
        r"{RAW}
for text in (b'evil.test\0.good.test', b'good.test\r\nx: y', b'user@good.test', b'good.test/x', b'good.test%00', b'', b'g\xc3\xb6\xc3\xb6d.test'):
    print(socks(3, name(text), 443)[5:7], end=' ')
print()
for text in (b'evil.test%00.good.test:443', b'user@good.test:443', b'good.test', b'good.test:99999', b'good.test:443/x', b':443'):
    print(raw(b'CONNECT ' + text + b' HTTP/1.1\r\nHost: x\r\n\r\n')[9:12].decode(), end=' ')
print(raw(b'GET http://user:pass@good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n')[9:12].decode(), end=' ')
print(raw(b'GET https://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n')[9:12].decode(), end=' ')
print(raw(b'GET / HTTP/1.1\r\nHost: good.test\r\n\r\n')[9:12].decode())
"
    );
    assert_eq!(
        jail.python(&script).await,
        "b'\\x05\\x02' b'\\x05\\x02' b'\\x05\\x02' b'\\x05\\x02' b'\\x05\\x02' b'\\x05\\x02' b'\\x05\\x02' \n\
         400 400 400 400 400 400 400 400 400\n"
    );
    assert_eq!(jail.seen(), [""; 0]);
}

#[tokio::test]
async fn a_plain_request_is_passed_on_with_the_host_of_its_url_and_without_what_concerns_one_connection() {
    let jail = Jail::claimed().await;
    let said = jail
        .shell(
            "curl -sS -i -x http://127.0.0.1:3128 http://web.test:8080/a?b=c -H 'Host: bound.test' -U me:secret \
             -H 'Connection: x-own' -H 'x-own: 1' -H 'x-kept: 2'",
        )
        .await;
    let (head, echoed) = said.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{said}");
    assert!(!head.contains("proxy-connection"), "{said}");
    assert!(echoed.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{said}");
    let echoed = echoed.to_ascii_lowercase();
    assert!(
        echoed.contains("host: web.test:8080\r\n") && echoed.contains("x-kept: 2"),
        "{said}"
    );
    for left_out in ["bound.test", "x-own", "proxy-", "secret"] {
        assert!(!echoed.contains(left_out), "{left_out}: {said}");
    }
    assert_eq!(jail.seen(), ["connect web.test 8080"]);
}

#[tokio::test]
async fn programs_find_it_over_both_protocols_and_loopback_addresses() {
    let jail = Jail::claimed().await;
    for proxy in [
        "http://127.0.0.1:3128",
        "http://[::1]:3128",
        "socks5h://127.0.0.1:3128",
        "socks5://127.0.0.1:3128",
    ] {
        let said = jail.shell(&format!("curl -sS -x {proxy} http://web.test/x")).await;
        assert!(said.starts_with("GET /x HTTP/1.1"), "{proxy}: {said}");
    }
    let connects = jail.seen().into_iter().filter(|seen| seen == "connect web.test 80");
    assert_eq!(connects.count(), 4);
}

#[tokio::test]
async fn threat_017_slow_connections_to_the_proxy_leave_the_captured_ones_alone() {
    let jail = Jail::claimed().await;
    let script = r"
import socket
held = []
for _ in range(400):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(('127.0.0.1', 3128))
    held.append(s)
s = socket.create_connection(('good.test', 5432), 20)
s.sendall(b'hello')
print(s.recv(10))
";
    assert_eq!(jail.python(script).await, "b'hello'\n");
}
