//! What PID 1 has to tell the control plane. It outlives the control stream: what could not be said is said on the next.

use protocol::ToControl;
use tokio::sync::{Mutex, mpsc};

/// Lines that may wait; then whoever has a result waits, and progress is dropped.
const LINES: usize = 256;

#[derive(Clone)]
pub(crate) struct Outbox(mpsc::Sender<ToControl>);

/// The end from which the control stream takes.
pub(crate) struct Outgoing(Mutex<(mpsc::Receiver<ToControl>, Option<ToControl>)>);

pub(crate) fn outbox() -> (Outbox, Outgoing) {
    let (send, receive) = mpsc::channel(LINES);
    (Outbox(send), Outgoing(Mutex::new((receive, None))))
}

impl Outbox {
    /// Says something that must arrive.
    pub(crate) async fn say(&self, line: ToControl) {
        // The other end lives as long as the process.
        let _ = self.0.send(line).await;
    }

    /// Says something that is only of interest now.
    pub(crate) fn mention(&self, line: ToControl) {
        let _ = self.0.try_send(line);
    }
}

impl Outgoing {
    /// Says everything on this stream, until it breaks.
    pub(crate) async fn flow_into(&self, stream: &mut link::client::ControlWriter) -> link::client::ClientError {
        let (receive, unsaid) = &mut *self.0.lock().await;
        loop {
            if unsaid.is_none() {
                *unsaid = receive.recv().await;
            }
            let Some(line) = unsaid else {
                return std::future::pending().await;
            };
            if let Err(error) = stream.send(line).await {
                return error;
            }
            *unsaid = None;
        }
    }
}
