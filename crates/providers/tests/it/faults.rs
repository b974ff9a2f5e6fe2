//! What goes wrong, before the first word and after it.

use std::sync::Arc;
use std::time::Duration;

use llm::Counted;
use providers::{ModelError, ModelSettings, ProviderKind, Providers, RetryLimits, Timeouts};
use serde_json::json;
use testkit::model_server::{Answer, ModelServer, Speech};

use crate::{AT_ONCE, KINDS, ask, at, body, model, only, prompt};

#[tokio::test]
async fn what_may_pass_is_tried_again_before_the_first_word() {
    for kind in KINDS {
        let server = ModelServer::start().await;
        let providers = only(&server, kind);
        for fault in [
            Answer::status(429),
            Answer::status(500),
            Answer::status(503),
            Answer::status(529),
            Answer::HangUp,
            Answer::Break(Speech::text("never heard"), 0),
            Answer::End(Speech::text("never heard"), 1),
            Answer::Status {
                status: 429,
                retry_after: Some("0".to_owned()),
                message: "slow".to_owned(),
            },
            Answer::Status {
                status: 529,
                retry_after: Some("Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
                message: "busy".to_owned(),
            },
        ] {
            let before = server.count();
            server.next(fault.clone());
            server.next(fault.clone());
            let heard = ask(&providers, "m", &[prompt("hi")]).await;
            assert_eq!(heard.text, "Hello.", "{kind:?} {fault:?}: {:?}", heard.end);
            assert_eq!(heard.retries.len(), 2, "{kind:?} {fault:?}");
            assert_eq!(server.count() - before, 3);
        }
        server.assert_nothing_refused();
    }
}

#[tokio::test]
async fn attempts_end_and_the_error_says_why() {
    for kind in KINDS {
        let server = ModelServer::start().await;
        let providers = only(&server, kind);
        for (status, expected) in [
            (429, "rate limit is reached"),
            (529, "has a fault (529)"),
            (500, "has a fault (500)"),
        ] {
            let before = server.count();
            server.always(Answer::status(status));
            let error = ask(&providers, "m", &[prompt("hi")]).await.end.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert!(error.next_model_may_help());
            assert_eq!(server.count() - before, u64::from(AT_ONCE.retries) + 1);
        }
    }
}

#[tokio::test]
async fn what_will_not_pass_is_asked_once() {
    for kind in KINDS {
        let server = ModelServer::start().await;
        let providers = only(&server, kind);
        let window = Answer::Status {
            status: 400,
            retry_after: None,
            message: "prompt is too long: 9 tokens > 8 maximum".to_owned(),
        };
        let later = Answer::Status {
            status: 429,
            retry_after: Some("3600".to_owned()),
            message: "tomorrow".to_owned(),
        };
        for (fault, expected) in [
            (Answer::status(401), "refused the key (401)"),
            (Answer::status(403), "refused the key (403)"),
            (Answer::status(404), "refused the request (404)"),
            (
                Answer::Redirect("http://127.0.0.1:1/".to_owned()),
                "refused the request (307)",
            ),
            (window, "longer than its window"),
            (later, "rate limit is reached"),
        ] {
            let before = server.count();
            server.next(fault);
            let error = ask(&providers, "m", &[prompt("hi")]).await.end.unwrap_err();
            assert!(error.to_string().contains(expected), "{kind:?}: {error}");
            assert_eq!(server.count() - before, 1, "{kind:?} {error}");
        }
    }
}

#[tokio::test]
async fn after_the_first_word_nothing_is_tried_again() {
    for kind in KINDS {
        let server = ModelServer::start().await;
        let providers = only(&server, kind);
        let speech = Speech {
            text: ["One ", "two ", "three."].map(str::to_owned).into(),
            ..Speech::text("")
        };
        // Past whatever stands before the first words.
        let heard_some = 5;
        for fault in [
            Answer::Break(speech.clone(), heard_some),
            Answer::End(speech.clone(), 4),
            Answer::Malformed(speech.clone(), 4),
        ] {
            let before = server.count();
            server.next(fault.clone());
            let heard = ask(&providers, "m", &[prompt("hi")]).await;
            let error = heard.end.unwrap_err();
            assert!(
                matches!(error, ModelError::Broken { .. } | ModelError::Stream { .. }),
                "{kind:?} {fault:?}: {error:?}"
            );
            assert!(heard.text.starts_with("One "), "{kind:?} {fault:?}: {:?}", heard.text);
            let partial = heard.partial.unwrap();
            assert_eq!(json!(partial.blocks)[0]["text"], heard.text);
            assert!(partial.usage.output > 0);
            let expected = if kind == ProviderKind::Anthropic {
                Counted::InputByProvider
            } else {
                Counted::ByUs
            };
            assert_eq!(partial.counted, expected);
            assert_eq!(server.count() - before, 1, "{kind:?} {fault:?}");
        }
    }
}

#[tokio::test]
async fn a_failure_told_in_the_stream_is_tried_again_only_before_the_first_word() {
    let server = ModelServer::start().await;
    let providers = only(&server, ProviderKind::Anthropic);
    let failed = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    server.next(Answer::Raw(failed.to_owned()));
    let heard = ask(&providers, "m", &[prompt("hi")]).await;
    assert_eq!((heard.text.as_str(), heard.retries.len()), ("Hello.", 1));
    let words =
        "event: content_block_start\ndata: {\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"Half\"}}\n\n";
    server.next(Answer::Raw(format!("{words}{failed}")));
    let heard = ask(&providers, "m", &[prompt("hi")]).await;
    assert_eq!((heard.text.as_str(), heard.retries.len()), ("Half", 0));
    assert!(
        matches!(heard.end, Err(ModelError::Overloaded { .. })),
        "{:?}",
        heard.end
    );
}

#[tokio::test]
async fn silence_ends_at_its_limit() {
    let brief = Duration::from_millis(50);
    let never = Duration::from_secs(3_600);
    let patient = Timeouts {
        connect: never,
        first_byte: never,
        idle: never,
        total: never,
    };
    let stall = |count| Answer::Stall(Speech::text("Hello you."), count);
    let cases = [
        (
            Timeouts {
                first_byte: brief,
                ..patient
            },
            Answer::Silent,
            "no answer within",
        ),
        (Timeouts { idle: brief, ..patient }, stall(0), "no further words within"),
        (Timeouts { idle: brief, ..patient }, stall(3), "no further words within"),
        (
            Timeouts {
                total: brief,
                ..patient
            },
            stall(3),
            "no end of the reply within",
        ),
    ];
    let once = RetryLimits { retries: 0, ..AT_ONCE };
    for (timeouts, fault, expected) in cases {
        let server = ModelServer::start().await;
        server.always(fault);
        let providers = Providers::new(vec![model("m", at(&server, ProviderKind::Anthropic))], timeouts, once).unwrap();
        let error = ask(&providers, "m", &[prompt("hi")]).await.end.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn nobody_there_is_said_with_the_address() {
    let port = testkit::free_port();
    let settings = ModelSettings {
        base_url: Some(format!("http://127.0.0.1:{port}")),
        ..ModelSettings::new(ProviderKind::OpenaiChat)
    };
    let providers = crate::providers(vec![model("m", settings)]);
    let heard = ask(&providers, "m", &[prompt("hi")]).await;
    let error = heard.end.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("model m: http://127.0.0.1:{port} could not be reached")
    );
    assert_eq!(heard.retries.len(), 2);
}

/// A new connection for each call would cost more than everything else that is done for it.
#[tokio::test]
async fn connections_are_used_again_after_a_reply_and_after_a_refusal() {
    let server = ModelServer::start().await;
    for kind in KINDS {
        let providers = only(&server, kind);
        let before = server.connections();
        for _ in 0..5 {
            server.next(Answer::status(500));
            // In pieces, the last of which says that nothing follows.
            server.next(Answer::End(Speech::text("Hello."), usize::MAX));
            assert_eq!(ask(&providers, "m", &[prompt("hi")]).await.text, "Hello.");
        }
        assert_eq!(server.connections() - before, 1, "{kind:?}");
    }
}

#[tokio::test]
async fn a_stream_that_is_dropped_hangs_up() {
    let server = ModelServer::start().await;
    let providers = only(&server, ProviderKind::Anthropic);
    server.next(Answer::Stall(Speech::text("Hello you."), 3));
    let model = Arc::clone(providers.model("m").unwrap());
    let body = body(&providers, &model, &[prompt("hi")]);
    let stream = testkit::within("the first word", providers.stream(&model, body, |_| ()))
        .await
        .unwrap();
    drop(stream);
    assert_eq!(ask(&providers, "m", &[prompt("hi")]).await.text, "Hello.");
}
