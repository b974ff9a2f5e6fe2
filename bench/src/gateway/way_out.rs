//! G5 and G6: requests that leave a real sandbox, whose every connection is captured, against the same requests by the same program
//! outside, and through other proxies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use crate::installation::{Installation, Programs, ended};
use crate::models::{Models, Say};
use crate::peers::{mitmproxy, squid};
use crate::report::Measure;
use crate::sample::scaled;
use crate::selection::Selection;
use crate::upstream::{NAME, SECRET, Upstream};
use crate::visitor::{Visit, Visited, WORD};

/// Requests on a connection.
const REQUESTS: usize = 1_000;

/// Of the long body.
const BYTES: usize = 1 << 30;

/// What the model writes to the prompt: the visitor, started with the address that the name has inside.
const CODE: &str = "\
const { lookup } = await import('node:dns/promises');
const { execFileSync } = await import('node:child_process');
const { chmodSync, writeFileSync } = await import('node:fs');
const wanted = WANTED;
wanted.address = (await lookup(wanted.name, { family: 4 })).address;
if (!wanted.authorities) wanted.authorities = process.env.SSL_CERT_FILE;
chmodSync('visitor', 0o755);
writeFileSync('found.json', execFileSync('./visitor', ['WORD', JSON.stringify(wanted)]));
";

pub(super) async fn measure(programs: &Programs, wanted: &Selection) -> anyhow::Result<Vec<Measure>> {
    let folder = tempfile::tempdir()?;
    let authority = folder.path().join("authority.pem");
    let upstream = Upstream::behind_tls(&authority).await?;
    let visit = Visit {
        name: NAME.to_owned(),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port: upstream.address.port(),
        proxy: None,
        authorities: authority.clone(),
        path: "/small".to_owned(),
        requests: scaled(REQUESTS),
        bytes: 0,
    };
    let mut found = Vec::new();
    if wanted.has("G5") {
        found.extend(passed(programs, &visit, &authority).await?);
    }
    if wanted.has("G6") {
        found.extend(read(programs, &visit, &authority, &upstream).await?);
    }
    Ok(found)
}

/// The host passes by its name; nothing of it is read.
async fn passed(programs: &Programs, visit: &Visit, authority: &Path) -> anyhow::Result<Vec<Measure>> {
    let visit = Visit {
        bytes: scaled(BYTES),
        ..visit.clone()
    };
    let inside = Inside::start(programs, visit.port, authority, "").await?;
    let ours = inside.visit(&visit, Some(authority)).await?;
    let direct = visit.go().await?;
    drop(inside);
    let floor = direct.requests.at(0.5);
    let share = |visited: &Visited| direct.seconds / visited.seconds * 100.0;
    let mut added = Measure::times(
        "G5",
        "added to a request to a host that passes",
        &ours.requests.less(floor),
    )
    .at_most(1.0, None);
    let mut body = Measure::value(
        "G5",
        "throughput of a 1 GiB body, of the same without Belljar",
        "%",
        share(&ours),
    )
    .at_least(60.0);
    let mut more = vec![
        Measure::times("G5", "  from inside", &ours.requests),
        Measure::times("G5", "  directly", &direct.requests),
        Measure::value("G5", "  the body, directly", "MB/s", rate(&visit, &direct)),
        Measure::value("G5", "  the body, from inside", "MB/s", rate(&visit, &ours)),
    ];
    let squid = async {
        let squid = squid::passing()?;
        through(&visit, squid.address, authority).await
    };
    match squid.await {
        Ok(theirs) => {
            added = added.beside("squid", theirs.requests.at(0.5) - floor);
            body = body.beside("squid", share(&theirs));
        }
        Err(error) => eprintln!("bench: no squid for G5: {error:#}"),
    }
    let mitmproxy = async {
        let mitmproxy = mitmproxy::passing()?;
        through(&visit, mitmproxy.address, authority).await
    };
    match mitmproxy.await {
        Ok(theirs) => {
            more.push(Measure::times(
                "G5",
                "  added by mitmproxy",
                &theirs.requests.less(floor),
            ));
            more.push(Measure::value(
                "G5",
                "  throughput through mitmproxy",
                "%",
                share(&theirs),
            ));
        }
        Err(error) => eprintln!("bench: no mitmproxy for G5: {error:#}"),
    }
    let mut found = vec![added, body];
    found.append(&mut more);
    Ok(found)
}

