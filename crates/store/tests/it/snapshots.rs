//! Snapshots: how far the history had come, going back, and sessions that begin there.

use domain::{Author, Delivery, Event, Message, Role, RunId, SessionId, SnapshotId};
use serde_json::json;
use store::{Asker, End, Fork, NewCompaction, NewSnapshot, Snapshot, SnapshotKind, StoreError, Target};

use crate::parts::{Place, SYSTEM, begin, dialect, message, said, text, user};

const FORK: Fork = Fork {
    snapshot: None,
    count: 1,
    narrowing: None,
};

impl Place {
    /// A prompt and its run, which is over.
    async fn exchange(&self, target: Target, words: &str) -> (SessionId, RunId) {
        let accepted = self.prompt(target, words, Delivery::Restart).await;
        let taken = self.take(accepted.run).await;
        let turn = begin(taken.run.id, taken.run.epoch, 1);
        self.turn(turn, &[], Some(End::done())).await;
        (accepted.session, accepted.run)
    }

    async fn keep(&self, session: SessionId, name: &str) -> Snapshot {
        let new = NewSnapshot::Named(Some(name.to_owned()));
        let begun = self
            .store
            .begin_snapshot(self.asker(), session, new)
            .await
            .unwrap()
            .unwrap();
        self.store.keep_snapshot(SYSTEM, begun.id, Some(7)).await.unwrap();
        begun
    }

    async fn owed(&self, session: SessionId) -> Option<SnapshotId> {
        self.store.session(SYSTEM, session).await.unwrap().owed
    }
}

#[tokio::test]
async fn a_session_goes_back_and_forth_and_nothing_is_lost() {
    let mut place = Place::new().await;
    let (session, _) = place.exchange(Target::New { owner: place.user }, "one").await;
    let early = place.keep(session, "early").await;
    place.exchange(Target::Session(session), "two").await;
    let late = place.keep(session, "late").await;
    let whole = said(&place.store, session).await;

    let events = place.store.rewind(place.asker(), session, early.id).await.unwrap();
    let first = place.store.messages(SYSTEM, session, 0, 100).await.unwrap();
    assert!(
        matches!(&events[..], [event] if event.event == Event::Rewound { snapshot: early.id, through: Some(first[1].message.id) }),
        "{events:?}"
    );
    assert_eq!(said(&place.store, session).await, whole[..2]);
    assert_eq!(place.owed(session).await, Some(early.id));
    place.exchange(Target::Session(session), "three").await;
    let history = place
        .store
        .history(place.asker(), session, 0, &dialect())
        .await
        .unwrap();
    let places: Vec<_> = history.entries.iter().map(|entry| entry.position).collect();
    assert_eq!((places, history.last), (vec![1, 2, 5, 6], 6));
    assert_eq!(said(&place.store, session).await[2], "user: three");
    let page = place.store.messages(SYSTEM, session, 2, 1).await.unwrap();
    assert_eq!(page[0].position, 5, "a page looks past what is left out");

    // What was left out comes forth with a snapshot of then, after a restart too.
    place.reopen().await;
    place.store.rewind(place.asker(), session, late.id).await.unwrap();
    assert_eq!(said(&place.store, session).await, whole);
    let audited = place.audited().await.entry;
    assert_eq!(
        (audited.action.as_str(), &audited.detail["name"]),
        ("session.rewound", &json!("late"))
    );
    let events = place.store.events(SYSTEM, session, 0, 100).await.unwrap().events;
    let messages = events
        .iter()
        .filter(|event| matches!(event.event, Event::Message { .. }));
    assert_eq!(messages.count(), 6, "the originals stay");
}

#[tokio::test]
async fn going_back_before_a_summary_tells_the_messages_again() {
    let place = Place::new().await;
    let (session, _) = place.exchange(Target::New { owner: place.user }, "one").await;
    let before = place.keep(session, "before").await;
    let accepted = place.prompt(Target::Session(session), "two", Delivery::Restart).await;
    let taken = place.take(accepted.run).await;
    let summary = message(Role::User, Author::ControlPlane, text("one was said"));
    let compaction = NewCompaction {
        run: taken.run.id,
        epoch: taken.run.epoch,
        through: 2,
        summary: summary.clone(),
    };
    place.store.compact(SYSTEM, compaction).await.unwrap();
    place
        .turn(begin(taken.run.id, taken.run.epoch, 1), &[], Some(End::done()))
        .await;
    let after = place.keep(session, "after").await;

    place.store.rewind(place.asker(), session, before.id).await.unwrap();
    let history = place.store.history(SYSTEM, session, 0, &dialect()).await.unwrap();
    assert_eq!((history.compaction, history.entries.len()), (None, 2));
    let fork = Fork {
        snapshot: Some(after.id),
        ..FORK
    };
    let fork = place.store.fork(place.asker(), session, fork).await.unwrap()[0];
    let history = place.store.history(SYSTEM, fork, 0, &dialect()).await.unwrap();
    let summed_up = history.compaction.unwrap();
    assert_eq!(
        (summed_up.through, summed_up.summary, history.entries.len()),
        (2, summary, 2)
    );
}

