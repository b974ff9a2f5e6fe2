//! The audit log.

use std::time::Duration;

use domain::{Money, RunId, SessionId, Timestamp};
use serde_json::json;
use store::{
    Asker, AuditBreak, AuditEntry, AuditFacts, AuditFilter, AuditFrom, End, Hash, StoreError, verify_audit_of,
};

use crate::parts::{Place, SYSTEM, begin, soon, user};

fn entry(number: i64) -> AuditEntry {
    let detail = json!({ "number": number, "a": 1 });
    AuditEntry::new("egress.denied", "host:example.com", detail).decided("deny", "door api", "egress.unlisted")
}

/// A log of nine entries: the user that was made, and eight more.
async fn nine() -> Place {
    let place = Place::new().await;
    for number in 0..8 {
        place.store.audit(place.asker(), vec![entry(number)]).await.unwrap();
    }
    place
}

#[tokio::test]
async fn what_was_altered_removed_or_put_elsewhere_is_found() {
    let swap = "UPDATE audit SET number = -1 WHERE number = 4; UPDATE audit SET number = 4 WHERE number = 5; \
                UPDATE audit SET number = 5 WHERE number = -1;";
    for (sql, expected) in [
        (
            "UPDATE audit SET actor = 'nobody' WHERE number = 3",
            AuditBreak::Altered(3),
        ),
        (
            "UPDATE audit SET detail = REPLACE(detail, '4', '5') WHERE number = 6",
            AuditBreak::Altered(6),
        ),
        (
            "UPDATE audit SET decision = 'allow' WHERE number = 7",
            AuditBreak::Altered(7),
        ),
        ("UPDATE audit SET owner = NULL WHERE number = 8", AuditBreak::Altered(8)),
        ("UPDATE audit SET at = at - 1 WHERE number = 2", AuditBreak::Altered(2)),
        (
            "UPDATE audit SET hash = zeroblob(32) WHERE number = 5",
            AuditBreak::Altered(5),
        ),
        ("UPDATE audit SET detail = 'x' WHERE number = 5", AuditBreak::Altered(5)),
        ("DELETE FROM audit WHERE number = 4", AuditBreak::Missing(4)),
        ("DELETE FROM audit WHERE number < 3", AuditBreak::Missing(1)),
        (swap, AuditBreak::Altered(4)),
    ] {
        let place = nine().await;
        let whole = place.store.verify_audit(SYSTEM, None).await.unwrap();
        assert_eq!((whole.entries, whole.broken), (9, None));
        place.tamper(sql).await;
        let broken = place.store.verify_audit(SYSTEM, None).await.unwrap();
        assert_eq!(broken.broken, Some(expected), "{sql}");
    }
}

#[tokio::test]
async fn what_was_noted_elsewhere_shows_that_the_end_was_cut_off_or_all_written_anew() {
    let place = nine().await;
    let noted = place.store.verify_audit(SYSTEM, None).await.unwrap();
    let noted = Some((noted.entries, noted.head));
    place.store.audit(SYSTEM, vec![entry(9)]).await.unwrap();
    let grown = place.store.verify_audit(SYSTEM, noted).await.unwrap();
    assert_eq!((grown.entries, grown.broken), (10, None));

    place.tamper("DELETE FROM audit WHERE number > 7").await;
    let alone = place.store.verify_audit(SYSTEM, None).await.unwrap();
    assert_eq!(alone.broken, None, "a shorter log is whole by itself");
    let cut = place.store.verify_audit(SYSTEM, noted).await.unwrap();
    assert_eq!(cut.broken, Some(AuditBreak::CutOff(9)));
    for number in 20..23 {
        place.store.audit(SYSTEM, vec![entry(number)]).await.unwrap();
    }
    let anew = place.store.verify_audit(SYSTEM, noted).await.unwrap();
    assert_eq!(anew.broken, Some(AuditBreak::Rewritten(9)));
}

#[tokio::test]
async fn a_copy_is_verified_where_nothing_runs() {
    let place = nine().await;
    let copy = place.folder.path().join("copy.db");
    place.store.backup(SYSTEM, &copy).await.unwrap();
    let whole = verify_audit_of(&copy, None).await.unwrap();
    assert_eq!((whole.entries, whole.broken), (9, None));
    let file = rusqlite::Connection::open(&copy).unwrap();
    file.execute("DELETE FROM audit WHERE number = 2", []).unwrap();
    file.close().unwrap();
    let broken = verify_audit_of(&copy, None).await.unwrap();
    assert_eq!(broken.broken, Some(AuditBreak::Missing(2)));
    let error = verify_audit_of(&place.folder.path().join("none.db"), None)
        .await
        .unwrap_err();
    assert!(!error.to_string().is_empty());
    std::fs::write(place.folder.path().join("notes"), "no database\n".repeat(100)).unwrap();
    let error = verify_audit_of(&place.folder.path().join("notes"), None)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error:?}");
}

