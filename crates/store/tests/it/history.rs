//! The history: a chain that is verified, in any dialect, with summaries.

use std::sync::Arc;

use domain::{Author, Delivery, Message, Role};
use store::{Dialect, End, NewCompaction, StoreError, Target};

use crate::parts::{Place, SYSTEM, begin, dialect, message, result, text};

async fn long(place: &Place) -> (domain::SessionId, store::TakenRun) {
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(begin(run, epoch, 1), &["a"], None).await;
    for (number, (before, next)) in (2..).zip([("a", "b"), ("b", "c")]) {
        let mut turn = begin(run, epoch, number);
        turn.results = vec![result(before)];
        place.turn(turn, &[next], None).await;
    }
    (session, taken)
}

#[tokio::test]
async fn a_model_is_told_every_message_in_its_dialect() {
    let place = Place::new().await;
    let (session, _) = long(&place).await;
    let plain = place
        .store
        .history(place.asker(), session, 0, &dialect())
        .await
        .unwrap();
    let messages = place.store.messages(place.asker(), session, 0, 100).await.unwrap();
    assert_eq!(plain.entries.len(), 6);
    for (entry, positioned) in plain.entries.iter().zip(&messages) {
        assert_eq!((entry.position, entry.id), (positioned.position, positioned.message.id));
        assert_eq!(entry.ready, serde_json::to_vec(&positioned.message.blocks).unwrap());
    }
    let other = Dialect {
        name: "other".into(),
        render: Arc::new(|message: &Message| format!("<{}>", message.id).into_bytes()),
    };
    let other = place.store.history(place.asker(), session, 4, &other).await.unwrap();
    assert_eq!(
        other.entries[0].ready,
        format!("<{}>", messages[4].message.id).into_bytes()
    );
    assert_eq!(other.entries[0].hash, plain.entries[4].hash);
    let page = place.store.messages(place.asker(), session, 2, 2).await.unwrap();
    assert_eq!(page, messages[2..4]);
    assert_eq!(
        place
            .store
            .position(place.asker(), session, messages[3].message.id)
            .await
            .unwrap(),
        4
    );
}

/// A dialect may be called anything and render any bytes, and a history may be longer than one block.
#[tokio::test]
async fn bytes_come_back_as_they_were_rendered() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let odd = Dialect {
        name: "odd \n 7'\u{1f}é".into(),
        render: Arc::new(|message: &Message| [b"\0\n\xff 9 ", message.id.to_string().as_bytes(), b"\0"].concat()),
    };
    for number in 1..=60 {
        let mut turn = begin(taken.run.id, taken.run.epoch, number);
        turn.dialect = Some(odd.clone());
        if number > 1 {
            turn.results = vec![result("a")];
        }
        let (id, opens) = place.begin(turn).await;
        let mut reply = crate::parts::reply(id, opens, "so be it", &["a"], None);
        reply.dialect = Some(odd.clone());
        place.store.finish_turn(SYSTEM, reply).await.unwrap();
    }
    let messages = place.store.messages(SYSTEM, session, 0, 1_000).await.unwrap();
    assert_eq!(messages.len(), 120);
    for after in [0, 1, 50, 51, 119, 120] {
        let history = place.store.history(SYSTEM, session, after, &odd).await.unwrap();
        let read = history
            .entries
            .into_iter()
            .map(|entry| (entry.position, entry.ready))
            .collect::<Vec<_>>();
        let expected = messages.iter().filter(|positioned| positioned.position > after);
        let expected = expected.map(|positioned| (positioned.position, (odd.render)(&positioned.message)));
        assert_eq!(read, expected.collect::<Vec<_>>());
    }
}

/// Whoever has the file and changes what was said is found out, wherever they change it.
#[tokio::test]
async fn threat_124_an_altered_history_is_not_used() {
    let alterations = [
        (
            "UPDATE messages SET body = REPLACE(body, 'count', 'steal') WHERE position = 1",
            1,
        ),
        ("UPDATE messages SET ready = CAST('[]' AS BLOB) WHERE position = 2", 2),
        ("UPDATE messages SET role = 'assistant' WHERE position = 3", 3),
        ("DELETE FROM messages WHERE position = 4", 4),
        ("DELETE FROM messages WHERE position = 6", 6),
        ("UPDATE messages SET ready_digest = body_digest WHERE position = 5", 5),
        ("UPDATE sessions SET hash = zeroblob(32)", 7),
    ];
    for (sql, expected) in alterations {
        let place = Place::new().await;
        let (session, _) = long(&place).await;
        place.tamper(sql).await;
        let found = place.store.history(SYSTEM, session, 0, &dialect()).await.err();
        let canonical = place.store.messages(SYSTEM, session, 0, 100).await.err();
        let position = |error: &Option<StoreError>| match error {
            Some(StoreError::Tampered { position, .. }) => Some(*position),
            _ => None,
        };
        let seen = position(&found)
            .into_iter()
            .chain(position(&canonical))
            .collect::<Vec<_>>();
        assert!(seen.contains(&expected), "{sql}: {found:?} {canonical:?}");
    }
}

#[tokio::test]
async fn a_summary_takes_the_place_of_old_messages_in_what_is_sent_alone() {
    let place = Place::new().await;
    let (session, taken) = long(&place).await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    let summary = message(Role::User, Author::ControlPlane, text("we read a"));
    let compaction = |through, summary: &Message| NewCompaction {
        run,
        epoch,
        through,
        summary: summary.clone(),
    };
    for (through, why) in [
        (2, "parts a call from its result"),
        (99, "there is none"),
        (0, "there is none"),
    ] {
        let error = place
            .store
            .compact(SYSTEM, compaction(through, &summary))
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Invalid { .. }), "{why}: {error:?}");
    }
    let forged = message(Role::Assistant, Author::Sandbox, text("x"));
    assert!(place.store.compact(SYSTEM, compaction(3, &forged)).await.is_err());
    let events = place.store.compact(SYSTEM, compaction(3, &summary)).await.unwrap();
    assert_eq!(events.len(), 1);
    let history = place.store.history(SYSTEM, session, 0, &dialect()).await.unwrap();
    let through = history.compaction.unwrap();
    assert_eq!((through.through, through.summary), (3, summary.clone()));
    assert_eq!(
        history.entries.iter().map(|entry| entry.position).collect::<Vec<_>>(),
        [4, 5, 6]
    );
    assert_eq!(
        place.store.messages(SYSTEM, session, 0, 100).await.unwrap().len(),
        6,
        "the originals stay"
    );
    assert!(
        place.store.compact(SYSTEM, compaction(3, &summary)).await.is_err(),
        "a newer one stands already"
    );
    place.store.end_run(SYSTEM, run, epoch, End::done()).await.unwrap();
    assert!(matches!(
        place.store.compact(SYSTEM, compaction(5, &summary)).await,
        Err(StoreError::Stale { .. })
    ));
}

#[tokio::test]
async fn messages_of_many_prompts_keep_their_order() {
    let place = Place::new().await;
    let session = place.start("0").await.session;
    for number in 1..30 {
        place
            .prompt(Target::Session(session), &number.to_string(), Delivery::Restart)
            .await;
    }
    let said = crate::parts::said(&place.store, session).await;
    let expected: Vec<_> = (0..30).map(|number| format!("user: {number}")).collect();
    assert_eq!(said, expected);
}
