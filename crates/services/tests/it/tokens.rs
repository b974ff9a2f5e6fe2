//! Credentials that are made: OAuth 2.0, GitHub Apps, key pairs.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures::future::join_all;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use serde_json::{Value, json};
use services::Code;

use crate::rig::{KEY, Rig, Seen, Setting, Upstream, assert_clean, ok, status, with};

const GET: &str = r#"
[methods.get]
summary = "One contact"
access = "read"
request = "GET /contacts"
[methods.put]
summary = "Change a contact"
access = "write"
request = "PUT /contacts"
json = "{*}"
arguments.properties.q.type = "string"
"#;
const SLOTS: [(&str, &str); 3] = [
    ("client_id", "me@client"),
    ("client_secret", "store:key"),
    ("refresh_token", "store:refresh"),
];
const PRIVATE: &str = include_str!("keys/rsa.pem");
const PRIVATE_PKCS1: &str = include_str!("keys/rsa-pkcs1.pem");
const ENCRYPTED: &str = include_str!("keys/rsa-encrypted.pem");
const PUBLIC: &[u8] = include_bytes!("keys/rsa-public.der");
/// As `openssl pkey -pubout -outform DER | openssl dgst -sha256 -binary | base64` prints it.
const FINGERPRINT: &str = "jBJqoaRpqlc2Qy9g8dXiH8AJA6mFmjdicAEtxK9b9Fw=";

/// A service with OAuth, whose tokens come from the upstream itself, at /token.
fn oauth(upstream: &Upstream, kind: &str, more: &str) -> Rig {
    let token_url = upstream.base().replace("/v1", "/token");
    let auth = format!("[auth]\nkind = \"{kind}\"\ntoken_url = \"{token_url}\"\n{more}");
    let slots = if kind == "refresh_token" {
        &SLOTS[..]
    } else {
        &SLOTS[..2]
    };
    let rig = Setting::with_auth(&upstream.base(), &auth, slots, GET).build();
    rig.secrets.set("refresh", "refresh-0");
    rig
}

fn asks_for_token(seen: &Seen) -> bool {
    seen.target == "/token"
}

fn form(seen: &Seen) -> Vec<(String, String)> {
    assert_eq!(
        (seen.verb.as_str(), seen.header("content-type")),
        ("POST", "application/x-www-form-urlencoded")
    );
    url::form_urlencoded::parse(seen.body.as_bytes()).into_owned().collect()
}

fn tokens_asked(upstream: &Upstream) -> usize {
    upstream.seen().iter().filter(|seen| asks_for_token(seen)).count()
}

#[tokio::test]
async fn client_credentials_are_shown_once_for_many_calls() {
    let upstream = Upstream::start(|seen, _| {
        if asks_for_token(seen) {
            let basic = STANDARD.encode("me%40client:canary-7f3a%2Fsecret%2Bkey%3D%3D");
            assert_eq!(seen.header("authorization"), format!("Basic {basic}"));
            let pairs = form(seen);
            let expected = [
                ("grant_type", "client_credentials"),
                ("scope", "a b"),
                ("audience", "x"),
            ];
            assert_eq!(pairs.len(), expected.len());
            for (pair, (name, value)) in pairs.iter().zip(expected) {
                assert_eq!((pair.0.as_str(), pair.1.as_str()), (name, value));
            }
            return ok(json!({"access_token": "token-1", "expires_in": "3600", "token_type": "bearer"}));
        }
        assert_eq!(seen.header("authorization"), "Bearer token-1");
        ok(json!({"echo": "token-1"}))
    })
    .await;
    let more = "scopes = [\"a\", \"b\"]\nparameters = { audience = \"x\" }";
    let rig = oauth(&upstream, "client_credentials", more);
    let results = join_all((0..20).map(|_| rig.get("get", json!({})))).await;
    assert!(results.iter().all(|result| *result == json!({"echo": "*******"})));
    assert_eq!(tokens_asked(&upstream), 1);
}

#[tokio::test]
async fn a_client_shows_itself_in_the_body_where_the_definition_says_so() {
    let upstream = Upstream::start(|seen, _| {
        if asks_for_token(seen) {
            assert_eq!(seen.header("authorization"), "");
            let pairs = form(seen);
            assert!(pairs.contains(&("client_id".to_owned(), "me@client".to_owned())));
            assert!(pairs.contains(&("client_secret".to_owned(), KEY.to_owned())));
            return ok(json!({"access_token": "token-1"}));
        }
        ok(json!(1))
    })
    .await;
    let rig = oauth(&upstream, "client_credentials", "client_in = \"body\"");
    rig.get("get", json!({})).await;
}

