//! Money: caps that hold, a ledger that is only added to.

use std::time::Duration;

use domain::{Money, Usage};
use store::{Begun, By, Cap, Caps, StoreError, UsageFilter};

use crate::parts::{Place, SYSTEM, begin, charge, reply};

#[tokio::test]
async fn threat_127_a_hundred_at_once_never_exceed_the_cap() {
    let place = Place::new().await;
    let mut turns = Vec::new();
    for _ in 0..100 {
        let (_, taken) = place.running().await;
        let mut turn = begin(taken.run.id, taken.run.epoch, 1);
        turn.caps.user = Some(Money(10_500));
        turns.push(turn);
    }
    let begun = futures::future::join_all(turns.into_iter().map(|turn| {
        let (store, opens) = (place.store.clone(), turn.opens);
        async move { (store.begin_turn(SYSTEM, turn).await.unwrap(), opens) }
    }))
    .await;
    let mut admitted = Vec::new();
    for (begun, opens) in begun {
        match begun {
            Begun::Yours { id, .. } => admitted.push((id, opens)),
            Begun::OverCap { over, .. } => assert_eq!(over.cap, Cap::User),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(admitted.len(), 10);
    let day = place.now().day();
    let spend = place.store.user_spend(SYSTEM, place.user, day).await.unwrap();
    assert_eq!((spend.spent, spend.reserved), (Money::ZERO, Money(10_000)));
    for (id, opens) in admitted {
        place
            .store
            .finish_turn(SYSTEM, reply(id, opens, "x", &[], None))
            .await
            .unwrap();
    }
    let spend = place.store.user_spend(SYSTEM, place.user, day).await.unwrap();
    assert_eq!((spend.spent, spend.reserved), (Money(7_000), Money::ZERO));
}

#[tokio::test]
async fn each_cap_is_told_apart() {
    let place = Place::new().await;
    let cap = Some(Money(999));
    let none = Caps::default();
    let cases = [
        (Caps { run: cap, ..none }, Cap::Run),
        (Caps { session: cap, ..none }, Cap::Session),
        (Caps { user: cap, ..none }, Cap::User),
        (Caps { day: cap, ..none }, Cap::Day),
    ];
    let (_, taken) = place.running().await;
    for (caps, expected) in cases {
        let mut turn = begin(taken.run.id, taken.run.epoch, 1);
        turn.caps = caps;
        match place.store.begin_turn(SYSTEM, turn).await.unwrap() {
            Begun::OverCap { over, .. } => assert_eq!(over.cap, expected),
            other => panic!("{other:?}"),
        }
    }
}

/// A call that is reserved before midnight and settled after it counts for the day on which it was made, at the price it was made at.
#[tokio::test]
async fn threat_137_a_call_counts_for_the_day_and_price_it_was_made_at() {
    let place = Place::new().await;
    let (_, taken) = place.running().await;
    let day = place.now().day();
    place.pass(Duration::from_millis(86_399_999));
    let (id, opens) = place.begin(begin(taken.run.id, taken.run.epoch, 1)).await;
    place.pass(Duration::from_millis(1));
    assert_eq!(place.now().day(), day + 1);
    place
        .store
        .finish_turn(SYSTEM, reply(id, opens, "x", &[], None))
        .await
        .unwrap();
    let mut dearer = charge(900);
    dearer.price_version = "2".to_owned();
    place.store.correct(SYSTEM, id, dearer).await.unwrap();
    let spent = async |day| place.store.day_spend(SYSTEM, day).await.unwrap().spent;
    assert_eq!((spent(day).await, spent(day + 1).await), (Money(900), Money::ZERO));
    let ledger = place.store.ledger(SYSTEM, UsageFilter::default(), 0, 10).await.unwrap();
    let seen: Vec<_> = ledger
        .iter()
        .map(|entry| (entry.price_version.as_str(), entry.cost.0, entry.day, entry.correction))
        .collect();
    assert_eq!(seen, [("1", 700, day, false), ("2", 200, day, true)]);
}

#[tokio::test]
async fn a_correction_leaves_the_sums_as_if_it_had_been_right_at_first() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (id, opens) = place.begin(begin(taken.run.id, taken.run.epoch, 1)).await;
    place
        .store
        .finish_turn(SYSTEM, reply(id, opens, "x", &[], None))
        .await
        .unwrap();
    let mut right = charge(100);
    right.usage = Usage {
        input: 4,
        cache_read: 100,
        ..Usage::default()
    };
    place.store.correct(SYSTEM, id, right.clone()).await.unwrap();
    for by in [By::Session, By::User, By::Day, By::Model] {
        let sums = place
            .store
            .usage(place.asker(), UsageFilter::default(), by)
            .await
            .unwrap();
        assert_eq!(sums.len(), 1);
        assert_eq!(
            (sums[0].calls, sums[0].usage, sums[0].cost),
            (1, right.usage, Money(100))
        );
    }
    assert_eq!(
        place.store.session_spend(place.asker(), session).await.unwrap().spent,
        Money(100)
    );
}

#[tokio::test]
async fn a_call_beside_the_turns_is_reserved_and_settled_on_the_same_sums() {
    let place = Place::new().await;
    let (_, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    let caps = Caps {
        run: Some(Money(1_500)),
        ..Caps::default()
    };
    let reserve = async |amount| {
        place
            .store
            .reserve(SYSTEM, run, epoch, "scripted", "1", Money(amount), caps)
            .await
    };
    let reserved = reserve(1_000).await.unwrap();
    let error = reserve(1_000).await.unwrap_err();
    assert!(matches!(error, StoreError::OverCap(_)), "{error:?}");
    assert!(error.to_string().contains("reserved by calls under way"), "{error}");
    let events = place
        .store
        .settle(SYSTEM, reserved.id, vec![charge(200)])
        .await
        .unwrap();
    assert_eq!(events.len(), 1);
    assert!(
        place
            .store
            .settle(SYSTEM, reserved.id, vec![charge(200)])
            .await
            .is_err(),
        "once"
    );
    let spend = place.store.run_spend(SYSTEM, run).await.unwrap();
    assert_eq!((spend.spent, spend.reserved), (Money(200), Money::ZERO));
    assert!(reserve(-1).await.is_err());
}

#[tokio::test]
async fn users_see_their_own_ledger_alone() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    place.turn(begin(taken.run.id, taken.run.epoch, 1), &[], None).await;
    let bob = place.store.create_user(SYSTEM, "bob", false).await.unwrap().id;
    let bob = crate::parts::user(bob);
    let of_bob = place.store.ledger(bob, UsageFilter::default(), 0, 10).await.unwrap();
    assert_eq!(of_bob, []);
    let session_filter = UsageFilter {
        session: Some(session),
        ..UsageFilter::default()
    };
    assert!(matches!(
        place.store.usage(bob, session_filter, By::Model).await,
        Err(StoreError::NotFound { .. })
    ));
    let user_filter = UsageFilter {
        user: Some(place.user),
        ..UsageFilter::default()
    };
    assert!(matches!(
        place.store.usage(bob, user_filter, By::Model).await,
        Err(StoreError::NotFound { .. })
    ));
    assert_eq!(
        place
            .store
            .usage(place.asker(), session_filter, By::Model)
            .await
            .unwrap()[0]
            .calls,
        1
    );
    let today = UsageFilter {
        from_day: Some(place.now().day()),
        to_day: Some(place.now().day()),
        ..UsageFilter::default()
    };
    assert_eq!(place.store.ledger(SYSTEM, today, 0, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn no_sum_comes_to_its_end_whatever_a_provider_says() {
    let place = Place::new().await;
    for _ in 0..3 {
        let (_, taken) = place.running().await;
        let (id, opens) = place.begin(begin(taken.run.id, taken.run.epoch, 1)).await;
        let mut finish = reply(id, opens, "x", &[], None);
        finish.charges[0].cost = Money(i64::MAX);
        finish.charges[0].usage.input = u64::MAX;
        place.store.finish_turn(SYSTEM, finish).await.unwrap();
    }
    let spend = place.store.day_spend(SYSTEM, place.now().day()).await.unwrap();
    assert_eq!(spend.spent, Money::dollars(3_000_000));
    let sums = place
        .store
        .usage(SYSTEM, UsageFilter::default(), By::Model)
        .await
        .unwrap();
    assert_eq!(sums[0].usage.input, 3_000_000_000_000);
    let (_, taken) = place.running().await;
    let mut turn = begin(taken.run.id, taken.run.epoch, 1);
    turn.reserve = Money(i64::MAX);
    assert!(matches!(
        place.store.begin_turn(SYSTEM, turn).await,
        Err(StoreError::Invalid { .. })
    ));
}
