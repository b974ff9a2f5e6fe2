//! A store with many sessions, as a company has them after a year: every one is listed once, found by its key, and there again after a
//! restart. `BELLJAR_TEST_FULL=1` makes a hundred thousand of them.

use std::collections::HashSet;

use domain::{Delivery, SessionId, UserId};
use futures::future::join_all;
use store::{Asker, Cursor, SessionFilter, Store, Target};

use crate::parts::{Place, SYSTEM, key, prompt, user};

/// Sessions that are made at once.
const TOGETHER: usize = 250;
/// One session in so many is the other user's.
const OTHERS: usize = 10;

fn sessions() -> usize {
    if std::env::var_os("BELLJAR_TEST_FULL").is_some() {
        100_000
    } else {
        2_000
    }
}

fn name(number: usize) -> String {
    format!("thread-{number}")
}

/// Makes the sessions, the one in ten for `bob`, and says whose which is, in the order in which they were made.
async fn fill(place: &Place, bob: UserId) -> Vec<(UserId, SessionId)> {
    let mut made = Vec::with_capacity(sessions());
    while made.len() < sessions() {
        let group = (made.len()..sessions()).take(TOGETHER).map(|number| {
            let owner = if number % OTHERS == 0 { bob } else { place.user };
            let target = Target::Key {
                owner,
                key: key(&name(number)),
            };
            let accepted = place
                .store
                .accept_prompt(SYSTEM, prompt(owner, target, "how much was it?", Delivery::Restart));
            async move { (owner, accepted.await.unwrap().session) }
        });
        made.extend(join_all(group).await);
    }
    made
}

/// Every session that is listed for the one who asks, page by page.
async fn listed(store: &Store, asker: Asker) -> Vec<SessionId> {
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store
            .sessions(asker, SessionFilter::default(), after, Store::LONGEST_PAGE)
            .await
            .unwrap();
        seen.extend(page.sessions.iter().map(|session| session.id));
        let Some(next) = page.next else { return seen };
        after = Some(next.to_string().parse::<Cursor>().unwrap());
    }
}

#[tokio::test]
async fn many_sessions_are_each_listed_once_found_by_key_and_kept() {
    let mut place = Place::new().await;
    let bob = place.store.create_user(SYSTEM, "bob", false).await.unwrap().id;
    let made = fill(&place, bob).await;
    let of = |whose: UserId| -> HashSet<SessionId> {
        let theirs = made.iter().filter(|(owner, _)| *owner == whose);
        theirs.map(|(_, session)| *session).collect()
    };
    for restarted in [false, true] {
        if restarted {
            place.reopen().await;
        }
        let all = listed(&place.store, SYSTEM).await;
        assert_eq!(all.len(), sessions(), "restarted: {restarted}");
        assert_eq!(all.into_iter().collect::<HashSet<_>>().len(), sessions());
        for owner in [place.user, bob] {
            let theirs = listed(&place.store, user(owner)).await;
            assert_eq!(theirs.len(), of(owner).len());
            assert_eq!(theirs.into_iter().collect::<HashSet<_>>(), of(owner));
        }
        for number in (0..sessions()).step_by(sessions() / 100) {
            let (owner, session) = made[number];
            let filter = SessionFilter {
                key: Some(key(&name(number))),
                ..SessionFilter::default()
            };
            let found = place.store.sessions(user(owner), filter, None, 10).await.unwrap();
            let found: Vec<SessionId> = found.sessions.iter().map(|session| session.id).collect();
            assert_eq!(found, [session]);
        }
    }
    // A prompt to the user's oldest finds it, and brings it to the top.
    let (owner, oldest) = made[1];
    place.pass(std::time::Duration::from_secs(1));
    let target = Target::Key {
        owner,
        key: key(&name(1)),
    };
    let again = place.prompt(target, "and now?", Delivery::Queue).await;
    assert_eq!(again.session, oldest);
    let top = place
        .store
        .sessions(user(owner), SessionFilter::default(), None, 1)
        .await;
    assert_eq!(top.unwrap().sessions[0].id, oldest);
}
