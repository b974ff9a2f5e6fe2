//! What people are asked: once for the same thing, answered by those who may, done once.

use std::time::Duration;

use domain::{ApprovalAnswer, ApprovalKind, ApprovalState, RunId, RunState, SessionId};
use serde_json::json;
use store::{Approval, ApprovalFilter, Asker, End, Hash, NewApproval, StoreError};

use crate::parts::{Place, SYSTEM, user};

fn question(session: SessionId, run: Option<RunId>, id: u32) -> NewApproval {
    NewApproval {
        session,
        run,
        call: None,
        kind: ApprovalKind::Service,
        subject: "crm.get".to_owned(),
        proposal: false,
        admins_only: false,
        request: json!({"arguments": {"id": id}}).to_string(),
        layer: "role everybody".to_owned(),
        rule: "services.ask:crm.get".to_owned(),
        why: "it says so".to_owned(),
        life: Duration::from_secs(60),
    }
}

async fn ask(place: &Place, wanted: NewApproval) -> Approval {
    place.store.ask(SYSTEM, wanted).await.unwrap().approval
}

async fn decide(place: &Place, approval: &Approval, answer: ApprovalAnswer) -> Result<ApprovalState, StoreError> {
    let decided = place
        .store
        .decide(place.asker(), approval.id, answer, Some(" so be it "), approval.sha256);
    decided.await.map(|decided| decided.approval.state)
}

async fn state(place: &Place, approval: &Approval) -> ApprovalState {
    place.store.approval(SYSTEM, approval.id).await.unwrap().state
}

#[tokio::test]
async fn the_same_thing_is_asked_once_while_it_counts() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let run = Some(taken.run.id);
    let first = ask(&place, question(session, run, 1)).await;
    assert_eq!(ask(&place, question(session, run, 1)).await, first);
    let other = ask(&place, question(session, run, 2)).await;
    assert_ne!((other.id, other.sha256), (first.id, first.sha256));
    // Another run asks for itself.
    let elsewhere = ask(&place, question(session, Some(RunId::new()), 1)).await;
    assert_ne!(elsewhere.id, first.id);
    // What was denied stays denied for the run; what was used is asked anew.
    decide(&place, &first, ApprovalAnswer::Deny).await.unwrap();
    let again = ask(&place, question(session, run, 1)).await;
    assert_eq!((again.id, again.state), (first.id, ApprovalState::Denied));
    assert_eq!(again.words.as_deref(), Some("so be it"));
    decide(&place, &other, ApprovalAnswer::Once).await.unwrap();
    assert!(place.store.use_approval(SYSTEM, other.id).await.unwrap());
    assert!(!place.store.use_approval(SYSTEM, other.id).await.unwrap());
    assert_ne!(ask(&place, question(session, run, 2)).await.id, other.id);
}

#[tokio::test]
async fn a_person_answers_who_may_what_they_saw() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let approval = ask(&place, question(session, Some(taken.run.id), 1)).await;
    let bob = place.store.create_user(SYSTEM, "bob", false).await.unwrap().id;
    let (id, seen) = (approval.id, approval.sha256);
    for asker in [Asker::System, Asker::Session(session), user(bob)] {
        let answered = place.store.decide(asker, id, ApprovalAnswer::Always, None, seen).await;
        assert!(
            matches!(answered, Err(StoreError::Denied { .. } | StoreError::NotFound { .. })),
            "{asker:?}: {answered:?}"
        );
    }
    let answered = place
        .store
        .decide(place.asker(), id, ApprovalAnswer::Once, None, Hash::default())
        .await;
    assert!(matches!(answered, Err(StoreError::Conflict { .. })), "{answered:?}");
    assert_eq!(state(&place, &approval).await, ApprovalState::Pending);
    assert!(place.store.approval(user(bob), id).await.is_err());
    assert_eq!(
        place
            .store
            .approvals(user(bob), ApprovalFilter::default(), 10)
            .await
            .unwrap(),
        []
    );
    assert_eq!(
        place
            .store
            .approvals(place.asker(), ApprovalFilter::default(), 10)
            .await
            .unwrap()
            .len(),
        1
    );
    decide(&place, &approval, ApprovalAnswer::Once).await.unwrap();
    assert!(decide(&place, &approval, ApprovalAnswer::Deny).await.is_err());
    let wanted = NewApproval {
        admins_only: true,
        proposal: true,
        ..question(session, Some(taken.run.id), 1)
    };
    let proposal = ask(&place, wanted).await;
    assert!(matches!(
        decide(&place, &proposal, ApprovalAnswer::Always).await,
        Err(StoreError::Denied { .. })
    ));
}

