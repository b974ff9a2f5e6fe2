//! The audit log.

use serde_json::json;
use store::AuditEntry;

use crate::parts::{Place, SYSTEM};

fn entry(number: i64) -> AuditEntry {
    AuditEntry {
        action: "egress.denied".to_owned(),
        subject: "host:example.com".to_owned(),
        detail: json!({ "number": number, "a": 1 }),
    }
}

#[tokio::test]
async fn what_was_altered_or_removed_is_found() {
    for (sql, expected) in [
        ("UPDATE audit SET actor = 'nobody' WHERE number = 3", 3),
        (
            "UPDATE audit SET detail = REPLACE(detail, '4', '5') WHERE number = 6",
            6,
        ),
        ("DELETE FROM audit WHERE number = 4", 5),
    ] {
        let place = Place::new().await;
        for number in 0..8 {
            place.store.audit(place.asker(), vec![entry(number)]).await.unwrap();
        }
        let whole = place.store.verify_audit(SYSTEM).await.unwrap();
        assert_eq!((whole.entries, whole.broken_at), (9, None));
        place.tamper(sql).await;
        let broken = place.store.verify_audit(SYSTEM).await.unwrap();
        assert_eq!(broken.broken_at, Some(expected), "{sql}");
    }
}

#[tokio::test]
async fn pages_go_both_ways() {
    let place = Place::new().await;
    place.store.audit(SYSTEM, (0..9).map(entry).collect()).await.unwrap();
    let numbers = async |after, newest| {
        let page = place.store.audit_page(SYSTEM, after, newest, 3).await.unwrap();
        page.iter().map(|record| record.number).collect::<Vec<_>>()
    };
    assert_eq!(numbers(0, false).await, [1, 2, 3]);
    assert_eq!(numbers(3, false).await, [4, 5, 6]);
    assert_eq!(numbers(0, true).await, [10, 9, 8]);
    assert_eq!(numbers(8, true).await, [7, 6, 5]);
    let first = &place.store.audit_page(SYSTEM, 0, false, 1).await.unwrap()[0];
    assert_eq!(
        (first.actor.as_str(), first.entry.action.as_str()),
        ("system", "user.created")
    );
}