#[tokio::test]
async fn a_refresh_token_that_is_rotated_is_followed() {
    let upstream = Upstream::start(|seen, number| {
        if asks_for_token(seen) {
            let shown = form(seen)
                .into_iter()
                .find(|(name, _)| name == "refresh_token")
                .unwrap()
                .1;
            let turn: u32 = shown.strip_prefix("refresh-").unwrap().parse().unwrap();
            return ok(json!({
                "access_token": format!("token-{}", turn + 1),
                "expires_in": 3600,
                "refresh_token": format!("refresh-{}", turn + 1),
            }));
        }
        // The first token is revoked after its first use.
        match (seen.header("authorization"), number) {
            ("Bearer token-1", 0..=1) | ("Bearer token-2", _) => ok(json!(1)),
            _ => status(401, json!({"message": "expired"})),
        }
    })
    .await;
    let rig = oauth(&upstream, "refresh_token", "");
    rig.get("get", json!({})).await;
    // A write, too, since what was not let in did nothing.
    rig.get("put", json!({"q": "x"})).await;
    rig.get("get", json!({})).await;
    assert_eq!(tokens_asked(&upstream), 2);
    // The operator sets another: it counts from then on.
    rig.secrets.set("refresh", "refresh-7");
    rig.fails("get", json!({}), Code::CredentialRefused).await;
    let shown: Vec<_> = upstream
        .seen()
        .iter()
        .filter(|seen| asks_for_token(seen))
        .map(|seen| form(seen)[1].1.clone())
        .collect();
    assert_eq!(shown, ["refresh-0", "refresh-1", "refresh-7", "refresh-8"]);
}

#[tokio::test]
async fn a_refresh_that_fails_in_mid_run_is_told_once_to_all_who_wait() {
    let upstream = Upstream::start(|seen, _| {
        assert!(asks_for_token(seen));
        let shown = form(seen)[1].1.clone();
        let said = format!("token {shown} of {KEY} was revoked");
        status(400, json!({"error": "invalid_grant", "error_description": said}))
    })
    .await;
    let rig = oauth(&upstream, "refresh_token", "");
    let failures = join_all((0..8).map(|_| rig.fails("get", json!({}), Code::CredentialRefused))).await;
    for failure in failures {
        assert_eq!(failure.status(), 502);
        assert!(failure.message.contains("invalid_grant: token *"), "{failure}");
        assert!(!failure.message.contains("refresh-0"), "{failure}");
        assert!(failure.remedy.unwrap().contains("services.crm.auth.refresh_token"));
    }
    assert_eq!(tokens_asked(&upstream), 1);
    rig.fails("get", json!({}), Code::CredentialRefused).await;
    assert_eq!(tokens_asked(&upstream), 2, "a later call tries again");
}

#[tokio::test]
async fn a_token_endpoint_that_is_down_may_pass() {
    let upstream = Upstream::start(|seen, number| match number {
        0 => with(status(503, json!({"error": "server_error"})), "retry-after", "0"),
        1 => {
            assert!(asks_for_token(seen));
            ok(json!({"access_token": "token-1", "expires_in": 3600}))
        }
        _ => ok(json!(1)),
    })
    .await;
    let rig = oauth(&upstream, "client_credentials", "");
    rig.get("get", json!({})).await;
    assert_eq!(tokens_asked(&upstream), 2);
}

#[tokio::test]
async fn threat_050_a_token_endpoint_is_asked_by_belljar_alone() {
    let upstream = Upstream::start(|seen, _| match seen.target.as_str() {
        "/token" => ok(json!({"access_token": "token-1", "refresh_token": "refresh-1", "expires_in": 3600})),
        _ => ok(json!({"tokens": ["token-1", {"Bearer": "Bearer token-1"}]})),
    })
    .await;
    let rig = oauth(&upstream, "refresh_token", "");
    // No method leads there, whatever its arguments.
    for method in ["token", "/token", "../token", "oauth.token"] {
        rig.fails(method, json!({}), Code::UnknownMethod).await;
    }
    let answer = rig.get("get", json!({})).await.to_string();
    assert!(!answer.contains("token-1") && !answer.contains("refresh-"), "{answer}");
}

#[tokio::test]
async fn threat_068_no_token_outlives_the_secret_that_it_was_made_from() {
    let upstream = Upstream::start(|seen, _| {
        if asks_for_token(seen) {
            return ok(json!({"access_token": "token-1", "expires_in": 3600}));
        }
        ok(json!(1))
    })
    .await;
    let rig = oauth(&upstream, "client_credentials", "");
    rig.get("get", json!({})).await;
    rig.secrets.revoke("key");
    rig.fails("get", json!({}), Code::CredentialMissing).await;
    rig.secrets.set("key", "another");
    rig.get("get", json!({})).await;
    assert_eq!(tokens_asked(&upstream), 2);
}

