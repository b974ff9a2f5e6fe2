//! The packages that ship with the project, and what the server of their contracts demands.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lifecycle::Tasks;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use worker::Worker;

use super::credential::{self, Demand};
use super::{Script, server};
use crate::definition::Command;
use crate::{Auth, Catalogue, Exchange, Kind, Server, Service, contract};

/// The folder of the packages.
fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../services")
}

fn catalogue() -> Catalogue {
    let (catalogue, mistakes) = Catalogue::load(&[folder()]);
    let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    catalogue
}

/// Reads statements as `belljar worker` does.
fn guard() -> Worker {
    let tests = std::env::current_exe().unwrap();
    Worker::new(worker::Config {
        program: tests.parent().unwrap().parent().unwrap().join("examples/guard"),
        arguments: Vec::new(),
        ..worker::Config::default()
    })
}

#[tokio::test]
async fn every_package_keeps_its_contract() {
    let worker = guard();
    let mut wrong = Vec::new();
    for service in catalogue().services() {
        for played in contract::play(service, &worker).await.unwrap() {
            let Some(fixture) = &played.fixture else {
                wrong.push(format!("{}.{} has no fixture", service.name, played.method));
                continue;
            };
            let place = format!("{}.{}: {fixture}", service.name, played.method);
            wrong.extend(played.wrong.iter().map(|wrong| format!("{place}: {wrong}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where each vendor's API is, what it demands of every request, and the ways in which it wants to be shown who asks.
/// The server that plays the recorded answers stands somewhere else, and wants what the package says.
#[test]
fn every_package_asks_its_vendor_where_and_as_they_say() {
    // Linear takes a key as it is; before a token of OAuth the operator writes `Bearer`.
    let linear = "header authorization \"\"";
    let vendors: [(&str, &str, &[&str]); 12] = [
        ("billing", "https://api.stripe.com/v1", &["bearer"]),
        ("chat", "https://slack.com/api", &["bearer"]),
        ("code", "https://api.github.com", &["github_app", "bearer"]),
        ("crm", "https://api.hubapi.com", &["bearer"]),
        ("docs", "https://api.notion.com/v1", &["bearer"]),
        ("issues", "https://api.linear.app", &[linear]),
        (
            "meetings",
            "https://app.circleback.ai/api/mcp",
            &[
                "refresh_token https://app.circleback.ai/api/oauth/access-token",
                "bearer",
            ],
        ),
        // Of these two every company has its own, and the second asks for no credential.
        ("observability", "https://logs.example.com", &["basic", "bearer"]),
        ("nats", "https://nats.example.com", &[]),
        ("support", "https://api.usepylon.com", &["bearer"]),
        ("tinybird", "https://api.tinybird.co/v0", &["bearer"]),
        // Snowflake takes a key pair, the other databases a user and a password.
        ("warehouse", "postgres", &["basic", "key_pair"]),
    ];
    let catalogue = catalogue();
    let names: BTreeSet<&str> = vendors.iter().map(|(name, ..)| *name).collect();
    let packages: BTreeSet<&str> = catalogue.services().map(|service| service.name.as_str()).collect();
    assert_eq!(packages, names);
    for (name, base_url, ways) in vendors {
        let service = catalogue.service(name).unwrap();
        assert_eq!(service.place(), base_url, "{name}");
        let said = service.auth.iter().map(|auth| match auth {
            Auth::Header { name, prefix } => format!("header {name} {prefix:?}"),
            Auth::OAuth2 { token_url, .. } => format!("{} {token_url}", auth.kind()),
            other => other.kind().to_owned(),
        });
        assert_eq!(said.collect::<Vec<_>>(), ways, "{name}");
    }
    for (name, header, text) in [
        ("code", "x-github-api-version", "2022-11-28"),
        ("docs", "notion-version", "2022-06-28"),
    ] {
        let Kind::Http(http) = &catalogue.service(name).unwrap().kind else {
            panic!("{name} is no API")
        };
        let said = (header.to_owned(), text.to_owned());
        assert!(http.headers.contains(&said), "{name}: {:?}", http.headers);
    }
}

/// A service of kind `http` or `script`.
struct Shop {
    service: Arc<Service>,
    _folder: tempfile::TempDir,
}

impl Shop {
    fn new(kind: &str, auth: &str, methods: &str, fixtures: &[(&str, Value)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shop = folder.path().join("shop");
        std::fs::create_dir_all(shop.join("fixtures")).unwrap();
        let head = format!("name = \"shop\"\nsummary = \"A shop\"\nbase_url = \"https://shop.example\"\n{kind}\n");
        std::fs::write(shop.join("service.toml"), format!("{head}{auth}\n{methods}")).unwrap();
        std::fs::write(shop.join("script.js"), SCRIPT).unwrap();
        for (method, fixture) in fixtures {
            let file = shop.join("fixtures").join(format!("{method}.json"));
            std::fs::write(file, json!([fixture]).to_string()).unwrap();
        }
        let (catalogue, mistakes) = Catalogue::load(&[folder.path()]);
        assert!(mistakes.is_empty(), "{mistakes:?}");
        let service = Arc::clone(catalogue.service("shop").unwrap());
        Self {
            service,
            _folder: folder,
        }
    }

    /// What is wrong with its fixtures.
    async fn wrong(&self) -> Vec<String> {
        let played = contract::play(&self.service, &guard()).await.unwrap();
        played.into_iter().flat_map(|played| played.wrong).collect()
    }

    /// The status of the answer to a request whose path is recorded, and what is then wrong.
    async fn answers(&self, target: &str, header: &str, tools: Option<Arc<[Value]>>) -> (u16, Vec<String>) {
        let tasks = Tasks::new();
        let way = credential::way(&self.service);
        let exchange = Exchange {
            request: format!("GET {}", target.split('?').next().unwrap()),
            body: None,
            status: 200,
            headers: Vec::new(),
            answer: Value::Null,
        };
        let script = Arc::new(Mutex::new(Script {
            exchanges: [exchange].into(),
            demand: Demand::new(&self.service, way.as_ref()),
            ..Script::default()
        }));
        let url = server::listen(&tasks, Arc::clone(&script), tools).await.unwrap();
        let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n{header}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
        tasks.shut_down(PATIENCE).await;
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let wrong = std::mem::take(&mut script.lock().unwrap().wrong);
        (status, wrong)
    }
}

const PATIENCE: Duration = Duration::from_secs(30);
const HTTP: &str = "kind = \"http\"";
const FIND: &str = "[methods.find]\nsummary = \"Find\"\naccess = \"read\"\nrequest = \"GET /items\"\n\
    query = [\"limit\", \"api_key\"]\narguments.properties = { limit.type = \"integer\", api_key.type = \"string\" }\n";
/// It asks its API, and another place.
const SCRIPT: &str = "export async function find() {
  return (await (await fetch('/items')).text()) + (await (await fetch('files:/items')).text());
}";

/// Ways to authenticate, with the target and the headers of a request that shows the credential.
fn ways() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let bearer = vec!["authorization: Bearer contract-test-token"];
    // user:password
    let basic = vec!["authorization: Basic Y29udHJhY3QtdGVzdC11c2VyOmNvbnRyYWN0LXRlc3QtcGFzc3dvcmQ="];
    let signed = "authorization: AWS4-HMAC-SHA256 Credential=contract-test-access_key_id/\
        20260518/eu-central-1/execute-api/aws4_request, SignedHeaders=host, Signature=0";
    vec![
        ("kind = \"bearer\"", "/items", bearer.clone()),
        ("kind = \"basic\"", "/items", basic),
        (
            "kind = \"header\"\nname = \"X-Api-Key\"\nprefix = \"Key \"",
            "/items",
            vec!["x-api-key: Key contract-test-token"],
        ),
        (
            "kind = \"query\"\nname = \"api_key\"",
            "/items?api_key=contract-test-token",
            vec!["accept: */*"],
        ),
        (
            "kind = \"all\"\nparts = [{ kind = \"header\", name = \"x-app\", slot = \"app\" }, { kind = \"bearer\" }]",
            "/items",
            vec!["x-app: contract-test-app", bearer[0]],
        ),
        (
            "kind = \"aws_sigv4\"\nregion = \"eu-central-1\"\nservice = \"execute-api\"",
            "/items",
            vec![signed],
        ),
        (
            "kind = \"refresh_token\"\ntoken_url = \"https://login.example/token\"",
            "/items",
            bearer.clone(),
        ),
        ("kind = \"github_app\"", "/items", bearer.clone()),
        ("kind = \"key_pair\"", "/items", bearer),
    ]
}

#[tokio::test]
async fn each_way_to_authenticate_shows_what_the_server_wants() {
    let exchanges = json!([{ "request": "GET /items?limit=2", "answer": 5 }]);
    let fixture = json!({ "name": "two", "arguments": { "limit": 2 }, "exchanges": exchanges, "result": 5 });
    for (way, ..) in ways() {
        let shop = Shop::new(HTTP, &format!("[auth]\n{way}"), FIND, &[("find", fixture.clone())]);
        assert_eq!(shop.wrong().await, [""; 0], "{way}");
    }
}

#[tokio::test]
async fn a_request_that_does_not_show_the_credential_in_its_place_is_refused() {
    let attempts: Vec<(String, String)> = ways()
        .into_iter()
        .map(|(_, target, headers)| (target.to_owned(), headers.join("\r\n")))
        .chain([
            ("/items".to_owned(), "accept: */*".to_owned()),
            ("/items".to_owned(), "authorization: contract-test-token".to_owned()),
            ("/items".to_owned(), "x-api-key: contract-test-token".to_owned()),
            ("/items".to_owned(), "x-app: contract-test-app".to_owned()),
            ("/items?token=contract-test-token".to_owned(), "accept: */*".to_owned()),
            ("/items?api_key=other".to_owned(), "accept: */*".to_owned()),
            (
                "/items".to_owned(),
                // password:user
                "authorization: Basic Y29udHJhY3QtdGVzdC1wYXNzd29yZDpjb250cmFjdC10ZXN0LXVzZXI=".to_owned(),
            ),
        ])
        .collect();
    for (way, target, headers) in ways() {
        let shop = Shop::new(HTTP, &format!("[auth]\n{way}"), FIND, &[]);
        let right = headers.join("\r\n");
        let (status, wrong) = shop.answers(target, &right, None).await;
        assert_eq!((status, &wrong[..]), (200, &[][..]), "{way}");
        // Several at once show what one of them wants.
        let is_other = |shown: &&(String, String)| shown.0 != target || !shown.1.contains(&right);
        for (target, shown) in attempts.iter().filter(is_other) {
            for tools in [None, Some(Arc::default())] {
                let (status, wrong) = shop.answers(target, shown, tools).await;
                assert_eq!(status, 401, "{way}, {target}, {shown}");
                assert_eq!(wrong.len(), 1, "{wrong:?}");
                let said = format!("the request GET {target} does not show the credential: it wants the ");
                assert!(wrong[0].starts_with(&said), "{wrong:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_contract_is_not_kept_where_the_credential_is_not_shown_in_its_place() {
    let auth = "[auth]\nkind = \"query\"\nname = \"api_key\"";
    let exchanges = json!([{ "request": "GET /items?api_key=mine", "answer": 5 }]);
    let fixture = json!({ "name": "twice", "arguments": { "api_key": "mine" }, "exchanges": exchanges, "result": 5 });
    let wrong = Shop::new(HTTP, auth, FIND, &[("find", fixture)]).wrong().await;
    let said = "it wants the parameter api_key=contract-test-token, and there is mine, contract-test-token";
    assert!(wrong[0].ends_with(said), "{wrong:?}");
    assert!(wrong[1].contains("credential_refused"), "{wrong:?}");
    assert_eq!(wrong.len(), 2, "{wrong:?}");
}

#[tokio::test]
async fn a_script_shows_the_credential_to_its_api_alone() {
    let kind = "kind = \"script\"\nhosts = { files = \"https://files.example\" }";
    let auth = "[auth]\nkind = \"bearer\"";
    let find = "[methods.find]\nsummary = \"Find\"\naccess = \"read\"\n";
    let exchanges =
        json!([{ "request": "GET /items", "answer": "tea" }, { "request": "GET /files:/items", "answer": "pot" }]);
    let fixture = json!({ "name": "both", "exchanges": exchanges, "result": "teapot" });
    let shop = Shop::new(kind, auth, find, &[("find", fixture)]);
    assert_eq!(shop.wrong().await, [""; 0]);
    let shown = "authorization: Bearer contract-test-token";
    let (status, wrong) = shop.answers("/files:/items", shown, None).await;
    assert_eq!(status, 401);
    assert!(wrong[0].ends_with("which is for the API alone"), "{wrong:?}");
}

#[tokio::test]
async fn what_is_sent_is_held_against_a_body_that_must_be_recorded() {
    let play = async |verb: &str, json: bool, body: Option<Value>| {
        let json = if json {
            "json = { name = \"{name}\" }\n"
        } else {
            "query = [\"name\"]\n"
        };
        let method = format!(
            "[methods.make]\nsummary = \"Make\"\naccess = \"write\"\nrequest = \"{verb} /items\"\n{json}\
             arguments.properties.name.type = \"string\"\n"
        );
        let target = if json.starts_with("query") {
            "/items?name=tea"
        } else {
            "/items"
        };
        let mut exchange = json!({ "request": format!("{verb} {target}"), "answer": 5 });
        if let Some(body) = body {
            exchange["body"] = body;
        }
        let fixture = json!({ "name": "tea", "arguments": { "name": "tea" }, "exchanges": [exchange], "result": 5 });
        Shop::new(HTTP, "", &method, &[("make", fixture)]).wrong().await
    };
    for verb in ["POST", "PUT", "PATCH"] {
        let wrong = play(verb, true, None).await;
        let place = format!("shop/fixtures/make.json: the exchange {verb} /items has no body recorded, ");
        assert!(wrong[0].contains(&place), "{wrong:?}");
        assert!(wrong[0].contains("write \"body\": {\"name\":\"tea\"}"), "{wrong:?}");
        assert_eq!(play(verb, true, Some(json!({ "name": "tea" }))).await, [""; 0]);
        assert_eq!(play(verb, true, Some(json!({ "name": "pot" }))).await.len(), 1);
        assert_eq!(play(verb, true, Some(Value::Null)).await.len(), 1);

        let wrong = play(verb, false, None).await;
        assert!(wrong[0].contains("write \"body\": null"), "{wrong:?}");
        assert_eq!(play(verb, false, Some(Value::Null)).await, [""; 0]);
    }
    assert_eq!(play("DELETE", false, None).await, [""; 0]);
    assert_eq!(play("DELETE", true, None).await.len(), 1);
}

#[tokio::test]
async fn the_arguments_of_a_tool_must_be_recorded() {
    let mut meetings = Service::clone(catalogue().service("meetings").unwrap());
    let fixtures = meetings
        .methods
        .values_mut()
        .flat_map(|method| method.fixtures.iter_mut());
    for exchange in fixtures.flat_map(|fixture| fixture.exchanges.iter_mut()) {
        exchange.body = None;
    }
    for played in contract::play(&meetings, &guard()).await.unwrap() {
        let wrong = played.wrong.join("\n");
        let place = format!("meetings/fixtures/{}.json: the exchange tools/call ", played.method);
        assert!(wrong.contains(&place), "{played:?}");
    }
}

#[tokio::test]
async fn a_program_is_played_by_a_server_that_wants_what_its_variable_is_given() {
    let mut meetings = Service::clone(catalogue().service("meetings").unwrap());
    meetings.kind = Kind::Mcp(Server::Command(Command::default()));
    let variable = Auth::Environment { name: "TOKEN".into() };
    for auth in [vec![variable], Vec::new()] {
        meetings.auth = auth;
        for played in contract::play(&meetings, &guard()).await.unwrap() {
            assert_eq!(played.wrong, [""; 0], "{:?}", meetings.auth);
        }
    }
}
