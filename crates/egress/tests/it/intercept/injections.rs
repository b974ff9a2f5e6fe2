//! What is put in, and where.

use egress::{Code, Outcome};
use http::StatusCode;

use super::house::{House, PLACEHOLDER, REFERENCE, SECRET, get, request};
use super::upstream::{echo, text};

const HOST: &str = "api.bound.test";
const BEARER: &str = r#"inject = [{ kind = "bearer", secret = "env:TOKEN" }]"#;
const ENCODED: &str = "tok-5f%2F8e%2B21%26b%22c%5C7d";

#[tokio::test]
async fn each_kind_is_put_in_its_place() {
    let rule = r#"inject = [
        { kind = "basic", user = "me", secret = "env:TOKEN" },
        { kind = "header", name = "X-Api-Key", prefix = "key ", secret = "env:TOKEN" },
        { kind = "query", name = "key", secret = "env:TOKEN" },
        { kind = "path", secret = "env:TOKEN" },
        { kind = "body", secret = "env:TOKEN" },
    ]"#;
    let house = House::new(&[("bound", rule)]);
    let bound = house.upstream(HOST, |_| text("fine")).await;
    let target = format!("/bot{PLACEHOLDER}/send?key=mine&a=b&k%65y=too");
    let body = format!("{{\"token\":\"{PLACEHOLDER}\"}}");
    // Servers that make variables of headers could take the second for the one that is put in.
    let headers = [
        ("content-type", "application/json; charset=utf-8"),
        ("X-Api-Key", "mine"),
        ("X_Api-Key", "mine"),
    ];
    let reply = house.ask(HOST, request("POST", HOST, &target, &headers, &body)).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let seen = bound.only();
    assert_eq!(seen.target, format!("/bot{ENCODED}/send?a=b&key={ENCODED}"));
    use base64::Engine as _;
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("me:{SECRET}"));
    assert_eq!(seen.header("authorization"), [format!("Basic {basic}")]);
    assert_eq!(seen.header("x-api-key"), [format!("key {SECRET}")]);
    assert!(seen.header("x_api-key").is_empty(), "{seen:?}");
    let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(body["token"], SECRET);
    assert_eq!(seen.header("content-length"), [seen.body.len().to_string()]);
    let record = &house.records(1).await[0];
    let said = record.request.as_ref().unwrap();
    assert_eq!(
        (said.status, said.injected, record.rule.as_deref()),
        (200, true, Some("bound"))
    );
    assert!(!said.path.contains('?'));
}