/// The claims of a token whose signature is good.
fn claims(token: &str) -> Value {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, PUBLIC)
        .verify(signed.as_bytes(), &signature)
        .expect("a good signature");
    let parts: Vec<Value> = signed
        .split('.')
        .map(|part| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap())
        .collect();
    assert_eq!(parts[0], json!({"alg": "RS256", "typ": "JWT"}));
    parts[1].clone()
}

fn github(upstream: &Upstream, key: &str) -> Rig {
    let slots = [
        ("app_id", "Iv1.abc"),
        ("installation_id", "42"),
        ("private_key", "store:pem"),
    ];
    let rig = Setting::with_auth(&upstream.base(), "[auth]\nkind = \"github_app\"", &slots, GET).build();
    rig.secrets.set("pem", key);
    rig
}

#[tokio::test]
async fn a_github_app_proves_itself_and_keeps_its_token_until_shortly_before_its_end() {
    for key in [PRIVATE, PRIVATE_PKCS1] {
        let upstream = Upstream::start(|seen, number| {
            let bearer = seen.header("authorization").strip_prefix("Bearer ").unwrap();
            if seen.target != "/v1/app/installations/42/access_tokens" {
                assert!(bearer.starts_with("ghs_"), "{bearer}");
                return ok(json!({"echo": bearer}));
            }
            assert_eq!(seen.header("accept"), "application/vnd.github+json");
            assert_eq!((seen.verb.as_str(), seen.header("content-length")), ("POST", "0"));
            let claims = claims(bearer);
            assert_eq!(claims["iss"], "Iv1.abc");
            let (issued, ends) = (claims["iat"].as_i64().unwrap(), claims["exp"].as_i64().unwrap());
            let now = jiff::Timestamp::now();
            assert!(issued < now.as_second() && ends > now.as_second() && ends - issued <= 600);
            // The first token is over by the time it comes.
            let ends = if number == 0 {
                now
            } else {
                now + std::time::Duration::from_secs(3600)
            };
            let ends = ends - std::time::Duration::from_secs(5);
            status(
                201,
                json!({"token": format!("ghs_{number}secret"), "expires_at": ends.to_string()}),
            )
        })
        .await;
        let rig = github(&upstream, key);
        for _ in 0..3 {
            assert_eq!(rig.get("get", json!({})).await, json!({"echo": "***********"}));
        }
        let made = upstream
            .seen()
            .iter()
            .filter(|seen| seen.target.ends_with("access_tokens"))
            .count();
        assert_eq!(made, 2);
    }
}

#[tokio::test]
async fn a_github_app_that_is_refused_or_has_no_key_is_told() {
    let upstream = Upstream::start(|_, _| status(404, json!({"message": "Integration not found"}))).await;
    let rig = github(&upstream, PRIVATE);
    let failure = rig.fails("get", json!({}), Code::CredentialRefused).await;
    assert!(failure.message.contains("Integration not found"), "{failure}");
    let before = upstream.seen().len();
    for (key, words) in [
        ("not a key", "no unencrypted private key"),
        (ENCRYPTED, "no unencrypted private key"),
        (&PRIVATE[..600], "no unencrypted private key"),
    ] {
        let failure = github(&upstream, key)
            .fails("get", json!({}), Code::CredentialMissing)
            .await;
        assert!(failure.message.contains(words), "{failure}");
        assert!(!failure.message.contains("MII"), "{failure}");
    }
    assert_eq!(upstream.seen().len(), before);
}

#[tokio::test]
async fn a_key_pair_signs_its_own_token() {
    let upstream = Upstream::start(|seen, _| {
        assert_eq!(seen.header("x-snowflake-authorization-token-type"), "KEYPAIR_JWT");
        let claims = claims(seen.header("authorization").strip_prefix("Bearer ").unwrap());
        assert_eq!(claims["sub"], "MYORG-ACC.BELLJAR");
        assert_eq!(claims["iss"], format!("MYORG-ACC.BELLJAR.SHA256:{FINGERPRINT}"));
        assert!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap() <= 3600);
        ok(json!({"echo": seen.header("authorization")}))
    })
    .await;
    let slots = [
        ("account", "myorg-acc.eu-central-1"),
        ("user", "belljar"),
        ("private_key", "store:pem"),
    ];
    let rig = Setting::with_auth(&upstream.base(), "[auth]\nkind = \"key_pair\"", &slots, GET).build();
    rig.secrets.set("pem", PRIVATE);
    let first = rig.get("get", json!({})).await;
    assert!(first["echo"].as_str().unwrap().ends_with("***"));
    assert_clean(&first.to_string());
    rig.get("get", json!({})).await;
    let sent: Vec<_> = upstream
        .seen()
        .iter()
        .map(|seen| seen.header("authorization").to_owned())
        .collect();
    assert_eq!(sent[0], sent[1], "a token is signed once");
}