/// The host's requests are read, and given a credential.
async fn read(
    programs: &Programs,
    visit: &Visit,
    authority: &Path,
    upstream: &Upstream,
) -> anyhow::Result<Vec<Measure>> {
    let keyed = Visit {
        path: "/keyed".to_owned(),
        ..visit.clone()
    };
    let inside = Inside::start(
        programs,
        visit.port,
        authority,
        "inject = [{ kind = \"bearer\", secret = \"file:SECRET\" }]\n",
    )
    .await?;
    let ours = inside.visit(&keyed, None).await?;
    if upstream.keyed() == 0 {
        bail!("no request was given the credential");
    }
    let direct = visit.go().await?;
    drop(inside);
    let floor = direct.requests.at(0.5);
    let mut added = Measure::times(
        "G6",
        "added to a request that is read and given a key",
        &ours.requests.less(floor),
    )
    .at_most(2.0, Some(10.0));
    let mut more = vec![
        Measure::times("G6", "  from inside", &ours.requests),
        Measure::times("G6", "  directly, without a key", &direct.requests),
        Measure::times("G6", "  a new connection with its first request", &ours.first),
    ];
    let mitmproxy = async {
        let mitmproxy = mitmproxy::reading(authority, SECRET)?;
        through(&keyed, mitmproxy.address, &mitmproxy.authority).await
    };
    match mitmproxy.await {
        Ok(theirs) => {
            added = added.beside("mitmproxy", theirs.requests.at(0.5) - floor);
        }
        Err(error) => eprintln!("bench: no mitmproxy for G6: {error:#}"),
    }
    let squid = async {
        let squid = squid::reading(authority, SECRET)?;
        through(&keyed, squid.address, &squid.authority).await
    };
    match squid.await {
        Ok(theirs) => {
            more.push(Measure::times(
                "G6",
                "  added by squid's ssl-bump",
                &theirs.requests.less(floor),
            ));
        }
        Err(error) => eprintln!("bench: no squid for G6: {error:#}"),
    }
    let mut found = vec![added];
    found.append(&mut more);
    Ok(found)
}

async fn through(visit: &Visit, proxy: SocketAddr, authorities: &Path) -> anyhow::Result<Visited> {
    let visit = Visit {
        proxy: Some(proxy),
        authorities: authorities.to_owned(),
        ..visit.clone()
    };
    visit.go().await
}

#[allow(clippy::cast_precision_loss, reason = "far below 2⁵³")]
fn rate(visit: &Visit, visited: &Visited) -> f64 {
    visit.bytes as f64 / visited.seconds / 1e6
}

/// A session with a real sandbox and the visitor in its workspace.
struct Inside {
    installation: Installation,
    models: Models,
    session: String,
}

impl Inside {
    /// `rule` are further keys of the rule for the host.
    async fn start(programs: &Programs, port: u16, authority: &Path, rule: &str) -> anyhow::Result<Self> {
        let models = Models::start(script).await?;
        let installation = Installation::new(programs, Some(models.address), super::CAPS)?.outside(NAME, authority)?;
        let rule = rule.replace("SECRET", &installation.secret()?.display().to_string());
        let lines = format!(
            "\n[roles.everybody]\negress = [\"{NAME}:*\"]\n\n[egress.rules.upstream]\nhosts = [\"{NAME}:{port}\"]\n\
             networks = [\"127.0.0.0/8\"]\n{rule}"
        );
        let mut installation = installation.configure(&lines)?;
        installation.start_host()?;
        installation.start_serve()?;
        let api = installation.api()?;
        let session = api.session().await?;
        let own = Bytes::from(std::fs::read(std::env::current_exe()?)?);
        let path = format!("/api/v1/sessions/{session}/file?path=visitor");
        api.0.bytes(Method::PUT, &path, own).await?;
        Ok(Self {
            installation,
            models,
            session,
        })
    }

    /// Visits from inside; without `authority` what every program inside trusts is trusted.
    async fn visit(&self, visit: &Visit, authority: Option<&Path>) -> anyhow::Result<Visited> {
        let api = self.installation.api()?;
        let file = |name: &str| format!("/api/v1/sessions/{}/file?path={name}", self.session);
        let mut wanted = json!(visit);
        wanted["authorities"] = json!("");
        if let Some(authority) = authority {
            api.0
                .bytes(Method::PUT, &file("authority.pem"), std::fs::read(authority)?.into())
                .await?;
            wanted["authorities"] = json!(PathBuf::from("authority.pem"));
        }
        let after = api.prompt(&self.session, &format!("{START}{wanted}")).await?;
        let mut events = api.watch(&self.session, &after).await?;
        ended(&mut events, "done").await?;
        let found = api.0.bytes(Method::GET, &file("found.json"), Bytes::new()).await;
        let Ok(found) = found else {
            let asked = self.models.last().pop().map(|asked| asked.body).unwrap_or_default();
            let asked: Value = serde_json::from_slice(&asked).unwrap_or_default();
            let said = asked["messages"].as_array().and_then(|messages| messages.last());
            bail!("the visitor inside found nothing: {}", said.unwrap_or(&Value::Null));
        };
        serde_json::from_slice(&found).context("the visitor inside said something else than figures")
    }
}

/// How a prompt with work for the visitor begins.
const START: &str = "VISIT ";

/// Starts the visitor as the prompt says, then is done.
fn script(body: &[u8]) -> Say {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let last = body["messages"].as_array().and_then(|messages| messages.last());
    let blocks = last.map_or(&Value::Null, |last| &last["content"]);
    let last = blocks.as_array().and_then(|blocks| blocks.last()).unwrap_or(blocks);
    let text = last["text"].as_str().or(last.as_str()).unwrap_or_default();
    match text.split_once(START) {
        Some((_, wanted)) => Say::Call(
            "exec",
            json!({"code": CODE.replace("WANTED", wanted).replace("WORD", WORD)}),
        ),
        None => Say::Words("It is done."),
    }
}
