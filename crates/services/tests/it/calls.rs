//! From arguments to requests, and from answers to results.

use serde_json::json;
use services::Code;

use crate::rig::{HOST, KEY, Setting, Upstream, ok, status, with};

const METHODS: &str = r#"
[methods.get]
summary = "One contact"
access = "read"
request = "GET /contacts/{id}"
query = ["fields", "archived"]
arguments.properties.id.type = "string"
arguments.properties.fields = { type = "array", items = { type = "string" } }
arguments.properties.archived.type = "boolean"
arguments.required = ["id"]
select = "/data"

[methods.file]
summary = "A file"
access = "read"
request = "GET /files/{+path}"
arguments.properties.path.type = "string"
arguments.required = ["path"]

[methods.create]
summary = "Make a contact"
access = "write"
request = "POST /contacts"
idempotency_header = "Idempotency-Key"
json = { properties = "{*}", source = "belljar" }
headers = { x-team = "{team}" }
arguments.properties.email.type = "string"
arguments.properties.age.type = "integer"
arguments.properties.team.type = "string"
arguments.required = ["email"]

[methods.remove]
summary = "Remove a contact"
access = "write"
request = "DELETE /contacts/{id}"
arguments.properties.id.type = "integer"
arguments.required = ["id"]

[methods.list]
summary = "All contacts"
access = "read"
request = "GET /contacts"
query = ["limit"]
arguments.properties.limit = { type = "integer", minimum = 1, maximum = 100 }
[methods.list.pages]
items = "/results"
cursor = "after"
next = "/paging/next/after"

[headers]
X-Api-Version = "2022-06-28"
"#;

#[tokio::test]
async fn a_call_becomes_a_request_and_its_part_of_the_answer_the_result() {
    let upstream = Upstream::start(|_, _| ok(json!({"data": {"name": "Ada"}, "meta": 1}))).await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let result = rig
        .get("get", json!({"id": "a b", "fields": ["x", "y&z"], "archived": false}))
        .await;
    assert_eq!(result, json!({"name": "Ada"}));
    let seen = upstream.one();
    assert_eq!(
        (seen.verb.as_str(), seen.target.as_str()),
        ("GET", "/v1/contacts/a%20b?archived=false&fields=x&fields=y%26z")
    );
    assert_eq!(seen.header("authorization"), format!("Bearer {KEY}"));
    assert_eq!(seen.header("host"), format!("{HOST}:{}", upstream.address.port()));
    assert_eq!(seen.header("accept"), "application/json");
    assert_eq!(seen.header("x-api-version"), "2022-06-28");
    assert_eq!(seen.body, "");
}

#[tokio::test]
async fn a_body_is_made_of_the_arguments_that_nothing_else_uses() {
    let upstream = Upstream::start(|_, _| status(201, json!({"id": 7}))).await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let result = rig
        .get("create", json!({"email": "a@example.com", "age": 3, "team": "red"}))
        .await;
    assert_eq!(result, json!({"id": 7}));
    let seen = upstream.one();
    assert_eq!(seen.header("content-type"), "application/json");
    assert_eq!(seen.header("x-team"), "red");
    let body = seen.json();
    assert_eq!(body["source"], "belljar");
    assert_eq!(body["properties"]["email"], "a@example.com");
    assert_eq!(body["properties"]["age"], 3);
}

