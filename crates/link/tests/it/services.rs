//! Calls of services.

use bytes::Bytes;
use link::client::{Client, ClientError};
use protocol::{SERVICE_REQUEST_BYTES, ServiceFailure};
use secret::Secret;
use serde_json::{Value, json};

use crate::rig::{LARGE, Rig, rig, within};

fn asked(method: &str, args: &Value) -> Bytes {
    let asked = json!({ "service": "crm", "method": method, "args": args, "call": "c1", "idempotency_key": "c1-1" });
    asked.to_string().into()
}

async fn failure(rig: &Rig, request: impl Into<Bytes>) -> ServiceFailure {
    match within(rig.client.service(request.into())).await {
        Err(ClientError::Failed(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

async fn whole(client: &Client, request: Bytes) -> (String, String) {
    let mut result = within(client.service(request)).await.unwrap();
    let mut body = Vec::new();
    while let Some(bytes) = within(result.body.chunk()).await.unwrap() {
        body.extend_from_slice(&bytes);
    }
    let media_type = result.media_type.unwrap().to_str().unwrap().to_owned();
    (media_type, String::from_utf8(body).unwrap())
}

#[tokio::test]
async fn a_result_comes_as_the_bytes_that_it_is() {
    let rig = rig();
    let (media_type, body) = whole(&rig.client, asked("echo", &json!({ "limit": 3 }))).await;
    assert_eq!(media_type, "application/json");
    assert_eq!(body, r#"{"limit":3}"#);
    assert_eq!(rig.seen(), ["service crm.echo c1 c1-1"]);
}

#[tokio::test]
async fn a_failure_has_status_code_words_and_remedy() {
    let rig = rig();
    let expected = ServiceFailure {
        retry_after: Some(7),
        ..ServiceFailure::new(429, "rate_limited", "crm takes 10 calls a second").remedy("wait a little")
    };
    assert_eq!(failure(&rig, asked("limited", &json!({}))).await, expected);
    rig.client.set_token(Secret::new("stolen"));
    let failure = failure(&rig, asked("echo", &json!({}))).await;
    assert_eq!((failure.status, failure.code.as_str()), (401, "unauthorized"));
}

#[tokio::test]
async fn a_request_that_is_malformed_or_too_long_reaches_nobody() {
    let rig = rig();
    let long = asked("echo", &json!("x".repeat(SERVICE_REQUEST_BYTES)));
    let more = Bytes::from(r#"{"service":"crm","method":"echo","token":"good"}"#);
    let many = Bytes::from(format!(
        r#"{{"service":"crm","method":"echo","args":[{}0]}}"#,
        "0,".repeat(520_000)
    ));
    for request in [Bytes::from("{"), Bytes::from("[]"), more, long, many] {
        let failure = failure(&rig, request).await;
        assert_eq!((failure.status, failure.code.as_str()), (400, "invalid"), "{failure:?}");
    }
    assert_eq!(rig.seen(), [""; 0]);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_taken_for_a_whole_one() {
    let rig = rig();
    let read = async {
        let mut result = rig.client.service(asked("broken", &json!({}))).await?;
        while result.body.chunk().await?.is_some() {}
        Ok(())
    };
    let error: ClientError = within(read).await.unwrap_err();
    assert!(matches!(error, ClientError::Lost { .. }), "{error:?}");
}

#[tokio::test]
async fn a_large_answer_is_made_no_faster_than_it_is_read() {
    let rig = rig();
    let mut result = within(rig.client.service(asked("large", &json!({})))).await.unwrap();
    within(result.body.chunk()).await.unwrap().unwrap();
    // Until it is read on, only what fits between is made: socket buffers and the pieces under way.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    let made = rig.handler.made();
    assert!(
        made < LARGE / 4,
        "{made} bytes were made for a reader who took one piece"
    );
    let mut bytes = 0;
    while let Some(piece) = within(result.body.chunk()).await.unwrap() {
        bytes += piece.len();
    }
    assert!(bytes > LARGE * 9 / 10 && rig.handler.made() == LARGE, "{bytes}");
}

#[tokio::test]
async fn threat_017_more_calls_than_a_sandbox_may_have_wait_and_other_sandboxes_do_not() {
    let (flooded, other) = (rig(), rig());
    let mut held = Vec::new();
    for _ in 0..32 {
        held.push(
            within(flooded.client.service(asked("large", &json!({}))))
                .await
                .unwrap(),
        );
    }
    let waits = flooded.client.service(asked("echo", &json!({})));
    let mut waits = std::pin::pin!(waits);
    tokio::select! {
        biased;
        answered = &mut waits => panic!("it was answered: {answered:?}"),
        echoed = whole(&other.client, asked("echo", &json!({}))) => assert_eq!(echoed.1, "{}"),
    }
    drop(held);
    within(waits).await.unwrap();
}
