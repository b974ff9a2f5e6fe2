//! The facts that must agree.

use egress::{Code, Scheme};
use http::StatusCode;

use super::house::{House, SECRET, get, read, request, request2};
use super::upstream::echo;

const BEARER: &str = r#"inject = [{ kind = "bearer", secret = "env:TOKEN" }]"#;
const BOTH: &str = "schemes = [\"http\", \"https\"]\ninject = [{ kind = \"bearer\", secret = \"env:TOKEN\" }]";

#[tokio::test]
async fn threat_019_a_foreign_host_over_plain_http_gets_nothing() {
    let house = House::new(&[("bound", BOTH)]);
    let evil = house.clear_upstream("evil.test", echo).await;
    let reply = house.ask_clear("evil.test", get("api.bound.test", "/")).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::MISDIRECTED_REQUEST, "other_host")
    );
    assert!(evil.seen().is_empty());
    assert_eq!(house.refusal().await, Code::OtherHost);
}

#[tokio::test]
async fn threat_020_a_foreign_host_inside_tls_gets_nothing() {
    let house = House::new(&[("bound", BEARER)]);
    let allowed = house.upstream("allowed.test", echo).await;
    let reply = house.ask("allowed.test", get("api.bound.test", "/")).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::MISDIRECTED_REQUEST, "other_host")
    );
    assert!(allowed.seen().is_empty());
}

#[tokio::test]
async fn threat_021_a_server_name_of_another_address_gets_nothing() {
    let house = House::new(&[("bound", BEARER)]);
    let evil = house.upstream("evil.test", echo).await;
    let (near, far) = tokio::io::duplex(64 * 1024);
    let carried = house
        .intercept
        .carry(house.decided(Scheme::Https, "evil.test", 443), far);
    let name = rustls::pki_types::ServerName::try_from("api.bound.test").unwrap();
    let connector = house.client(b"http/1.1");
    let (denied, _) = tokio::join!(carried, connector.connect(name, near));
    let code = denied.unwrap_err().code;
    assert!(matches!(code, Code::OtherServerName | Code::Handshake), "{code:?}");
    assert!(evil.seen().is_empty());
}

#[tokio::test]
async fn threat_022_each_stream_is_checked_alone() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    let mut client = house.many("api.bound.test").await;
    let mut ask = async |uri: &str| read(client.send_request(request2("GET", uri, &[], "")).await.unwrap()).await;
    assert_eq!(ask("https://api.bound.test/1").await.status, StatusCode::OK);
    let other = ask("https://other.test/2").await;
    assert_eq!(
        (other.status, other.code().as_str()),
        (StatusCode::MISDIRECTED_REQUEST, "other_host")
    );
    assert_eq!(ask("https://api.bound.test/3").await.status, StatusCode::OK);
    let targets: Vec<String> = bound.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(targets, ["/1", "/3"]);
    assert!(
        bound
            .seen()
            .iter()
            .all(|seen| seen.header("authorization") == [format!("Bearer {SECRET}")])
    );
}

#[tokio::test]
async fn threat_023_an_authority_and_a_host_that_differ_are_refused() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    let mut client = house.many("api.bound.test").await;
    let differing = request2("GET", "https://api.bound.test/", &[("host", "other.test")], "");
    let reply = read(client.send_request(differing).await.unwrap()).await;
    assert_eq!(reply.status, StatusCode::MISDIRECTED_REQUEST);
    let twice = request2(
        "GET",
        "https://api.bound.test/",
        &[("host", "api.bound.test"), ("host", "a")],
        "",
    );
    let reply = read(client.send_request(twice).await.unwrap()).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::BAD_REQUEST, "malformed")
    );
    assert!(bound.seen().is_empty());
}

