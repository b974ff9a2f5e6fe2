//! Credentials that are given as they are.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use services::{Bound, Code};

use crate::rig::{KEY, Setting, Upstream, assert_clean, ok};

const GET: &str = r#"
[methods.get]
summary = "One contact"
access = "read"
request = "GET /contacts"
query = ["q"]
arguments.properties.q.type = "string"
[methods.put]
summary = "Change a contact"
access = "write"
request = "PUT /contacts"
json = "{*}"
arguments.properties.q.type = "string"
"#;

#[tokio::test]
async fn each_way_puts_the_credential_in_its_place() {
    let upstream = Upstream::start(|_, _| ok(json!(1))).await;
    let base = upstream.base();
    let call = async |auth: &str, slots: &[(&str, &str)]| {
        let rig = Setting::with_auth(&base, auth, slots, GET).build();
        rig.get("get", json!({"q": "a"})).await;
        upstream.seen().pop().unwrap()
    };
    let seen = call("", &[]).await;
    assert_eq!(seen.header("authorization"), "");
    let seen = call("[auth]\nkind = \"bearer\"", &[("token", "store:key")]).await;
    assert_eq!(seen.header("authorization"), format!("Bearer {KEY}"));
    let basic = "[auth]\nkind = \"basic\"";
    let seen = call(basic, &[("user", "me"), ("password", "store:key")]).await;
    assert_eq!(
        seen.header("authorization"),
        format!("Basic {}", STANDARD.encode(format!("me:{KEY}")))
    );
    let seen = call(basic, &[("user", "store:key")]).await;
    assert_eq!(
        seen.header("authorization"),
        format!("Basic {}", STANDARD.encode(format!("{KEY}:")))
    );
    let header = "[auth]\nkind = \"header\"\nname = \"X-Api-Key\"\nprefix = \"Key \"";
    let seen = call(header, &[("token", "store:key")]).await;
    assert_eq!(seen.header("x-api-key"), format!("Key {KEY}"));
    let query = "[auth]\nkind = \"query\"\nname = \"api_key\"";
    let seen = call(query, &[("token", "store:key")]).await;
    assert_eq!(seen.target, "/v1/contacts?q=a&api_key=canary-7f3a%2Fsecret%2Bkey%3D%3D");
}

#[tokio::test]
async fn the_first_way_is_taken_whose_slots_are_bound() {
    let upstream = Upstream::start(|_, _| ok(json!(1))).await;
    let ways = "[[auth]]\nkind = \"bearer\"\n[[auth]]\nkind = \"basic\"";
    let rig = Setting::with_auth(
        &upstream.base(),
        ways,
        &[("user", "me"), ("password", "store:key")],
        GET,
    )
    .build();
    rig.get("get", json!({})).await;
    assert!(upstream.one().header("authorization").starts_with("Basic "));
}

#[tokio::test]
async fn several_credentials_at_once_are_in_one_request_and_none_comes_back() {
    let upstream = Upstream::start(|_, _| ok(json!([KEY, "app-key-of-a-test", "user-key-of-a-test"]))).await;
    let all = "[auth]\nkind = \"all\"\nparts = [{ kind = \"header\", name = \"x-app\", slot = \"app\" }, \
               { kind = \"query\", name = \"user\", slot = \"user_key\" }, { kind = \"bearer\" }]";
    let slots = [("app", "store:app"), ("user_key", "store:user"), ("token", "store:key")];
    let rig = Setting::with_auth(&upstream.base(), all, &slots, GET).build();
    rig.secrets.set("app", "app-key-of-a-test");
    // One of them alone is nothing.
    rig.fails("get", json!({}), Code::CredentialMissing).await;
    rig.secrets.set("user", "user-key-of-a-test");
    let masked = rig.get("get", json!({})).await;
    assert!(
        masked
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one.as_str().unwrap().bytes().all(|byte| byte == b'*'))
    );
    let seen = upstream.one();
    assert_eq!(seen.header("x-app"), "app-key-of-a-test");
    assert_eq!(seen.header("authorization"), format!("Bearer {KEY}"));
    assert!(seen.target.ends_with("?user=user-key-of-a-test"), "{}", seen.target);
}

#[tokio::test]
async fn a_credential_in_the_query_is_in_no_failure() {
    let upstream = Upstream::start(|_, _| ok(json!(1))).await;
    let query = "[auth]\nkind = \"query\"\nname = \"api_key\"";
    let setting = Setting::with_auth(&upstream.base(), query, &[("token", "store:key")], GET);
    drop(upstream);
    // The rig looks at each failure.
    setting.build().fail("get", json!({})).await;
}

