//! Prompts: found or made, restarted, joined, queued, repeated.

use domain::{Author, Block, Delivery, Door, Role, RunState, ToolCallId, ToolResult, Trigger};
use store::{AuditFilter, AuditFrom, Begun, Config, End, Joined, Store, StoreError, Target};

use crate::parts::{LEASE, Place, SYSTEM, begin, key, message, prompt, reply, result, said, told, user};

#[tokio::test]
async fn a_session_that_has_stored_what_one_may_is_refused_in_words_and_can_end() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        session_bytes: Some(20_000),
        ..Config::new(folder.path().join("belljar.db"))
    };
    let store = Store::open(config).await.unwrap();
    let user = store.create_user(SYSTEM, "ada", false).await.unwrap().id;
    let ask = |target, words: &str| store.accept_prompt(SYSTEM, prompt(user, target, words, Delivery::Restart));
    let accepted = ask(Target::New { owner: user }, &"long ".repeat(1_000)).await.unwrap();
    let run = store
        .take_run(SYSTEM, accepted.run, "me", LEASE)
        .await
        .unwrap()
        .unwrap()
        .run;
    let turn = begin(run.id, run.epoch, 1);
    let opens = turn.opens;
    let Begun::Yours { id, .. } = store.begin_turn(SYSTEM, turn).await.unwrap() else {
        panic!("there is room");
    };
    // What was paid for is stored, however long it is.
    let words = reply(id, opens, &"more ".repeat(3_000), &["a"], None);
    store.finish_turn(SYSTEM, words).await.unwrap();
    let full = |error: StoreError| {
        assert!(
            matches!(error, StoreError::SessionFull { most: 20_000, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("begin another"), "{error}");
    };
    full(store.begin_turn(SYSTEM, begin(run.id, run.epoch, 2)).await.unwrap_err());
    full(ask(Target::Session(accepted.session), "and?").await.unwrap_err());
    let end = End::failed("session_full", "full");
    store.end_run(SYSTEM, run.id, run.epoch, end).await.unwrap();
    assert_eq!(said(&store, accepted.session).await.last().unwrap(), "belljar: error a");
    ask(Target::New { owner: user }, "another").await.unwrap();
}

#[tokio::test]
async fn a_key_finds_its_session_and_makes_one_where_there_is_none() {
    let place = Place::new().await;
    let target = Target::Key {
        owner: place.user,
        key: key("T1/C1/17.5"),
    };
    let first = place.prompt(target.clone(), "one", Delivery::Restart).await;
    let second = place.prompt(target.clone(), "two", Delivery::Restart).await;
    assert!(first.created && !second.created);
    assert_eq!(first.session, second.session);
    let bob = place.store.create_user(SYSTEM, "bob", false).await.unwrap().id;
    let his = Target::Key {
        owner: bob,
        key: key("T1/C1/17.5"),
    };
    let his = place
        .store
        .accept_prompt(user(bob), prompt(bob, his, "mine", Delivery::Restart))
        .await
        .unwrap();
    assert_ne!(his.session, first.session, "a key belongs to its owner");
}

#[tokio::test]
async fn a_prompt_is_stored_whole_with_its_run_and_events() {
    let place = Place::new().await;
    let accepted = place.start("hello\nworld").await;
    assert_eq!(said(&place.store, accepted.session).await, ["user: hello\nworld"]);
    assert_eq!(told(&place.store, accepted.session).await, ["message", "run queued"]);
    let session = place.store.session(place.asker(), accepted.session).await.unwrap();
    assert_eq!(session.title, "hello");
    assert_eq!(session.run, Some((accepted.run, RunState::Queued)));
    let events = place
        .store
        .events(place.asker(), accepted.session, 0, 10)
        .await
        .unwrap()
        .events;
    assert_eq!(events, accepted.events);
}

#[tokio::test]
async fn restart_keeps_what_was_said_and_answers_what_was_called() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(begin(run, epoch, 1), &["a", "b"], None).await;
    let second = place
        .prompt(Target::Session(session), "no, this", Delivery::Restart)
        .await;
    assert_eq!(second.interrupted, [run]);
    assert_eq!(
        said(&place.store, session).await,
        [
            "user: count the words",
            "model: so be it, call a, call b",
            "belljar: error a, error b",
            "user: no, this"
        ]
    );
    assert_eq!(place.store.run(SYSTEM, run).await.unwrap().state, RunState::Interrupted);

    let taken = place.take(second.run).await;
    assert!(taken.run.epoch > epoch);
    let (id, opens) = place.begin(begin(second.run, taken.run.epoch, 1)).await;
    assert!(place.store.save_open(SYSTEM, id, "I was about to", "hm").await.unwrap());
    place.prompt(Target::Session(session), "stop", Delivery::Restart).await;
    let history = said(&place.store, session).await;
    assert_eq!(history[4..], ["model: I was about to…", "user: stop"]);
    assert!(!place.store.save_open(SYSTEM, id, "too late", "").await.unwrap());

    let late = place
        .store
        .finish_turn(SYSTEM, reply(id, opens, "too late", &[], None))
        .await
        .unwrap();
    assert_eq!(late.outcome, store::TurnOutcome::Stale);
    assert_eq!(
        said(&place.store, session).await,
        history,
        "a late reply changes no history"
    );
    assert_eq!(
        place.store.session_spend(SYSTEM, session).await.unwrap().spent.0,
        1_400,
        "and is paid all the same"
    );
    let events = told(&place.store, session).await;
    assert_eq!(events.iter().filter(|event| *event == "tool_ended a").count(), 1);
}

