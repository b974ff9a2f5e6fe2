//! The control stream, as the control plane sees it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causes::with_causes;
use protocol::{Hello, ToControl};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::accept::Link;
use crate::lines::{self, LineReader};

/// Orders that may wait for a runtime to read them; then who orders waits.
const ORDERS: usize = 64;

/// How long the other side may take to say who it is.
const GREETING: Duration = Duration::from_secs(10);

/// How soon one control stream may follow another.
const PACE: Duration = Duration::from_millis(50);

/// Keeps a runtime that opens one stream after the other from filling the log, and from keeping all who wait for an answer busy.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// Waits until the next stream may begin.
    async fn next(&self) {
        let mut last = self.0.lock().await;
        if let Some(last) = *last {
            sleep_until(last + PACE).await;
        }
        *last = Some(Instant::now());
    }
}

/// Serves one control stream until it ends, or a newer one takes its place.
pub(super) async fn run(stream: impl AsyncRead + AsyncWrite + Send, link: &Arc<Link>) {
    let (read, mut write) = tokio::io::split(stream);
    let mut lines = LineReader::new(read);
    let greeting = async {
        let hello = lines.next::<Hello>(lines::GREETING).await.ok()??;
        write.write_all(&lines::encode(&Hello::answering(&hello))).await.ok()?;
        Some(hello)
    };
    let Ok(Some(hello)) = timeout(GREETING, greeting).await else {
        warn!(sandbox = %link.sandbox, "the runtime opened a control stream and did not say what it speaks");
        return;
    };
    if let Err(error) = hello.check() {
        warn!(sandbox = %link.sandbox, %error, "the runtime's control stream is refused");
        link.orders.refuse(error);
        return;
    }
    link.pace.next().await;
    let (orders, ordered) = mpsc::channel(ORDERS);
    let number = link.orders.connect(orders, hello.protocol);
    info!(sandbox = %link.sandbox, build = hello.build, "the runtime is connected");
    let reason = tokio::select! {
        reason = read_lines(lines, link) => reason,
        reason = write_lines(ordered, write) => reason,
    };
    link.orders.disconnect(number);
    info!(sandbox = %link.sandbox, reason, "the runtime's control stream has ended");
}

async fn read_lines(mut lines: LineReader<impl AsyncRead + Unpin>, link: &Arc<Link>) -> String {
    loop {
        match lines.next::<ToControl>(lines::LONGEST).await {
            Ok(Some(line)) => {
                if let Some(event) = link.orders.answer(line) {
                    link.handler.event(link.sandbox, event).await;
                }
            }
            Ok(None) => return "it was closed".to_owned(),
            Err(error) => return with_causes(&error),
        }
    }
}

async fn write_lines(mut ordered: mpsc::Receiver<Bytes>, mut write: WriteHalf<impl AsyncWrite>) -> String {
    while let Some(line) = ordered.recv().await {
        if let Err(error) = write.write_all(&line).await {
            return error.to_string();
        }
    }
    "nobody orders by it any more: another took its place, or the sandbox goes".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_stream_begins_at_once_and_others_one_by_one() {
        let (pace, begun) = (Pace::default(), Instant::now());
        pace.next().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        tokio::join!(pace.next(), pace.next(), pace.next());
        assert!(begun.elapsed() >= PACE * 3, "{:?}", begun.elapsed());
    }
}
