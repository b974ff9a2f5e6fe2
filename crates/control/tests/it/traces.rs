//! Traces of runs, as a collector sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use control::Outside;
use telemetry::Traces;
use testkit::Collector;

use crate::world::{Differs, in_both_placements_with};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_one_trace_from_its_prompt_to_its_tools_without_a_word_of_what_was_said() {
    let collector = Arc::new(Collector::start().await);
    let differs = || {
        let collector = Arc::clone(&collector);
        Differs {
            outside: Arc::new(move |_, tasks| Outside {
                traces: Traces::start(&collector.address(), tasks).unwrap(),
                ..Outside::default()
            }),
            ..Differs::default()
        }
    };
    in_both_placements_with(differs, async |world| {
        world.will_call(&[("secret-id", "secret code"), ("other-id", "more secret code")]);
        world.will_say("secret answer");
        let accepted = world.prompt("secret words").await;
        world.done(&accepted).await;
        let trace = accepted.run.bits().to_be_bytes();
        let spans = collector
            .spans(|spans| spans.iter().any(|span| span.name == "run" && span.trace_id == trace))
            .await;
        let spans: Vec<_> = spans.iter().filter(|span| span.trace_id == trace).collect();
        let names: BTreeMap<_, _> = spans.iter().map(|span| (&span.span_id, span.name.as_str())).collect();
        assert_eq!(names.len(), spans.len(), "each is told once: {spans:#?}");
        let mut edges: Vec<_> = spans
            .iter()
            .map(|span| format!("{} < {}", span.name, names.get(&span.parent_span_id).unwrap_or(&"")))
            .collect();
        edges.sort();
        assert_eq!(
            edges,
            [
                "model < turn",
                "model < turn",
                "prompt < ",
                "run < prompt",
                "sandbox < run",
                "sandbox < run",
                "tool < turn",
                "tool < turn",
                "turn < run",
                "turn < run",
            ]
        );
        let told = format!("{spans:?}");
        assert!(!told.contains("secret"), "{told}");
        for said in ["exec", "create", "claim_cold", "gen_ai.usage.input_tokens"] {
            assert!(told.contains(said), "{said}: {told}");
        }
        let run = spans.iter().find(|span| span.name == "run").unwrap();
        for tool in spans.iter().filter(|span| span.name == "tool") {
            assert!(run.start_time_unix_nano <= tool.start_time_unix_nano + 1_000_000);
            assert!(tool.end_time_unix_nano <= run.end_time_unix_nano + 1_000_000);
        }
    })
    .await;
}