#[tokio::test]
async fn steer_joins_before_the_next_model_call_and_queue_waits_for_the_end() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(begin(run, epoch, 1), &["a"], None).await;
    let steer = place
        .prompt(Target::Session(session), "and quickly", Delivery::Steer)
        .await;
    assert_eq!((steer.joined, steer.run), (Joined::Steered, run));
    let queue = place
        .prompt(Target::Session(session), "then this", Delivery::Queue)
        .await;
    assert_eq!(queue.joined, Joined::Queued);
    assert_eq!(place.store.pending_runs(SYSTEM, 10).await.unwrap(), []);
    assert!(
        place
            .store
            .take_run(SYSTEM, queue.run, "me", crate::parts::LEASE)
            .await
            .unwrap()
            .is_none()
    );

    let mut second = begin(run, epoch, 2);
    second.results = vec![result("a")];
    let finished = place.turn(second, &[], Some(End::done())).await;
    assert_eq!(finished.next, Some(queue.run));
    assert_eq!(
        said(&place.store, session).await,
        [
            "user: count the words",
            "model: so be it, call a",
            "sandbox: result a",
            "user: and quickly",
            "model: so be it"
        ]
    );
    assert_eq!(place.store.pending_runs(SYSTEM, 10).await.unwrap(), [queue.run]);
    place.take(queue.run).await;
    assert_eq!(said(&place.store, session).await.last().unwrap(), "user: then this");
}

#[tokio::test]
async fn what_another_trigger_pays_for_joins_no_run() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let steer = async |door: Door, name: &str| {
        let mut prompt = prompt(place.user, Target::Session(session), "and this", Delivery::Steer);
        prompt.trigger = Trigger::new(door, Some(name));
        place.store.accept_prompt(place.asker(), prompt).await.unwrap()
    };
    // The same token, whatever it says that it is.
    assert_eq!(steer(Door::Cli, "tests").await.joined, Joined::Steered);
    for (door, name) in [(Door::Api, "other"), (Door::Webhook, "tests")] {
        let queued = steer(door, name).await;
        assert_eq!(queued.joined, Joined::Queued);
        assert_ne!(queued.run, taken.run.id);
        let run = place.store.run(SYSTEM, queued.run).await.unwrap();
        assert_eq!(run.trigger, Trigger::new(door, Some(name)));
    }
}

#[tokio::test]
async fn a_run_does_not_end_while_a_prompt_waits_to_join_it() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    let (id, opens) = place.begin(begin(run, epoch, 1)).await;
    place
        .prompt(Target::Session(session), "one more thing", Delivery::Steer)
        .await;
    let finished = place
        .store
        .finish_turn(SYSTEM, reply(id, opens, "done", &[], Some(End::done())))
        .await
        .unwrap();
    assert!(finished.goes_on);
    assert_eq!(place.store.run(SYSTEM, run).await.unwrap().state, RunState::Running);
    let finished = place.turn(begin(run, epoch, 2), &[], Some(End::done())).await;
    assert!(!finished.goes_on);
    assert_eq!(place.store.run(SYSTEM, run).await.unwrap().state, RunState::Done);
    assert_eq!(
        said(&place.store, session).await[1..3],
        ["model: done", "user: one more thing"]
    );
}

