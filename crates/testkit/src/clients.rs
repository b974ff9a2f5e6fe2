//! Programs that people use to speak to servers, and the servers that they speak to: an API, git over HTTPS, the registries of
//! npm and pip. What a user types is the same wherever it is run.

mod places;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::Response;

use crate::upstream::{AnswerBody, Arrived, answered};
pub use places::{authority, brought, built};

/// The key that no program knows, and every server but the last wants.
pub const KEY: &str = "the-real-key-0123456789";

/// Hosts that want the key: an API, npm's registry, pip's, and git's; and one that is all of them and wants none.
pub const HOSTS: [&str; 5] = [
    "api.client.test",
    "npm.client.test",
    "pypi.client.test",
    "git.client.test",
    PASSES,
];

/// The host that wants no key.
const PASSES: &str = "pass.client.test";

/// A program that speaks to servers.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// What it is called.
    pub name: &'static str,
    /// Where it finds the authority.
    pub trusts: &'static str,
    /// What the user types, in a shell. [`brought`] is at `/clients`, [`built`] at `/built`.
    pub script: &'static str,
    /// What stands in what it says then.
    pub says: &'static str,
    /// What that means.
    means: &'static str,
    /// What stands in what it says where it means the host that wants no key, whose certificate only its image knows; nothing where that
    /// cannot be tried.
    says_unread: Option<&'static str>,
}

impl Client {
    /// Its row of the table in docs/egress.md.
    #[must_use]
    pub fn row(&self) -> String {
        let unread = self.says_unread.map_or("–", |_| "works");
        format!("| {} | {} | {} | {unread} |\n", self.name, self.trusts, self.means)
    }

    /// What the user types for the host that wants no key, and what stands in what it says then.
    #[must_use]
    pub fn unread(&self) -> Option<(String, String)> {
        let unread = |words: &str| {
            HOSTS
                .iter()
                .fold(words.to_owned(), |words, host| words.replace(host, PASSES))
        };
        Some((unread(self.script), unread(self.says_unread?)))
    }
}

const fn client(name: &'static str, trusts: &'static str, script: &'static str, says: &'static str) -> Client {
    Client {
        name,
        trusts,
        script,
        says,
        means: "works",
        says_unread: Some(says),
    }
}

/// One that has a list of its own, and reads no other.
const fn own_list(
    name: &'static str,
    script: &'static str,
    says: &'static str,
    says_unread: Option<&'static str>,
) -> Client {
    Client {
        means: "fails closed, with code `handshake` and an event that says why",
        says_unread,
        ..client(name, "nothing", script, says)
    }
}

const API: &str = "welcome to api.client.test/x";

