//! Calls of models that programs in a sandbox make by themselves: on the run's scope, caps and ledger, and on nothing else.

use std::sync::Arc;
use std::time::Duration;

use control::Outside;
use domain::{Event, Money};
use futures::StreamExt;
use link::client::{Client, ClientError};
use policy::Scope;
use protocol::ModelRoute;
use providers::{ModelSettings, ProviderKind};
use serde_json::{Value, json};
use store::{Accepted, Asker};
use telemetry::Traces;
use testkit::model_server::{Answer, Protocol, Speech};
use testkit::within;
use testkit::{CollectedSpan, Collector};

use crate::world::{Differs, World};

/// How a model is configured, and what it is asked by.
type Spoken = (fn(&mut ModelSettings), ModelRoute, Protocol);

/// The dialects.
const DIALECTS: [Spoken; 3] = [
    (
        |model| model.provider = ProviderKind::Anthropic,
        ModelRoute::Messages,
        Protocol::Anthropic,
    ),
    (
        |model| model.provider = ProviderKind::Openai,
        ModelRoute::Responses,
        Protocol::Responses,
    ),
    (
        |model| model.provider = ProviderKind::OpenaiChat,
        ModelRoute::ChatCompletions,
        Protocol::Chat,
    ),
];

/// A world in which a run is on, whose code waits; the way out of its sandbox.
async fn running(differs: Differs) -> (World, Accepted, Client) {
    let world = World::new(differs).await;
    world.will_call(&[("a", "wait")]);
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(1).await;
    let (_, client) = world.inside.newest();
    (world, accepted, client)
}

/// Lets the run end.
async fn over(world: &World, accepted: &Accepted) {
    world.will_say("Done.");
    world.inside.release();
    world.done(accepted).await;
}

fn speech(input: u64, cached: u64, output: u64) -> Speech {
    Speech {
        input,
        cached,
        output,
        ..Speech::text("Here you are.")
    }
}

fn body(route: ModelRoute, words: &str) -> Value {
    match route {
        ModelRoute::Messages | ModelRoute::CountTokens => json!({
            "model": "m", "max_tokens": 1_000, "stream": true,
            "messages": [{"role": "user", "content": [{"type": "text", "text": words}]}],
        }),
        ModelRoute::Responses => json!({
            "model": "m", "max_output_tokens": 1_000, "stream": true,
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]}],
        }),
        ModelRoute::ChatCompletions => json!({
            "model": "m", "max_tokens": 1_000, "stream": true,
            "messages": [{"role": "user", "content": [{"type": "text", "text": words}]}],
        }),
    }
}

async fn begun(client: &Client, route: ModelRoute, body: &Value) -> Result<link::client::ServiceResult, ClientError> {
    let betas = ["interleaved-thinking-2025-05-14, context-1m-2025-08-07"
        .parse()
        .unwrap()];
    let pieces = futures::stream::iter([Ok(body.to_string().into())]).boxed();
    within("the model's answer to begin", client.model(route, betas, pieces)).await
}

/// What a call said: all of it, or status and code.
async fn asked(client: &Client, route: ModelRoute, body: &Value) -> Result<String, (u16, String)> {
    let mut answer = match begun(client, route, body).await {
        Ok(answer) => answer,
        Err(ClientError::Failed(failure)) => return Err((failure.status, failure.code)),
        Err(error) => panic!("{error:?}"),
    };
    let mut whole = Vec::new();
    while let Some(piece) = within("more of the answer", answer.body.chunk()).await.unwrap() {
        whole.extend_from_slice(&piece);
    }
    Ok(String::from_utf8(whole).unwrap())
}

