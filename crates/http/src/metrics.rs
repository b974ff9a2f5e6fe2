//! What Prometheus reads: counted here, or asked of control when it is read.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use control::{RefreshFigures, SandboxFigures, TraceFigures};

use crate::api::Doors;

/// Upper edges of the duration's buckets, in microseconds.
const EDGES: [u64; 8] = [500, 1_000, 5_000, 25_000, 100_000, 500_000, 2_500_000, 10_000_000];

/// Counts of this process.
pub(crate) struct Metrics {
    started: Instant,
    /// Answers by the first digit of their status.
    answers: [AtomicU64; 6],
    buckets: [AtomicU64; EDGES.len()],
    microseconds: AtomicU64,
    /// Event streams that are open.
    streams: AtomicI64,
}

/// Counts an event stream as open while it lives.
pub(crate) struct OpenStream(std::sync::Arc<Metrics>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(crate) fn new(started: Instant) -> Self {
        Self {
            started,
            answers: Default::default(),
            buckets: Default::default(),
            microseconds: AtomicU64::new(0),
            streams: AtomicI64::new(0),
        }
    }

    /// An event stream begins.
    pub(crate) fn open_stream(self: &std::sync::Arc<Self>) -> OpenStream {
        self.streams.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.clone())
    }

    fn answered(&self, status: u16, took: std::time::Duration) {
        let class = usize::from(status / 100).min(5);
        self.answers[class].fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
        for (edge, bucket) in EDGES.iter().zip(&self.buckets) {
            if microseconds <= *edge {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The exposition format, version 0.0.4.
    pub(crate) fn exposition(&self, gauges: &[(&str, &str, i64)]) -> String {
        let mut text = String::new();
        let head = |text: &mut String, name: &str, kind: &str, about: &str| {
            let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}");
        };
        head(&mut text, "belljar_build_info", "gauge", "The release that runs.");
        let _ = writeln!(
            text,
            "belljar_build_info{{version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        );
        head(
            &mut text,
            "belljar_uptime_seconds",
            "gauge",
            "Since the control plane started.",
        );
        let _ = writeln!(text, "belljar_uptime_seconds {}", self.started.elapsed().as_secs());
        head(
            &mut text,
            "belljar_http_answers_total",
            "counter",
            "Answers by class of status.",
        );
        let mut total = 0;
        for (class, count) in self.answers.iter().enumerate().skip(1) {
            let count = count.load(Ordering::Relaxed);
            total += count;
            let _ = writeln!(text, "belljar_http_answers_total{{status=\"{class}xx\"}} {count}");
        }
        head(
            &mut text,
            "belljar_http_answer_seconds",
            "histogram",
            "From a request's head to its answer's head.",
        );
        for (edge, bucket) in EDGES.iter().zip(&self.buckets) {
            let edge = *edge as f64 / 1e6;
            let _ = writeln!(
                text,
                "belljar_http_answer_seconds_bucket{{le=\"{edge}\"}} {}",
                bucket.load(Ordering::Relaxed)
            );
        }
        let _ = writeln!(text, "belljar_http_answer_seconds_bucket{{le=\"+Inf\"}} {total}");
        let sum = self.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(
            text,
            "belljar_http_answer_seconds_sum {sum}\nbelljar_http_answer_seconds_count {total}"
        );
        head(
            &mut text,
            "belljar_event_streams",
            "gauge",
            "Event streams that are open.",
        );
        let _ = writeln!(text, "belljar_event_streams {}", self.streams.load(Ordering::Relaxed));
        for (name, about, value) in gauges {
            head(&mut text, name, "gauge", about);
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }
}

/// How sandboxes do, in the same format.
pub(crate) fn sandbox_exposition(figures: &SandboxFigures) -> String {
    let mut text = String::new();
    let name = "belljar_sandbox_transition_seconds";
    let about = "How long each step in the life of a sandbox took that went well.";
    let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} histogram");
    for step in &figures.transitions {
        let label = format!("transition=\"{}\"", step.transition);
        for (edge, count) in &step.buckets {
            let _ = writeln!(text, "{name}_bucket{{{label},le=\"{}\"}} {count}", edge.as_secs_f64());
        }
        let _ = writeln!(
            text,
            "{name}_bucket{{{label},le=\"+Inf\"}} {0}\n{name}_sum{{{label}}} {1}\n{name}_count{{{label}}} {0}",
            step.done,
            step.total.as_secs_f64()
        );
    }
    let name = "belljar_sandbox_transition_failures_total";
    let _ = writeln!(text, "# HELP {name} Steps that failed.\n# TYPE {name} counter");
    for step in &figures.transitions {
        let _ = writeln!(text, "{name}{{transition=\"{}\"}} {}", step.transition, step.failed);
    }
    let name = "belljar_sandboxes_warm_died_total";
    let about = "Sandboxes that were made ahead and died, or hung, before a session came.";
    let _ = writeln!(
        text,
        "# HELP {name} {about}\n# TYPE {name} counter\n{name} {}",
        figures.warm_died
    );
    text
}

/// What became of traces, in the same format.
pub(crate) fn trace_exposition(figures: TraceFigures) -> String {
    let TraceFigures { told, dropped } = figures;
    format!(
        "# HELP belljar_trace_spans_told_total Spans that the collector of traces has taken.\n\
         # TYPE belljar_trace_spans_told_total counter\nbelljar_trace_spans_told_total {told}\n\
         # HELP belljar_trace_spans_dropped_total Spans that were lost: the collector was slow, or gone, or refused them.\n\
         # TYPE belljar_trace_spans_dropped_total counter\nbelljar_trace_spans_dropped_total {dropped}\n"
    )
}

/// How refreshes of the image went, in the same format; nothing where it is not refreshed.
pub(crate) fn refresh_exposition(figures: Option<RefreshFigures>) -> String {
    let Some(figures) = figures else { return String::new() };
    let mut text = String::new();
    let name = "belljar_image_refreshes_total";
    let _ = writeln!(text, "# HELP {name} Refreshes of the image.\n# TYPE {name} counter");
    for (result, count) in [("ready", figures.done), ("failed", figures.failed)] {
        let _ = writeln!(text, "{name}{{result=\"{result}\"}} {count}");
    }
    let name = "belljar_image_refresh_seconds";
    let about = "How long the last refresh of the image took.";
    let _ = writeln!(
        text,
        "# HELP {name} {about}\n# TYPE {name} gauge\n{name} {}",
        figures.took.as_secs_f64()
    );
    text
}

/// Counts every answer.
pub(crate) async fn count(State(doors): State<Doors>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    // The path only: a query may hold what somebody should not have put there.
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    tracing::debug!(%method, path, status = response.status().as_u16(), milliseconds = began.elapsed().as_millis(), "answered");
    doors.metrics.answered(response.status().as_u16(), began.elapsed());
    response
}

/// The memory that this process has in use, where the kernel says it.
pub(crate) fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim()
        .trim_end_matches("kB")
        .trim()
        .parse::<i64>()
        .ok()
        .map(|kibibytes| kibibytes * 1024)
}