/// All of them. Each means a host of [`HOSTS`] whose requests are read and given a key.
pub const CLIENTS: &[Client] = &[
    client("curl", "`CURL_CA_BUNDLE`", "curl -sS https://api.client.test/x", API),
    client(
        "curl by HTTP proxy",
        "`CURL_CA_BUNDLE`",
        "curl -sS -x http://127.0.0.1:3128 https://api.client.test/x",
        API,
    ),
    client(
        "curl by SOCKS proxy",
        "`CURL_CA_BUNDLE`",
        "curl -sS -x socks5h://127.0.0.1:3128 https://api.client.test/x",
        API,
    ),
    client("wget", "system bundle", "wget -qO- https://api.client.test/x", API),
    client(
        "git clone, commit, push, fetch",
        "`GIT_SSL_CAINFO`",
        "cd /tmp && rm -rf app && git clone -q https://git.client.test/acme/app.git app && cd app && echo $$ > a && git add a \
         && git -c user.name=me -c user.email=me@x.test commit -qm first && git push -q origin HEAD:main \
         && git fetch -q && git log --format=%s origin/main",
        "first",
    ),
    client(
        "gh",
        "`SSL_CERT_FILE`",
        "GH_HOST=api.client.test gh api x",
        "welcome to api.client.test/api/v3/x",
    ),
    client(
        "node fetch",
        "`NODE_EXTRA_CA_CERTS`",
        "node -e 'fetch(`https://api.client.test/x`).then(r => r.text()).then(console.log)'",
        API,
    ),
    client(
        "node https",
        "`NODE_EXTRA_CA_CERTS`",
        "node -e 'require(`https`).get(`https://api.client.test/x`, r => r.pipe(process.stdout))'",
        API,
    ),
    client(
        "npm",
        "`NODE_EXTRA_CA_CERTS`",
        "npm_config_cache=/tmp/npm npm view belljar-probe version --registry https://npm.client.test/",
        "1.2.3",
    ),
    client(
        "bun",
        "`SSL_CERT_FILE`",
        "bun -e 'console.log(await (await fetch(`https://api.client.test/x`)).text())'",
        API,
    ),
    client(
        "deno",
        "`DENO_CERT`",
        "DENO_DIR=/tmp/deno deno eval 'console.log(await (await fetch(`https://api.client.test/x`)).text())'",
        API,
    ),
    client(
        "python urllib",
        "`SSL_CERT_FILE`",
        "python3 -c 'import urllib.request as r; print(r.urlopen(\"https://api.client.test/x\").read())'",
        API,
    ),
    client(
        "python requests",
        "`REQUESTS_CA_BUNDLE`",
        "python3 -c 'import requests; print(requests.get(\"https://api.client.test/x\").text)'",
        API,
    ),
    client(
        "python httpx",
        "`SSL_CERT_FILE`",
        "python3 -c 'import httpx; print(httpx.get(\"https://api.client.test/x\").text)'",
        API,
    ),
    client(
        "python urllib3",
        "`SSL_CERT_FILE`",
        "python3 -c 'import urllib3; print(urllib3.request(\"GET\", \"https://api.client.test/x\").data)'",
        API,
    ),
    client(
        "python aiohttp",
        "`SSL_CERT_FILE`",
        "python3 -c 'import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession() as s, s.get(\"https://api.client.test/x\") as r: print(await r.text())
asyncio.run(main())'",
        API,
    ),
    client(
        "pip",
        "`PIP_CERT`",
        "rm -rf /tmp/pip; python3 -m pip download -q --no-cache-dir --disable-pip-version-check --no-deps -d /tmp/pip \
         --index-url https://pypi.client.test/simple belljar-probe && ls /tmp/pip",
        "belljar_probe-1.2.3-py3-none-any.whl",
    ),
    client(
        "uv (Rust, reqwest, rustls)",
        "`SSL_CERT_FILE`",
        "rm -rf /tmp/uv-target; UV_CACHE_DIR=/tmp/uv /clients/python/bin/uv pip install -q --no-deps --target /tmp/uv-target \
         --python /usr/bin/python3 --index-url https://pypi.client.test/simple belljar-probe && ls /tmp/uv-target",
        "belljar_probe.py",
    ),
    client(
        "java HttpClient",
        "key store that the runtime writes",
        "java /built/Client.java https://api.client.test/x",
        API,
    ),
    client(
        "go net/http",
        "`SSL_CERT_FILE`",
        "/built/go-client https://api.client.test/x",
        API,
    ),
    client(
        "Rust reqwest with system roots",
        "`SSL_CERT_FILE`",
        "/built/reqwest-system https://api.client.test/x",
        API,
    ),
    own_list(
        "Rust reqwest with compiled-in roots",
        "/built/reqwest-compiled-in https://api.client.test/x",
        "UnknownIssuer",
        Some(API),
    ),
    own_list(
        "node without its variables",
        "env -u NODE_EXTRA_CA_CERTS -u SSL_CERT_FILE node -e \
         'fetch(`https://api.client.test/x`).then(r => r.text(), e => e.cause.code).then(console.log)'",
        "UNABLE_TO_VERIFY",
        // Nor does its own list know who signs for the servers of a test.
        None,
    ),
];

