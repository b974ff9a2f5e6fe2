//! Services called from a sandbox: decided, made, shown and written down.

use std::sync::Arc;
use std::time::Duration;

use control::{Config, NewPrompt, ServiceRequest};
use domain::{Delivery, Door, Event, SessionId, ToolCallId};
use futures::StreamExt;
use lifecycle::Tasks;
use policy::Scope;
use secret::Secret;
use serde_json::{Value, json};
use store::{Accepted, Asker, Target};
use testkit::within;

use crate::world::crm::{ANSWERED, Added, CANARY, adding, outside, upstream};
use crate::world::{Differs, World, in_both_placements_with};

/// What is handed in: it stands neither in events nor in the audit log.
const ASKED: &str = "what-was-asked";

fn everybody(json: Value) -> Scope {
    serde_json::from_value(json).unwrap()
}

fn with_services(port: u16) -> Differs {
    Differs {
        config: may_call,
        outside: Arc::new(move |folder, tasks| outside(port, folder, tasks)),
        ..Differs::default()
    }
}

/// Everybody may call the service, but remove nothing.
fn may_call(config: &mut Config) {
    config.system = None;
    let scope = json!({"services": {"allow": ["crm.*"], "deny": ["*.remove"]}, "tools": {"exec": true, "read": true}});
    config.policies.roles.insert("everybody".to_owned(), everybody(scope));
}

/// What calls of services said, one run with one call.
async fn called(world: &World, target: Target, code: &str) -> (Accepted, String) {
    world.will_call(&[("a", code)]);
    world.will_say("So be it.");
    let accepted = world.prompt_to(target, "go", Delivery::Restart).await;
    world.done(&accepted).await;
    let said = world.said(accepted.session).await;
    let result = said.iter().rev().nth(1).cloned().unwrap();
    (accepted, result)
}