#[tokio::test]
async fn questions_end_in_time_and_with_what_asked() {
    let mut place = Place::new().await;
    let (session, taken) = place.running().await;
    let run = Some(taken.run.id);
    let late = ask(&place, question(session, run, 1)).await;
    let unused = ask(&place, question(session, run, 2)).await;
    decide(&place, &unused, ApprovalAnswer::Once).await.unwrap();
    place.pass(Duration::from_secs(61));
    assert!(decide(&place, &late, ApprovalAnswer::Once).await.is_err());
    assert!(!place.store.use_approval(SYSTEM, unused.id).await.unwrap());
    place.reopen().await;
    let told = place.store.expire_approvals(SYSTEM).await.unwrap();
    assert_eq!((told.len(), told[0].0, told[0].1.len()), (1, session, 2));
    for approval in [&late, &unused] {
        assert_eq!(state(&place, approval).await, ApprovalState::Expired);
    }
    let pending = ask(&place, question(session, run, 3)).await;
    let host = NewApproval {
        kind: ApprovalKind::Egress,
        subject: "a.example:443".to_owned(),
        ..question(session, run, 4)
    };
    let [open, once] = [
        host.clone(),
        NewApproval {
            subject: "b.example:443".to_owned(),
            ..host
        },
    ];
    let (open, once) = (ask(&place, open).await, ask(&place, once).await);
    decide(&place, &once, ApprovalAnswer::Once).await.unwrap();
    let end = place.store.end_run(SYSTEM, taken.run.id, taken.run.epoch, End::done());
    end.await.unwrap();
    assert_eq!(state(&place, &pending).await, ApprovalState::Withdrawn);
    assert_eq!(
        state(&place, &open).await,
        ApprovalState::Pending,
        "connections are not waited for"
    );
    assert_eq!(state(&place, &once).await, ApprovalState::Used);
    place.store.archive_session(SYSTEM, session).await.unwrap();
    assert_eq!(state(&place, &open).await, ApprovalState::Withdrawn);
}

#[tokio::test]
async fn nobody_is_flooded() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let run = Some(taken.run.id);
    for id in 0..20 {
        ask(&place, question(session, run, id)).await;
    }
    let refused = place.store.ask(SYSTEM, question(session, run, 20)).await;
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
    // Another session is not kept from asking.
    let (other, taken) = place.running().await;
    ask(&place, question(other, Some(taken.run.id), 1)).await;
}

#[tokio::test]
async fn a_runs_clock_stands_while_it_waits() {
    let place = Place::new().await;
    let (_, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    for _ in 0..2 {
        place.store.set_waiting(SYSTEM, run, epoch, true).await.unwrap();
        place.pass(Duration::from_secs(5));
        place.store.set_waiting(SYSTEM, run, epoch, false).await.unwrap();
        place.pass(Duration::from_secs(5));
    }
    place.store.set_waiting(SYSTEM, run, epoch, true).await.unwrap();
    place.pass(Duration::from_secs(3));
    let found = place.store.run(SYSTEM, run).await.unwrap();
    assert_eq!(
        (found.state, found.waited_until(place.now())),
        (RunState::Waiting, 13_000)
    );
}