/// What the servers have, below a folder: an empty repository, and a package.
pub fn furnish(folder: &Path) {
    let app = folder.join("git/acme/app.git");
    std::fs::create_dir_all(&app).unwrap_or_else(|error| panic!("make {}: {error}", app.display()));
    for arguments in [
        ["init", "-q", "--bare", "-b", "main"].as_slice(),
        &["config", "http.receivepack", "true"],
    ] {
        crate::run(std::process::Command::new("git").arg("-C").arg(&app).args(arguments));
    }
    let wheel = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as z:
    z.writestr('belljar_probe.py', '')
    z.writestr('belljar_probe-1.2.3.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: belljar-probe\\nVersion: 1.2.3\\n')
    z.writestr('belljar_probe-1.2.3.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    z.writestr('belljar_probe-1.2.3.dist-info/RECORD', 'belljar_probe.py,,\\nbelljar_probe-1.2.3.dist-info/RECORD,,\\n')";
    let mut command = std::process::Command::new("python3");
    crate::run(command.args(["-c", wheel]).arg(folder.join("wheel")));
}

/// What git was pushed.
#[must_use]
pub fn pushed(folder: &Path) -> PathBuf {
    folder.join("git/acme/app.git/refs/heads/main")
}

/// What the servers say, to whoever shows the key. `folder` was furnished.
#[must_use]
pub fn answer(folder: &Path, arrived: &Arrived) -> Response<AnswerBody> {
    use base64::Engine;
    let shown = match arrived.host.as_str() {
        "git.client.test" => {
            let pair = format!("x-access-token:{KEY}");
            format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
        }
        _ => format!("Bearer {KEY}"),
    };
    let host = arrived.host.as_str();
    if host != PASSES && arrived.header("authorization") != shown {
        return answered(401, &[("www-authenticate", "Basic realm=\"git\"")], "who are you?\n");
    }
    let (media_type, content) = match arrived.path() {
        path if path.starts_with("/acme/") => {
            return git(folder, arrived).unwrap_or_else(|error| answered(500, &[], format!("git: {error}\n")));
        }
        "/belljar-probe" => (
            "application/json",
            Bytes::from_static(
                br#"{"name":"belljar-probe","dist-tags":{"latest":"1.2.3"},"versions":{"1.2.3":{"name":"belljar-probe","version":"1.2.3","dist":{"tarball":"https://npm.client.test/x.tgz"}}}}"#,
            ),
        ),
        "/simple/belljar-probe/" => (
            "text/html",
            Bytes::from_static(br#"<a href="/files/belljar_probe-1.2.3-py3-none-any.whl">belljar_probe-1.2.3-py3-none-any.whl</a>"#),
        ),
        path if path.starts_with("/files/") => ("application/zip", std::fs::read(folder.join("wheel")).unwrap_or_default().into()),
        path => ("text/plain", format!("welcome to {host}{path}\n").into()),
    };
    answered(200, &[("content-type", media_type)], content)
}

/// Git's own server, which speaks CGI (RFC 3875).
fn git(folder: &Path, arrived: &Arrived) -> std::io::Result<Response<AnswerBody>> {
    use std::io::Write;
    let environment = [
        ("GIT_PROJECT_ROOT", folder.join("git").display().to_string()),
        ("GIT_HTTP_EXPORT_ALL", "1".to_owned()),
        ("PATH_INFO", arrived.path().to_owned()),
        (
            "QUERY_STRING",
            arrived
                .target
                .split_once('?')
                .map_or(String::new(), |(_, query)| query.to_owned()),
        ),
        ("REQUEST_METHOD", arrived.method.to_string()),
        ("CONTENT_TYPE", arrived.header("content-type").to_owned()),
        ("HTTP_CONTENT_ENCODING", arrived.header("content-encoding").to_owned()),
        ("GIT_PROTOCOL", arrived.header("git-protocol").to_owned()),
        ("REMOTE_USER", "test".to_owned()),
    ];
    let mut child = std::process::Command::new("git")
        .arg("http-backend")
        .envs(environment)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    let body = arrived.body.clone();
    let writing = std::thread::spawn(move || input.write_all(&body));
    let output = child.wait_with_output()?.stdout;
    let _ = writing.join();
    let end = output.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.ok_or(std::io::ErrorKind::InvalidData)?;
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let mut headers: Vec<(&str, &str)> = head.lines().filter_map(|line| line.split_once(": ")).collect();
    let status = headers.iter().find(|(name, _)| *name == "Status");
    let status = status
        .and_then(|(_, value)| value.get(..3)?.parse().ok())
        .unwrap_or(200);
    headers.retain(|(name, _)| *name != "Status");
    Ok(answered(status, &headers, Bytes::copy_from_slice(&output[end + 4..])))
}