#[tokio::test]
async fn forks_have_the_history_and_nothing_else_of_their_parent() {
    let place = Place::new().await;
    let (session, _) = place.exchange(Target::New { owner: place.user }, "one").await;
    let first = place.keep(session, "first").await;
    place.exchange(Target::Session(session), "two").await;
    place.store.rewind(place.asker(), session, first.id).await.unwrap();
    place.exchange(Target::Session(session), "three").await;
    let here = place.keep(session, "here").await;
    place.exchange(Target::Session(session), "four").await;
    let token = place
        .store
        .issue_session_token(SYSTEM, session, crate::parts::LEASE)
        .await
        .unwrap();
    let narrow = json!({ "tools": { "allow": ["read"] } });
    let target = Target::Session(session);
    let opened = place
        .store
        .open_session(place.asker(), target, domain::Door::Api, "", Some(narrow.clone()));
    opened.await.unwrap();

    let own = json!({ "models": [] });
    let fork = Fork {
        snapshot: Some(here.id),
        count: 2,
        narrowing: Some(own.clone()),
    };
    let forks = place.store.fork(place.asker(), session, fork).await.unwrap();
    let parent = place.store.session(SYSTEM, session).await.unwrap();
    for fork in &forks {
        let found = place.store.session(place.asker(), *fork).await.unwrap();
        assert_eq!(
            (found.owner, found.parent, found.owed),
            (place.user, Some(session), Some(here.id))
        );
        assert_eq!(
            (found.door, &found.title, found.run),
            (parent.door, &parent.title, None)
        );
        let words = said(&place.store, *fork).await;
        assert_eq!(
            (words[0].as_str(), words[2].as_str(), words.len()),
            ("user: one", "user: three", 4)
        );
        // The chain of a fork is whole, though messages are left out of it.
        place.store.history(SYSTEM, *fork, 0, &dialect()).await.unwrap();
        let spent = place.store.session_spend(SYSTEM, *fork).await.unwrap();
        assert_eq!((spent.spent.0, spent.reserved.0), (0, 0));
        assert_eq!(
            place.store.narrowings(SYSTEM, *fork).await.unwrap(),
            [narrow.clone(), own.clone()]
        );
        let events = place.store.events(SYSTEM, *fork, 0, 100).await.unwrap().events;
        let numbers: Vec<_> = events.iter().map(|event| event.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        let forked = Event::Forked {
            parent: session,
            snapshot: Some(here.id),
        };
        assert_eq!(events[4].event, forked);
        place.exchange(Target::Session(*fork), "on").await;
    }
    assert!(place.store.session_spend(SYSTEM, session).await.unwrap().spent.0 > 0);
    assert_eq!(
        place.store.check_session_token(token.secret.expose()).await.unwrap(),
        session,
        "a fork takes nothing from its parent"
    );
    assert_eq!(said(&place.store, session).await.len(), 6);
}

#[tokio::test]
async fn a_snapshot_is_there_until_nobody_is_owed_it() {
    let place = Place::new().await;
    let (session, _) = place.exchange(Target::New { owner: place.user }, "one").await;
    let begun = place
        .store
        .begin_snapshot(SYSTEM, session, NewSnapshot::Fork)
        .await
        .unwrap()
        .unwrap();
    place.store.keep_snapshot(SYSTEM, begun.id, None).await.unwrap();
    assert!(place.store.snapshots(place.asker(), session).await.unwrap().is_empty());
    let fork = Fork {
        snapshot: Some(begun.id),
        count: 2,
        ..FORK
    };
    let forks = place.store.fork(place.asker(), session, fork).await.unwrap();
    let refused = place.store.forget_snapshot(SYSTEM, session, begun.id).await;
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
    place.store.forget_half_snapshots(SYSTEM).await.unwrap();
    assert_eq!(place.store.files_brought(SYSTEM, forks[0]).await.unwrap(), None);
    assert_eq!(place.owed(forks[0]).await, None);
    assert_eq!(
        place.store.files_brought(SYSTEM, forks[1]).await.unwrap(),
        Some(begun.id)
    );
    assert!(place.store.all_snapshots(SYSTEM).await.unwrap().is_empty());

    let half = NewSnapshot::Named(None);
    place.store.begin_snapshot(place.asker(), session, half).await.unwrap();
    let kept = place.keep(session, "kept").await;
    place.store.forget_half_snapshots(SYSTEM).await.unwrap();
    let left: Vec<_> = place.store.all_snapshots(SYSTEM).await.unwrap();
    assert_eq!(left.iter().map(|snapshot| snapshot.id).collect::<Vec<_>>(), [kept.id]);
}

#[tokio::test]
async fn of_snapshots_after_runs_the_newest_are_kept() {
    let place = Place::new().await;
    let (session, run) = place.exchange(Target::New { owner: place.user }, "one").await;
    let mut made = Vec::new();
    for _ in 0..4 {
        let begun = place.store.begin_snapshot(SYSTEM, session, NewSnapshot::Run(run)).await;
        let begun = begun.unwrap().unwrap();
        place.store.keep_snapshot(SYSTEM, begun.id, None).await.unwrap();
        made.push(begun.id);
    }
    place
        .store
        .name_snapshot(place.asker(), session, made[0], "good")
        .await
        .unwrap();
    let older = place.store.forget_older_snapshots(SYSTEM, session, 2).await.unwrap();
    assert_eq!(older, [made[1]]);
    let left = place.store.snapshots(place.asker(), session).await.unwrap();
    let left: Vec<_> = left.iter().map(|snapshot| (snapshot.id, snapshot.kind)).collect();
    assert_eq!(
        left,
        [
            (made[3], SnapshotKind::Run),
            (made[2], SnapshotKind::Run),
            (made[0], SnapshotKind::Named)
        ]
    );
    place.prompt(Target::Session(session), "two", Delivery::Restart).await;
    let begun = place
        .store
        .begin_snapshot(SYSTEM, session, NewSnapshot::Run(run))
        .await
        .unwrap();
    assert_eq!(begun, None, "another run has begun");
    let refused = place.store.rewind(place.asker(), session, made[3]).await;
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
}

#[tokio::test]
async fn what_is_made_in_the_middle_of_calls_ends_before_them() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    place.turn(begin(taken.run.id, taken.run.epoch, 1), &["a"], None).await;
    let kept = place.keep(session, "in the middle").await;
    assert_eq!(kept.position, 1);
    let fork = place.store.fork(place.asker(), session, FORK).await.unwrap()[0];
    let messages: Vec<Message> = place
        .store
        .messages(SYSTEM, fork, 0, 9)
        .await
        .unwrap()
        .into_iter()
        .map(|m| m.message)
        .collect();
    assert_eq!(messages.len(), 1, "no call without its result");
}