#[tokio::test]
async fn a_prompt_that_waited_for_a_run_that_failed_gets_a_run_of_its_own() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.prompt(Target::Session(session), "please", Delivery::Steer).await;
    let ended = place
        .store
        .end_run(SYSTEM, run, epoch, End::failed("model_failed", "no model"))
        .await
        .unwrap();
    let next = ended.next.unwrap();
    assert_eq!(place.store.pending_runs(SYSTEM, 10).await.unwrap(), [next]);
    assert_eq!(
        said(&place.store, session).await,
        ["user: count the words", "user: please"]
    );
}

#[tokio::test]
async fn restart_loses_no_prompt_that_waited() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let queued = place.prompt(Target::Session(session), "second", Delivery::Queue).await;
    place.prompt(Target::Session(session), "joined", Delivery::Steer).await;
    let last = place.prompt(Target::Session(session), "third", Delivery::Restart).await;
    assert_eq!(last.interrupted, [taken.run.id, queued.run]);
    assert_eq!(
        said(&place.store, session).await,
        ["user: count the words", "user: joined", "user: second", "user: third"]
    );
}

#[tokio::test]
async fn a_prompt_that_waits_can_be_withdrawn_without_harm_to_the_run_at_work() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(begin(run, epoch, 1), &["a"], None).await;
    let queued = place
        .prompt(Target::Session(session), "never mind", Delivery::Queue)
        .await;
    place
        .store
        .cancel_run(place.asker(), queued.run, "withdrawn")
        .await
        .unwrap();
    let mut second = begin(run, epoch, 2);
    second.results = vec![result("a")];
    place.turn(second, &[], Some(End::done())).await;
    assert_eq!(
        said(&place.store, session).await,
        [
            "user: count the words",
            "model: so be it, call a",
            "sandbox: result a",
            "model: so be it"
        ]
    );
    assert_eq!(place.store.pending_runs(SYSTEM, 10).await.unwrap(), []);
}

#[tokio::test]
async fn a_repeated_request_changes_nothing() {
    let place = Place::new().await;
    let mut first = prompt(place.user, Target::New { owner: place.user }, "once", Delivery::Restart);
    first.request_key = Some("delivery-1".to_owned());
    let stored = place.store.accept_prompt(place.asker(), first.clone()).await.unwrap();
    first.message.id = domain::MessageId::new();
    let again = place.store.accept_prompt(place.asker(), first.clone()).await.unwrap();
    assert!(again.repeated);
    assert_eq!(
        (again.session, again.run, again.joined),
        (stored.session, stored.run, stored.joined)
    );
    assert_eq!(said(&place.store, stored.session).await, ["user: once"]);
    first.message.blocks = crate::parts::text("something else");
    let error = place.store.accept_prompt(place.asker(), first).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error:?}");
}

#[tokio::test]
async fn a_hundred_prompts_at_once_make_one_session() {
    let place = Place::new().await;
    let target = Target::Key {
        owner: place.user,
        key: key("thread"),
    };
    let prompts = (0..100).map(|_| place.prompt(target.clone(), "me too", Delivery::Queue));
    let accepted = futures::future::join_all(prompts).await;
    assert_eq!(accepted.iter().filter(|accepted| accepted.created).count(), 1);
    assert!(accepted.iter().all(|other| other.session == accepted[0].session));
    let started = accepted.iter().filter(|accepted| accepted.joined == Joined::Started);
    assert_eq!(started.count(), 1);
}

/// A prompt in the name of another, or of a model, or with a forged tool result.
#[tokio::test]
async fn threat_124_only_a_users_own_words_are_a_prompt() {
    let place = Place::new().await;
    let other = place.store.create_user(SYSTEM, "bob", false).await.unwrap().id;
    let forged = [
        message(Role::User, Author::User { id: other }, crate::parts::text("x")),
        message(
            Role::Assistant,
            Author::User { id: place.user },
            crate::parts::text("x"),
        ),
        message(Role::User, Author::ControlPlane, crate::parts::text("x")),
        message(
            Role::User,
            Author::User { id: place.user },
            vec![Block::ToolResult(ToolResult::text(ToolCallId("a".to_owned()), "x"))],
        ),
        message(Role::User, Author::User { id: place.user }, Vec::new()),
    ];
    for message in forged {
        let mut prompt = prompt(place.user, Target::New { owner: place.user }, "", Delivery::Restart);
        prompt.message = message;
        let error = place.store.accept_prompt(place.asker(), prompt).await.unwrap_err();
        assert!(matches!(error, StoreError::Invalid { .. }), "{error:?}");
    }
    let session = place.start("mine").await.session;
    let sandbox = prompt(place.user, Target::Session(session), "from inside", Delivery::Restart);
    let error = place
        .store
        .accept_prompt(store::Asker::Session(session), sandbox)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Invalid { .. }), "{error:?}");
}

