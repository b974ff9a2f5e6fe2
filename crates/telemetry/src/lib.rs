//! Traces: what was done for a prompt, and how long each part of it took, told to a collector (OpenTelemetry's protocol, OTLP,
//! over HTTP as JSON).
//!
//! A trace has the number of its run, and a span's number follows from what it is ([`Trace::span`]). So the parts of one trace
//! find each other across processes, restarts and the link without anything that is handed along, and whoever knows a run
//! finds its trace.
//!
//! A span holds names, numbers and outcomes, never what anybody said or handed in. What cannot be told at once waits in a queue
//! that has an end; what finds no place, or a collector that is slow or gone, is counted and dropped: nothing waits for it.

mod export;
mod span;
mod wire;

pub use export::{Figures, TelemetryError, Traces};
pub use span::{Place, Span, SpanId, Trace, Value};
