//! Calls that change something outside: known before they leave, made once for each key.

use std::time::Duration;

use domain::{Block, Event, ResultPart, RunId, SessionId, ToolCallId, ToolResult};
use serde_json::json;
use store::{AuditEntry, BeginTurn, EarlyResults, NewWrite, NotMade, StoreError, WriteEnd, WriteKey, WriteResult};

use crate::parts::{Place, SYSTEM, begin as turn};

fn write(session: SessionId, run: RunId, key: &str, request: &str) -> NewWrite {
    NewWrite {
        key: WriteKey {
            session,
            run: Some(run),
            key: key.to_owned(),
        },
        call: None,
        service: "crm".to_owned(),
        method: "create".to_owned(),
        request: request.to_owned(),
        harmless: false,
    }
}

/// The same in a tool call.
fn within(call: &str, write: NewWrite) -> NewWrite {
    NewWrite {
        call: Some(ToolCallId(call.to_owned())),
        ..write
    }
}

async fn begin(place: &Place, write: &NewWrite) -> Result<Option<NotMade>, StoreError> {
    let entry = AuditEntry::about("service.begun", write.key.session, json!({ "key": write.key.key }));
    place.store.begin_write(SYSTEM, write.clone(), entry).await
}

async fn settle(place: &Place, write: &NewWrite, end: WriteEnd) {
    let entry = AuditEntry::about("service.called", write.key.session, json!({}));
    let event = Event::ServiceCalled {
        run: write.key.run,
        call: write.call.clone(),
        service: write.service.clone(),
        method: write.method.clone(),
        outcome: "allow".to_owned(),
        status: 200,
        code: None,
        micros: 1,
        bytes: 2,
    };
    let settled = place.store.settle_write(SYSTEM, write.key.clone(), end, entry, event);
    assert_eq!(settled.await.unwrap().len(), 1);
}

fn gave(bytes: &[u8]) -> WriteResult {
    WriteResult::new("application/json".to_owned(), Some(bytes))
}

#[tokio::test]
async fn a_write_is_in_the_audit_log_before_it_leaves_and_made_once_for_each_key() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let first = write(session, taken.run.id, "k", "one");
    assert_eq!(begin(&place, &first).await.unwrap(), None);
    assert_eq!(place.audited().await.entry.action, "service.begun");
    let earlier = async |wanted: &NewWrite| {
        let looked = place.store.earlier_write(SYSTEM, wanted).await.unwrap();
        assert_eq!(begin(&place, wanted).await.unwrap(), looked);
        looked
    };
    assert_eq!(earlier(&first).await, Some(NotMade::UnderWay));
    let other = write(session, taken.run.id, "k", "two");
    assert_eq!(earlier(&other).await, Some(NotMade::Other));
    // Another run's key is another.
    let elsewhere = write(session, RunId::new(), "k", "two");
    assert_eq!(begin(&place, &elsewhere).await.unwrap(), None);

    settle(&place, &first, WriteEnd::Done(gave(b"{}"))).await;
    assert_eq!(place.audited().await.entry.action, "service.called");
    assert_eq!(earlier(&first).await, Some(NotMade::Done(gave(b"{}"))));
    assert_eq!(earlier(&other).await, Some(NotMade::Other));

    // Nothing was done: it may be tried again, and what came of that counts.
    let again = write(session, taken.run.id, "again", "one");
    let code = || "upstream_refused".to_owned();
    assert_eq!(begin(&place, &again).await.unwrap(), None);
    settle(&place, &again, WriteEnd::Failed { code: code() }).await;
    assert_eq!(begin(&place, &again).await.unwrap(), None);
    settle(&place, &again, WriteEnd::Unknown { code: code() }).await;
    let unknown = Some(NotMade::Unknown { code: Some(code()) });
    assert_eq!(earlier(&again).await, unknown);
    let harmless = NewWrite {
        harmless: true,
        ..again.clone()
    };
    assert_eq!(begin(&place, &harmless).await.unwrap(), None);
}

#[tokio::test]
async fn what_a_dead_process_began_is_unknown_and_what_is_long_is_not_kept() {
    let mut place = Place::new().await;
    let (session, taken) = place.running().await;
    let cut = write(session, taken.run.id, "cut", "one");
    begin(&place, &cut).await.unwrap();
    let long = write(session, taken.run.id, "long", "one");
    begin(&place, &long).await.unwrap();
    settle(&place, &long, WriteEnd::Done(gave(&vec![b'x'; 40 << 10]))).await;
    place.reopen().await;
    assert_eq!(
        begin(&place, &cut).await.unwrap(),
        Some(NotMade::Unknown { code: None })
    );
    let Some(NotMade::Done(result)) = begin(&place, &long).await.unwrap() else {
        panic!("it was done");
    };
    assert_eq!(result.bytes, None);
}