#[tokio::test]
async fn a_stranger_finds_nothing() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let stranger_id = place.store.create_user(SYSTEM, "mallory", false).await.unwrap().id;
    let stranger = user(stranger_id);
    let run = taken.run.id;
    let prompt = prompt(stranger_id, Target::Session(session), "hi", Delivery::Restart);
    let refused = [
        place.store.accept_prompt(stranger, prompt).await.err(),
        place.store.session(stranger, session).await.err(),
        place.store.archive_session(stranger, session).await.err(),
        place.store.messages(stranger, session, 0, 10).await.err(),
        place
            .store
            .history(stranger, session, 0, &crate::parts::dialect())
            .await
            .err(),
        place.store.events(stranger, session, 0, 10).await.err(),
        place.store.watch(stranger, session).await.err(),
        place.store.run(stranger, run).await.err(),
        place.store.runs(stranger, session, None, 10).await.err(),
        place.store.cancel_run(stranger, run, "no").await.err(),
        place.store.session_spend(stranger, session).await.err(),
        place.store.user(stranger, place.user).await.err(),
        place.store.tokens(stranger, place.user).await.err(),
        place.store.create_token(stranger, place.user, "x", None).await.err(),
        place.store.revoke_session_tokens(stranger, session, "x").await.err(),
        place
            .store
            .open_session(stranger, Target::Session(session), domain::Door::Api, "", None)
            .await
            .err(),
    ];
    for (place, error) in refused.into_iter().enumerate() {
        assert!(matches!(error, Some(StoreError::NotFound { .. })), "{place}: {error:?}");
    }
    let other = place.start("another").await.session;
    let inside = store::Asker::Session(other);
    assert!(matches!(
        place.store.session(inside, session).await,
        Err(StoreError::NotFound { .. })
    ));
    let foreign = place.store.begin_turn(inside, begin(run, taken.run.epoch, 1)).await;
    assert!(matches!(foreign, Err(StoreError::NotFound { .. })));
    let own = place
        .store
        .begin_turn(store::Asker::Session(session), begin(run, taken.run.epoch, 1))
        .await;
    assert!(matches!(own, Ok(Begun::Yours { .. })));
    let denied = [
        place.store.users(stranger, true).await.err(),
        place.store.create_user(stranger, "x", true).await.err(),
        place.store.remove_user(stranger, place.user).await.err(),
        place
            .store
            .audit_page(stranger, AuditFilter::default(), AuditFrom::Newest, 10)
            .await
            .err(),
        place.store.verify_audit(stranger, None).await.err(),
        place.store.watch_audit(stranger).err(),
        place
            .store
            .backup(stranger, &place.folder.path().join("copy"))
            .await
            .err(),
        place.store.record(stranger, session, Vec::new()).await.err(),
        place.store.pending_runs(stranger, 1).await.err(),
    ];
    for (place, error) in denied.into_iter().enumerate() {
        assert!(matches!(error, Some(StoreError::Denied { .. })), "{place}: {error:?}");
    }
}

#[tokio::test]
async fn a_session_has_no_endless_queue() {
    let place = Place::new().await;
    let (session, _) = place.running().await;
    let target = Target::Session(session);
    let prompts = (0..200).map(|number| {
        let delivery = if number % 2 == 0 {
            Delivery::Queue
        } else {
            Delivery::Steer
        };
        place.prompt(target.clone(), "me too", delivery)
    });
    futures::future::join_all(prompts).await;
    for delivery in [Delivery::Queue, Delivery::Steer] {
        let one_more = prompt(place.user, target.clone(), "and me", delivery);
        let refused = place.store.accept_prompt(place.asker(), one_more).await;
        assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
    }
    let end = place.prompt(target, "enough", Delivery::Restart).await;
    assert_eq!(end.interrupted.len(), 101, "every one of them ends at once");
}
