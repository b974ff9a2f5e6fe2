//! Money: caps that hold, a ledger that is only added to.

use std::time::Duration;

use domain::{Delivery, Door, Money, Trigger};
use store::{Begun, By, Cap, Caps, OverCap, Prompt, StoreError, TakenRun, Target, TriggerCap, UsageFilter};

use crate::parts::{Place, SYSTEM, begin, charge, prompt, reply};

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
    let spend = place.spend(&format!("user:{}:{day}", place.user));
    assert_eq!(spend, (Money::ZERO, Money(10_000)));
    for (id, opens) in admitted {
        place
            .store
            .finish_turn(SYSTEM, reply(id, opens, "x", &[], None))
            .await
            .unwrap();
    }
    let spend = place.spend(&format!("user:{}:{day}", place.user));
    assert_eq!(spend, (Money(7_000), Money::ZERO));
}

#[tokio::test]
async fn each_cap_is_told_apart() {
    let place = Place::new().await;
    let cap = Some(Money(999));
    let none = Caps::default;
    let cases = [
        (Caps { run: cap, ..none() }, Cap::Run),
        (Caps { session: cap, ..none() }, Cap::Session),
        (Caps { user: cap, ..none() }, Cap::User),
        (Caps { day: cap, ..none() }, Cap::Day),
        (triggers(&[("api", 999)]), Cap::Trigger("api".into())),
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
    let spent = |day| place.spend(&format!("day:{day}")).0;
    assert_eq!((spent(day), spent(day + 1)), (Money(700), Money::ZERO));
    let ledger = place.store.ledger(SYSTEM, UsageFilter::default(), 0, 10).await.unwrap();
    let seen: Vec<_> = ledger
        .iter()
        .map(|entry| (entry.price_version.as_str(), entry.cost.0, entry.day))
        .collect();
    assert_eq!(seen, [("1", 700, day)]);
}

/// Takes a run that was caused by a trigger.
async fn caused(place: &Place, trigger: Trigger) -> TakenRun {
    let prompt = Prompt {
        trigger,
        ..prompt(place.user, Target::New { owner: place.user }, "go", Delivery::Restart)
    };
    let accepted = place.store.accept_prompt(place.asker(), prompt).await.unwrap();
    place.take(accepted.run).await
}

fn triggers(caps: &[(&str, i64)]) -> Caps {
    let cap = |(pattern, most): &(&str, i64)| TriggerCap {
        pattern: (*pattern).to_owned(),
        most: Money(*most),
    };
    Caps {
        triggers: caps.iter().map(cap).collect(),
        ..Caps::default()
    }
}

async fn over(place: &Place, trigger: &Trigger, caps: Caps) -> Option<OverCap> {
    let taken = caused(place, trigger.clone()).await;
    let mut turn = begin(taken.run.id, taken.run.epoch, 1);
    turn.caps = caps;
    match place.store.begin_turn(SYSTEM, turn).await.unwrap() {
        Begun::Yours { .. } => None,
        Begun::OverCap { over, .. } => Some(over),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn triggers_that_a_pattern_means_are_held_to_its_cap_together() {
    let place = Place::new().await;
    let webhook = |name| Trigger::new(Door::Webhook, Some(name));
    let caps = || triggers(&[("cli", 1), ("webhook:*", 2_500), ("webhook:github", 1_500)]);
    assert_eq!(over(&place, &webhook("github"), caps()).await, None);
    let github = over(&place, &webhook("github"), caps()).await.unwrap();
    assert_eq!(github.cap, Cap::Trigger("webhook:github".into()));
    assert_eq!(
        (github.limit, github.spent, github.reserved),
        (Money(1_500), Money::ZERO, Money(1_000))
    );
    assert!(
        github.to_string().contains("for runs of webhook:github today (UTC)"),
        "{github}"
    );
    assert_eq!(over(&place, &webhook("stripe"), caps()).await, None);
    let all = over(&place, &webhook("pager"), caps()).await.unwrap();
    assert_eq!(all.cap, Cap::Trigger("webhook:*".into()));
    assert_eq!(all.reserved, Money(2_000));
    let nightly = Trigger::new(Door::Schedule, Some("nightly"));
    assert_eq!(over(&place, &nightly, caps()).await, None, "none means it");
    // A cap that is set later knows of the whole day.
    let later = over(&place, &nightly, triggers(&[("schedule", 1_999)])).await.unwrap();
    assert_eq!(later.reserved, Money(1_000));
    place.pass(Duration::from_secs(86_400));
    assert_eq!(over(&place, &webhook("github"), caps()).await, None, "another day");
}

#[tokio::test]
async fn threat_127_a_hundred_of_one_trigger_never_exceed_its_cap() {
    let place = Place::new().await;
    let nightly = Trigger::new(Door::Api, Some("nightly"));
    let mut turns = Vec::new();
    for _ in 0..100 {
        let taken = caused(&place, nightly.clone()).await;
        let mut turn = begin(taken.run.id, taken.run.epoch, 1);
        turn.caps = triggers(&[("api:night*", 10_500)]);
        turns.push(turn);
    }
    let begun = turns.into_iter().map(|turn| {
        let (store, opens) = (place.store.clone(), turn.opens);
        async move { (store.begin_turn(SYSTEM, turn).await.unwrap(), opens) }
    });
    let mut admitted = 0;
    for (begun, opens) in futures::future::join_all(begun).await {
        if let Begun::Yours { id, .. } = begun {
            admitted += 1;
            let reply = reply(id, opens, "x", &[], None);
            place.store.finish_turn(SYSTEM, reply).await.unwrap();
        }
    }
    assert_eq!(admitted, 10);
    let day = place.now().day();
    assert_eq!(
        place.spend(&format!("trigger:{day}:api:nightly")),
        (Money(7_000), Money::ZERO)
    );
    let sums = place
        .store
        .usage(SYSTEM, UsageFilter::default(), By::Trigger)
        .await
        .unwrap();
    assert_eq!(sums.len(), 1);
    assert_eq!(
        (sums[0].name.as_str(), sums[0].calls, sums[0].cost),
        ("api:nightly", 10, Money(7_000))
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
            .reserve(SYSTEM, run, epoch, "scripted", "1", Money(amount), caps.clone())
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
    let spend = place.run_spend(run);
    assert_eq!(spend, (Money(200), Money::ZERO));
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
    let spend = place.spend(&format!("day:{}", place.now().day()));
    assert_eq!(spend.0, Money::dollars(3_000_000));
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
