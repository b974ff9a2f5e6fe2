//! Endpoints that hand out tokens.

use http::StatusCode;

use super::house::{House, PLACEHOLDER, get, request};
use super::upstream::text;

const HOST: &str = "api.bound.test";
const BEARER: &str = r#"inject = [{ kind = "bearer", secret = "env:TOKEN" }]"#;

fn answer(seen: &super::upstream::Seen) -> super::upstream::Answer {
    let (media, body) = match seen.header("accept").first().map(String::as_str) {
        Some("form") => (
            "application/x-www-form-urlencoded",
            "access_token=gho_real&scope=repo&token_type=bearer",
        ),
        Some("text") => ("text/plain", "gho_real"),
        Some("broken") => ("application/json", "{\"access_token\": \"gho_real\""),
        _ => (
            "application/json",
            r#"{"access_token":"gho_real","expires_in":3600,"deep":[{"refresh_token":"gho_real","scope":"repo"}]}"#,
        ),
    };
    let mut answer = text(body);
    answer.headers_mut().insert("content-type", media.parse().unwrap());
    answer
}

#[tokio::test]
async fn threat_050_a_token_endpoint_answers_with_placeholders() {
    let house = House::new(&[("bound", BEARER)]);
    let _bound = house.upstream(HOST, answer).await;
    for path in [
        "/oauth/token",
        "/login/oauth/access_token",
        "/oauth2/TOKEN/",
        "/v1/%74oken",
        "/oauth/token;x=1",
        "/oauth/token/;x=1",
        "/oauth/token%3bx",
        "/v1/projects/-/serviceAccounts/robot:generateAccessToken",
        "/oauth/token.xml",
        "/oauth/token.anything",
        "/api/v4/personal_access_tokens/self/rotate",
        "/api/v4/projects/7/access_tokens/12/ROTATE",
        "/api/v4/projects/7/deploy_tokens.json",
    ] {
        let reply = house
            .ask(HOST, request("POST", HOST, path, &[], "grant_type=client_credentials"))
            .await;
        let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(body["access_token"], PLACEHOLDER, "{path}");
        assert_eq!(body["deep"][0]["refresh_token"], PLACEHOLDER);
        assert_eq!(
            (&body["expires_in"], &body["deep"][0]["scope"]),
            (&3600.into(), &"repo".into())
        );
    }
    let reply = house
        .ask(HOST, request("POST", HOST, "/oauth/token", &[("accept", "form")], ""))
        .await;
    assert_eq!(
        reply.body,
        format!("access_token={PLACEHOLDER}&scope=repo&token_type=bearer")
    );
    assert_eq!(reply.headers["content-length"], reply.body.len().to_string());
    // A file, and what is given out anew without being a token.
    for (method, path) in [("GET", "/raw/main/src/token.ts"), ("POST", "/logs/rotate")] {
        let reply = house.ask(HOST, request(method, HOST, path, &[], "")).await;
        assert!(reply.body.contains("gho_real"), "{path}: {}", reply.body);
    }
}