#[tokio::test]
async fn what_is_not_bound_or_does_not_resolve_is_said_and_reaches_nobody() {
    let upstream = Upstream::start(|_, _| ok(json!(1))).await;
    let bearer = "[auth]\nkind = \"bearer\"";
    let unbound = Setting::with_auth(&upstream.base(), bearer, &[], GET).build();
    let failure = unbound.fails("get", json!({}), Code::CredentialMissing).await;
    assert_eq!(failure.status(), 502);
    assert!(failure.remedy.unwrap().contains("services.crm.auth.token"));
    let absent = Setting::with_auth(&upstream.base(), bearer, &[("token", "store:other")], GET).build();
    let failure = absent.fails("get", json!({}), Code::CredentialMissing).await;
    assert!(failure.message.contains("store:other"), "{failure}");
    let broken = Setting::with_auth(&upstream.base(), bearer, &[("token", "store:broken")], GET).build();
    broken.secrets.set("broken", &format!("{KEY}\r\nx-admin: 1"));
    broken.fails("get", json!({}), Code::CredentialMissing).await;
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn threat_068_a_secret_that_was_changed_or_revoked_counts_at_the_next_call() {
    let upstream = Upstream::start(|_, _| ok(json!(1))).await;
    let rig = Setting::new(&upstream.base(), GET).build();
    rig.get("get", json!({})).await;
    rig.secrets.set("key", "another");
    rig.get("get", json!({})).await;
    assert_eq!(upstream.seen().pop().unwrap().header("authorization"), "Bearer another");
    rig.secrets.revoke("key");
    rig.fails("get", json!({}), Code::CredentialMissing).await;
    assert_eq!(upstream.seen().len(), 2);
}

#[test]
fn a_secret_in_the_configuration_itself_is_a_problem_that_does_not_repeat_it() {
    let bearer = "[auth]\nkind = \"bearer\"";
    let slots = [("token", KEY), ("user", "me")];
    let setting = Setting::with_auth("https://api.example.com", bearer, &slots, GET);
    assert_clean(&format!("{:?}", setting.settings));
    let (_, problems) = setting.try_build();
    let text = problems
        .iter()
        .map(|problem| format!("{problem}\n"))
        .collect::<String>();
    assert_eq!(problems.len(), 2, "{text}");
    assert_clean(&text);
    assert!(
        text.contains("services.crm.auth.token") && text.contains("services.crm.auth.user"),
        "{text}"
    );
}

/// The signature of what came is made again, from what came.
#[tokio::test]
async fn an_aws_signature_covers_what_is_sent() {
    let upstream = Upstream::start(|seen, _| {
        let authorization = seen.header("authorization");
        assert!(
            authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"),
            "{authorization}"
        );
        assert!(
            authorization.contains("/eu-central-1/execute-api/aws4_request, "),
            "{authorization}"
        );
        assert_eq!(seen.header("x-amz-security-token"), "session-token");
        let (path, query) = match seen.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (seen.target.as_str(), None),
        };
        let time = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", seen.header("x-amz-date")).unwrap();
        let time = time.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_second();
        let mut headers = seen.headers.clone();
        headers.remove("authorization");
        let signed = signing::sign(
            &signing::Request {
                method: &seen.verb.parse().unwrap(),
                host: seen.header("host"),
                path,
                query,
                headers: &headers,
                payload: &signing::payload_hash(seen.body.as_bytes()),
            },
            &signing::Keys {
                access_key: "AKIDEXAMPLE",
                secret_key: &secret::Secret::new(KEY),
                session_token: Some(&secret::Secret::new("session-token")),
            },
            signing::Scope {
                region: "eu-central-1",
                service: "execute-api",
            },
            time,
        )
        .unwrap();
        let expected = &signed.iter().find(|(name, _)| name == "authorization").unwrap().1;
        assert_eq!(authorization, expected.to_str().unwrap());
        ok(json!({"echo": authorization}))
    })
    .await;
    let auth = "[auth]\nkind = \"aws_sigv4\"\nregion = \"eu-central-1\"\nservice = \"execute-api\"";
    let slots = [
        ("access_key_id", "AKIDEXAMPLE"),
        ("secret_access_key", "store:key"),
        ("session_token", "store:session"),
    ];
    let rig = Setting::with_auth(&upstream.base(), auth, &slots, GET).build();
    rig.secrets.set("session", "session-token");
    rig.get("get", json!({"q": "a b+c/ü&d"})).await;
    rig.get("put", json!({"q": "body"})).await;
}

/// A URL that carries a signature works wherever it is taken: none is ever made for a call.
#[tokio::test]
async fn threat_049_nothing_is_presigned_for_a_caller() {
    let upstream = Upstream::start(|_, _| ok(json!(1))).await;
    let auth = "[auth]\nkind = \"aws_sigv4\"\nregion = \"eu-central-1\"\nservice = \"s3\"";
    let slots = [("access_key_id", "AKIDEXAMPLE"), ("secret_access_key", "store:key")];
    let rig = Setting::with_auth(&upstream.base(), auth, &slots, GET).build();
    rig.get("get", json!({"q": "&X-Amz-Expires=604800&X-Amz-Signature="}))
        .await;
    let seen = upstream.one();
    assert!(seen.header("authorization").contains("Signature="));
    let query = seen.target.split_once('?').unwrap().1;
    assert_eq!(query.matches('&').count(), 0, "{query}");
    rig.fails("get", json!({"X-Amz-Expires": "60"}), Code::InvalidArguments)
        .await;
    let Bound::Secret(reference) = Bound::from("store:key") else {
        panic!("it is a reference");
    };
    assert_eq!(reference.to_string(), "store:key");
}
