//! Tokens of users and of sandboxes.

use std::time::Duration;

use domain::{SandboxId, SessionId};
use store::{Asker, AuditFilter, AuditFrom, Config, Identity, Store, StoreError, TokenState};

use crate::parts::{Place, SYSTEM};

const LIFE: Duration = Duration::from_secs(3_600);

fn unauthorized<T: std::fmt::Debug>(outcome: Result<T, StoreError>) {
    assert!(matches!(outcome, Err(StoreError::Unauthorized { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_token_opens_its_users_door_until_it_is_revoked_or_expires() {
    let place = Place::new().await;
    let until = place.now().after(LIFE);
    let short = place
        .store
        .create_token(place.asker(), place.user, "laptop", Some(until))
        .await
        .unwrap();
    let long = place
        .store
        .create_token(place.asker(), place.user, "server", None)
        .await
        .unwrap();
    let identity = place.store.check_token(short.secret.expose()).await.unwrap();
    assert_eq!((identity.user.id, identity.expires), (place.user, Some(until)));
    place.pass(LIFE);
    unauthorized(place.store.check_token(short.secret.expose()).await);
    place.store.check_token(long.secret.expose()).await.unwrap();
    place.store.revoke_token(place.asker(), long.token.id).await.unwrap();
    unauthorized(place.store.check_token(long.secret.expose()).await);
    let listed = place.store.tokens(place.asker(), place.user).await.unwrap();
    assert_eq!(
        listed.iter().map(|token| token.label.as_str()).collect::<Vec<_>>(),
        ["server", "laptop"]
    );
}

#[tokio::test]
async fn a_token_that_expires_makes_none_that_lives_longer() {
    let place = Place::new().await;
    let until = place.now().after(LIFE);
    let first = place
        .store
        .create_token(place.asker(), place.user, "a", Some(until))
        .await
        .unwrap();
    let asker = place.store.check_token(first.secret.expose()).await.unwrap().asker();
    for expires in [None, Some(until.after(Duration::from_millis(1)))] {
        let error = place
            .store
            .create_token(asker, place.user, "b", expires)
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Invalid { .. }), "{error:?}");
    }
    place
        .store
        .create_token(asker, place.user, "b", Some(until))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_token_made_with_another_counts_under_the_name_of_that_one() {
    let place = Place::new().await;
    let make = async |maker: &Identity, label: &str| {
        let made = place
            .store
            .create_token_by(maker, place.user, label, None)
            .await
            .unwrap();
        place.store.check_token(made.secret.expose()).await.unwrap()
    };
    let first = place
        .store
        .create_token(SYSTEM, place.user, "nightly", None)
        .await
        .unwrap();
    let first = place.store.check_token(first.secret.expose()).await.unwrap();
    assert_eq!(first.trigger, "nightly");
    let second = make(&first, "free").await;
    let third = make(&second, "freer").await;
    assert_eq!((third.label.as_str(), third.trigger.as_str()), ("freer", "nightly"));
    let mut admin = first;
    admin.user.admin = true;
    assert_eq!(make(&admin, "weekly").await.trigger, "weekly");
}

#[tokio::test]
async fn the_file_holds_no_token() {
    let place = Place::new().await;
    let token = place
        .store
        .create_token(place.asker(), place.user, "a", None)
        .await
        .unwrap()
        .secret;
    let session = place.start("x").await.session;
    let inside = place
        .store
        .issue_session_token(SYSTEM, session, LIFE)
        .await
        .unwrap()
        .secret;
    place.store.close().await;
    for entry in std::fs::read_dir(place.folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for secret in [&token, &inside] {
            let secret = secret.expose().split('_').next_back().unwrap();
            assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()));
        }
    }
}

#[tokio::test]
async fn threat_062_what_is_no_token_opens_nothing() {
    let place = Place::new().await;
    place
        .store
        .create_token(place.asker(), place.user, "a", None)
        .await
        .unwrap();
    let session = place.start("x").await.session;
    place.store.issue_session_token(SYSTEM, session, LIFE).await.unwrap();
    for text in ["' OR '1'='1", "", "blj_", "%", "\0", "') --", &"x".repeat(1 << 20)] {
        unauthorized(place.store.check_token(text).await);
        unauthorized(place.store.check_session_token(text).await);
    }
}

/// A token names its own session and no other, and a user's token is no sandbox's.
#[tokio::test]
async fn threat_058_a_sandboxs_token_opens_its_own_session_alone() {
    let place = Place::new().await;
    let (one, two) = (place.start("1").await.session, place.start("2").await.session);
    let first = place.store.issue_session_token(SYSTEM, one, LIFE).await.unwrap();
    let second = place.store.issue_session_token(SYSTEM, two, LIFE).await.unwrap();
    let check = async |secret: &str| place.store.check_session_token(secret).await;
    assert_eq!(check(first.secret.expose()).await.unwrap(), one);
    assert_eq!(check(second.secret.expose()).await.unwrap(), two);
    unauthorized(place.store.check_token(first.secret.expose()).await);
    let inside = Asker::Session(one);
    assert!(matches!(
        place.store.session(inside, two).await,
        Err(StoreError::NotFound { .. })
    ));
    // Shown on another link, control revokes all of the session's: the other session's stay.
    place
        .store
        .revoke_session_tokens(SYSTEM, one, "shown on another link")
        .await
        .unwrap();
    unauthorized(check(first.secret.expose()).await);
    check(second.secret.expose()).await.unwrap();
    let last = place.audited().await;
    assert_eq!(last.entry.action, "session_tokens.revoked");
}

#[tokio::test]
async fn threat_058_a_stolen_token_ends_its_sessions_tokens_once_and_no_later_one() {
    let place = Place::new().await;
    let (victim, thief) = (place.start("1").await.session, place.start("2").await.session);
    let stolen = place.store.issue_session_token(SYSTEM, victim, LIFE).await.unwrap();
    let own = place.store.issue_session_token(SYSTEM, thief, LIFE).await.unwrap();
    let check = async |secret: &str| place.store.check_session_token(secret).await;
    let shown = async || {
        let stolen = place
            .store
            .revoke_stolen_token(SYSTEM, stolen.secret.expose(), SandboxId::new());
        stolen.await.unwrap();
    };
    let (revocations, audited) = (place.store.revocations(), place.audited().await.number);
    shown().await;
    unauthorized(check(stolen.secret.expose()).await);
    check(own.secret.expose()).await.unwrap();
    assert_ne!(place.store.revocations(), revocations);
    let last = place.audited().await;
    assert_eq!(
        (last.entry.action.as_str(), last.number),
        ("session_token.stolen", audited + 1)
    );
    // Who found it good a moment ago says so only now, and its session has another one already.
    let next = place.store.issue_session_token(SYSTEM, victim, LIFE).await.unwrap();
    shown().await;
    check(next.secret.expose()).await.unwrap();
    assert_eq!(place.audited().await.number, audited + 1);
    // What no session has betrays nobody.
    place
        .store
        .revoke_stolen_token(SYSTEM, "x", SandboxId::new())
        .await
        .unwrap();
}

#[tokio::test]
async fn threat_059_the_tokens_of_a_session_that_is_over_open_nothing_at_once() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let state = async |session| place.store.session_token_state(SYSTEM, session).await.unwrap();
    assert_eq!(state(session).await, TokenState::Revoked);
    let token = place.store.issue_session_token(SYSTEM, session, LIFE).await.unwrap();
    place.store.check_session_token(token.secret.expose()).await.unwrap();
    assert_eq!(state(session).await, TokenState::Current);
    place
        .store
        .cancel_run(place.asker(), taken.run.id, "stop")
        .await
        .unwrap();
    place.store.archive_session(place.asker(), session).await.unwrap();
    unauthorized(place.store.check_session_token(token.secret.expose()).await);
    assert_eq!(state(session).await, TokenState::Archived);
    let other = place.start("x").await.session;
    let token = place.store.issue_session_token(SYSTEM, other, LIFE).await.unwrap();
    place.pass(LIFE);
    unauthorized(place.store.check_session_token(token.secret.expose()).await);
    assert_eq!(state(other).await, TokenState::Current, "it can be replaced");
    let token = place.store.issue_session_token(SYSTEM, other, LIFE).await.unwrap();
    place.store.create_user(SYSTEM, "root", true).await.unwrap();
    place.store.remove_user(SYSTEM, place.user).await.unwrap();
    unauthorized(place.store.check_session_token(token.secret.expose()).await);
    assert_eq!(state(other).await, TokenState::Removed);
}

#[tokio::test]
async fn threat_060_a_rotated_token_is_good_once_and_then_betrays_its_thief() {
    let place = Place::new().await;
    let session = place.start("x").await.session;
    let old = place
        .store
        .issue_session_token(SYSTEM, session, LIFE)
        .await
        .unwrap()
        .secret;
    let new = place
        .store
        .rotate_session_token(SYSTEM, session, LIFE)
        .await
        .unwrap()
        .secret;
    let check = async |secret: &secret::Secret| place.store.check_session_token(secret.expose()).await;
    place.pass(Store::OVERLAP);
    let tries = futures::future::join_all((0..20).map(|_| check(&old))).await;
    let admitted: Vec<SessionId> = tries.into_iter().flatten().collect();
    assert_eq!(admitted, [session], "once, however many show it at the same moment");
    check(&new).await.unwrap();
    place.pass(Duration::from_millis(1));
    unauthorized(check(&old).await);
    unauthorized(check(&new).await);
    let last = place.audited().await;
    assert_eq!(last.entry.action, "session_token.reused");
    assert_eq!(last.entry.subject, format!("session:{session}"));
    let none = place.store.rotate_session_token(SYSTEM, session, LIFE).await;
    assert!(matches!(none, Err(StoreError::NotFound { .. })));
    let fresh = place
        .store
        .issue_session_token(SYSTEM, session, LIFE)
        .await
        .unwrap()
        .secret;
    assert_eq!(check(&fresh).await.unwrap(), session);
}

#[tokio::test]
async fn a_removed_user_comes_in_no_more_and_the_last_admin_stays() {
    let place = Place::new().await;
    let admin = place.store.create_user(SYSTEM, "root", true).await.unwrap();
    let token = place
        .store
        .create_token(SYSTEM, place.user, "a", None)
        .await
        .unwrap()
        .secret;
    place.store.remove_user(SYSTEM, place.user).await.unwrap();
    unauthorized(place.store.check_token(token.expose()).await);
    let last = place.store.remove_user(SYSTEM, admin.id).await.unwrap_err();
    assert!(last.to_string().contains("last admin"), "{last}");
    let names = async |removed| {
        let users = place.store.users(SYSTEM, removed).await.unwrap();
        users.into_iter().map(|user| user.name).collect::<Vec<_>>()
    };
    assert_eq!(names(false).await, ["root"]);
    assert_eq!(names(true).await, ["ada", "root"]);
    let again = place.store.create_user(SYSTEM, "ada", false).await.unwrap();
    assert_ne!(again.id, place.user, "a name is free again, an identity never");
    assert!(matches!(
        place.store.create_user(SYSTEM, "ada", false).await,
        Err(StoreError::Conflict { .. })
    ));
    assert!(place.store.create_user(SYSTEM, " ", false).await.is_err());
}

#[tokio::test]
async fn the_first_admin_comes_with_their_token_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Config::new(folder.path().join("belljar.db")))
        .await
        .unwrap();
    let lost = store.first_secret().await.unwrap().expect("nobody is there");
    // Whoever kept it was killed, and begins again.
    let kept = store.first_secret().await.unwrap().expect("nobody is there");
    assert!(store.create_first_admin("admin", &kept).await.unwrap());
    unauthorized(store.check_token(lost.expose()).await);
    let identity = store.check_token(kept.expose()).await.unwrap();
    assert!(identity.user.admin && identity.user.name == "admin");
    assert!(store.first_secret().await.unwrap().is_none());
    assert!(!store.create_first_admin("eve", &lost).await.unwrap());
    unauthorized(store.check_token(lost.expose()).await);
    let page = store
        .audit_page(SYSTEM, AuditFilter::default(), AuditFrom::Newest, 10)
        .await
        .unwrap();
    let told: Vec<_> = page.records.iter().map(|record| record.entry.action.as_str()).collect();
    assert_eq!(told, ["token.created", "user.created"]);
}