#[tokio::test]
async fn an_answer_without_a_body_is_null() {
    let upstream = Upstream::start(|_, _| {
        axum::response::Response::builder()
            .status(204)
            .body(axum::body::Body::empty())
            .unwrap()
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    assert_eq!(rig.get("remove", json!({"id": 3})).await, json!(null));
    assert_eq!(upstream.one().target, "/v1/contacts/3");
}

#[tokio::test]
async fn pages_are_asked_for_one_by_one_with_the_cursor_that_was_given() {
    let upstream = Upstream::start(|seen, _| {
        if seen.target.contains("after=") {
            return ok(json!({"results": [{"id": 3}]}));
        }
        ok(json!({"results": [{"id": 1}, {"id": 2}], "paging": {"next": {"after": "c/2", "link": "https://evil.com"}}}))
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let first = rig.get("list", json!({"limit": 2})).await;
    assert_eq!(first, json!({"items": [{"id": 1}, {"id": 2}], "next": "c/2"}));
    let second = rig.get("list", json!({"limit": 2, "cursor": first["next"]})).await;
    assert_eq!(second, json!({"items": [{"id": 3}], "next": null}));
    let targets: Vec<_> = upstream.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(targets, ["/v1/contacts?limit=2", "/v1/contacts?limit=2&after=c%2F2"]);
}

#[tokio::test]
async fn threat_070_only_registered_methods_dispatch() {
    let upstream = Upstream::start(|_, _| ok(json!({}))).await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    for method in [
        "constructor",
        "__proto__",
        "toString",
        "hasOwnProperty",
        "",
        "get ",
        "GET",
        "get.get",
        "crm.get",
        "*",
        "get\0",
        "../get",
    ] {
        let failure = rig.fails(method, json!({"id": "1"}), Code::UnknownMethod).await;
        assert_eq!(failure.status(), 404);
    }
    let arguments = serde_json::value::RawValue::from_string("{}".to_owned()).unwrap();
    for service in ["", "__proto__", "constructor", "crm ", "*", "../crm", "CRM"] {
        let call = services::Call {
            session: rig.session,
            user: rig.user,
            service,
            method: "get",
            arguments: &arguments,
            idempotency_key: None,
        };
        let failure = rig.services.call(call).await.unwrap_err();
        assert_eq!(
            (failure.code, failure.status()),
            (Code::UnknownService, 404),
            "{service:?}"
        );
    }
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn threat_074_arguments_that_do_not_fit_reach_nobody() {
    let upstream = Upstream::start(|_, _| ok(json!({}))).await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let large = "x".repeat(10 << 20);
    for (method, arguments, code) in [
        ("list", json!({"limit": -1}), Code::InvalidArguments),
        ("list", json!({"limit": 1e9}), Code::InvalidArguments),
        ("list", json!({"limit": "1; DROP"}), Code::InvalidArguments),
        ("list", json!({"limit": 1, "admin": true}), Code::InvalidArguments),
        ("list", json!([]), Code::InvalidArguments),
        ("get", json!({}), Code::InvalidArguments),
        ("get", json!({"id": ["a"]}), Code::InvalidArguments),
        ("get", json!({"id": ".."}), Code::InvalidArguments),
        ("get", json!({"id": "../../admin"}), Code::InvalidArguments),
        ("get", json!({"id": "%2e%2e%2fadmin"}), Code::InvalidArguments),
        ("file", json!({"path": "a/../../../admin"}), Code::InvalidArguments),
        ("file", json!({"path": "//evil.com/"}), Code::InvalidArguments),
        (
            "create",
            json!({"email": "x", "team": "a\r\nx-admin: 1"}),
            Code::InvalidArguments,
        ),
        ("create", json!({"email": large}), Code::ArgumentsTooLarge),
    ] {
        let failure = rig.fails(method, arguments, code).await;
        assert_eq!(failure.status(), 422);
        assert!(failure.message.starts_with(&format!("crm.{method}: ")), "{failure}");
    }
    assert!(upstream.seen().is_empty());
    for id in [
        "{id}",
        "${jndi:ldap://x}",
        "{{7*7}}",
        "a?admin=1",
        "a#b",
        "@evil.com",
        "http://evil.com",
    ] {
        rig.fails("get", json!({"id": id}), Code::AnswerMalformed).await;
        let seen = upstream.seen().pop().unwrap();
        assert!(
            seen.target.starts_with("/v1/contacts/") && !seen.target.contains('?'),
            "{}",
            seen.target
        );
        assert_eq!(seen.target.matches('/').count(), 3, "{}", seen.target);
    }
}

#[tokio::test]
async fn a_write_is_made_once_unless_the_upstream_knows_its_key() {
    let upstream = Upstream::start(|_, _| with(status(503, json!({"message": "down"})), "retry-after", "0")).await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let failure = rig.fails("remove", json!({"id": 1}), Code::UpstreamFailed).await;
    assert_eq!(failure.status(), 502);
    assert!(failure.message.contains("down"), "{failure}");
    assert_eq!(upstream.seen().len(), 1);

    let failed = rig.ask_with_key("create", json!({"email": "x"}), Some("call-1")).await;
    assert_eq!(failed.unwrap_err().code, Code::UpstreamFailed);
    let keys: Vec<_> = upstream.seen()[1..]
        .iter()
        .map(|seen| seen.header("idempotency-key").to_owned())
        .collect();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0] && key.len() == 32), "{keys:?}");

    // A replay after a crash carries the same key, another call and another session another.
    let last = || upstream.seen().pop().unwrap().header("idempotency-key").to_owned();
    let _ = rig.ask_with_key("create", json!({"email": "x"}), Some("call-1")).await;
    assert_eq!(last(), keys[0]);
    let _ = rig.ask_with_key("create", json!({"email": "x"}), Some("call-2")).await;
    assert_ne!(last(), keys[0]);
    let stranger = Setting::new(&upstream.base(), METHODS).build();
    let _ = stranger
        .ask_with_key("create", json!({"email": "x"}), Some("call-1"))
        .await;
    assert_ne!(last(), keys[0]);
}

#[tokio::test]
async fn a_read_is_made_again_when_the_upstream_is_ready() {
    let upstream = Upstream::start(|_, number| match number {
        0 => with(status(429, json!({"message": "slow down"})), "retry-after", "0"),
        1 => with(status(503, json!({})), "retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"),
        _ => ok(json!({"data": 1})),
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    assert_eq!(rig.get("get", json!({"id": "1"})).await, json!(1));
    assert_eq!(upstream.seen().len(), 3);
}

#[tokio::test]
async fn an_upstream_that_wants_to_be_left_alone_for_long_is() {
    let upstream =
        Upstream::start(|_, _| with(status(429, json!({"message": "slow down"})), "retry-after", "3600")).await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    let failure = rig.fails("get", json!({"id": "1"}), Code::UpstreamRateLimited).await;
    assert_eq!(failure.status(), 429);
    assert_eq!(failure.retry_after, Some(std::time::Duration::from_secs(3600)));
    assert_eq!(json!(failure)["retry_after"], 3600.0);
    assert_eq!(upstream.seen().len(), 1);
}

#[tokio::test]
async fn what_an_upstream_refuses_is_told_in_its_own_words() {
    let upstream = Upstream::start(|seen, _| match seen.target.rsplit('/').next().unwrap() {
        "404" => status(404, json!({"message": "no such contact"})),
        "400" => status(400, json!({"error": {"code": "INVALID", "message": "bad\nid"}})),
        "401" => status(401, json!({"message": "bad token"})),
        "403" => with(
            status(403, json!({"message": "API rate limit exceeded"})),
            "x-ratelimit-remaining",
            "0",
        ),
        _ => status(418, json!("?")),
    })
    .await;
    let rig = Setting::new(&upstream.base(), METHODS).build();
    for (id, code, status, words) in [
        ("404", Code::NotFound, 404, "no such contact"),
        ("400", Code::Refused, 422, "(400, INVALID): bad id"),
        ("401", Code::CredentialRefused, 502, "bad token"),
        ("403", Code::UpstreamRateLimited, 429, "API rate limit exceeded"),
        ("418", Code::Refused, 422, "(418)"),
    ] {
        let failure = rig.fails("get", json!({"id": id}), code).await;
        assert_eq!(failure.status(), status, "{failure}");
        assert!(failure.message.contains(words), "{failure}");
        assert!(failure.remedy.is_some());
    }
}

#[tokio::test]
async fn a_form_nests_as_its_service_wants_it() {
    let upstream = Upstream::start(|_, _| ok(json!({"list": []}))).await;
    let methods = r#"
lists = "indices"
[methods.find]
summary = "Find"
access = "read"
request = "POST /search"
form = "{*}"
arguments.properties.expand = { type = "array", items = { type = "string" } }
arguments.properties.created.type = "object"
[methods.find.pages]
items = "/list"
cursor = "body:page"
first_page = 1
"#;
    let rig = Setting::with_auth(&upstream.base(), "", &[], methods).build();
    let arguments = json!({"expand": ["a.b", "c&d"], "created": {"gte": 5}, "cursor": "3"});
    let page = rig.get("find", arguments).await;
    assert_eq!(page, json!({"items": [], "next": null}));
    let seen = upstream.one();
    assert_eq!(seen.header("content-type"), "application/x-www-form-urlencoded");
    let mut fields: Vec<(String, String)> = url::form_urlencoded::parse(seen.body.as_bytes()).into_owned().collect();
    fields.sort();
    let expected = [
        ("created[gte]", "5"),
        ("expand[0]", "a.b"),
        ("expand[1]", "c&d"),
        ("page", "3"),
    ];
    assert_eq!(
        fields,
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    rig.fails("find", json!({"cursor": "x"}), Code::InvalidArguments).await;
    rig.fails("find", json!({"cursor": "-1"}), Code::InvalidArguments).await;
}
