//! Generations of images: one builder among many, and which images files lie on.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::{Delivery, GenerationId, SessionId};
use sandbox::ImageDigest;
use store::{
    Asker, Fork, Generation, GenerationState, Ingredients, NewSnapshot, Proposal, StoreError, TakenGeneration, Target,
};

use crate::parts::{LEASE, Place, SYSTEM};

const ADMIN: Asker = Asker::System;

fn image(of: u8) -> ImageDigest {
    ImageDigest::from_bytes([of; 32])
}

fn made_of() -> Ingredients {
    Ingredients {
        recipe: "recipe".to_owned(),
        base: image(0),
        parent: image(0),
    }
}

impl Place {
    /// What a holder gets to build, where it is due since the newest that it knows.
    async fn build(&self, holder: &str, due: bool) -> Option<TakenGeneration> {
        let seen = self.newest_ended().await;
        self.take_one(holder, due, seen).await
    }

    async fn take_one(&self, holder: &str, due: bool, seen: Option<GenerationId>) -> Option<TakenGeneration> {
        let proposal = Proposal {
            image: "base".to_owned(),
            made_of: made_of(),
            due,
            seen,
        };
        let taken = self.store.take_generation(SYSTEM, proposal, holder, LEASE);
        taken.await.unwrap()
    }

    async fn newest_ended(&self) -> Option<GenerationId> {
        let all = self.generations().await;
        let ended = all.iter().filter(|generation| generation.ended.is_some());
        ended.max_by_key(|row| row.number).map(|row| row.id)
    }

    async fn generations(&self) -> Vec<Generation> {
        self.store.generations("base").await.unwrap()
    }

    async fn end(&self, taken: &TakenGeneration, holder: &str, result: Result<ImageDigest, String>) -> bool {
        let ended = self.store.end_generation(SYSTEM, taken.generation.id, holder, result);
        ended.await.unwrap()
    }

    async fn used(&self) -> BTreeSet<ImageDigest> {
        self.store.images_in_use(SYSTEM).await.unwrap()
    }

    async fn image_of(&self, session: SessionId) -> Option<ImageDigest> {
        self.store.image_of(SYSTEM, session).await.unwrap()
    }
}

#[tokio::test]
async fn one_builds_at_a_time_and_what_was_due_then_is_not_due_again() {
    let place = Place::new().await;
    assert_eq!(place.build("one", false).await, None, "nobody wants it");
    let taken = place.build("one", true).await.unwrap();
    assert_eq!(taken.generation.state, GenerationState::Building);
    assert_eq!((taken.generation.attempts, &taken.left), (1, &None));
    assert_eq!(place.build("two", true).await, None, "somebody builds it");

    place.pass(LEASE / 2);
    let renewed = place.store.renew_generation(SYSTEM, taken.generation.id, "one", LEASE);
    assert!(renewed.await.unwrap());
    place.pass(LEASE / 2);
    assert_eq!(place.build("two", true).await, None, "its builder holds on to it");

    assert!(!place.end(&taken, "two", Ok(image(9))).await, "it is not theirs");
    assert!(place.end(&taken, "one", Ok(image(1))).await);
    assert!(!place.end(&taken, "one", Ok(image(2))).await, "it has ended");
    let [ended] = &place.generations().await[..] else {
        panic!("one row")
    };
    assert_eq!((ended.state, &ended.digest), (GenerationState::Ready, &Some(image(1))));
    let audited = place.audited().await.entry;
    assert_eq!(
        (audited.action.as_str(), audited.subject.as_str()),
        ("image.refreshed", "image:base")
    );
    // Two may find the same one due; the slower one comes too late.
    assert_eq!(place.take_one("two", true, None).await, None);
    assert!(place.build("two", true).await.is_some());
}

#[tokio::test]
async fn what_a_dead_builder_left_is_taken_over_with_all_that_is_known_of_it() {
    let mut place = Place::new().await;
    let first = place.build("dead", true).await.unwrap();
    place.reopen().await;
    place.pass(LEASE);
    let second = place.build("next", false).await.unwrap();
    assert_eq!(second.generation.id, first.generation.id);
    assert_eq!(second.generation.attempts, 2);
    assert_ne!(second.generation.session, first.generation.session);
    assert_eq!(second.left, Some(first.generation.clone()));
    // It may only have been slow.
    let renewed = place.store.renew_generation(SYSTEM, first.generation.id, "dead", LEASE);
    assert!(!renewed.await.unwrap());
    assert!(!place.end(&first, "dead", Ok(image(1))).await);
    assert!(place.end(&second, "next", Err("it broke".to_owned())).await);
    let [failed] = &place.generations().await[..] else {
        panic!("one row")
    };
    assert_eq!(failed.error.as_deref(), Some("it broke"));
    assert_eq!(place.audited().await.entry.action, "image.refresh_failed");
}

