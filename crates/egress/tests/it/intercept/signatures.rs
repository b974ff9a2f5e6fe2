//! Signature Version 4: what arrives is signed with the real keys, for what the rule allows.

use http::{HeaderMap, StatusCode};
use secret::Secret;
use signing::{Keys, Scope};

use super::house::{House, request};
use super::upstream::{Answer, Seen, text};

const HOST: &str = "bucket.s3.test";
const ACCESS: &str = "AKIAREALREALREAL";
const KEY: &str = "real/secret+key-of-forty-characters-long";
const RULE: &str = r#"aws = { access_key = "env:ACCESS", secret_key = "env:KEY", regions = ["eu-central-1"], services = ["s3", "dynamodb"] }"#;

/// Answers as AWS does: signs the request itself, and compares.
fn verifying(seen: &Seen) -> Answer {
    let authorization = seen.header("authorization").join("");
    let at = seen.header("x-amz-date").join("");
    let time = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", &at).unwrap();
    let time = time.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_second();
    let service = authorization.split('/').nth(3).unwrap_or_default().to_owned();
    let payload = match seen.header("x-amz-content-sha256").first() {
        Some(said) => said.clone(),
        None => signing::payload_hash(&seen.body),
    };
    if payload.len() == 64 && payload != signing::payload_hash(&seen.body) {
        return refused("the body is not the one that was signed");
    }
    let (path, query) = seen
        .target
        .split_once('?')
        .map_or((seen.target.as_str(), None), |(path, query)| (path, Some(query)));
    let secret_key = Secret::new(KEY);
    let headers: HeaderMap = seen.headers.clone();
    let set = signing::sign(
        &signing::Request {
            method: &seen.method.parse().unwrap(),
            host: HOST,
            path,
            query,
            headers: &headers,
            payload: &payload,
        },
        &Keys {
            access_key: ACCESS,
            secret_key: &secret_key,
            session_token: None,
        },
        Scope {
            region: "eu-central-1",
            service: &service,
        },
        time,
    )
    .unwrap();
    let expected = set.iter().find(|(name, _)| name == "authorization").unwrap();
    if expected.1 == authorization.as_str() {
        text("signed")
    } else {
        refused("SignatureDoesNotMatch")
    }
}

fn refused(why: &'static str) -> Answer {
    let mut answer = text(why);
    *answer.status_mut() = StatusCode::FORBIDDEN;
    answer
}

async fn house() -> (House, super::upstream::Upstream) {
    let house = House::new(&[("aws", RULE)]);
    house.secrets.set("env:ACCESS", ACCESS);
    house.secrets.set("env:KEY", KEY);
    let upstream = house.upstream(HOST, verifying).await;
    (house, upstream)
}

fn client_signed(scope: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential=credential-brokered/20260102/{scope}/aws4_request, SignedHeaders=host;x-amz-date, Signature=00ff"
    )
}

#[tokio::test]
async fn threat_048_a_request_is_signed_anew_and_in_full() {
    let (house, upstream) = house().await;
    let s3 = client_signed("eu-central-1/s3");
    let signed = [
        ("authorization", s3.as_str()),
        ("x-amz-date", "20260102T000000Z"),
        ("x-amz-security-token", "credential-brokered"),
        ("content-type", "text/plain"),
        ("x-amz-meta-a", "b  c"),
        ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
    ];
    let reply = house
        .ask(
            HOST,
            request("PUT", HOST, "/a%20key/b?versionId=1&acl", &signed, "body"),
        )
        .await;
    assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, "signed"));
    let seen = upstream.only();
    assert!(seen.header("x-amz-security-token").is_empty());
    assert_ne!(seen.header("x-amz-date"), ["20260102T000000Z"]);
    let dynamo = client_signed("eu-central-1/dynamodb");
    let hashed = [("authorization", dynamo.as_str()), ("x-amz-target", "DynamoDB.Get")];
    let reply = house.ask(HOST, request("POST", HOST, "/", &hashed, "{\"a\":1}")).await;
    assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, "signed"));
}

#[tokio::test]
async fn threat_048_other_scopes_and_bodies_signed_in_chunks_are_refused() {
    let (house, upstream) = house().await;
    for scope in ["us-east-1/s3", "eu-central-1/sts", "eu-central-1/iam"] {
        let signed = client_signed(scope);
        let reply = house
            .ask(HOST, request("GET", HOST, "/", &[("authorization", &signed)], ""))
            .await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (StatusCode::FORBIDDEN, "signature"),
            "{scope}"
        );
    }
    let s3 = client_signed("eu-central-1/s3");
    for payload in [
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
    ] {
        let signed = [("authorization", s3.as_str()), ("x-amz-content-sha256", payload)];
        let reply = house
            .ask(
                HOST,
                request("PUT", HOST, "/key", &signed, "4;chunk-signature=0\r\nbody\r\n"),
            )
            .await;
        assert_eq!(reply.code(), "signature", "{payload}");
    }
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn threat_049_signatures_in_the_query_need_leave() {
    let (house, upstream) = house().await;
    let query = |seconds: u32| {
        format!(
            "/key?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=any%2F20260102%2Feu-central-1%2Fs3%2Faws4_request\
             &X-Amz-Date=20260102T000000Z&X-Amz-Expires={seconds}&X-Amz-SignedHeaders=host&X-Amz-Signature=00"
        )
    };
    let reply = house.ask(HOST, request("GET", HOST, &query(60), &[], "")).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::FORBIDDEN, "signature")
    );
    house.change(2, &[("aws", &RULE.replace(" }", ", presigned = 300 }"))]);
    let reply = house.ask(HOST, request("GET", HOST, &query(301), &[], "")).await;
    assert_eq!(reply.code(), "signature");
    assert!(upstream.seen().is_empty());
    let reply = house.ask(HOST, request("GET", HOST, &query(300), &[], "")).await;
    assert_eq!(reply.body, "signed");
    assert_eq!(upstream.only().target, "/key");
}
