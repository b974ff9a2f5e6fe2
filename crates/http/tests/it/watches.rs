//! Event streams: whoever returns gets the rest, nothing lost and nothing doubled.

use std::time::Duration;

use domain::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn whoever_returns_at_any_event_gets_exactly_the_rest() {
    let world = World::new().await;
    let session = world.worked("one two three").await;
    world.work(&session, "four").await;
    let whole = world.frames(&session, &world.ada, "", false).await.all().await;
    let numbers: Vec<i64> = whole
        .iter()
        .map(|frame| frame.data["number"].as_i64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>());
    assert!(numbers.len() >= 8, "{whole:#?}");
    for (index, frame) in whole.iter().enumerate() {
        let rest = world.frames(&session, &world.ada, &frame.id, false).await.all().await;
        assert_eq!(rest, whole[index + 1..], "after {}", frame.id);
        if let Some(next) = whole.get(index + 1) {
            let live = world
                .frames(&session, &world.ada, &frame.id, true)
                .await
                .next()
                .await
                .unwrap();
            assert_eq!(&live, next, "a stream that stays begins the same");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_the_server_does() {
    let world = World::new().await;
    let session = world.worked("hello").await;
    let frames = world.frames(&session, &world.ada, "", true).await;
    let ended = tokio::join!(frames.all(), world.tasks.shut_down(Duration::from_secs(30)));
    assert!(
        !ended.0.is_empty() && ended.1,
        "the server waits for its streams, and they end"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_was_never_is_refused() {
    let world = World::new().await;
    let session = world.worked("hello").await;
    let response = world
        .get(&format!("/api/v1/sessions/{session}/events?after=99999"), &world.ada)
        .await;
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["code"], "invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_068_a_stream_ends_with_the_token_that_opened_it() {
    let world = World::new().await;
    let session = world.worked("hello").await;
    let token = async |label: &str, expires: Option<i64>| {
        let new = world
            .post(
                "/api/v1/tokens",
                &world.ada,
                json!({ "label": label, "expires": expires }),
            )
            .await;
        (
            new["id"].as_str().unwrap().to_owned(),
            new["secret"].as_str().unwrap().to_owned(),
        )
    };
    let (id, lost) = token("lost", None).await;
    let (_, brief) = token("brief", Some(Timestamp::now().0 + 15_000)).await;
    let (revoked, expired) = (
        world.frames(&session, &lost, "", true).await,
        world.frames(&session, &brief, "", true).await,
    );
    let mut stays = world.frames(&session, &world.ada, "", true).await;
    let answer = world
        .request(Method::DELETE, &format!("/api/v1/tokens/{id}"), &world.ada)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let ended = tokio::join!(revoked.all(), expired.all());
    assert!(!ended.0.is_empty() && ended.0 == ended.1);
    for frame in &ended.0 {
        assert_eq!(stays.next().await.as_ref(), Some(frame));
    }
    world.work(&session, "and go on").await;
    assert!(stays.next().await.is_some(), "another token's stream goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_user_has_no_more_streams_than_are_good_for_others() {
    let world = World::new().await;
    let session = world.worked("hello").await;
    let path = format!("/api/v1/sessions/{session}/events");
    let mut open = Vec::new();
    let refused = loop {
        let response = world.get(&path, &world.ada).await;
        if response.status() != 200 {
            break response;
        }
        open.push(response);
        assert!(open.len() <= 128);
    };
    assert_eq!((open.len(), refused.status().as_u16()), (128, 429));
    let error: Value = refused.json().await.unwrap();
    assert_eq!(error["error"]["code"], "too_many");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("close those that you no longer read"), "{message}");
    // Others have their own.
    assert_eq!(world.get(&path, &world.admin).await.status(), 200);
    drop(open);
    testkit::eventually_async("a place to be free again", async || {
        (world.get(&path, &world.ada).await.status() == 200).then_some(())
    })
    .await;
}
