//! What watchers are told of a call: one line of progress of the tool call that it was made for.

use std::sync::Arc;

use domain::ToolCallId;
use protocol::{ServiceFailure, ToControl};
use tokio::time::Instant;

use crate::hands::Hands;
use crate::outbox::Outbox;

/// A call that is under way. Dropped, it is told how it went.
pub(super) struct Span {
    hands: Arc<Hands>,
    outbox: Outbox,
    call: Option<ToolCallId>,
    method: String,
    began: Instant,
    bytes: u64,
    outcome: Outcome,
}

enum Outcome {
    /// Nobody waited for the end.
    GivenUp,
    Whole,
    BrokeOff,
    Failed(u16, String),
}

impl Span {
    /// `service` and `method` are words of a user's process.
    pub(super) fn begin(
        hands: &Arc<Hands>,
        outbox: &Outbox,
        call: Option<ToolCallId>,
        service: &str,
        method: &str,
    ) -> Self {
        Self {
            hands: Arc::clone(hands),
            outbox: outbox.clone(),
            call,
            method: format!("{}.{}", plain(service), plain(method)),
            began: Instant::now(),
            bytes: 0,
            outcome: Outcome::GivenUp,
        }
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    pub(super) fn end(&mut self) {
        self.outcome = Outcome::Whole;
    }

    pub(super) fn break_off(&mut self) {
        self.outcome = Outcome::BrokeOff;
    }

    pub(super) fn fail(&mut self, failure: &ServiceFailure) {
        self.outcome = Outcome::Failed(failure.status, plain(&failure.code));
    }

    fn line(&self) -> String {
        let (method, bytes) = (&self.method, size(self.bytes));
        let took = self.began.elapsed().as_millis();
        match &self.outcome {
            Outcome::Whole => format!("{method}: {bytes} in {took} ms\n"),
            Outcome::Failed(status, code) => format!("{method}: {code} ({status}) in {took} ms\n"),
            Outcome::BrokeOff => format!("{method}: broke off after {bytes} and {took} ms\n"),
            Outcome::GivenUp => format!("{method}: given up after {bytes} and {took} ms\n"),
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(call) = self.call.take()
            && self.hands.is_under_way(&call)
        {
            let text = self.line();
            self.outbox.mention(ToControl::Progress { call, text });
        }
    }
}

/// A word without what a terminal would obey.
fn plain(word: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_graphic() { letter } else { '?' };
    word.chars().take(80).map(plain).collect()
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{} kB", bytes / 1_000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}
