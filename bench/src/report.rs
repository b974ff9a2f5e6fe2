//! What was measured, as a table for people and as JSON for programs.

use serde::Serialize;

use crate::sample::Sample;

/// One figure beside its target and its peer.
#[derive(Clone, Default, Serialize)]
pub(crate) struct Measure {
    id: &'static str,
    what: String,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    n: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p95: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ok: Option<bool>,
}

impl Measure {
    /// A single figure.
    pub(crate) fn value(id: &'static str, what: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self {
            id,
            what: what.into(),
            unit,
            value: Some(value),
            ..Self::default()
        }
    }

    /// Many times, in milliseconds.
    pub(crate) fn times(id: &'static str, what: impl Into<String>, sample: &Sample) -> Self {
        Self {
            id,
            what: what.into(),
            unit: "ms",
            n: Some(sample.len()),
            p50: Some(sample.at(0.5)),
            p95: Some(sample.at(0.95)),
            p99: Some(sample.at(0.99)),
            ..Self::default()
        }
    }

    /// The same, done by another program in the same run.
    pub(crate) fn beside(mut self, peer: impl Into<String>, peer_value: f64) -> Self {
        self.ratio = self.main().filter(|ours| *ours > 0.0).map(|ours| peer_value / ours);
        self.peer = Some(peer.into());
        self.peer_value = Some(peer_value);
        self
    }

    /// The same, where the other program could be had.
    pub(crate) fn beside_any(self, peer: impl Into<String>, peer_value: Option<f64>) -> Self {
        match peer_value {
            Some(value) => self.beside(peer, value),
            None => self,
        }
    }

    /// What the figure must not exceed: the value or p50, and p99 where one is given.
    pub(crate) fn at_most(mut self, p50: f64, p99: Option<f64>) -> Self {
        let tail = p99.map(|limit| format!(" / {limit}")).unwrap_or_default();
        self.target = Some(format!("≤ {p50}{tail}"));
        let tail_holds = p99.is_none_or(|limit| self.p99.is_none_or(|value| value <= limit));
        self.ok = self.main().map(|value| value <= p50 && tail_holds);
        self
    }

    /// What the figure must reach.
    pub(crate) fn at_least(mut self, limit: f64) -> Self {
        self.target = Some(format!("≥ {limit}"));
        self.ok = self.main().map(|value| value >= limit);
        self
    }

    /// Which measure it is.
    pub(crate) fn id(&self) -> &'static str {
        self.id
    }

    fn main(&self) -> Option<f64> {
        self.value.or(self.p50)
    }
}

/// What was found so far.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) measures: Vec<Measure>,
    /// Something could not be measured.
    pub(crate) incomplete: bool,
}

impl Findings {
    /// Adds what was measured, or says why it could not be.
    pub(crate) fn take(&mut self, id: &str, measured: anyhow::Result<Vec<Measure>>) {
        match measured {
            Ok(measures) => self.measures.extend(measures),
            Err(error) => {
                eprintln!("bench: {id} could not be measured: {error:#}");
                self.incomplete = true;
            }
        }
    }
}

/// Prints the table.
pub(crate) fn print(measures: &[Measure]) {
    let figure = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), short);
    println!(
        "{:<4} {:<58} {:>9} {:>9} {:>9} {:<8} {:>8}  {:<14} peer",
        "id", "what", "p50/value", "p95", "p99", "unit", "n", "target"
    );
    for measure in measures {
        let mark = match measure.ok {
            Some(true) => " ok",
            Some(false) => " MISSED",
            None => "",
        };
        let target = format!("{}{mark}", measure.target.clone().unwrap_or_default());
        let peer = match (&measure.peer, measure.peer_value, measure.ratio) {
            (Some(peer), Some(value), Some(ratio)) => format!("{peer} {} ({}×)", short(value), short(ratio)),
            (Some(peer), Some(value), None) => format!("{peer} {}", short(value)),
            _ => String::new(),
        };
        println!(
            "{:<4} {:<58} {:>9} {:>9} {:>9} {:<8} {:>8}  {target:<14} {peer}",
            measure.id,
            measure.what,
            figure(measure.main()),
            figure(measure.p95),
            figure(measure.p99),
            measure.unit,
            measure.n.map(|n| n.to_string()).unwrap_or_default(),
        );
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