#[tokio::test]
async fn threat_028_spellings_of_one_host_pass_and_other_ports_do_not() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    for host in ["API.bound.TEST", "api.bound.test.", "api.bound.test:443"] {
        assert_eq!(
            house.ask("api.bound.test", get(host, "/")).await.status,
            StatusCode::OK,
            "{host}"
        );
    }
    let reply = house.ask("api.bound.test", get("api.bound.test:8443", "/")).await;
    assert_eq!(reply.status, StatusCode::MISDIRECTED_REQUEST);
    assert!(
        bound
            .seen()
            .iter()
            .all(|seen| seen.version == http::Version::HTTP_2 && seen.target == "/")
    );
    assert_eq!(bound.seen().len(), 3);
}

#[tokio::test]
async fn threat_032_a_method_is_what_it_says_and_nothing_else() {
    let rule = format!("{BEARER}\nmethods = [\"GET\", \"POST\"]");
    let house = House::new(&[("bound", &rule)]);
    let bound = house.upstream("api.bound.test", echo).await;
    for method in ["get", "DELETE", "Get"] {
        let reply = house
            .ask("api.bound.test", request(method, "api.bound.test", "/", &[], ""))
            .await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (StatusCode::FORBIDDEN, "not_in_rule"),
            "{method}"
        );
    }
    for query in [
        "/?_method=DELETE",
        "/?a=b&%5Fmethod=DELETE",
        "/?.method=DELETE",
        "/?%20_method%00x=DELETE",
    ] {
        let reply = house
            .ask("api.bound.test", request("POST", "api.bound.test", query, &[], ""))
            .await;
        assert_eq!(reply.code(), "not_in_rule", "{query}");
    }
    let plain = ("content-type", "application/x-www-form-urlencoded");
    let forms: [&[(&str, &str)]; 6] = [
        // Some servers take a body of which nothing is said for a form.
        &[],
        &[("content-type", "")],
        &[("content-type", "; charset=utf-8")],
        &[plain],
        &[plain, ("sec-websocket-key", "x")],
        &[("content-type", "application/x-www-form-urlencoded, x")],
    ];
    for form in forms {
        for body in ["_method=DELETE", "a=b&%5fmetho%64=DELETE", "_method=DELETE&x=%FF"] {
            let reply = house
                .ask("api.bound.test", request("POST", "api.bound.test", "/", form, body))
                .await;
            assert_eq!(reply.code(), "not_in_rule", "{form:?}: {body}");
        }
    }
    for media in ["application/json", "Application/vnd.api+JSON; charset=utf-8"] {
        for body in [r#"{"a":1,"_method":"DELETE"}"#, r#"{"\u005fmeth\u006fd" : "DELETE"}"#] {
            let headers = [("content-type", media)];
            let reply = house
                .ask("api.bound.test", request("POST", "api.bound.test", "/", &headers, body))
                .await;
            assert_eq!(reply.code(), "not_in_rule", "{media}: {body}");
        }
    }
    let parts = [("content-type", "multipart/form-data; boundary=b")];
    let body = "--b\r\ncontent-disposition: form-data; name=\"_method\"\r\n\r\nDELETE\r\n--b--\r\n";
    let reply = house
        .ask("api.bound.test", request("POST", "api.bound.test", "/", &parts, body))
        .await;
    assert_eq!(reply.code(), "not_in_rule");
    let disguises: [&[(&str, &str)]; 6] = [
        &[("content-encoding", "gzip")],
        &[("content-type", "application/json; charset=\"UTF-7\"")],
        &[("content-type", "application/json"), ("content-encoding", "gzip")],
        &[
            ("content-type", "text/plain"),
            ("content-type", "application/x-www-form-urlencoded"),
        ],
        &[
            ("content-type", "application/x-www-form-urlencoded"),
            ("content-encoding", "gzip"),
        ],
        &[
            ("content-type", "multipart/form-data; boundary=b"),
            ("content-encoding", "br"),
        ],
    ];
    for disguise in disguises {
        let reply = house
            .ask("api.bound.test", request("POST", "api.bound.test", "/", disguise, "x"))
            .await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (StatusCode::BAD_REQUEST, "malformed"),
            "{disguise:?}"
        );
    }
    assert!(bound.seen().is_empty());

    let overrides = [
        ("x-http-method-override", "DELETE"),
        ("X-Method-Override", "DELETE"),
        ("X_HTTP_Method_Override", "DELETE"),
        ("x-method_override", "DELETE"),
    ];
    let reply = house
        .ask(
            "api.bound.test",
            request("POST", "api.bound.test", "/", &overrides, "x"),
        )
        .await;
    assert_eq!(reply.status, StatusCode::OK);
    assert!(
        bound
            .only()
            .headers
            .keys()
            .all(|name| !name.as_str().contains("override"))
    );
}

