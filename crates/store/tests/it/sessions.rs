//! Sessions: listed by pages, archived and brought back.

use std::collections::HashSet;
use std::time::Duration;

use domain::{Delivery, Door, SandboxId};
use serde_json::json;
use store::{Cursor, SessionFilter, StoreError, Target};

use crate::parts::{Place, SYSTEM, key, prompt, user};

#[tokio::test]
async fn pages_hold_every_session_once_newest_first() {
    let place = Place::new().await;
    for _ in 0..25 {
        place.start("x").await;
        place.pass(Duration::from_millis(1));
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = place
            .store
            .sessions(place.asker(), SessionFilter::default(), after, 10)
            .await
            .unwrap();
        seen.extend(page.sessions);
        let Some(next) = page.next else { break };
        after = Some(next.to_string().parse::<Cursor>().unwrap());
    }
    assert_eq!(seen.len(), 25);
    assert_eq!(seen.iter().map(|session| session.id).collect::<HashSet<_>>().len(), 25);
    assert!(seen.is_sorted_by(|one, next| one.active >= next.active));
}

#[tokio::test]
async fn users_list_their_own_and_admins_all() {
    let place = Place::new().await;
    place.start("mine").await;
    let bob = place.store.create_user(SYSTEM, "bob", true).await.unwrap().id;
    let count = async |asker, filter| {
        place
            .store
            .sessions(asker, filter, None, 10)
            .await
            .unwrap()
            .sessions
            .len()
    };
    let of = |owner| SessionFilter {
        owner: Some(owner),
        ..SessionFilter::default()
    };
    let admin = store::Asker::User {
        id: bob,
        admin: true,
        until: None,
    };
    assert_eq!(count(admin, SessionFilter::default()).await, 1);
    assert_eq!(count(admin, of(bob)).await, 0);
    assert_eq!(count(user(bob), SessionFilter::default()).await, 0);
    let peek = place.store.sessions(user(bob), of(place.user), None, 10).await;
    assert!(matches!(peek, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn an_archived_session_comes_back_with_a_prompt() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let busy = place.store.archive_session(place.asker(), session).await.unwrap_err();
    assert!(matches!(busy, StoreError::Conflict { .. }), "{busy:?}");
    place
        .store
        .cancel_run(place.asker(), taken.run.id, "enough")
        .await
        .unwrap();
    place.store.archive_session(place.asker(), session).await.unwrap();
    let list = async |archived| {
        let filter = SessionFilter {
            archived,
            ..SessionFilter::default()
        };
        place
            .store
            .sessions(place.asker(), filter, None, 10)
            .await
            .unwrap()
            .sessions
            .len()
    };
    assert_eq!((list(false).await, list(true).await), (0, 1));
    place
        .prompt(Target::Session(session), "wake up", Delivery::Restart)
        .await;
    assert_eq!((list(false).await, list(true).await), (1, 0));
}

#[tokio::test]
async fn a_session_can_be_opened_without_a_prompt_and_found_by_its_key() {
    let place = Place::new().await;
    let target = Target::Key {
        owner: place.user,
        key: key("report"),
    };
    let (session, made) = place
        .store
        .open_session(place.asker(), target.clone(), Door::Cli, "files", None)
        .await
        .unwrap();
    assert!(made && session.title == "files" && session.run.is_none());
    let (again, made) = place
        .store
        .open_session(place.asker(), target.clone(), Door::Cli, "", None)
        .await
        .unwrap();
    assert!(!made && again.id == session.id);
    let accepted = place.prompt(target, "sum it up", Delivery::Restart).await;
    assert_eq!(accepted.session, session.id);
    let filter = SessionFilter {
        key: Some(key("report")),
        ..SessionFilter::default()
    };
    let found = place
        .store
        .sessions(place.asker(), filter, None, 10)
        .await
        .unwrap()
        .sessions;
    assert_eq!(found[0].title, "sum it up");
}

#[tokio::test]
async fn the_sandbox_of_a_session_is_known() {
    let place = Place::new().await;
    let session = place.start("x").await.session;
    let sandbox = SandboxId::new();
    let events = place
        .store
        .set_sandbox(SYSTEM, session, sandbox, "running", None)
        .await
        .unwrap();
    assert_eq!(events.len(), 1);
    let stored = place.store.session(place.asker(), session).await.unwrap();
    assert_eq!(stored.sandbox, Some((sandbox, "running".to_owned())));
}

#[tokio::test]
async fn what_narrowed_a_session_stays_with_it() {
    let place = Place::new().await;
    let scope = |tool: &str| json!({"tools": {tool: false}});
    let (session, _) = place
        .store
        .open_session(
            place.asker(),
            Target::New { owner: place.user },
            Door::Api,
            "",
            Some(scope("exec")),
        )
        .await
        .unwrap();
    let narrowings = || async { place.store.narrowings(place.asker(), session.id).await.unwrap() };
    let prompt = |narrowing| {
        let mut prompt = prompt(place.user, Target::Session(session.id), "go on", Delivery::Queue);
        prompt.narrowing = narrowing;
        place.store.accept_prompt(place.asker(), prompt)
    };
    for narrowing in [None, Some(scope("exec")), Some(scope("write")), Some(scope("write"))] {
        prompt(narrowing).await.unwrap();
    }
    assert_eq!(narrowings().await, [scope("exec"), scope("write")]);
    for number in 0..62 {
        prompt(Some(scope(&number.to_string()))).await.unwrap();
    }
    let refused = prompt(Some(scope("read"))).await.unwrap_err();
    assert!(refused.to_string().contains("begin a new session"), "{refused}");
    assert_eq!(narrowings().await.len(), 64);
    let stranger = user(place.store.create_user(SYSTEM, "eve", false).await.unwrap().id);
    assert!(place.store.narrowings(stranger, session.id).await.is_err());
}

#[tokio::test]
async fn names_are_told_to_whom_may_know_them() {
    let place = Place::new().await;
    let target = Target::Key {
        owner: place.user,
        key: key("report"),
    };
    let keyed = place.prompt(target, "x", Delivery::Restart).await.session;
    let other = place.start("y").await.session;
    let eve = place.store.create_user(SYSTEM, "eve", false).await.unwrap().id;
    let users = vec![place.user, eve];
    let told = async |asker| {
        let names = place
            .store
            .names(asker, users.clone(), vec![keyed, other, keyed])
            .await
            .unwrap();
        let users = users.iter().filter_map(|user| names.user(*user)).collect::<Vec<_>>();
        let sessions = [keyed, other].map(|session| names.session(session));
        (users, sessions)
    };
    let name = place.store.user(SYSTEM, place.user).await.unwrap().name;
    let report = [Some(key("report")), None];
    assert_eq!(
        told(SYSTEM).await,
        (vec![name.clone(), "eve".to_owned()], report.clone())
    );
    assert_eq!(told(user(place.user)).await, (vec![name], report));
    assert_eq!(told(user(eve)).await, (vec!["eve".to_owned()], [None, None]));
}
