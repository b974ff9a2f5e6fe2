//! Services of kind `script`: the script in a process of its own, its requests from here.

use std::collections::BTreeMap;
use std::sync::Arc;

use dial::Dialer;
use domain::{SessionId, UserId};
use lifecycle::Tasks;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use services::{Bound, Call, Catalogue, Code, Failure, ServiceSettings, Services, Trust};
use worker::Worker;

use crate::rig::{HOST, KEY, Names, Secrets, Upstream, assert_clean, guard, guard_with, ok, status, with};

const DEFINITION: &str = r#"
name = "glue"
kind = "script"
summary = "Contacts, put together"
auth = { kind = "bearer" }
limits = { timeout = "20s" }

[methods.upsert]
summary = "Make a contact, or change the one with this address"
access = "write"
arguments = { required = ["email"], properties = { email = { type = "string" }, name = { type = "string" } } }

[methods.run]
summary = "Do what a test wants"
access = "read"
arguments = { required = ["what"], properties = { what = { type = "string" }, where = { type = "string" } } }
"#;

const SCRIPT: &str = r#"
// An upsert, which the API does not have.
export async function upsert({ email, name }) {
  const found = await fetch(`/contacts/${encode(email)}`);
  if (!found.ok && found.code !== "not_found") throw new Error(found.message);
  const body = { email, name };
  const answer = found.ok
    ? await fetch(`/contacts/${(await found.json()).id}`, { method: "PATCH", body })
    : await fetch("/contacts", { method: "POST", body, headers: { "x-team": "sales" } });
  if (!answer.ok) throw new Error(answer.message);
  return { made: !found.ok, contact: await answer.json() };
}

const encode = (text) => text.replace("@", "%40");

export async function run({ what, where }) {
  switch (what) {
    case "loop": for (;;);
    case "memory": { const all = []; for (;;) all.push(new Array(1e6).fill("x".repeat(1000))); }
    case "wait": return new Promise(() => {});
    case "many": for (let i = 0; i < 1000; i++) await fetch("/contacts/1");
    case "throw": throw new Error("no such luck");
    case "deep": { const f = () => f(); return f(); }
    case "large": return "x".repeat(32 << 20);
    case "globals": return Object.getOwnPropertyNames(globalThis).filter((name) => /^(fetch|process|require|Deno|std|os)$/.test(name));
    case "headers": return (await fetch("/contacts/1", { headers: { [where]: "x" } })).ok;
    case "fetch": return (await fetch(where)).text();
    case "told": {
      const answer = await fetch(where);
      const names = ["link", "x-ratelimit-remaining", "ratelimit-reset", "etag", "set-cookie", "x-internal", "retry-after"];
      const headers = names.map((name) => answer.headers.get(name));
      return { ok: answer.ok, code: answer.code ?? null, headers, body: await answer.text() };
    }
  }
}
"#;

struct Glue {
    services: Services,
    _folder: tempfile::TempDir,
}

fn glue(base: &str, hosts: &str, worker: Worker) -> Glue {
    let folder = tempfile::tempdir().unwrap();
    let glue = folder.path().join("glue");
    std::fs::create_dir(&glue).unwrap();
    std::fs::write(
        glue.join("service.toml"),
        format!("base_url = \"{base}\"\n{hosts}\n{DEFINITION}"),
    )
    .unwrap();
    std::fs::write(glue.join("script.js"), SCRIPT).unwrap();
    let (catalogue, mistakes) = Catalogue::load(&[folder.path()]);
    assert!(mistakes.is_empty(), "{mistakes:?}");
    let secrets = Secrets::default();
    secrets.set("key", KEY);
    let settings = ServiceSettings {
        auth: BTreeMap::from([("token".to_owned(), Bound::from("store:key"))]),
        addresses: vec!["127.0.0.0/8".parse().unwrap()],
        ..ServiceSettings::default()
    };
    let settings = BTreeMap::from([("glue".to_owned(), settings)]);
    let dialer = Dialer::new(Arc::new(Names::default()), dial::Settings::default());
    let trust = Trust::only(b"").unwrap();
    let (services, problems) = Services::new(
        &catalogue,
        &settings,
        Arc::new(secrets),
        dialer,
        trust,
        Tasks::new(),
        worker,
    )
    .unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    Glue {
        services,
        _folder: folder,
    }
}

impl Glue {
    async fn ask(&self, method: &str, arguments: Value) -> Result<Value, Failure> {
        self.ask_as(UserId::new(), method, arguments).await
    }