#[tokio::test]
async fn strangers_and_sandboxes_have_no_snapshots() {
    let place = Place::new().await;
    let (session, _) = place.exchange(Target::New { owner: place.user }, "one").await;
    let (other, _) = place.exchange(Target::New { owner: place.user }, "one").await;
    let kept = place.keep(session, "kept").await;
    let eve = place.store.create_user(SYSTEM, "eve", false).await.unwrap().id;
    for asker in [user(eve), Asker::Session(session)] {
        let store = &place.store;
        let new = NewSnapshot::Named(None);
        assert!(store.begin_snapshot(asker, session, new).await.is_err(), "{asker:?}");
        assert!(store.rewind(asker, session, kept.id).await.is_err(), "{asker:?}");
        assert!(store.fork(asker, session, FORK).await.is_err(), "{asker:?}");
        assert!(
            store.name_snapshot(asker, session, kept.id, "mine").await.is_err(),
            "{asker:?}"
        );
        assert!(
            store.forget_snapshot(asker, session, kept.id).await.is_err(),
            "{asker:?}"
        );
    }
    assert!(place.store.snapshots(user(eve), session).await.is_err());
    let foreign = Fork {
        snapshot: Some(kept.id),
        ..FORK
    };
    let refused = place.store.fork(place.asker(), other, foreign).await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{refused:?}");
    for name in ["", "a\nb", " a", &kept.id.to_string(), "kept"] {
        let new = NewSnapshot::Named(Some(name.to_owned()));
        let refused = place.store.begin_snapshot(place.asker(), session, new).await;
        assert!(refused.is_err(), "{name:?}");
    }
    for count in [0, 17] {
        let many = Fork { count, ..FORK };
        assert!(place.store.fork(place.asker(), session, many).await.is_err());
    }
}

#[tokio::test]
async fn forks_and_names_have_bounds() {
    let place = Place::new().await;
    let (session, run) = place.exchange(Target::New { owner: place.user }, "one").await;
    place.store.fork(place.asker(), session, FORK).await.unwrap();
    place
        .tamper("UPDATE sessions SET stored = 3000000000 WHERE parent IS NOT NULL")
        .await;
    let refused = place.store.fork(place.asker(), session, FORK).await;
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");

    let begun = place.store.begin_snapshot(SYSTEM, session, NewSnapshot::Run(run)).await;
    let begun = begun.unwrap().unwrap();
    place.store.keep_snapshot(SYSTEM, begun.id, None).await.unwrap();
    for number in 0..100 {
        // Those that are never finished count.
        let new = NewSnapshot::Named(Some(number.to_string()));
        place.store.begin_snapshot(place.asker(), session, new).await.unwrap();
    }
    let refused = place
        .store
        .name_snapshot(place.asker(), session, begun.id, "more")
        .await;
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
    let more = NewSnapshot::Named(None);
    assert!(place.store.begin_snapshot(place.asker(), session, more).await.is_err());
}
