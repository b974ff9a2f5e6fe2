//! How much of a service may be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::SessionId;
use serde_json::json;
use services::Code;

use crate::rig::{Setting, Upstream, ok};

const GET: &str = r#"
[limits]
concurrency = 3
[methods.get]
summary = "One contact"
access = "read"
request = "GET /contacts"
[methods.dear]
summary = "Something that costs"
access = "read"
request = "GET /dear"
[methods.dear.limits]
per_minute = 1
"#;

#[tokio::test]
async fn rates_of_service_session_and_method_are_kept() {
    let upstream = Upstream::start(|_, _| ok(json!(1))).await;
    let mut setting = Setting::new(&upstream.base(), GET);
    setting.settings.session_per_minute = Some(3);
    let rig = setting.build();
    rig.get("dear", json!({})).await;
    let failure = rig.fails("dear", json!({}), Code::RateLimited).await;
    assert_eq!(failure.status(), 429);
    assert!(failure.retry_after.is_some());
    rig.get("get", json!({})).await;
    rig.get("get", json!({})).await;
    let failure = rig.fails("get", json!({}), Code::RateLimited).await;
    assert!(failure.message.contains("this session"), "{failure}");
    assert_eq!(upstream.seen().len(), 3);
}

#[tokio::test]
async fn a_services_own_rate_counts_whoever_calls_and_wherever_it_is_written() {
    let by_definition = GET.replace("concurrency = 3\n", "concurrency = 3\nper_minute = 3\n");
    for (definition, configured) in [(GET, Some(3)), (&by_definition, None), (&by_definition, Some(3))] {
        let upstream = Upstream::start(|_, _| ok(json!(1))).await;
        let mut setting = Setting::new(&upstream.base(), definition);
        setting.settings.per_minute = configured;
        let mut rig = setting.build();
        rig.get("get", json!({})).await;
        rig.get("get", json!({})).await;
        rig.session = SessionId::new();
        rig.get("get", json!({})).await;
        let failure = rig.fails("get", json!({}), Code::RateLimited).await;
        assert!(!failure.message.contains("this session"), "{failure}");
        assert_eq!(upstream.seen().len(), 3);
    }
}

#[tokio::test]
async fn no_more_requests_are_under_way_at_once_than_the_service_bears() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    let tasks = lifecycle::Tasks::new();
    let counted = (Arc::clone(&now), Arc::clone(&most));
    let app = axum::Router::new().fallback(move || {
        let (now, most) = counted.clone();
        async move {
            let under_way = now.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(under_way, Ordering::SeqCst);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            now.fetch_sub(1, Ordering::SeqCst);
            "1"
        }
    });
    tasks.spawn_until_stopped(async move { axum::serve(listener, app).await.unwrap() });
    let rig = Setting::new(&base, GET).build();
    let calls = futures::future::join_all((0..40).map(|_| rig.ask("get", json!({})))).await;
    assert!(calls.iter().all(Result::is_ok));
    let most = most.load(Ordering::SeqCst);
    assert!((1..=2).contains(&most), "one user has half of three places: {most}");
}
