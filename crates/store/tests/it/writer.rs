//! Group commit: many jobs in one transaction, and none harms another.

use domain::{Delivery, Event};
use store::Target;

use crate::parts::{Place, SYSTEM, prompt};

#[tokio::test]
async fn a_job_that_fails_in_the_database_takes_no_other_along() {
    let place = Place::new().await;
    let session = place.start("x").await.session;
    place
        .tamper(
            "CREATE TRIGGER unlucky BEFORE INSERT ON events WHEN INSTR(NEW.body, 'unlucky') > 0 \
             BEGIN SELECT RAISE(FAIL, 'unlucky'); END",
        )
        .await;
    let writes = (0..60).map(|number| {
        let reason = if number % 3 == 0 { "unlucky" } else { "lucky" };
        let event = Event::ModelRetry {
            model: "m".to_owned(),
            reason: reason.to_owned(),
        };
        let store = place.store.clone();
        async move { store.record(SYSTEM, session, vec![event.clone(), event]).await }
    });
    let written = futures::future::join_all(writes).await;
    for (number, outcome) in written.iter().enumerate() {
        assert_eq!(outcome.is_err(), number % 3 == 0, "{number}: {outcome:?}");
    }
    assert_eq!(crate::parts::told(&place.store, session).await.len(), 2 + 80);
}

#[tokio::test]
async fn jobs_at_once_share_commits() {
    let place = Place::new().await;
    let prompts = (0..400).map(|_| {
        let prompt = prompt(place.user, Target::New { owner: place.user }, "x", Delivery::Restart);
        place.store.accept_prompt(place.asker(), prompt)
    });
    let wal = place.folder.path().join("belljar.db-wal");
    place.tamper("PRAGMA wal_checkpoint(TRUNCATE)").await;
    let accepted = futures::future::join_all(prompts).await;
    assert!(accepted.iter().all(Result::is_ok));
    // Each commit writes every page it touched to the log: with one commit for each job it would be many times as long.
    let bytes = std::fs::metadata(wal).unwrap().len();
    let frames = bytes / 4_120;
    assert!(frames < 400 * 6, "{frames} pages were written for 400 jobs");
}

/// Who goes away does not undo what they asked for.
#[tokio::test]
async fn a_job_goes_on_when_its_asker_has_gone() {
    let place = Place::new().await;
    let session = place.start("x").await.session;
    let mut changes = place.store.watch(SYSTEM, session).await.unwrap();
    let event = Event::ModelRetry {
        model: "m".to_owned(),
        reason: "r".to_owned(),
    };
    // The writer has to wait until its asker has gone.
    let other = rusqlite::Connection::open(place.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let asked = place.store.record(SYSTEM, session, vec![event]);
    let mut asked = Box::pin(asked);
    assert!(futures::poll!(&mut asked).is_pending());
    drop(asked);
    other.execute_batch("ROLLBACK").unwrap();
    let arrived = async {
        while *changes.borrow_and_update() < 3 {
            changes.changed().await.unwrap();
        }
    };
    crate::parts::soon(arrived).await;
}
