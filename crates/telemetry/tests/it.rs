//! Against a collector that decodes the real protocol.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use lifecycle::Tasks;
use telemetry::{Figures, Place, Trace, Traces};
use testkit::{Collector, Takes, eventually_async, within};

async fn figures(traces: &Traces, wanted: Figures) {
    eventually_async(&format!("{wanted:?}"), async || {
        (traces.figures() == Some(wanted)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_was_done_is_told_with_its_place_and_times() {
    let collector = Collector::start().await;
    let tasks = Tasks::new();
    let traces = Traces::start(&collector.address(), &tasks).unwrap();
    let first = Place::first(Trace(0xfeed), &["run"]);
    let mut span = traces.begin("run", first);
    span.set("gen_ai.request.model", "m");
    span.set("belljar.turn", 7_u64);
    span.fail("wall_limit");
    let below = first.beneath(&["tool", "1"]);
    let times = (Duration::from_secs(9), Duration::from_secs(4));
    traces.was("tool", below, times, None, [("gen_ai.tool.name", "exec".into())]);
    drop(span);

    let spans = collector.spans(|spans| spans.len() == 2).await;
    let [tool, run] = spans.try_into().unwrap();
    assert_eq!((tool.name.as_str(), run.name.as_str()), ("tool", "run"));
    assert_eq!(run.trace_id, 0xfeed_u128.to_be_bytes());
    assert_eq!((&tool.trace_id, &tool.parent_span_id), (&run.trace_id, &run.span_id));
    assert!(run.parent_span_id.is_empty());
    assert_eq!(tool.end_time_unix_nano - tool.start_time_unix_nano, 4_000_000_000);
    assert!(run.start_time_unix_nano > tool.end_time_unix_nano && run.end_time_unix_nano >= run.start_time_unix_nano);
    assert_eq!((run.status.code, run.status.message.as_str()), (2, "wall_limit"));
    let said = format!("{:?}", run.attributes);
    assert!(
        said.contains("StringValue(\"m\")") && said.contains("IntValue(7)"),
        "{said}"
    );
    figures(&traces, Figures { told: 2, dropped: 0 }).await;
}

#[tokio::test]
async fn what_waits_when_the_process_ends_is_told() {
    let collector = Collector::start().await;
    let tasks = Tasks::new();
    let traces = Traces::start(&collector.address(), &tasks).unwrap();
    drop(traces.begin("last", Place::first(Trace(1), &[])));
    assert!(tasks.shut_down(Duration::from_secs(20)).await);
    assert_eq!(collector.spans(|_| true).await.len(), 1);
}

#[tokio::test]
async fn a_collector_that_is_gone_slow_or_full_costs_spans_and_nothing_else() {
    let collector = Collector::start().await;
    let tasks = Tasks::new();
    let traces = Traces::start(&collector.address(), &tasks).unwrap();
    let place = Place::first(Trace(1), &[]);
    let tell = |count: usize| (0..count).for_each(|_| drop(traces.begin("span", place)));
    collector.takes(Takes::Nothing);
    tell(3);
    figures(&traces, Figures { told: 0, dropped: 3 }).await;
    collector.takes(Takes::AllBut(2));
    tell(3);
    figures(&traces, Figures { told: 1, dropped: 5 }).await;
    // It never answers: so many wait, and one more is lost at once. Nobody is held up.
    collector.takes(Takes::Never);
    let asked = collector.requests();
    tell(1);
    eventually_async("it to be asked", async || (collector.requests() > asked).then_some(())).await;
    tell(4_096 + 10);
    assert_eq!(traces.figures().unwrap().dropped, 15);
    let ended = within("the end", tasks.shut_down(Duration::from_secs(20))).await;
    assert!(ended);
    // What nobody took by then is lost, and counted.
    assert_eq!(
        traces.figures(),
        Some(Figures {
            told: 1,
            dropped: 5 + 1 + 4_096 + 10
        })
    );
}

#[tokio::test]
async fn without_a_collector_nothing_is_told() {
    let traces = Traces::default();
    assert!(!traces.is_on());
    drop(traces.begin("span", Place::first(Trace(1), &[])));
    assert_eq!(traces.figures(), None);
}
