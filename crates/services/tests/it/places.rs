//! Where requests may go.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::json;
use services::Code;

use crate::rig::{HOST, Names, Setting, Upstream, ok, with};

const GET: &str = r#"
[methods.get]
summary = "One contact"
access = "read"
request = "GET /contacts/{id}"
arguments.properties.id.type = "string"
arguments.required = ["id"]

[methods.post]
summary = "Make a contact"
access = "write"
request = "POST /contacts"
json = "{*}"
arguments.properties.id.type = "string"
"#;

fn names(addresses: &[&str]) -> Names {
    let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Names(BTreeMap::from([(HOST.to_owned(), addresses)]))
}

#[tokio::test]
async fn threat_008_011_074_a_service_is_at_no_inner_address_that_nobody_named() {
    let upstream = Upstream::start(|_, _| ok(json!({}))).await;
    let port = upstream.address.port();
    for (host, resolved) in [
        (HOST, vec!["127.0.0.1"]),
        (HOST, vec!["10.0.0.1"]),
        (HOST, vec!["169.254.169.254"]),
        (HOST, vec!["::ffff:127.0.0.1"]),
        (HOST, vec!["fd00:ec2::254"]),
        (HOST, vec!["8.8.8.8", "127.0.0.1"]),
        ("127.0.0.1", vec![]),
        ("0x7f000001", vec![]),
        ("2130706433", vec![]),
        ("127.1", vec![]),
        ("0.0.0.0", vec![]),
        ("[::1]", vec![]),
        ("[::ffff:127.0.0.1]", vec![]),
        ("169.254.169.254", vec![]),
    ] {
        let mut setting = Setting::new(&format!("https://{host}:{port}/v1"), GET);
        setting.settings.addresses.clear();
        setting.names = names(&resolved);
        let rig = setting.build();
        let failure = rig.fails("get", json!({"id": "1"}), Code::AddressRefused).await;
        assert_eq!(failure.status(), 502, "{failure}");
        assert!(failure.remedy.unwrap().contains("services.crm.addresses"));
    }
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn threat_010_one_answer_with_an_inner_address_is_refused_whole() {
    let upstream = Upstream::start(|_, _| ok(json!({}))).await;
    let mut setting = Setting::new(&upstream.base(), GET);
    setting.names = names(&["127.0.0.1", "10.0.0.1"]);
    let failure = setting
        .build()
        .fails("get", json!({"id": "1"}), Code::AddressRefused)
        .await;
    assert!(failure.message.contains("10.0.0.1"), "{failure}");
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn plain_http_is_for_inner_servers_that_somebody_named() {
    let mut setting = Setting::new("http://upstream.example.com/v1", GET);
    setting.settings.addresses.clear();
    let (_, problems) = setting.try_build();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].to_string().contains("plain http"), "{}", problems[0]);
}

#[tokio::test]
async fn threat_038_no_redirect_takes_the_credential_elsewhere() {
    let elsewhere = Upstream::start(|_, _| ok(json!({"stolen": true}))).await;
    let target = format!("http://{HOST}:{}/v1/contacts/1?key=x", elsewhere.address.port());
    for location in [
        target.clone(),
        target.replace(HOST, "evil.example.com"),
        format!("https://{HOST}/v1/contacts/1"),
        "//evil.example.com/v1/".to_owned(),
        "/admin".to_owned(),
        "/v1/../admin".to_owned(),
        "/v10/x".to_owned(),
        "file:///etc/passwd".to_owned(),
        String::new(),
    ] {
        for status in [301, 302, 303, 307, 308] {
            let location = location.clone();
            let upstream =
                Upstream::start(move |_, _| with(crate::rig::status(status, json!({})), "location", &location)).await;
            let rig = Setting::new(&upstream.base(), GET).build();
            let failure = rig.fails("get", json!({"id": "1"}), Code::Redirected).await;
            assert_eq!(failure.status(), 502);
            assert!(!failure.message.contains("key=x"), "{failure}");
        }
    }
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test]
async fn a_read_follows_its_own_upstream_and_no_circle() {
    let upstream = Upstream::start(|seen, _| match seen.target.as_str() {
        "/v1/contacts/old" => with(crate::rig::status(301, json!({})), "location", "/v1/contacts/new"),
        "/v1/contacts/new" => ok(json!({"id": "new"})),
        _ => with(crate::rig::status(302, json!({})), "location", "/v1/contacts/circle"),
    })
    .await;
    let rig = Setting::new(&upstream.base(), GET).build();
    assert_eq!(rig.get("get", json!({"id": "old"})).await, json!({"id": "new"}));
    let failure = rig.fails("get", json!({"id": "circle"}), Code::Redirected).await;
    assert!(failure.message.contains("circle"), "{failure}");
    let before = upstream.seen().len();
    rig.fails("post", json!({"id": "x"}), Code::Redirected).await;
    assert_eq!(upstream.seen().len(), before + 1, "a write is not sent twice");
}