async fn service_event(world: &World, accepted: &Accepted, wanted: u16) -> Event {
    let is = |event: &Event| matches!(event, Event::ServiceCalled { status, .. } if *status == wanted);
    world.event(accepted.session, "the call to be shown", is).await.event
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_that_is_allowed_is_called_and_written_down_without_what_was_said() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let port = upstream(&tasks).await;
    in_both_placements_with(
        || with_services(port),
        async |world| {
            let code = format!("service crm.get {}", json!({"id": ASKED}));
            let (accepted, result) = called(&world, world.target(), &code).await;
            assert!(result.contains(ANSWERED), "{result}");
            let event = service_event(&world, &accepted, 200).await;
            let Event::ServiceCalled {
                run,
                call,
                service,
                method,
                outcome,
                code,
                bytes,
                ..
            } = &event
            else {
                panic!("{event:?}");
            };
            assert_eq!(*run, Some(accepted.run));
            assert_eq!(call.as_ref().map(ToString::to_string).as_deref(), Some("a"));
            assert_eq!(
                (service.as_str(), method.as_str(), outcome.as_str(), code),
                ("crm", "get", "allow", &None)
            );
            assert_eq!(*bytes, json!({"name": ANSWERED}).to_string().len() as u64);
            let entries = world.audited("service.called").await;
            assert_eq!(entries.len(), 1);
            let facts = &entries[0].entry.facts;
            assert_eq!(
                (facts.user, facts.session),
                (Some(world.user.id), Some(accepted.session))
            );
            assert_eq!((facts.run, facts.service.as_deref()), (Some(accepted.run), Some("crm")));
            assert_eq!(facts.decision.as_deref(), Some("allow"));
            assert_eq!(facts.rule.as_deref(), Some("services.allow:crm.*"));
            assert_eq!(facts.layer.as_deref(), Some("role everybody"));
            assert_eq!(facts.bytes, Some(*bytes));
            assert!(facts.micros.is_some());
            for written in [format!("{event:?}"), format!("{:?}", entries[0])] {
                for word in [CANARY, ANSWERED, ASKED] {
                    assert!(!written.contains(word), "{written}");
                }
            }
            // The model and the sandbox are told of what is allowed and of nothing else.
            let granted = world.inside.granted();
            assert_eq!(granted.services[0].methods, ["add", "count", "get", "put"]);
            assert!(granted.services[0].types.contains("get(") && !granted.services[0].types.contains("remove"));
            let request = world.models.received().pop().unwrap().body.to_string();
            assert!(
                request.contains("crm: Contacts of the company") && !request.contains(CANARY),
                "{request}"
            );
            world.assert_whole(accepted.session).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_070_only_registered_methods_dispatch() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let port = upstream(&tasks).await;
    let world = World::new(with_services(port)).await;
    for method in [
        "constructor",
        "__proto__",
        "toString",
        "",
        "get.x",
        "GET",
        "../get",
        "*",
    ] {
        let (_, result) = called(&world, world.target(), &format!("service crm.{method} {{}}")).await;
        assert!(result.contains("404 unknown_method"), "{method:?}: {result}");
    }
    for service in ["constructor", "__proto__", "nothing"] {
        let (_, result) = called(&world, world.target(), &format!("service {service}.get {{}}")).await;
        assert!(result.contains("403 denied"), "{service}: {result}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_077_a_method_that_is_denied_is_refused_audited_and_does_not_fill_the_books() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let port = upstream(&tasks).await;
    let world = World::new(with_services(port)).await;
    let remove = format!("service crm.remove {}", json!({"id": ASKED}));
    let (accepted, result) = called(&world, world.target(), &remove).await;
    assert!(result.contains("403 denied"), "{result}");
    let event = service_event(&world, &accepted, 403).await;
    assert!(
        matches!(&event, Event::ServiceCalled { outcome, .. } if outcome == "deny"),
        "{event:?}"
    );
    for _ in 0..3 {
        called(&world, Target::Session(accepted.session), &remove).await;
    }
    let events = world.events(accepted.session).await;
    let shown = events
        .iter()
        .filter(|event| matches!(event.event, Event::ServiceCalled { .. }));
    assert_eq!(shown.count(), 1);
    let entries = world.audited("service.denied").await;
    assert_eq!(entries.len(), 1);
    let facts = &entries[0].entry.facts;
    assert_eq!(facts.decision.as_deref(), Some("deny"));
    assert_eq!(facts.rule.as_deref(), Some("services.deny:*.remove"));
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_076_what_a_session_gave_away_it_cannot_call() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let port = upstream(&tasks).await;
    let world = World::new(with_services(port)).await;
    let get = format!("service crm.get {}", json!({"id": "1"}));
    for (scope, why) in [
        (json!({"services": []}), "nothing of it"),
        (json!({"tools": {"exec": false}}), "there is nothing to call it from"),
    ] {
        world.will_call(&[("a", get.as_str())]);
        world.will_say("So be it.");
        let prompt = NewPrompt {
            scope: Some(everybody(scope)),
            ..NewPrompt::words(world.target(), Door::Api, "go")
        };
        let accepted = world.control.prompt(world.asker, prompt).await.unwrap();
        world.done(&accepted).await;
        let said = world.said(accepted.session).await.join("\n");
        assert!(!said.contains(ANSWERED), "{why}: {said}");
        assert_eq!(world.inside.granted().services.len(), 0, "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_066_the_door_for_services_knows_sessions_by_their_tokens_only() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let port = upstream(&tasks).await;
    let world = World::new(with_services(port)).await;
    let (accepted, _) = called(&world, world.target(), "look").await;
    let (sandbox, _) = world.inside.newest();
    let token = world.inside.tokens(sandbox).pop().unwrap();
    let request = |method: &str, args: Value| ServiceRequest {
        service: "crm".to_owned(),
        method: method.to_owned(),
        args,
        call: None,
        idempotency_key: None,
    };
    let answer = world
        .control
        .proxy(&token, request("get", json!({"id": "1"})))
        .await
        .unwrap();
    assert_eq!(answer.media_type, "application/json");
    drop(answer);
    for (method, args, status) in [
        ("get", json!({}), 422),
        ("get", json!({"id": "1", "session": accepted.session}), 422),
        ("get", json!({"id": 5}), 422),
        ("remove", json!({"id": "1"}), 403),
        ("gone", json!({}), 404),
    ] {
        let failure = world
            .control
            .proxy(&token, request(method, args.clone()))
            .await
            .unwrap_err();
        assert_eq!(failure.status, status, "{method} {args}: {failure:?}");
    }
    for stranger in ["", "x", "' OR '1'='1"] {
        let failure = world
            .control
            .proxy(&Secret::new(stranger), request("get", json!({"id": "1"})))
            .await
            .unwrap_err();
        assert_eq!((failure.status, failure.code.as_str()), (401, "unauthorized"));
    }
    // The token of a session whose sandbox is gone opens nothing.
    world.control.archive(world.asker, accepted.session).await.unwrap();
    let failure = within(
        "an answer",
        world.control.proxy(&token, request("get", json!({"id": "1"}))),
    )
    .await
    .unwrap_err();
    assert_eq!(failure.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_060_a_token_that_was_replaced_or_revoked_opens_the_door_for_services_no_longer() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let port = upstream(&tasks).await;
    let world = World::new(Differs {
        config: |config| {
            may_call(config);
            config.token_life = Duration::from_secs(20);
            config.freeze_after = Duration::from_millis(80);
            config.hibernate_after = Duration::from_secs(60);
        },
        ..with_services(port)
    })
    .await;
    let (accepted, _) = called(&world, world.target(), "look").await;
    let (sandbox, _) = world.inside.newest();
    let first = world.inside.tokens(sandbox).pop().unwrap();
    let show = async |token: &Secret| {
        let request = ServiceRequest {
            service: "crm".to_owned(),
            method: "get".to_owned(),
            args: json!({"id": "1"}),
            call: None,
            idempotency_key: None,
        };
        world.control.proxy(token, request).await.map(drop)
    };
    show(&first).await.unwrap();
    let newest = within("a newer token", async {
        loop {
            let newest = world.inside.tokens(sandbox).pop().unwrap();
            if newest != first {
                return newest;
            }
            called(&world, Target::Session(accepted.session), "look").await;
        }
    })
    .await;
    // A request that was under way may have used it up.
    let _ = show(&first).await;
    assert_eq!(show(&first).await.unwrap_err().status, 401);
    for _ in 0..2 {
        show(&newest).await.unwrap();
    }
    // Another session's tokens are revoked, and then its own, by whomever: its sandbox is still there.
    let (other, _) = called(&world, world.target(), "look").await;
    let revoke = async |session| {
        let revoked = world.store.revoke_session_tokens(Asker::System, session, "a test");
        revoked.await.unwrap();
    };
    revoke(other.session).await;
    for _ in 0..2 {
        show(&newest).await.unwrap();
    }
    revoke(accepted.session).await;
    assert_eq!(show(&newest).await.unwrap_err().status, 401);
}

/// A request to add somebody, under a key.
fn add(method: &str, name: &str, key: Option<&str>) -> ServiceRequest {
    ServiceRequest {
        service: "crm".to_owned(),
        method: method.to_owned(),
        args: json!({ "name": name }),
        call: None,
        idempotency_key: key.map(str::to_owned),
    }
}

/// What a call was answered: its bytes, or status and code.
async fn answered(world: &World, token: &Secret, request: ServiceRequest) -> Result<String, (u16, String)> {
    match world.control.proxy(token, request).await {
        Ok(answer) => {
            let pieces: Vec<_> = answer.body.map(|piece| piece.unwrap().to_vec()).collect().await;
            Ok(String::from_utf8(pieces.concat()).unwrap())
        }
        Err(failure) => Err((failure.status, failure.code)),
    }
}

/// A world with a session that has a sandbox, and its token.
async fn with_session(port: u16) -> (World, SessionId, Secret) {
    let world = World::new(with_services(port)).await;
    let (accepted, _) = called(&world, world.target(), "look").await;
    let token = world.inside.tokens(world.inside.newest().0).pop().unwrap();
    // Keys count within a run, or outside of all: the one that there was is over.
    let read = ServiceRequest {
        args: json!({ "id": "1" }),
        ..add("get", "", None)
    };
    let over = async {
        loop {
            answered(&world, &token, read.clone()).await.unwrap();
            let called = world.audited("service.called").await;
            if called.last().is_some_and(|last| last.entry.facts.run.is_none()) {
                return;
            }
        }
    };
    within("the end of the run", over).await;
    (world, accepted.session, token)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_made_once_for_each_key_and_known_before_it_leaves() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let added = Added::new(false);
    let (world, session, token) = with_session(adding(&tasks, added.clone()).await).await;
    let told = |code: &str, status| Err((status, code.to_owned()));
    let first = async {
        let answer = answered(&world, &token, add("add", ASKED, Some("k"))).await;
        assert_eq!(answer.as_deref(), Ok(json!({ "name": ANSWERED }).to_string().as_str()));
        answer
    };
    let meanwhile = async {
        within("the request", added.one.notified()).await;
        // It is written down while the upstream still thinks, and what is handed in is not.
        let begun = world.audited("service.begun").await;
        assert_eq!(begun.len(), 1);
        assert_eq!(begun[0].entry.facts.service.as_deref(), Some("crm"));
        assert_eq!(begun[0].entry.detail["key"], "k");
        assert!(!format!("{begun:?}").contains(ASKED));
        let called = world.audited("service.called").await;
        assert!(called.iter().all(|record| record.entry.detail["method"] != "add"));
        assert_eq!(
            answered(&world, &token, add("add", ASKED, Some("k"))).await,
            told("under_way", 409)
        );
        assert_eq!(
            answered(&world, &token, add("add", "Eve", Some("k"))).await,
            told("key_reused", 422)
        );
        added.answers.add_permits(1);
    };
    let (first, ()) = tokio::join!(first, meanwhile);
    assert_eq!(added.count(), 1);
    assert_eq!(answered(&world, &token, add("add", ASKED, Some("k"))).await, first);
    assert_eq!(added.count(), 1, "the same key writes once");
    let called = world.audited("service.called").await;
    let code = |record: &store::AuditRecord| record.entry.detail["code"].clone();
    let is_done = |record: &&store::AuditRecord| record.entry.detail["method"] == "add" && code(record).is_null();
    let done: Vec<_> = called.iter().filter(is_done).collect();
    assert_eq!((done.len(), &done[0].entry.detail["key"]), (1, &json!("k")));
    // Without a key, and under another, each is its own.
    for key in [None, None, Some("l")] {
        answered(&world, &token, add("add", ASKED, key)).await.unwrap();
    }
    assert_eq!(added.count(), 4);
    // Who only reads is not written down before.
    let read = ServiceRequest {
        args: json!({ "id": "1" }),
        ..add("get", "", Some("r"))
    };
    answered(&world, &token, read).await.unwrap();
    assert_eq!(world.audited("service.begun").await.len(), 4);
    world.assert_whole(session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_waits_for_is_known_all_the_same_and_what_failed_is_told_as_it_is() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let added = Added::new(false);
    let (world, session, token) = with_session(adding(&tasks, added.clone()).await).await;
    let left = {
        let call = answered(&world, &token, add("add", "Ada", Some("left")));
        tokio::select! {
            () = added.one.notified() => true,
            _ = call => false,
        }
    };
    assert!(left, "whoever called is gone while the upstream thinks");
    added.answers.add_permits(1);
    let is = |event: &Event| matches!(event, Event::ServiceCalled { method, status: 200, .. } if method == "add");
    world.event(session, "the end of the call", is).await;
    let again = answered(&world, &token, add("add", "Ada", Some("left"))).await;
    assert_eq!(again, Ok(json!({ "name": ANSWERED }).to_string()));
    assert_eq!(added.count(), 1);
    // It never answers: nobody knows, unless the upstream knows keys.
    added.answers.acquire().await.unwrap().forget();
    for (method, key) in [("add", "late"), ("put", "known")] {
        assert_eq!(
            answered(&world, &token, add(method, "Ada", Some(key))).await,
            Err((504, "timeout".to_owned()))
        );
    }
    let unknown = Err((409, "state_unknown".to_owned()));
    let count = added.count();
    added.answers.add_permits(1);
    assert_eq!(answered(&world, &token, add("add", "Ada", Some("late"))).await, unknown);
    assert_eq!(added.count(), count);
    answered(&world, &token, add("put", "Ada", Some("known")))
        .await
        .unwrap();
    let keys = added.keys.lock().unwrap().clone();
    assert_eq!(keys.len(), count + 1);
    assert!(!keys[count].is_empty() && keys[count - 1] == keys[count], "{keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_process_died_is_unknown_is_named_to_the_model_and_is_not_made_again() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let added = Added::new(false);
    let port = adding(&tasks, added.clone()).await;
    in_both_placements_with(
        || with_services(port),
        async |world| {
            let before = added.count();
            world.will_call(&[("a", r#"service crm.add {"name": "Ada"}"#)]);
            world.will_say("So be it.");
            let accepted = world.prompt("go").await;
            within("the request", added.one.notified()).await;
            world.sandboxes.kill(world.inside.newest().0);
            let world = world.restarted().await;
            world.done(&accepted).await;
            let said = format!("{:?}", world.messages(accepted.session).await);
            let named = "It had begun a call of a service that may change something: crm.add (nobody knows whether it took effect).";
            assert!(said.contains(named), "{said}");
            assert_eq!(added.count(), before + 1);
            assert_eq!(world.audited("service.begun").await.len(), 1);
            world.assert_whole(accepted.session).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_made_only_while_the_tool_call_that_it_names_is() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let added = Added::new(true);
    let port = adding(&tasks, added.clone()).await;
    in_both_placements_with(
        || with_services(port),
        async |world| {
            let before = added.count();
            let naming = async |call: &str| {
                let token = world.inside.tokens(world.inside.newest().0).pop().unwrap();
                let request = ServiceRequest {
                    call: Some(ToolCallId(call.to_owned())),
                    ..add("add", "Ada", None)
                };
                answered(&world, &token, request).await
            };
            let over = Err((409, "call_over".to_owned()));
            world.will_call(&[("a", "wait")]);
            world.will_call(&[("b", "hang")]);
            let accepted = world.prompt("go").await;
            world.inside.made_so_many(1).await;
            naming("a").await.unwrap();
            assert_eq!(naming("b").await, over);
            world.inside.release();
            world.inside.made_so_many(2).await;
            assert_eq!(naming("a").await, over);
            naming("b").await.unwrap();
            let cancelled = world.control.cancel(world.asker, accepted.session, "enough");
            cancelled.await.unwrap();
            world.ended(accepted.session, accepted.run).await;
            let again = async {
                while naming("b").await == over {}
                naming("b").await
            };
            assert_eq!(within("no run", again).await, Err((503, "unavailable".to_owned())));
            assert_eq!(added.count(), before + 2);
        },
    )
    .await;
}