/// The numbers of the entries that a filter wants, and how far was looked.
async fn found(place: &Place, filter: AuditFilter, from: AuditFrom, limit: u32) -> (Vec<i64>, i64) {
    let page = place.store.audit_page(SYSTEM, filter, from, limit).await.unwrap();
    let numbers = page.records.iter().map(|record| record.number).collect();
    (numbers, page.reached)
}

#[tokio::test]
async fn pages_go_both_ways() {
    let place = Place::new().await;
    place.store.audit(SYSTEM, (0..9).map(entry).collect()).await.unwrap();
    let all = AuditFilter::default;
    assert_eq!(found(&place, all(), AuditFrom::After(0), 3).await, (vec![1, 2, 3], 3));
    assert_eq!(found(&place, all(), AuditFrom::After(3), 3).await, (vec![4, 5, 6], 6));
    assert_eq!(found(&place, all(), AuditFrom::After(8), 3).await, (vec![9, 10], 10));
    assert_eq!(found(&place, all(), AuditFrom::After(10), 3).await, (vec![], 10));
    assert_eq!(found(&place, all(), AuditFrom::Newest, 3).await, (vec![10, 9, 8], 8));
    assert_eq!(found(&place, all(), AuditFrom::Before(8), 3).await, (vec![7, 6, 5], 5));
    let rare = AuditFilter {
        action: Some("user.*".into()),
        ..all()
    };
    let page = place
        .store
        .audit_page(SYSTEM, rare, AuditFrom::After(0), 3)
        .await
        .unwrap();
    assert_eq!((page.records.len(), page.reached, page.is_last), (1, 10, true));
    let first = &page.records[0];
    assert_eq!(
        (first.actor.as_str(), first.entry.action.as_str()),
        ("system", "user.created")
    );
}

#[tokio::test]
async fn an_entry_says_whose_it_is_and_is_found_by_each_of_its_facts() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let run = taken.run.id;
    let mut called = AuditEntry::about("service.called", session, json!({}))
        .of(session, Some(run))
        .decided("allow", "role everybody", "services.allow:crm.*")
        .carried(1_234, Duration::from_micros(5_678));
    called.facts.service = Some("crm".into());
    called.facts.cost = Some(Money(7));
    let mut asked = AuditEntry::about("egress.denied", session, json!({})).decided("ask", "door api", "egress.ask:*");
    asked.facts.host = Some("example.com".into());
    place.pass(Duration::from_secs(60));
    place
        .store
        .audit(Asker::Session(session), vec![called, asked])
        .await
        .unwrap();
    place.pass(Duration::from_secs(60));
    let other = place.store.create_user(SYSTEM, "bob", true).await.unwrap().id;
    place.store.audit(user(other), vec![entry(1)]).await.unwrap();

    let page = place
        .store
        .audit_page(SYSTEM, AuditFilter::default(), AuditFrom::Newest, 10);
    let records = page.await.unwrap().records;
    let last = records[0].number;
    let calling = &records[3];
    assert_eq!(
        calling.entry.facts,
        AuditFacts {
            user: Some(place.user),
            session: Some(session),
            run: Some(run),
            service: Some("crm".into()),
            host: None,
            decision: Some("allow".into()),
            layer: Some("role everybody".into()),
            rule: Some("services.allow:crm.*".into()),
            bytes: Some(1_234),
            micros: Some(5_678),
            cost: Some(Money(7)),
        }
    );
    let (called, asked, bob) = (last - 3, last - 2, last);
    assert_eq!(
        records[2].entry.facts.user,
        Some(place.user),
        "the owner of the session"
    );
    assert_eq!(records[0].entry.facts.user, Some(other), "whoever did it");

    let filter = AuditFilter::default;
    let text = |text: &str| Some(text.to_owned());
    let minute = calling.at;
    let cases = [
        (
            AuditFilter {
                session: Some(session),
                ..filter()
            },
            vec![called - 1, called, asked],
        ),
        (
            AuditFilter {
                session: Some(SessionId::new()),
                ..filter()
            },
            vec![],
        ),
        (
            AuditFilter {
                run: Some(run),
                ..filter()
            },
            vec![called - 1, called],
        ),
        (
            AuditFilter {
                run: Some(RunId::new()),
                ..filter()
            },
            vec![],
        ),
        (
            AuditFilter {
                user: Some(other),
                ..filter()
            },
            vec![bob],
        ),
        (
            AuditFilter {
                service: text("crm"),
                ..filter()
            },
            vec![called],
        ),
        (
            AuditFilter {
                host: text("example.com"),
                ..filter()
            },
            vec![asked],
        ),
        (
            AuditFilter {
                decision: text("ask"),
                ..filter()
            },
            vec![asked],
        ),
        (
            AuditFilter {
                decision: text("deny"),
                ..filter()
            },
            vec![bob],
        ),
        (
            AuditFilter {
                decision: text("allow"),
                service: text("crm"),
                ..filter()
            },
            vec![called],
        ),
        (
            AuditFilter {
                decision: text("allow"),
                host: text("example.com"),
                ..filter()
            },
            vec![],
        ),
        (
            AuditFilter {
                action: text("egress.*"),
                ..filter()
            },
            vec![asked, bob],
        ),
        (
            AuditFilter {
                action: text("egress.denied"),
                ..filter()
            },
            vec![asked, bob],
        ),
        (
            AuditFilter {
                action: text("egress"),
                ..filter()
            },
            vec![],
        ),
        (
            AuditFilter {
                since: Some(minute),
                until: Some(Timestamp(minute.0 + 1)),
                ..filter()
            },
            vec![called, asked],
        ),
        (
            AuditFilter {
                since: Some(Timestamp(minute.0 + 1)),
                action: text("egress.*"),
                ..filter()
            },
            vec![bob],
        ),
    ];
    for (filter, expected) in cases {
        let (oldest, _) = found(&place, filter.clone(), AuditFrom::After(0), 100).await;
        let (mut newest, _) = found(&place, filter.clone(), AuditFrom::Newest, 100).await;
        newest.reverse();
        assert_eq!((&oldest, &newest), (&expected, &expected), "{filter:?}");
    }
    let nonsense = AuditFilter {
        action: text("a' OR 1=1"),
        ..filter()
    };
    let refused = place
        .store
        .audit_page(SYSTEM, nonsense, AuditFrom::Newest, 1)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("`egress.denied`"), "{refused}");
}