#[tokio::test]
async fn threat_035_no_tunnel_inside_a_connection() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.upstream("api.bound.test", echo).await;
    let answer = house
        .raw(
            "api.bound.test",
            b"CONNECT api.bound.test:443 HTTP/1.1\r\nhost: api.bound.test\r\nconnection: close\r\n\r\n",
        )
        .await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(bound.seen().is_empty());
}

#[tokio::test]
async fn threat_039_a_secret_never_goes_out_in_the_clear_unless_the_rule_says_http() {
    let house = House::new(&[("bound", BEARER)]);
    let bound = house.clear_upstream("api.bound.test", echo).await;
    let reply = house.ask_clear("api.bound.test", get("api.bound.test", "/")).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::FORBIDDEN, "not_in_rule")
    );
    assert!(bound.seen().is_empty());
    house.change(2, &[("bound", BOTH)]);
    assert_eq!(
        house
            .ask_clear("api.bound.test", get("api.bound.test", "/"))
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(bound.only().header("authorization"), [format!("Bearer {SECRET}")]);
}

#[tokio::test]
async fn threat_042_two_rules_that_inject_are_refused_and_one_is_found_however_they_stand() {
    let narrow = format!("{BEARER}\npaths = [\"/v1/**\"]");
    let house = House::new(&[("wide", ""), ("bound", BEARER), ("narrow", &narrow)]);
    let bound = house.upstream("api.bound.test", echo).await;
    let reply = house.ask("api.bound.test", get("api.bound.test", "/v1/a")).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (StatusCode::FORBIDDEN, "ambiguous")
    );
    assert!(
        reply.body.contains("bound") && reply.body.contains("narrow"),
        "{}",
        reply.body
    );
    assert!(bound.seen().is_empty());
    for rules in [
        [("wide", ""), ("narrow", narrow.as_str())],
        [("narrow", narrow.as_str()), ("wide", "")],
    ] {
        house.change(2, &rules);
        house.ask("api.bound.test", get("api.bound.test", "/v1/a")).await;
        house.ask("api.bound.test", get("api.bound.test", "/v2/a")).await;
    }
    let injected: Vec<bool> = bound
        .seen()
        .iter()
        .map(|seen| !seen.header("authorization").is_empty())
        .collect();
    assert_eq!(injected, [true, false, true, false]);
}

#[tokio::test]
async fn paths_are_matched_as_the_upstream_reads_them() {
    let rule = format!("{BEARER}\npaths = [\"/repos/acme/*\"]");
    let house = House::new(&[("bound", &rule)]);
    let bound = house.upstream("api.bound.test", echo).await;
    for path in [
        "/repos/acme/../evil/x",
        "/repos/acme/%2e%2e/evil",
        "/repos/acme/a%2fb",
        "/repos/acme//a",
        "/repos/evil/a",
        "/repos/acme/a/b",
    ] {
        let reply = house.ask("api.bound.test", get("api.bound.test", path)).await;
        assert_eq!(reply.code(), "not_in_rule", "{path}");
    }
    assert!(bound.seen().is_empty());
    let reply = house
        .ask("api.bound.test", get("api.bound.test", "/repos/acme/app?q=../x"))
        .await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(bound.only().target, "/repos/acme/app?q=../x");
}