#[tokio::test]
async fn a_long_body_is_filled_in_as_it_passes() {
    let house = House::new(&[("bound", r#"inject = [{ kind = "body", secret = "env:TOKEN" }]"#)]);
    let bound = house.upstream(HOST, |_| text("fine")).await;
    let filler = "x".repeat(300_000);
    let body = format!("a={filler}&token={PLACEHOLDER}&b={filler}");
    let form = [("content-type", "application/x-www-form-urlencoded")];
    assert_eq!(
        house.ask(HOST, request("POST", HOST, "/", &form, &body)).await.status,
        StatusCode::OK
    );
    let expected = format!("a={filler}&token={}&b={filler}", ENCODED.replace('-', "%2D"));
    assert!(bound.only().text() == expected);
}

#[tokio::test]
async fn placeholder_mode_replaces_what_the_client_wrote_and_adds_nothing() {
    let rule = r#"inject = [
        { kind = "bearer", secret = "env:TOKEN", mode = "placeholder" },
        { kind = "query", name = "key", secret = "env:TOKEN", mode = "placeholder" },
        { kind = "header", name = "x-key", prefix = "Key ", secret = "env:TOKEN", mode = "placeholder" },
    ]"#;
    let house = House::new(&[("bound", rule)]);
    let bound = house.upstream(HOST, |_| text("fine")).await;
    let (bearer, key) = (format!("Bearer {PLACEHOLDER}"), format!("Key {PLACEHOLDER}"));
    let with = request(
        "GET",
        HOST,
        &format!("/?key={PLACEHOLDER}"),
        &[("authorization", &bearer), ("x-key", &key)],
        "",
    );
    assert_eq!(house.ask(HOST, with).await.status, StatusCode::OK);
    assert_eq!(house.ask(HOST, get(HOST, "/?key=own")).await.status, StatusCode::OK);
    let [filled, plain] = &bound.seen()[..] else {
        panic!("two requests")
    };
    assert_eq!(filled.header("authorization"), [format!("Bearer {SECRET}")]);
    assert_eq!(filled.target, format!("/?key={ENCODED}"));
    assert_eq!(filled.header("x-key"), [format!("Key {SECRET}")]);
    assert!(plain.header("authorization").is_empty() && plain.header("x-key").is_empty());
    assert_eq!(plain.target, "/?key=own");
}

#[tokio::test]
async fn placeholder_mode_replaces_a_password_that_the_client_wrote() {
    use base64::Engine as _;
    let base64 = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
    let rule = r#"inject = [{ kind = "basic", user = "robot", secret = "env:TOKEN", mode = "placeholder" }]"#;
    let house = House::new(&[("bound", rule)]);
    let bound = house.upstream(HOST, |_| text("fine")).await;
    let written = format!("Basic {}", base64(format!("robot:{PLACEHOLDER}")));
    let with = request("GET", HOST, "/", &[("authorization", &written)], "");
    assert_eq!(house.ask(HOST, with).await.status, StatusCode::OK);
    assert_eq!(house.ask(HOST, get(HOST, "/")).await.status, StatusCode::OK);
    let [filled, plain] = &bound.seen()[..] else {
        panic!("two requests")
    };
    let expected = format!("Basic {}", base64(format!("robot:{SECRET}")));
    assert_eq!(filled.header("authorization"), [expected]);
    assert!(plain.header("authorization").is_empty());
}

#[tokio::test]
async fn threat_040_a_placeholder_where_no_rule_replaces_it_is_refused() {
    for rule in [
        "",
        r#"inject = [{ kind = "header", name = "x-key", secret = "env:TOKEN" }]"#,
    ] {
        use base64::Engine as _;
        let basic = base64::engine::general_purpose::STANDARD.encode(format!("me:{PLACEHOLDER}"));
        let headers = [
            ("authorization", format!("Bearer {PLACEHOLDER}")),
            ("authorization", format!("Basic {basic}")),
            ("cookie", format!("a=b; session={PLACEHOLDER}")),
            ("user-agent", format!("agent/{PLACEHOLDER}")),
            (PLACEHOLDER, "named".to_owned()),
        ];
        let house = House::new(&[("other", rule)]);
        let other = house.upstream(HOST, |_| text("fine")).await;
        let mut requests: Vec<_> = headers
            .iter()
            .map(|(name, value)| request("GET", HOST, "/", &[(name, value)], ""))
            .collect();
        requests.push(get(HOST, &format!("/a/{PLACEHOLDER}")));
        requests.push(get(HOST, &format!("/?a={PLACEHOLDER}")));
        requests.push(get(HOST, "/?a=credential%2dbrokered"));
        let count = requests.len();
        for request in requests {
            let shown = format!("{request:?}");
            let reply = house.ask(HOST, request).await;
            assert_eq!(
                (reply.status, reply.code().as_str()),
                (StatusCode::FORBIDDEN, "placeholder_unbound"),
                "{shown}"
            );
        }
        assert!(other.seen().is_empty());
        let body = format!("{}{PLACEHOLDER}", "x".repeat(100_000));
        let reply = house.ask(HOST, request("POST", HOST, "/", &[], &body)).await;
        assert_eq!(reply.code(), "placeholder_unbound");
        assert!(other.seen().is_empty(), "the request was cut short");
        for record in house.records(count + 1).await {
            assert!(matches!(record.outcome, Outcome::Denied(ref denied) if denied.code == Code::PlaceholderUnbound));
        }
    }
}

#[tokio::test]
async fn threat_043_every_instance_of_the_slot_is_replaced() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.old_upstream(HOST, |_| text("fine")).await;
    let bytes = format!(
        "GET / HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer mine\r\nAuthorization: Basic bWU6bWU=\r\nAUTHORIZATION: x\r\n\
         connection: close\r\n\r\n"
    );
    assert!(house.raw(HOST, bytes.as_bytes()).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(bound.only().header("authorization"), [format!("Bearer {SECRET}")]);
}

#[tokio::test]
async fn threat_044_a_client_cannot_make_an_injected_header_hop_by_hop() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.old_upstream(HOST, |_| text("fine")).await;
    let headers = [
        ("connection", "authorization, x-mine"),
        ("x-mine", "1"),
        ("keep-alive", "5"),
    ];
    assert_eq!(
        house.ask(HOST, request("GET", HOST, "/", &headers, "")).await.status,
        StatusCode::OK
    );
    let seen = bound.only();
    assert_eq!(seen.header("authorization"), [format!("Bearer {SECRET}")]);
    assert!(
        seen.header("x-mine").is_empty()
            && seen.header("connection").is_empty()
            && seen.header("keep-alive").is_empty()
    );
}

#[tokio::test]
async fn threat_067_a_rotated_secret_is_the_one_that_is_used() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream(HOST, |_| text("fine")).await;
    house.ask(HOST, get(HOST, "/")).await;
    house.secrets.set(REFERENCE, "rotated-secret");
    house.ask(HOST, get(HOST, "/")).await;
    let used: Vec<_> = bound
        .seen()
        .iter()
        .flat_map(|seen| seen.header("authorization"))
        .collect();
    assert_eq!(used, [format!("Bearer {SECRET}"), "Bearer rotated-secret".to_owned()]);
}

#[tokio::test]
async fn threat_068_a_revoked_secret_is_refused_on_a_connection_that_is_open() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream(HOST, |_| text("fine")).await;
    let mut client = house.one(HOST).await;
    let first = super::house::read(client.send_request(get(HOST, "/")).await.unwrap()).await;
    assert_eq!(first.status, StatusCode::OK);
    house.secrets.remove(REFERENCE);
    client.ready().await.unwrap();
    let second = super::house::read(client.send_request(get(HOST, "/")).await.unwrap()).await;
    assert_eq!(
        (second.status, second.code().as_str()),
        (StatusCode::BAD_GATEWAY, "no_secret")
    );
    assert_eq!(bound.seen().len(), 1);
}

#[tokio::test]
async fn a_secret_that_no_header_can_carry_is_refused_without_being_told() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream(HOST, echo).await;
    house.secrets.set(REFERENCE, "hidden\r\nx-more: 1");
    let reply = house.ask(HOST, get(HOST, "/")).await;
    assert_eq!(reply.code(), "no_secret");
    assert!(!reply.body.contains("hidden"));
    assert!(bound.seen().is_empty());
}
