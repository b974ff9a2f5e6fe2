//! Signature Version 4: what arrives is signed with the real keys, for what the rule allows.

use http::{HeaderMap, StatusCode};
use secret::Secret;
use signing::{Keys, Scope};
use tokio::io::AsyncWriteExt;

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
    let (set, mut chunks) = signing::sign_chunked(
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
    if payload.starts_with("STREAMING-AWS4-HMAC") {
        let trailing = payload == signing::STREAMING_TRAILER;
        if let Err(why) = chunks_are_signed(&seen.body, &mut chunks, trailing) {
            return refused(why);
        }
    }
    if expected.1 == authorization.as_str() {
        text("signed")
    } else {
        refused("SignatureDoesNotMatch")
    }
}

/// Reads frames as S3 does: each chunk's signature is over the one before and its bytes, that of the trailers over theirs.
fn chunks_are_signed(mut body: &[u8], chunks: &mut signing::Chunks, trailing: bool) -> Result<(), &'static str> {
    let line = |body: &mut &[u8]| {
        let end = body
            .windows(2)
            .position(|end| end == b"\r\n")
            .ok_or("a line has no end")?;
        let line = String::from_utf8_lossy(&body[..end]).into_owned();
        *body = &body[end + 2..];
        Ok::<_, &'static str>(line)
    };
    loop {
        let frame = line(&mut body)?;
        let (size, signature) = frame
            .split_once(";chunk-signature=")
            .ok_or("a frame has no signature")?;
        let size = usize::from_str_radix(size, 16).map_err(|_| "a frame has no size")?;
        let chunk = body.get(..size).ok_or("a chunk is cut")?;
        if chunks.chunk(chunk) != signature {
            return Err("SignatureDoesNotMatch: a chunk");
        }
        body = &body[size..];
        if size == 0 {
            break;
        }
        if !line(&mut body)?.is_empty() {
            return Err("a chunk does not end where it says");
        }
    }
    if trailing {
        let mut trailers = String::new();
        loop {
            let trailer = line(&mut body)?;
            if let Some(signature) = trailer.strip_prefix("x-amz-trailer-signature:") {
                if chunks.trailers(trailers.as_bytes()) != signature {
                    return Err("SignatureDoesNotMatch: the trailers");
                }
                break;
            }
            trailers.push_str(&trailer);
            trailers.push('\n');
        }
    }
    if body == b"\r\n" {
        Ok(())
    } else {
        Err("something follows the last chunk")
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
async fn threat_048_other_scopes_are_refused() {
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

/// A body as SDKs write it, signed with keys that do not exist.
fn chunked(chunks: &[&str], trailer: Option<&str>) -> String {
    let none = "0".repeat(64);
    let mut body = String::new();
    for chunk in chunks {
        body.push_str(&format!("{:x};chunk-signature={none}\r\n{chunk}\r\n", chunk.len()));
    }
    body.push_str(&format!("0;chunk-signature={none}\r\n"));
    if let Some(trailer) = trailer {
        body.push_str(&format!("{trailer}\r\nx-amz-trailer-signature:{none}\r\n"));
    }
    body + "\r\n"
}

#[tokio::test]
async fn threat_048_bodies_signed_in_chunks_are_signed_anew_chunk_by_chunk() {
    let (house, upstream) = house().await;
    let s3 = client_signed("eu-central-1/s3");
    let (long, longer) = ("a".repeat(64 << 10), "b".repeat(100_000));
    let checksum = "x-amz-checksum-crc32c:sOO8/Q==";
    for (payload, chunks, trailer) in [
        (signing::STREAMING, vec![long.as_str(), longer.as_str(), "end"], None),
        (signing::STREAMING, vec![], None),
        (signing::STREAMING_TRAILER, vec![long.as_str(), "end"], Some(checksum)),
    ] {
        let length = chunks.iter().map(|chunk| chunk.len()).sum::<usize>().to_string();
        let signed = [
            ("authorization", s3.as_str()),
            ("content-encoding", "aws-chunked"),
            ("x-amz-content-sha256", payload),
            ("x-amz-decoded-content-length", length.as_str()),
        ];
        let body = chunked(&chunks, trailer);
        let reply = house.ask(HOST, request("PUT", HOST, "/key", &signed, &body)).await;
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (StatusCode::OK, "signed"),
            "{payload}"
        );
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.body.len(), body.len(), "the length stays");
    }
}

#[tokio::test]
async fn threat_048_a_body_that_is_not_in_signed_chunks_is_refused() {
    let (house, _upstream) = house().await;
    let s3 = client_signed("eu-central-1/s3");
    let whole = chunked(&["body"], None);
    for body in [
        "body".to_owned(),
        "4;chunk-signature=0\r\nbody\r\n".to_owned(),
        whole.replace("4;", "3;"),
        whole.replace("4;", "fffffff;"),
        whole.replace("4;", "-4;"),
        format!("{whole}more"),
        whole[..whole.len() - 3].to_owned(),
    ] {
        let signed = [
            ("authorization", s3.as_str()),
            ("x-amz-content-sha256", signing::STREAMING),
        ];
        let reply = house.ask(HOST, request("PUT", HOST, "/key", &signed, &body)).await;
        assert_eq!(reply.code(), "malformed", "{body}");
    }
}

/// A client that announces a chunk and never sends all of it, seventeen times.
#[tokio::test]
async fn threat_017_few_bodies_of_a_session_are_held_at_once() {
    let (house, _upstream) = house().await;
    let s3 = client_signed("eu-central-1/s3");
    let signature = "0".repeat(64);
    let begun = format!(
        "PUT /key HTTP/1.1\r\nhost: {HOST}\r\nauthorization: {s3}\r\nx-amz-content-sha256: {}\r\n\
         content-length: 100000\r\n\r\n8000;chunk-signature={signature}\r\nhalf of it",
        signing::STREAMING
    );
    let mut stalled = Vec::new();
    for _ in 0..17 {
        let name = rustls::pki_types::ServerName::try_from(HOST).unwrap();
        let decided = house.decided(egress::Scheme::Https, HOST, 443);
        let mut stream = house
            .client(b"http/1.1")
            .connect(name, house.open(decided))
            .await
            .unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    let signed = [
        ("authorization", s3.as_str()),
        ("x-amz-content-sha256", signing::STREAMING),
    ];
    let whole = chunked(&["body"], None);
    let asked = async || {
        let reply = house.ask(HOST, request("PUT", HOST, "/key", &signed, &whole)).await;
        reply.status
    };
    let refused = async { while asked().await != StatusCode::TOO_MANY_REQUESTS {} };
    testkit::within("another body is refused", refused).await;
    drop(stalled);
    let passes = async { while asked().await != StatusCode::OK {} };
    testkit::within("it passes when the others are gone", passes).await;
}
