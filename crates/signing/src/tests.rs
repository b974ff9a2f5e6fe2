use super::*;

/// The time, keys and scope that the signature's published examples use.
const TIME: i64 = 1_440_938_160;
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

fn signature(method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap, service: &str) -> String {
    let secret_key = Secret::new(SECRET);
    let keys = Keys {
        access_key: "AKIDEXAMPLE",
        secret_key: &secret_key,
        session_token: None,
    };
    let scope = Scope {
        region: "us-east-1",
        service,
    };
    let request = Request {
        method,
        host: "example.amazonaws.com",
        path,
        query,
        headers,
        payload: &payload_hash(b""),
    };
    let set = sign(&request, &keys, scope, TIME).unwrap();
    let (_, authorization) = set.iter().find(|(name, _)| *name == header::AUTHORIZATION).unwrap();
    assert!(authorization.is_sensitive());
    authorization.to_str().unwrap().to_owned()
}

#[test]
fn a_plain_request_is_signed_as_published() {
    assert_eq!(
        signature(&Method::GET, "/", None, &HeaderMap::new(), "service"),
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
         SignedHeaders=host;x-amz-date, \
         Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    );
}

#[test]
fn a_query_is_sorted_as_published() {
    let signed = signature(
        &Method::GET,
        "/",
        Some("Param2=value2&Param1=value1"),
        &HeaderMap::new(),
        "service",
    );
    assert!(
        signed.ends_with("Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"),
        "{signed}"
    );
}

#[test]
fn a_path_is_written_as_each_service_expects() {
    let written = |path: &str, service| {
        let headers = HeaderMap::new();
        let request = Request {
            method: &Method::GET,
            host: "h",
            path,
            query: None,
            headers: &headers,
            payload: UNSIGNED,
        };
        let (_, text) = canonical::request(&request, &headers, service).unwrap();
        text.lines().nth(1).unwrap().to_owned()
    };
    assert_eq!(written("/a%20b//c/../d", "s3"), "/a%20b//c/../d");
    assert_eq!(written("/a%20b//c/../d/", "lambda"), "/a%2520b/d/");
    assert_eq!(written("", "s3"), "/");
}

#[test]
fn what_stands_in_the_place_of_signed_headers_is_not_signed() {
    let mut headers = HeaderMap::new();
    headers.insert(SECURITY_TOKEN, HeaderValue::from_static("credential-brokered"));
    headers.insert(DATE, HeaderValue::from_static("19700101T000000Z"));
    headers.insert(header::HOST, HeaderValue::from_static("elsewhere"));
    assert_eq!(
        signature(&Method::GET, "/", None, &headers, "service"),
        signature(&Method::GET, "/", None, &HeaderMap::new(), "service")
    );
}

#[test]
fn s3_is_shown_the_hash_and_temporary_keys_their_token() {
    let secret_key = Secret::new(SECRET);
    let token = Secret::new("temporary");
    let keys = Keys {
        access_key: "AKIDEXAMPLE",
        secret_key: &secret_key,
        session_token: Some(&token),
    };
    let scope = Scope {
        region: "eu-central-1",
        service: "s3",
    };
    let headers = HeaderMap::new();
    let request = Request {
        method: &Method::PUT,
        host: "bucket.s3.amazonaws.com",
        path: "/key",
        query: None,
        headers: &headers,
        payload: UNSIGNED,
    };
    let set: HeaderMap = sign(&request, &keys, scope, TIME).unwrap().into_iter().collect();
    assert_eq!(set[CONTENT_HASH], UNSIGNED);
    assert_eq!(set[SECURITY_TOKEN], "temporary");
    let authorization = set[header::AUTHORIZATION].to_str().unwrap();
    assert!(authorization.contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,"));
    assert!(!format!("{set:?}").contains("temporary"));
}

/// The example of Amazon's page "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)".
#[test]
fn a_presigned_request_has_the_published_signature() {
    let secret = Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
    let keys = Keys {
        access_key: "AKIAIOSFODNN7EXAMPLE",
        secret_key: &secret,
        session_token: None,
    };
    let headers = HeaderMap::new();
    let request = Request {
        method: &Method::GET,
        host: "examplebucket.s3.amazonaws.com",
        path: "/test.txt",
        query: None,
        headers: &headers,
        payload: UNSIGNED,
    };
    let scope = Scope {
        region: "us-east-1",
        service: "s3",
    };
    // 2013-05-24, the beginning of the day.
    let query = presign(
        &request,
        &keys,
        scope,
        1_369_353_600,
        std::time::Duration::from_secs(86_400),
    )
    .unwrap();
    assert!(
        query.contains("X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"),
        "{query}"
    );
    assert!(
        query.ends_with("X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"),
        "{query}"
    );
}