#[tokio::test]
async fn a_clock_that_is_set_back_makes_nobody_wait_and_nothing_old_the_newest() {
    const LONG: Duration = Duration::from_secs(24 * 3_600);
    let place = Place::new().await;
    place.pass(LONG);
    let first = place.build("one", true).await.unwrap();
    assert!(place.end(&first, "one", Ok(image(1))).await);
    place.build("dead", true).await.unwrap();
    place.set_back(LONG);
    // The dead one's lease would stand for a day.
    let second = place.build("two", true).await.unwrap();
    assert_eq!(second.generation.attempts, 2);
    assert!(place.end(&second, "two", Ok(image(2))).await);
    let digests = place.generations().await.into_iter().map(|row| row.digest);
    assert_eq!(digests.collect::<Vec<_>>(), [Some(image(2)), Some(image(1))]);
    // The same one as the newest that had ended, to who proposes one.
    assert!(place.take_one("two", true, Some(second.generation.id)).await.is_some());
}

#[tokio::test]
async fn an_admin_wants_one_more_than_is_being_built() {
    let place = Place::new().await;
    let denied = place.store.want_generation(place.asker(), "base").await;
    assert!(matches!(denied, Err(StoreError::Denied { .. })), "{denied:?}");
    let building = place.build("one", true).await.unwrap();
    let wanted = place.store.want_generation(ADMIN, "base").await.unwrap();
    assert_ne!(wanted.id, building.generation.id, "that one may have fetched already");
    let again = place.store.want_generation(ADMIN, "base").await.unwrap();
    assert_eq!(again.id, wanted.id);
    assert_eq!(place.build("two", false).await, None);
    assert!(place.end(&building, "one", Ok(image(1))).await);
    let taken = place.build("two", false).await.unwrap();
    assert_eq!(taken.generation.id, wanted.id);
}

#[tokio::test]
async fn long_words_keep_their_beginning_and_their_end() {
    let place = Place::new().await;
    let taken = place.build("one", true).await.unwrap();
    let words = format!("first{}last", "ä".repeat(100_000));
    assert!(place.end(&taken, "one", Err(words)).await);
    let error = place.generations().await.remove(0).error.unwrap();
    assert!(error.starts_with("first") && error.ends_with("last") && error.len() < 10_000);
}

#[tokio::test]
async fn failures_are_forgotten_and_images_are_not() {
    let place = Place::new().await;
    let taken = place.build("one", true).await.unwrap();
    assert!(place.end(&taken, "one", Ok(image(1))).await);
    for _ in 0..60 {
        place.pass(Duration::from_secs(1));
        let taken = place.build("one", true).await.unwrap();
        assert!(place.end(&taken, "one", Err("no".to_owned())).await);
    }
    let rows = place.generations().await;
    assert!(rows.len() <= 52, "{}", rows.len());
    let ready = rows.last().unwrap();
    assert_eq!(ready.state, GenerationState::Ready);
    place.store.forget_generation(SYSTEM, ready.id).await.unwrap();
    assert_eq!(place.audited().await.entry.action, "image.removed");
    assert_eq!(place.generations().await.last().unwrap().state, GenerationState::Gone);
}

#[tokio::test]
async fn an_image_is_in_use_as_long_as_a_disk_or_a_snapshot_lies_over_it() {
    let place = Place::new().await;
    let target = Target::New { owner: place.user };
    let session = place.prompt(target, "go", Delivery::Restart).await;
    let (session, run) = (session.session, session.run);
    assert_eq!(place.image_of(session).await, None);
    place.store.begin_image(SYSTEM, session, image(1)).await.unwrap();
    place.store.begin_image(SYSTEM, session, image(9)).await.unwrap();
    assert_eq!(
        place.image_of(session).await,
        Some(image(1)),
        "its disk began with that"
    );
    let new = NewSnapshot::Named(Some("early".to_owned()));
    let kept = place
        .store
        .begin_snapshot(place.asker(), session, new)
        .await
        .unwrap()
        .unwrap();
    place.store.keep_snapshot(SYSTEM, kept.id, None).await.unwrap();

    // Its disk went, and the next began with a newer one.
    place.store.set_image(SYSTEM, session, image(2)).await.unwrap();
    assert_eq!(place.used().await, BTreeSet::from([image(1), image(2)]));
    place.store.cancel_run(SYSTEM, run, "enough").await.unwrap();
    place.store.rewind(place.asker(), session, kept.id).await.unwrap();
    assert_eq!(place.image_of(session).await, Some(image(2)), "it has its disk still");
    place.store.files_brought(SYSTEM, session).await.unwrap();
    assert_eq!(place.image_of(session).await, Some(image(1)));

    let fork = Fork {
        snapshot: Some(kept.id),
        count: 1,
        narrowing: None,
    };
    let fork = place.store.fork(place.asker(), session, fork).await.unwrap()[0];
    assert_eq!(place.image_of(fork).await, None, "it has no disk");
    place.store.files_brought(SYSTEM, fork).await.unwrap();
    assert_eq!(place.image_of(fork).await, Some(image(1)));

    // Without its disk it begins with what is the newest then.
    place.store.begin_files(SYSTEM, session, "disk").await.unwrap();
    place.store.archive_files(SYSTEM, session).await.unwrap();
    assert_eq!(place.image_of(session).await, None);
    assert_eq!(place.used().await, BTreeSet::from([image(1)]));
}