/// The events of so many calls of programs, once they are told.
async fn told(world: &World, accepted: &Accepted, count: usize) -> Vec<Event> {
    testkit::eventually_async("the calls to be told", async || {
        let events = world
            .events(accepted.session)
            .await
            .into_iter()
            .map(|event| event.event);
        let calls: Vec<Event> = events
            .filter(|event| matches!(event, Event::ModelCalled { .. }))
            .collect();
        (calls.len() >= count).then_some(calls)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_133_a_program_is_answered_in_its_language_and_its_session_pays() {
    for (model, route, protocol) in DIALECTS {
        let (world, accepted, client) = running(Differs {
            model,
            ..Differs::default()
        })
        .await;
        let mut words = speech(100, 1_000, 50);
        words.thinking = Some("Let me think.".to_owned());
        words = words.call("c1", "lookup", &json!({"id": 7}));
        world.models.next(Answer::Say(words.clone()));
        let said = asked(&client, route, &body(route, "hello")).await.unwrap();
        // Byte for byte what the provider said; but the last chunk of tokens goes to who asked for it alone.
        let expected: Vec<String> = words
            .events(protocol)
            .into_iter()
            .filter(|event| protocol != Protocol::Chat || !event.contains("prompt_tokens"))
            .collect();
        assert_eq!(said, expected.concat(), "{route:?}");
        let received = world.models.received().pop().unwrap();
        assert_eq!(received.refused, None);
        assert_eq!(received.body["model"], "fake");
        let betas = received
            .headers
            .get("anthropic-beta")
            .map(|value| value.to_str().unwrap().to_owned());
        let expected = (route == ModelRoute::Messages).then(|| "interleaved-thinking-2025-05-14".to_owned());
        assert_eq!(betas, expected, "what costs more is left out");
        let cost = Money(100 * 3_000 + 1_000 * 300 + 50 * 15_000);
        let entry = world.ledger().await.pop().unwrap();
        assert_eq!((entry.cost, entry.estimated), (cost, false), "{route:?}: {entry:?}");
        assert!(!entry.price_version.is_empty());
        let events = told(&world, &accepted, 1).await;
        let Event::ModelCalled {
            run,
            model,
            route: told,
            status,
            usage,
            cost: charged,
            ..
        } = &events[0]
        else {
            panic!("{events:?}");
        };
        assert_eq!(
            (run, model.as_str(), *status, *charged),
            (&Some(accepted.run), "m", 200, cost)
        );
        assert_eq!((told.as_str(), usage.total_input()), (route.path(), 1_100));
        let audited = world.audited("model.called").await;
        assert_eq!((audited.len(), audited[0].entry.facts.cost), (1, Some(cost)));
        assert!(
            !format!("{audited:?}").contains("hello"),
            "what was said stands nowhere"
        );
        over(&world, &accepted).await;
        let spend = world
            .store
            .session_spend(Asker::System, accepted.session)
            .await
            .unwrap();
        assert_eq!(spend.reserved, Money::ZERO);
        assert_eq!(spend.spent, world.ledger().await.iter().map(|entry| entry.cost).sum());
        assert_eq!(world.ledger().await.len() as u64, world.models.count());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_programs_call_stands_in_the_trace_of_its_run_without_a_word_of_what_was_said() {
    let collector = Arc::new(Collector::start().await);
    let told_to = Arc::clone(&collector);
    let (world, accepted, client) = running(Differs {
        outside: Arc::new(move |_, tasks| Outside {
            traces: Traces::start(&told_to.address(), tasks).unwrap(),
            ..Outside::default()
        }),
        ..Differs::default()
    })
    .await;
    let route = ModelRoute::Messages;
    world.models.next(Answer::Say(speech(100, 0, 50)));
    asked(&client, route, &body(route, "secret words")).await.unwrap();
    let mut unknown = body(route, "secret words");
    unknown["model"] = "secret-model".into();
    asked(&client, route, &unknown).await.unwrap_err();
    told(&world, &accepted, 2).await;
    over(&world, &accepted).await;
    let trace = accepted.run.bits().to_be_bytes();
    let spans = collector
        .spans(|spans| spans.iter().any(|span| span.name == "run" && span.trace_id == trace))
        .await;
    let about = |span: &CollectedSpan| format!("{:?}", span.attributes);
    let (programs, turns): (Vec<_>, Vec<_>) = spans
        .iter()
        .filter(|span| span.trace_id == trace && ["model", "turn"].contains(&span.name.as_str()))
        .partition(|span| about(span).contains("belljar.route"));
    assert_eq!(programs.len(), 2, "{spans:#?}");
    for program in &programs {
        let first_turn = turns.iter().find(|span| span.span_id == program.parent_span_id);
        assert_eq!(first_turn.map(|span| span.name.as_str()), Some("turn"), "{spans:#?}");
    }
    let all: String = programs.iter().copied().map(about).collect();
    for said in [
        "IntValue(100)",
        "IntValue(50)",
        "StringValue(\"m\")",
        "StringValue(\"unknown\")",
    ] {
        assert!(all.contains(said), "{said}: {all}");
    }
    assert!(!format!("{spans:?}").contains("secret"), "{spans:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_127_a_hundred_programs_with_little_left_stay_below_the_cap() {
    const CAP: Money = Money(200_000_000);
    let (world, accepted, client) = running(Differs {
        config: |config| {
            config.caps.session = Some(CAP);
            config.budget_wait = Duration::from_millis(300);
            config.tools.truncate(6);
        },
        ..Differs::default()
    })
    .await;
    world.models.always(Answer::Say(speech(1_000, 0, 200)));
    let wanted = body(ModelRoute::Messages, "go");
    let calls = (0..100).map(|_| asked(&client, ModelRoute::Messages, &wanted));
    let answers = futures::future::join_all(calls).await;
    let mut done = 0;
    for answer in &answers {
        match answer {
            Ok(_) => done += 1,
            Err((status, code)) => assert!(
                [(402, "budget_exhausted"), (429, "budget_busy")].contains(&(*status, code.as_str())),
                "{status} {code}"
            ),
        }
    }
    let spend = world
        .store
        .session_spend(Asker::System, accepted.session)
        .await
        .unwrap();
    assert!(done > 0 && done < 100, "{done}");
    assert!(spend.spent <= CAP && spend.reserved == Money::ZERO, "{spend:?}");
    let programs = world
        .ledger()
        .await
        .iter()
        .filter(|entry| entry.cost == Money(6_000_000))
        .count();
    assert_eq!(programs, done);
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_128_an_answer_that_would_cross_the_cap_is_cut_with_an_error_of_its_language() {
    for (model, route, _) in DIALECTS {
        let (world, accepted, client) = running(Differs {
            model,
            config: |config| config.caps.run = Some(Money(120_000_000)),
            ..Differs::default()
        })
        .await;
        // A provider that takes no notice of the most that may be said.
        let mut endless = Speech::text(&"word ".repeat(40_000));
        endless.output = 40_000;
        world.models.next(Answer::Stall(endless, 40_000));
        let said = asked(&client, route, &body(route, "go")).await.unwrap();
        assert!(said.contains("word "), "{}", said.len());
        let last = said.trim_end().rsplit("\n\n").next().unwrap();
        let data = last.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        let error: Value = serde_json::from_str(data).unwrap();
        assert_eq!(error["error"]["type"], "budget_exhausted", "{last}");
        match route {
            ModelRoute::ChatCompletions => assert!(!last.starts_with("event:")),
            _ => assert!(last.starts_with("event: error\n") && error["type"] == "error", "{last}"),
        }
        let asked = world.models.received().pop().unwrap();
        assert_eq!(asked.refused, None);
        let spend = world
            .store
            .session_spend(Asker::System, accepted.session)
            .await
            .unwrap();
        assert!(
            spend.spent > Money::ZERO && spend.spent <= Money(120_000_000),
            "{spend:?}"
        );
        let events = told(&world, &accepted, 1).await;
        assert!(
            matches!(&events[0], Event::ModelCalled { status: 402, code: Some(code), .. } if code == "budget_exhausted"),
            "{events:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_128_arguments_and_thoughts_of_an_answer_count_too() {
    for (model, route, _) in DIALECTS {
        for endless in [Speech::endless_call(), Speech::endless_thought()] {
            let (world, accepted, client) = running(Differs {
                model,
                config: |config| config.caps.run = Some(Money(120_000_000)),
                ..Differs::default()
            })
            .await;
            world.models.next(Answer::Stall(endless, 40_000));
            let said = asked(&client, route, &body(route, "go")).await.unwrap();
            let last = said.trim_end().rsplit("\n\n").next().unwrap();
            assert!(last.contains("budget_exhausted"), "{route:?}: {last}");
            let spend = world
                .store
                .session_spend(Asker::System, accepted.session)
                .await
                .unwrap();
            assert!(
                spend.spent > Money::ZERO && spend.spent <= Money(120_000_000),
                "{spend:?}"
            );
            let events = told(&world, &accepted, 1).await;
            assert!(
                matches!(&events[0], Event::ModelCalled { status: 402, .. }),
                "{events:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_129_who_hangs_up_pays_and_so_does_who_is_told_of_no_tokens() {
    for (model, route, _) in DIALECTS {
        let (world, accepted, client) = running(Differs {
            model,
            config: |config| config.caps.session = Some(Money::dollars(10)),
            ..Differs::default()
        })
        .await;
        let before = world.ledger().await.len();
        world
            .models
            .next(Answer::Stall(Speech::text(&"word ".repeat(300)), 200));
        let mut answer = begun(&client, route, &body(route, &"long ".repeat(2_000)))
            .await
            .unwrap();
        let mut heard = String::new();
        while heard.matches("word ").count() < 50 {
            let piece = within("more words", answer.body.chunk()).await.unwrap().unwrap();
            heard.push_str(&String::from_utf8_lossy(&piece));
        }
        drop(answer);
        let events = told(&world, &accepted, 1).await;
        assert!(
            matches!(&events[0], Event::ModelCalled { status: 499, .. }),
            "{events:?}"
        );
        // Nor does a stream that breaks off tell of tokens.
        world.models.next(Answer::End(Speech::text(&"word ".repeat(300)), 200));
        let said = asked(&client, route, &body(route, &"long ".repeat(2_000)))
            .await
            .unwrap();
        assert!(said.contains("\"error\""), "{said}");
        told(&world, &accepted, 2).await;
        let entries = world.ledger().await.split_off(before);
        assert_eq!(entries.len(), 2);
        for entry in &entries {
            assert!(entry.estimated, "{entry:?}");
            let output = entry.tokens.output;
            // So many words were heard, and at most 200 said.
            assert!((50..1_000).contains(&output), "{route:?}: {entry:?}");
            assert!(entry.cost >= Money(50 * 15_000), "{entry:?}");
        }
        let spend = world
            .store
            .session_spend(Asker::System, accepted.session)
            .await
            .unwrap();
        assert_eq!(spend.reserved, Money::ZERO);
        over(&world, &accepted).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_129_who_hangs_up_on_a_model_that_thinks_unseen_pays_what_was_set_aside() {
    for (model, route, _) in DIALECTS {
        let (world, accepted, client) = running(Differs {
            model,
            config: |config| config.caps.session = Some(Money::dollars(10)),
            ..Differs::default()
        })
        .await;
        let (before, count) = (world.ledger().await.len(), world.models.count());
        let mut body = body(route, "think");
        if route == ModelRoute::Messages {
            body["thinking"] = json!({"type": "adaptive"});
        }
        // Before anything came of it.
        world.models.next(Answer::Silent);
        {
            let mut asked = Box::pin(begun(&client, route, &body));
            let under_way = testkit::eventually_async("the model to be asked", async || {
                (world.models.count() > count).then_some(())
            });
            tokio::select! {
                answered = &mut asked => panic!("{:?}", answered.is_ok()),
                () = under_way => {}
            }
        }
        told(&world, &accepted, 1).await;
        // And after its first words.
        world.models.next(Answer::Stall(Speech::text("Hm. "), 3));
        drop(begun(&client, route, &body).await.unwrap());
        told(&world, &accepted, 2).await;
        let entries = world.ledger().await.split_off(before);
        assert_eq!(entries.len(), 2, "{route:?}: {entries:?}");
        for entry in &entries {
            assert!(entry.cost >= Money(1_000 * 15_000), "{route:?}: {entry:?}");
        }
        over(&world, &accepted).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_131_what_a_provider_counted_beyond_the_bytes_is_expected_again() {
    let (world, accepted, client) = running(Differs {
        config: |config| config.caps.session = Some(Money(600_000_000)),
        ..Differs::default()
    })
    .await;
    // A few bytes, of which the provider says that they were 100,000 tokens that its cache knew.
    world.models.next(Answer::Say(speech(10, 100_000, 5)));
    asked(&client, ModelRoute::Messages, &body(ModelRoute::Messages, "go"))
        .await
        .unwrap();
    let count = world.models.count();
    let refused = asked(&client, ModelRoute::Messages, &body(ModelRoute::Messages, "more")).await;
    // At the dearest price of input that is $0.60, and less is left.
    let spend = world
        .store
        .session_spend(Asker::System, accepted.session)
        .await
        .unwrap();
    match refused {
        Err((402, code)) => assert_eq!((code.as_str(), world.models.count()), ("budget_exhausted", count)),
        other => panic!("{other:?} {spend:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_133_what_could_not_be_metered_does_not_reach_the_provider() {
    let (world, accepted, client) = running(Differs::default()).await;
    let count = world.models.count();
    let with = |key: &str, value: Value| {
        let mut body = body(ModelRoute::Messages, "go");
        body[key] = value;
        body
    };
    for (body, status) in [
        (
            with("tools", json!([{"type": "web_search_20250305", "name": "web_search"}])),
            403,
        ),
        (
            with("mcp_servers", json!([{"type": "url", "url": "https://evil.test"}])),
            403,
        ),
        (with("speed", json!("fast")), 403),
        (with("stream", json!("perhaps")), 400),
        (json!("embed this"), 400),
    ] {
        let refused = asked(&client, ModelRoute::Messages, &body).await.unwrap_err();
        assert_eq!(refused.0, status, "{body}");
    }
    // A model is asked in its own language.
    for route in [ModelRoute::Responses, ModelRoute::ChatCompletions] {
        assert_eq!(asked(&client, route, &body(route, "go")).await.unwrap_err().0, 400);
    }
    let counted = asked(&client, ModelRoute::CountTokens, &body(ModelRoute::Messages, "go"))
        .await
        .unwrap();
    assert!(
        serde_json::from_str::<Value>(&counted).unwrap()["input_tokens"]
            .as_u64()
            .unwrap()
            > 0
    );
    assert_eq!(world.models.count(), count);
    assert_eq!(world.ledger().await.len() as u64, count);
    over(&world, &accepted).await;
    // Without a run nobody asks anything.
    let (_, client) = world.inside.newest();
    let refused = asked(&client, ModelRoute::Messages, &body(ModelRoute::Messages, "go")).await;
    assert_eq!(refused.unwrap_err(), (403, "no_run".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_134_a_model_without_a_price_is_asked_by_no_program_where_a_cap_exists() {
    let (world, accepted, client) = running(Differs {
        config: |config| config.caps.day = Some(Money::dollars(1_000)),
        ..Differs::default()
    })
    .await;
    assert_eq!(world.inside.granted().models, ["m", "spare"]);
    let count = world.models.count();
    let mut free = body(ModelRoute::Messages, "go");
    free["model"] = "free".into();
    let refused = asked(&client, ModelRoute::Messages, &free).await.unwrap_err();
    assert_eq!(refused, (403, "price_missing".to_owned()));
    assert_eq!(world.models.count(), count);
    over(&world, &accepted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_136_only_configured_models_that_the_scope_allows_are_asked() {
    let (world, accepted, client) = running(Differs {
        config: |config| {
            let scope = json!({"tools": {"exec": true}, "models": ["m"]});
            let scope: Scope = serde_json::from_value(scope).unwrap();
            config.policies.roles.insert("everybody".to_owned(), scope);
        },
        ..Differs::default()
    })
    .await;
    assert_eq!(world.inside.granted().models, ["m"]);
    let count = world.models.count();
    for name in ["M", "m ", "fake", "anthropic/m", "m\u{0}", "../m", "", "spare"] {
        let mut body = body(ModelRoute::Messages, "go");
        body["model"] = name.into();
        let refused = asked(&client, ModelRoute::Messages, &body).await.unwrap_err();
        assert_eq!(refused, (404, "not_found_error".to_owned()), "{name:?}");
    }
    assert_eq!(world.models.count(), count);
    testkit::eventually_async("the denials to be audited", async || {
        (!world.audited("model.denied").await.is_empty()).then_some(())
    })
    .await;
    for name in [json!("default"), Value::Null] {
        let mut body = body(ModelRoute::Messages, "go");
        body["model"] = name;
        body["api_base"] = "http://127.0.0.1:9".into();
        asked(&client, ModelRoute::Messages, &body).await.unwrap();
    }
    assert_eq!(world.models.count(), count + 2);
    over(&world, &accepted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_code_or_models_programs_are_offered_none() {
    type Offered = (fn(&mut control::Config), &'static [&'static str]);
    fn everybody(config: &mut control::Config, scope: Value) {
        let scope: Scope = serde_json::from_value(scope).unwrap();
        config.policies.roles.insert("everybody".to_owned(), scope);
    }
    let worlds: [Offered; 2] = [
        (|_| {}, &["free", "m", "spare"]),
        (|config| everybody(config, json!({"tools": {"read": true}})), &[]),
    ];
    for (config, expected) in worlds {
        let world = World::new(Differs {
            config,
            placement: domain::Placement::ControlPlane,
            ..Differs::default()
        })
        .await;
        let accepted = world.prompt("go").await;
        world.done(&accepted).await;
        // Where the loop is here, a sandbox is told beside it.
        testkit::eventually_async("the grants", async || world.inside.was_granted().then_some(())).await;
        assert_eq!(world.inside.granted().models, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_138_no_key_goes_out_or_comes_back() {
    let (world, accepted, client) = running(Differs::default()).await;
    let key = world.models.key().to_owned();
    let route = ModelRoute::Messages;
    // It is not taken from a request.
    let count = world.models.count();
    let refused = asked(&client, route, &body(route, &format!("is it {key}?")))
        .await
        .unwrap_err();
    assert_eq!((refused.0, world.models.count()), (400, count));
    // It is masked in an answer, and in a failure.
    world.models.next(Answer::Say(Speech {
        text: vec![format!("It is {key}.")],
        ..Speech::text("")
    }));
    let said = asked(&client, route, &body(route, "go")).await.unwrap();
    assert!(said.contains("It is [secret].") && !said.contains(&key), "{said}");
    world.models.next(Answer::Status {
        status: 400,
        retry_after: None,
        message: format!("no such thing for {key}"),
    });
    let pieces = futures::stream::iter([Ok(body(route, "go").to_string().into())]).boxed();
    let failed = client.model(route, [], pieces).await.unwrap_err();
    let words = failed.to_string();
    assert!(words.contains("[secret]") && !words.contains(&key), "{words}");
    over(&world, &accepted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_fails_is_told_as_it_failed_and_asked_once() {
    let (world, accepted, client) = running(Differs::default()).await;
    let route = ModelRoute::Messages;
    for (status, expected) in [
        (429, (429, "rate_limit_error")),
        (529, (529, "overloaded_error")),
        (500, (503, "api_error")),
    ] {
        let count = world.models.count();
        world.models.next(Answer::Status {
            status,
            retry_after: Some("7".to_owned()),
            message: "slowly".to_owned(),
        });
        let pieces = futures::stream::iter([Ok(body(route, "go").to_string().into())]).boxed();
        let Err(ClientError::Failed(failure)) = client.model(route, [], pieces).await else {
            panic!("{status} was no failure");
        };
        assert_eq!((failure.status, failure.code.as_str()), expected);
        assert_eq!((failure.retry_after, failure.message.as_str()), (Some(7), "slowly"));
        assert_eq!(world.models.count(), count + 1);
    }
    let spend = world
        .store
        .session_spend(Asker::System, accepted.session)
        .await
        .unwrap();
    assert_eq!(spend.reserved, Money::ZERO);
    over(&world, &accepted).await;
}