    /// What a user asks in a session that has just begun.
    async fn ask_as(&self, user: UserId, method: &str, arguments: Value) -> Result<Value, Failure> {
        let arguments = RawValue::from_string(arguments.to_string()).unwrap();
        let call = Call {
            session: SessionId::new(),
            user,
            service: "glue",
            method,
            arguments: &arguments,
            idempotency_key: None,
        };
        match self.services.call(call).await {
            Ok(answer) => {
                let text = answer.whole().await.unwrap();
                assert_clean(&String::from_utf8_lossy(&text));
                Ok(serde_json::from_slice(&text).unwrap())
            }
            Err(failure) => {
                assert_clean(&format!("{failure:?}"));
                Err(failure)
            }
        }
    }

    async fn fails(&self, what: &str, code: Code) -> Failure {
        let failure = self.ask("run", json!({ "what": what })).await.unwrap_err();
        assert_eq!(failure.code, code, "{what}: {failure:?}");
        failure
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_puts_requests_together_and_never_sees_the_credential() {
    let upstream = Upstream::start(|request, _| match (request.verb.as_str(), request.target.as_str()) {
        ("GET", "/v1/contacts/ada%40example.com") => ok(json!({ "id": 7, "token": KEY })),
        ("GET", _) => status(404, json!({ "message": "no such contact" })),
        ("PATCH", "/v1/contacts/7") => ok(json!({ "id": 7, "seen": request.header("authorization") })),
        _ => ok(json!({ "id": 8 })),
    })
    .await;
    let glue = glue(&upstream.base(), "", guard());
    let changed = glue
        .ask("upsert", json!({ "email": "ada@example.com", "name": "Ada" }))
        .await
        .unwrap();
    assert_eq!(changed["made"], false);
    assert_eq!(changed["contact"]["seen"], format!("Bearer {}", "*".repeat(KEY.len())));
    let made = glue.ask("upsert", json!({ "email": "new@example.com" })).await.unwrap();
    assert_eq!(made, json!({ "made": true, "contact": { "id": 8 } }));
    let seen = upstream.seen();
    assert_eq!(seen.len(), 4);
    assert!(
        seen.iter()
            .all(|request| request.header("authorization") == format!("Bearer {KEY}"))
    );
    assert_eq!(seen[1].json(), json!({ "email": "ada@example.com", "name": "Ada" }));
    assert_eq!(
        (seen[3].header("x-team"), seen[3].header("content-type")),
        ("sales", "application/json")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_is_told_of_harmless_headers_and_of_what_a_refusal_says_without_the_credential() {
    let upstream = Upstream::start(|request, _| {
        let answer = match request.target.as_str() {
            "/v1/page" => ok(json!([1])),
            _ => status(409, json!({ "message": "no", "taken_by": 7, "echo": KEY })),
        };
        let link = format!("<https://api.example.com/page?key={KEY}&page=2>; rel=\"next\"");
        let headers = [
            ("link", link.as_str()),
            ("x-ratelimit-remaining", "41"),
            ("ratelimit-reset", "7"),
            ("etag", "\"a\""),
            ("set-cookie", "session=1"),
            ("x-internal", "rack 7"),
        ];
        headers
            .into_iter()
            .fold(answer, |answer, (name, value)| with(answer, name, value))
    })
    .await;
    let glue = glue(&upstream.base(), "", guard());
    let masked = "*".repeat(KEY.len());
    let link = format!("<https://api.example.com/page?key={masked}&page=2>; rel=\"next\"");
    let headers = json!([link, "41", "7", "\"a\"", null, null, null]);
    let told = glue
        .ask("run", json!({ "what": "told", "where": "/page" }))
        .await
        .unwrap();
    assert_eq!(
        told,
        json!({ "ok": true, "code": null, "headers": headers, "body": "[1]" })
    );
    let told = glue
        .ask("run", json!({ "what": "told", "where": "/taken" }))
        .await
        .unwrap();
    assert_eq!(
        (&told["ok"], &told["code"], &told["headers"]),
        (&json!(false), &json!("upstream_refused"), &headers)
    );
    let body: Value = serde_json::from_str(told["body"].as_str().unwrap()).unwrap();
    assert_eq!(body, json!({ "message": "no", "taken_by": 7, "echo": masked }));
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_074_a_script_asks_at_the_places_that_are_named_and_shows_the_key_at_its_own() {
    let (api, files) = (
        Upstream::start(|_, _| ok(json!({ "from": "api" }))).await,
        Upstream::start(|request, _| ok(json!({ "from": "files", "shown": request.header("authorization") }))).await,
    );
    let hosts = format!("hosts = {{ files = \"http://{HOST}:{}/store\" }}", files.address.port());
    let glue = glue(&api.base(), &hosts, guard());
    let got = glue
        .ask("run", json!({ "what": "fetch", "where": "files:/a?b=1" }))
        .await
        .unwrap();
    assert_eq!(got, json!(json!({ "from": "files", "shown": "" }).to_string()));
    assert_eq!(files.one().target, "/store/a?b=1");
    for elsewhere in [
        "https://evil.example/",
        "http://127.0.0.1/",
        "//evil.example/",
        "/../admin",
        "files:/../x",
        "other:/x",
        "file:///etc/passwd",
        "",
    ] {
        let asked = glue.ask("run", json!({ "what": "fetch", "where": elsewhere })).await;
        match asked {
            Err(failure) => assert_eq!(failure.code, Code::Refused, "{elsewhere}: {failure:?}"),
            // A path that begins with two slashes is a path.
            Ok(_) => assert_eq!(elsewhere, "//evil.example/"),
        }
    }
    for header in ["authorization", "Cookie", "host", "x\ny"] {
        let failure = glue
            .ask("run", json!({ "what": "headers", "where": header }))
            .await
            .unwrap_err();
        assert_eq!(failure.code, Code::Refused, "{header}: {failure:?}");
    }
    assert!(api.seen().iter().all(|request| request.target.starts_with("/v1/")));
    assert_eq!(files.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_goes_wrong_is_stopped_and_the_next_call_works() {
    let upstream = Upstream::start(|_, _| ok(json!({ "id": 1 }))).await;
    let glue = glue(&upstream.base(), "", guard());
    for (what, code, words) in [
        ("loop", Code::UpstreamFailed, "script was stopped"),
        ("memory", Code::UpstreamFailed, "memory"),
        ("wait", Code::UpstreamFailed, "never comes"),
        ("many", Code::UpstreamFailed, "calls"),
        ("throw", Code::UpstreamFailed, "no such luck"),
        ("deep", Code::UpstreamFailed, "script"),
        ("large", Code::UpstreamFailed, "script was stopped"),
    ] {
        let failure = glue.fails(what, code).await;
        assert!(failure.message.contains(words), "{what}: {failure}");
        assert_eq!(
            glue.ask("run", json!({ "what": "globals" })).await.unwrap(),
            json!([]),
            "{what}"
        );
    }
    assert!(upstream.seen().len() <= 100);
    let failure = glue.fails("throw", Code::UpstreamFailed).await;
    assert!(failure.message.contains("in line 22"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_breaks_down_is_told_as_that() {
    let upstream = Upstream::start(|_, _| ok(json!({}))).await;
    for (program, code) in [
        ("/bin/false", Code::UpstreamFailed),
        ("/no/such/program", Code::Unreachable),
    ] {
        let worker = Worker::new(worker::Config {
            program: program.into(),
            arguments: Vec::new(),
            ..worker::Config::default()
        });
        let glue = glue(&upstream.base(), "", worker);
        let failure = glue.fails("globals", code).await;
        assert!(failure.message.starts_with("glue.run: "), "{failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_request_failed_with_is_what_the_call_fails_with() {
    for (answer, code) in [
        (401, Code::CredentialRefused),
        (429, Code::UpstreamRateLimited),
        (422, Code::Refused),
    ] {
        let upstream = Upstream::start(move |_, _| status(answer, json!({ "message": "because" }))).await;
        let glue = glue(&upstream.base(), "", guard());
        let failure = glue.ask("upsert", json!({ "email": "a" })).await.unwrap_err();
        assert_eq!(failure.code, code, "{failure:?}");
        assert!(
            failure.message.starts_with("glue.upsert: ") && failure.message.contains("because"),
            "{failure}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_094_a_user_leaves_those_who_run_scripts_to_the_others() {
    let (begun, begins) = tokio::sync::watch::channel(0);
    let upstream = Upstream::start(move |_, _| {
        begun.send_modify(|count| *count += 1);
        let never = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
        axum::response::Response::new(axum::body::Body::from_stream(never))
    })
    .await;
    let glue = glue(&upstream.base(), "", guard_with(|config| config.scripts = 4));
    let user = UserId::new();
    let never_done = json!({ "what": "fetch", "where": "/contacts/1" });
    let greedy = futures::future::select_all((0..4).map(|_| {
        let (glue, asked) = (&glue, never_done.clone());
        Box::pin(async move { glue.ask_as(user, "run", asked).await })
    }));
    let mut begins = begins;
    let asking = async {
        // It has its half, and would have had the others if it could.
        begins.wait_for(|count| *count >= 2).await.unwrap();
        for _ in 0..10 {
            assert_eq!(glue.ask("run", json!({ "what": "globals" })).await.unwrap(), json!([]));
        }
        assert_eq!(*begins.borrow(), 2);
    };
    tokio::select! {
        biased;
        (result, ..) = greedy => panic!("the others had to wait for {result:?}"),
        () = asking => {}
    }
}