#[tokio::test]
async fn threat_050_no_refresh_token_leaves_a_sandbox() {
    const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
    const JSON: (&str, &str) = ("content-type", "application/json");
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream(HOST, answer).await;
    let ask = async |path: &str, headers: &[(&str, &str)], body: &str| {
        let reply = house.ask(HOST, request("POST", HOST, path, headers, body)).await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{path} {body}: {}", reply.body);
        reply.code()
    };
    // First it asks for tokens, and then for new ones by what it was given.
    let reply = house
        .ask(
            HOST,
            request(
                "POST",
                HOST,
                "/oauth/token",
                &[FORM],
                "grant_type=authorization_code&code=1",
            ),
        )
        .await;
    let given: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    let given = given["deep"][0]["refresh_token"].as_str().unwrap();
    let before = bound.seen().len();
    let form = format!("grant_type=refresh_token&refresh_token={given}");
    assert_eq!(ask("/oauth/token", &[FORM], &form).await, "placeholder_unbound");
    // One that it has from elsewhere, in every spelling.
    for (path, headers, body) in [
        (
            "/oauth/token",
            [FORM].as_slice(),
            "grant_type=refresh_token&refresh_token=rt-1",
        ),
        ("/oauth/token", &[FORM], "refresh%5Ftoken=rt-1"),
        ("/oauth/token", &[FORM], "Refresh_Token=rt-1"),
        ("/oauth/token", &[JSON], r#"{"refresh_token":"rt-1"}"#),
        ("/oauth/token", &[JSON], r#"{"refresh\u005ftoken":"rt-1"}"#),
        ("/oauth/token", &[JSON], r#"{"refreshToken":"rt-1"}"#),
        ("/oauth/token", &[], "refresh_token=rt-1"),
        ("/oauth/token?refresh_token=rt-1", &[], ""),
        ("/oauth/token?refresh%5ftoken=rt-1", &[], ""),
        ("/oauth/token", &[FORM, ("content-encoding", "gzip")], "whatever it is"),
        ("/refresh_token", &[JSON], r#"{"refresh_token":"rt-1"}"#),
    ] {
        assert_eq!(ask(path, headers, body).await, "token_endpoint");
    }
    assert_eq!(bound.seen().len(), before, "none of these left");
    // Where nobody hands out tokens the word is a word; where a rule lets tokens pass, or fills bodies in, it is the rule's business.
    let reply = house
        .ask(
            HOST,
            request("POST", HOST, "/notes", &[JSON], r#"{"text":"refresh_token"}"#),
        )
        .await;
    assert_eq!(reply.status, StatusCode::OK);
    house.change(2, &[("bound", &format!("{BEARER}\ntokens = \"pass\""))]);
    let reply = house
        .ask(
            HOST,
            request("POST", HOST, "/oauth/token", &[FORM], "refresh_token=rt-1"),
        )
        .await;
    assert_eq!(reply.status, StatusCode::OK);
    house.change(3, &[("bound", r#"inject = [{ kind = "body", secret = "env:TOKEN" }]"#)]);
    let form = format!("refresh_token={PLACEHOLDER}");
    let reply = house
        .ask(HOST, request("POST", HOST, "/oauth/token", &[FORM], &form))
        .await;
    assert!(
        reply.status == StatusCode::OK && !reply.body.contains("gho_real"),
        "{}",
        reply.body
    );
}

#[tokio::test]
async fn threat_051_what_cannot_be_read_of_a_token_endpoint_is_refused() {
    let house = House::new(&[("bound", BEARER)]);
    let _bound = house.upstream(HOST, answer).await;
    for accept in ["text", "broken"] {
        let reply = house
            .ask(HOST, request("GET", HOST, "/auth/token", &[("accept", accept)], ""))
            .await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (StatusCode::FORBIDDEN, "token_endpoint"),
            "{accept}"
        );
    }
    let named = format!("{BEARER}\ntoken_paths = [\"/session/*\"]");
    house.change(2, &[("bound", &named)]);
    let reply = house.ask(HOST, get(HOST, "/session/new")).await;
    assert!(!reply.body.contains("gho_real"), "{}", reply.body);
}

#[tokio::test]
async fn threat_051_a_token_endpoint_in_disguise_is_refused() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream(HOST, answer).await;
    for path in [
        "/oauth/token/.",
        "/oauth/token/x/..",
        "/oauth/token/..;/token",
        "/oauth%2ftoken",
        "/oauth/%2574oken",
        "/oauth//token",
        "/oauth/token%00",
    ] {
        let reply = house.ask(HOST, request("POST", HOST, path, &[], "")).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (StatusCode::FORBIDDEN, "token_endpoint"),
            "{path}"
        );
    }
    assert!(bound.seen().is_empty());
    let reply = house.ask(HOST, get(HOST, "/@scope%2fpackage")).await;
    assert_eq!(reply.status, StatusCode::OK, "other paths stay as they are");

    let named = format!("{BEARER}\ntoken_paths = [\"/session/*\"]");
    house.change(2, &[("bound", &named)]);
    let reply = house.ask(HOST, get(HOST, "/session;x=1/new;y")).await;
    assert!(!reply.body.contains("gho_real"), "{}", reply.body);
}

#[tokio::test]
async fn threat_051_a_rule_may_deny_token_endpoints_or_let_them_pass() {
    let denying = format!("{BEARER}\ntokens = \"deny\"");
    let house = House::new(&[("bound", &denying)]);
    let bound = house.upstream(HOST, answer).await;
    let reply = house
        .ask(
            HOST,
            request("POST", HOST, "/app/installations/1/access_tokens", &[], ""),
        )
        .await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::FORBIDDEN, "token_endpoint")
    );
    assert!(bound.seen().is_empty());
    let passing = format!("{BEARER}\ntokens = \"pass\"");
    house.change(2, &[("bound", &passing)]);
    let reply = house.ask(HOST, request("POST", HOST, "/oauth/token", &[], "")).await;
    assert!(reply.body.contains("gho_real"));
}

/// One that is signed for `service`, as an AWS client that has only placeholders signs it.
fn signed(host: &str, service: &str, wants: &str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential=credential-brokered/20260102/eu-central-1/{service}/aws4_request, \
         SignedHeaders=host;x-amz-date, Signature=00ff"
    );
    let headers = [
        ("authorization", authorization.as_str()),
        ("x-amz-date", "20260102T000000Z"),
        ("accept", wants),
    ];
    request("POST", host, "/", &headers, "Action=AssumeRole")
}

#[tokio::test]
async fn threat_051_credentials_of_aws_are_handed_to_no_sandbox() {
    const STS: &str = "sts.amazonaws.test";
    const RULE: &str = r#"aws = { access_key = "env:ACCESS", secret_key = "env:KEY", regions = ["eu-central-1"], services = ["sts", "ecr", "s3"] }"#;
    let house = House::new(&[("aws", RULE)]);
    house.secrets.set("env:ACCESS", "AKIDEXAMPLE");
    house.secrets.set("env:KEY", "a key of the test");
    let _sts = house
        .upstream(STS, |seen| {
            let (media, body) = match seen.header("accept").first().map(String::as_str) {
                Some("xml") => ("text/xml", "<AssumeRoleResult><Credentials><SecretAccessKey>gho_real</SecretAccessKey></Credentials></AssumeRoleResult>"),
                Some("who") => ("text/xml", "<GetCallerIdentityResult><Account>1234</Account></GetCallerIdentityResult>"),
                Some("text") => ("text/plain", "gho_real"),
                _ => ("application/x-amz-json-1.1", r#"{"authorizationData":[{"authorizationToken":"gho_real","expiresAt":1}]}"#),
            };
            let mut answer = text(body);
            answer.headers_mut().insert("content-type", media.parse().unwrap());
            answer
        })
        .await;
    for (service, wants) in [("sts", "xml"), ("sts", "text")] {
        let reply = house.ask(STS, signed(STS, service, wants)).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (StatusCode::FORBIDDEN, "token_endpoint"),
            "{service} {wants}: {}",
            reply.body
        );
    }
    let reply = house.ask(STS, signed(STS, "sts", "who")).await;
    assert!(
        reply.body.contains("<Account>1234</Account>"),
        "who it is may be known: {}",
        reply.body
    );
    let reply = house.ask(STS, signed(STS, "ecr", "json")).await;
    let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(body["authorizationData"][0]["authorizationToken"], PLACEHOLDER);
    assert_eq!(body["authorizationData"][0]["expiresAt"], 1);
    let reply = house.ask(STS, signed(STS, "s3", "text")).await;
    assert_eq!(reply.body, "gho_real", "objects are read by nobody");

    house.change(2, &[("aws", &format!("{RULE}\ntokens = \"pass\""))]);
    let reply = house.ask(STS, signed(STS, "sts", "xml")).await;
    assert!(reply.body.contains("gho_real"), "where a rule says so");
}