#[tokio::test]
async fn a_prompt_and_the_end_of_its_run_say_who_asked_and_what_it_cost() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let run = taken.run.id;
    place.pass(Duration::from_secs(3));
    place.turn(begin(run, taken.run.epoch, 1), &[], Some(End::done())).await;
    let of_run = AuditFilter {
        run: Some(run),
        ..AuditFilter::default()
    };
    let page = place.store.audit_page(SYSTEM, of_run, AuditFrom::After(0), 10);
    let records = page.await.unwrap().records;
    let actions: Vec<_> = records.iter().map(|record| record.entry.action.as_str()).collect();
    assert_eq!(actions, ["prompt.accepted", "run.ended"]);
    for record in &records {
        let facts = &record.entry.facts;
        assert_eq!((facts.user, facts.session), (Some(place.user), Some(session)));
        assert_eq!(record.entry.detail["trigger"], "api:tests");
    }
    let ended = &records[1].entry;
    assert_eq!(
        (ended.facts.cost, ended.facts.micros),
        (Some(Money(700)), Some(3_000_000))
    );
    assert_eq!(ended.detail["state"], "done");

    // One job may have several things to say.
    let (_, taken) = place.running().await;
    place
        .store
        .cancel_run(place.asker(), taken.run.id, "enough")
        .await
        .unwrap();
    let page = place
        .store
        .audit_page(SYSTEM, AuditFilter::default(), AuditFrom::Newest, 2);
    let actions: Vec<_> = page
        .await
        .unwrap()
        .records
        .into_iter()
        .map(|record| record.entry.action)
        .collect();
    assert_eq!(actions, ["run.cancelled", "run.ended"]);
    assert_eq!(place.store.verify_audit(SYSTEM, None).await.unwrap().broken, None);
}

#[tokio::test]
async fn a_clock_that_is_set_back_keeps_the_order() {
    let place = Place::new().await;
    place.pass(Duration::from_secs(100));
    place.store.audit(SYSTEM, vec![entry(1)]).await.unwrap();
    let before = place.audited().await.at;
    place.set_back(Duration::from_secs(50));
    place.store.audit(SYSTEM, vec![entry(2)]).await.unwrap();
    assert_eq!(place.audited().await.at, before);
    assert_eq!(place.store.verify_audit(SYSTEM, None).await.unwrap().broken, None);
}

#[tokio::test]
async fn whoever_follows_is_told_of_each_commit() {
    let place = Place::new().await;
    let mut newest = place.store.watch_audit(SYSTEM).unwrap();
    place.store.audit(SYSTEM, vec![entry(1), entry(2)]).await.unwrap();
    soon(newest.wait_for(|number| *number == 3)).await.unwrap();
    let refused = place
        .store
        .audit_page(SYSTEM, AuditFilter::default(), AuditFrom::After(2), 10);
    assert_eq!(refused.await.unwrap().records.len(), 1);
}

#[tokio::test]
async fn entries_from_before_there_were_facts_still_follow() {
    let place = nine().await;
    let before = place.store.verify_audit(SYSTEM, None).await.unwrap().head;
    assert_ne!(before, Hash::default());
    // As the first release wrote it: without facts, and without counting them.
    let old = AuditEntry::new("store.backed_up", "store", json!({}));
    place.store.audit(SYSTEM, vec![old]).await.unwrap();
    assert_eq!(place.audited().await.entry.facts, AuditFacts::default());
    assert_eq!(place.store.verify_audit(SYSTEM, None).await.unwrap().broken, None);
}
