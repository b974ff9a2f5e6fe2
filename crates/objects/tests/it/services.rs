//! Objects in two independent services that speak S3: `moto`, which believes everybody, and `s3s-fs`, which checks signatures
//! and checksums.

use std::time::Duration;

use domain::{SessionId, Timestamp};
use http::{HeaderMap, HeaderValue};
use objects::{Key, Method, ObjectError, Objects, Presigned, S3Settings, Store};
use secret::Secret;
use testkit::S3Server;

use crate::local::{content, keeps_objects, key, pieces};

const SESSION_TOKEN: &str = "of-temporary-keys";

fn client() -> reqwest::Client {
    // Another test has installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20));
    builder.build().unwrap()
}

fn objects(service: &S3Server, secret_key: &str) -> Objects {
    let settings = S3Settings {
        endpoint: Some(service.url()),
        bucket: S3Server::BUCKET.to_owned(),
        region: "eu-central-1".to_owned(),
        prefix: "belljar/here".to_owned(),
        path_style: true,
        plain_http: true,
        access_key: Secret::new(S3Server::ACCESS_KEY).into(),
        secret_key: Secret::new(secret_key).into(),
        session_token: None,
    };
    Objects::open(Store::S3(Box::new(settings))).unwrap()
}

#[tokio::test]
async fn moto_keeps_objects() {
    let service = S3Server::moto();
    let objects = objects(&service, S3Server::SECRET_KEY);
    let (one, session) = (&b"a content"[..], SessionId::new());
    let first = key(session, one);
    assert_eq!(objects.head(first).await.unwrap(), None);
    objects.put(first, 9, pieces(one)).await.unwrap();
    assert_eq!(objects.head(first).await.unwrap(), Some(9));
    assert_eq!(content(&objects, first).await, one);
    objects.delete(first).await.unwrap();
    assert_eq!(objects.head(first).await.unwrap(), None);
    assert!(matches!(objects.get(first).await, Err(ObjectError::NotFound(_))));
}

#[tokio::test]
async fn s3s_keeps_objects() {
    let service = S3Server::s3s();
    keeps_objects(&objects(&service, S3Server::SECRET_KEY)).await;
    // With another key nothing can be done.
    let stranger = objects(&service, "another-key");
    let content = key(SessionId::new(), b"x");
    assert!(matches!(
        stranger.put(content, 1, pieces(b"x")).await,
        Err(ObjectError::Unavailable { .. })
    ));
}

/// Sends a presigned request as somebody who has nothing else; true where it was done.
async fn send(method: http::Method, url: &str, headers: HeaderMap, body: &'static [u8]) -> bool {
    let request = client().request(method, url).headers(headers).body(body);
    request.send().await.is_ok_and(|answer| answer.status().is_success())
}

#[tokio::test]
async fn threat_117_a_presigned_request_is_good_for_nothing_else_at_a_real_service() {
    let service = S3Server::s3s();
    let objects = objects(&service, S3Server::SECRET_KEY);
    let session = SessionId::new();
    let (mine, other) = (key(session, b"mine"), key(session, b"other"));
    let presign = |method, key: Key, now| objects.presign(method, key, 4, now).unwrap().unwrap();
    let Presigned { url, headers } = presign(Method::Put, mine, Timestamp::now());
    let url = url.expose();

    // Another method, another key, another length, another checksum, none at all, another type of content, no type.
    assert!(!send(http::Method::DELETE, url, headers.clone(), b"").await);
    let elsewhere = url.replace(&mine.sha256.to_string(), &other.sha256.to_string());
    assert!(!send(http::Method::PUT, &elsewhere, headers.clone(), b"mine").await);
    let mut longer = headers.clone();
    longer.insert("content-length", HeaderValue::from_static("5"));
    assert!(!send(http::Method::PUT, url, longer, b"mine!").await);
    let theirs = presign(Method::Put, other, Timestamp::now()).headers;
    assert!(!send(http::Method::PUT, url, theirs, b"mine").await);
    let mut bare = headers.clone();
    bare.remove("x-amz-checksum-sha256");
    assert!(!send(http::Method::PUT, url, bare, b"mine").await);
    let mut page = headers.clone();
    page.insert("content-type", HeaderValue::from_static("text/html"));
    assert!(!send(http::Method::PUT, url, page, b"mine").await);
    let mut of_no_type = headers.clone();
    of_no_type.remove("content-type");
    assert!(!send(http::Method::PUT, url, of_no_type, b"mine").await);
    // Other bytes under the right checksum.
    assert!(!send(http::Method::PUT, url, headers.clone(), b"MINE").await);
    // One that was good six minutes ago.
    let before = Timestamp(Timestamp::now().0 - 360_000);
    let late = presign(Method::Put, mine, before);
    assert!(!send(http::Method::PUT, late.url.expose(), late.headers, b"mine").await);

    assert!(send(http::Method::PUT, url, headers, b"mine").await);
    assert_eq!(content(&objects, mine).await, b"mine");
    let fetch = presign(Method::Get, mine, Timestamp::now());
    assert!(send(http::Method::GET, fetch.url.expose(), HeaderMap::new(), b"").await);
    assert!(!send(http::Method::PUT, fetch.url.expose(), HeaderMap::new(), b"mine").await);
}

#[tokio::test]
async fn threat_123_a_presigned_url_is_in_no_log() {
    let nobody = testkit::free_port();
    let settings = S3Settings {
        endpoint: Some(format!("http://127.0.0.1:{nobody}")),
        bucket: S3Server::BUCKET.to_owned(),
        region: "eu-central-1".to_owned(),
        prefix: String::new(),
        path_style: true,
        plain_http: true,
        access_key: Secret::new(S3Server::ACCESS_KEY).into(),
        secret_key: Secret::new(S3Server::SECRET_KEY).into(),
        session_token: Some(Secret::new(SESSION_TOKEN).into()),
    };
    let objects = Objects::open(Store::S3(Box::new(settings))).unwrap();
    let content = key(SessionId::new(), b"x");
    let presigned = objects
        .presign(Method::Put, content, 1, Timestamp::now())
        .unwrap()
        .unwrap();
    assert!(presigned.url.expose().contains("X-Amz-Signature"));
    let temporary = format!("X-Amz-Security-Token={SESSION_TOKEN}");
    assert!(
        presigned.url.expose().contains(&temporary),
        "temporary keys are told so"
    );
    let put = objects.put(content, 1, pieces(b"x")).await.unwrap_err();
    let got = objects.head(content).await.unwrap_err();
    for said in [
        format!("{presigned:?}"),
        format!("{put:?} {put}"),
        format!("{got:?} {got}"),
        format!("{objects:?}"),
    ] {
        for secret in ["X-Amz-Signature", S3Server::SECRET_KEY, SESSION_TOKEN, "Credential"] {
            assert!(!said.contains(secret), "{said}");
        }
    }
}
