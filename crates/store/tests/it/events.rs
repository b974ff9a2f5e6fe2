//! Events: none lost, none doubled, whenever a watcher comes.

use domain::{Delivery, Event};
use store::{End, Store, Target};

use crate::parts::{Place, SYSTEM, begin, soon};

#[tokio::test]
async fn a_watcher_who_comes_at_any_event_gets_the_rest_once() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    place.turn(begin(taken.run.id, taken.run.epoch, 1), &["a"], None).await;
    let all = place
        .store
        .events(place.asker(), session, 0, 1_000)
        .await
        .unwrap()
        .events;
    for after in 0..=all.len() {
        let mut seen = Vec::new();
        let mut last = after as i64;
        loop {
            let page = place
                .store
                .events(place.asker(), session, last, 2)
                .await
                .unwrap()
                .events;
            let Some(newest) = page.last() else { break };
            last = newest.number;
            seen.extend(page);
        }
        assert_eq!(seen, all[after..]);
    }
}

#[tokio::test]
async fn a_watcher_who_tails_misses_nothing() {
    let place = Place::new().await;
    let session = place.start("first").await.session;
    let store = place.store.clone();
    let asker = place.asker();
    let mut changes = store.watch(asker, session).await.unwrap();
    let tail = async {
        let mut numbers = Vec::new();
        let mut last = 0;
        while last < 61 {
            let events = store.events(asker, session, last, 7).await.unwrap().events;
            if events.is_empty() {
                changes.changed().await.unwrap();
                continue;
            }
            numbers.extend(events.iter().map(|event| event.number));
            last = numbers[numbers.len() - 1];
        }
        numbers
    };
    let write = async {
        for number in 0..60 {
            let event = Event::ModelRetry {
                model: "m".to_owned(),
                reason: number.to_string(),
            };
            place.store.record(SYSTEM, session, vec![event]).await.unwrap();
        }
    };
    let (numbers, ()) = soon(async { tokio::join!(tail, write) }).await;
    assert!(numbers.iter().copied().eq(1..=numbers.len() as i64), "{numbers:?}");
    assert!(numbers.len() >= 61);
}

#[tokio::test]
async fn the_open_message_is_there_with_the_events_that_opened_it() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (id, opens) = place.begin(begin(taken.run.id, taken.run.epoch, 1)).await;
    place.store.save_open(SYSTEM, id, "Once upon", "a story").await.unwrap();
    let tail = place.store.events(place.asker(), session, 0, 100).await.unwrap();
    let open = tail.open.unwrap();
    assert_eq!(
        (open.message, open.text.as_str(), open.thinking.as_str()),
        (opens, "Once upon", "a story")
    );
    let part = place.store.events(place.asker(), session, 0, 1).await.unwrap();
    assert_eq!(part.open, None, "not before the watcher has seen it opened");
    place
        .store
        .finish_turn(
            SYSTEM,
            crate::parts::reply(id, opens, "Once upon a time", &[], Some(End::done())),
        )
        .await
        .unwrap();
    assert_eq!(
        place.store.events(place.asker(), session, 0, 100).await.unwrap().open,
        None
    );
}

#[tokio::test]
async fn writers_at_once_leave_no_gap() {
    let place = Place::new().await;
    let sessions = futures::future::join_all((0..5).map(|_| place.start("x"))).await;
    let writes = (0..200).map(|number: usize| {
        let session = sessions[number % 5].session;
        place.prompt(Target::Session(session), "more", Delivery::Steer)
    });
    futures::future::join_all(writes).await;
    for accepted in sessions {
        assert_eq!(crate::parts::told(&place.store, accepted.session).await.len(), 42);
    }
}

#[tokio::test]
async fn a_page_of_large_events_is_small_and_never_empty() {
    let place = Place::new().await;
    let session = place.start("first").await.session;
    let before = place.store.session(SYSTEM, session).await.unwrap().events;
    let large = |bytes: usize| Event::ModelRetry {
        model: "m".to_owned(),
        reason: "x".repeat(bytes),
    };
    let events = vec![large(Store::PAGE_BYTES / 2); 3];
    place.store.record(SYSTEM, session, events).await.unwrap();
    let alone = vec![large(Store::PAGE_BYTES * 3), large(1)];
    place.store.record(SYSTEM, session, alone).await.unwrap();
    let page = async |after: i64| {
        let page = place.store.events(place.asker(), session, after, 1_000).await.unwrap();
        let numbers = page.events.iter().map(|event| event.number - before);
        numbers.collect::<Vec<_>>()
    };
    assert_eq!(page(before).await, [1, 2]);
    assert_eq!(page(before + 2).await, [3, 4]);
    assert_eq!(page(before + 3).await, [4], "one at least");
    assert_eq!(page(before + 4).await, [5]);
}