#[tokio::test]
async fn writes_are_forgotten_by_number_and_age() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let run = taken.run.id;
    let made = async |key: String| {
        let write = write(session, run, &key, "one");
        assert_eq!(begin(&place, &write).await.unwrap(), None, "{key}");
        settle(&place, &write, WriteEnd::Done(gave(b"1"))).await;
        write
    };
    let first = made("0".to_owned()).await;
    for number in 1..500 {
        made(number.to_string()).await;
    }
    let looked = place.store.earlier_write(SYSTEM, &first).await.unwrap();
    assert!(matches!(looked, Some(NotMade::Done(_))), "{looked:?}");
    let last = made("500".to_owned()).await;
    assert_eq!(place.store.earlier_write(SYSTEM, &first).await.unwrap(), None);
    place.pass(Duration::from_secs(8 * 24 * 3_600));
    // Of any session: nothing stays for ever because its session is quiet.
    let (elsewhere, other) = place.running().await;
    begin(&place, &write(elsewhere, other.run.id, "k", "one"))
        .await
        .unwrap();
    for number in 0..5 {
        let key = format!("k{number}");
        begin(&place, &write(elsewhere, other.run.id, &key, "one"))
            .await
            .unwrap();
    }
    assert_eq!(place.store.earlier_write(SYSTEM, &last).await.unwrap(), None);
}

#[tokio::test]
async fn who_was_interrupted_is_told_what_was_begun() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let run = taken.run.id;
    let epoch = taken.run.epoch;
    place.turn(turn(run, epoch, 1), &["c1", "c2", "c3"], None).await;
    let done = within("c1", write(session, run, "done", "one"));
    begin(&place, &done).await.unwrap();
    settle(&place, &done, WriteEnd::Done(gave(b"1"))).await;
    let open = NewWrite {
        method: "send".to_owned(),
        ..within("c1", write(session, run, "open", "one"))
    };
    begin(&place, &open).await.unwrap();
    let failed = within("c2", write(session, run, "failed", "one"));
    begin(&place, &failed).await.unwrap();
    let nothing = WriteEnd::Failed {
        code: "rate_limited".to_owned(),
    };
    settle(&place, &failed, nothing).await;
    let well = within("c3", write(session, run, "well", "one"));
    begin(&place, &well).await.unwrap();
    settle(&place, &well, WriteEnd::Done(gave(b"1"))).await;
    // The first was cut off, the second failed, the third went well.
    let results = vec![
        ToolResult::error(ToolCallId("c2".to_owned()), "it failed"),
        ToolResult::text(ToolCallId("c3".to_owned()), "fine"),
    ];
    place
        .begin(BeginTurn {
            results,
            ..turn(run, epoch, 2)
        })
        .await;
    let messages = place.store.messages(SYSTEM, session, 0, 100).await.unwrap();
    let told = messages.iter().rev().find_map(|positioned| {
        let blocks = positioned.message.blocks.iter();
        let results = blocks.map(|block| match block {
            Block::ToolResult(result) => Some(result.clone()),
            _ => None,
        });
        results.collect::<Option<Vec<_>>>()
    });
    let told = told.expect("the results stand in the history");
    let text = |result: &ToolResult| {
        let parts = result.content.iter().map(|part| match part {
            ResultPart::Text { text } => text.as_str(),
            ResultPart::Image(_) => "",
        });
        parts.collect::<Vec<_>>().join("|")
    };
    let told: Vec<String> = told.iter().map(text).collect();
    assert!(
        told[0].ends_with(
            "|It had begun 2 calls of services that may change something: crm.create (was done), \
             crm.send (nobody knows whether it took effect)."
        ),
        "{told:?}"
    );
    assert_eq!(told[1..], ["it failed", "fine"]);
}

#[tokio::test]
async fn nothing_is_begun_in_a_call_that_is_over() {
    let place = Place::new().await;
    let (session, taken) = place.running().await;
    let (run, epoch) = (taken.run.id, taken.run.epoch);
    place.turn(turn(run, epoch, 1), &["c1", "c2"], None).await;
    let begun = async |call: &str, key: &str| {
        let write = within(call, write(session, run, key, "one"));
        begin(&place, &write).await.unwrap()
    };
    assert_eq!(begun("c1", "first").await, None);
    let audited = place.audited().await;
    let early = EarlyResults {
        run,
        epoch,
        turn: 2,
        results: vec![ToolResult::text(ToolCallId("c1".to_owned()), "fine")],
    };
    place.store.keep_results(SYSTEM, early).await.unwrap();
    assert_eq!(begun("c1", "second").await, Some(NotMade::CallOver));
    assert_eq!(begun("never asked for", "other").await, Some(NotMade::CallOver));
    assert_eq!(place.audited().await, audited);
    // What was begun before is still known; the other call is not over before its result stands in the history.
    assert_eq!(begun("c1", "first").await, Some(NotMade::UnderWay));
    assert_eq!(begun("c2", "third").await, None);
    place.begin(turn(run, epoch, 2)).await;
    assert_eq!(begun("c2", "fourth").await, Some(NotMade::CallOver));
}
