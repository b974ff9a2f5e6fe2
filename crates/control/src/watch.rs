//! Watching a session: everything after a position, then what comes, nothing lost and nothing doubled.

use std::collections::VecDeque;
use std::sync::Arc;

use domain::{Delta, Event, SessionId};
use futures::stream::{self, Stream};
use store::{Asker, Store};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::live::Live;
use crate::{Control, ControlError};

mod feed;
mod position;

pub use feed::Watched;
pub(crate) use feed::{Feed, Joined, Told};
pub use position::{ParsePositionError, Position};

/// Events that are read from the store at a time.
const PAGE: u32 = 256;

struct Watcher {
    store: Store,
    asker: Asker,
    live: Arc<Live>,
    position: Position,
    missed: VecDeque<Watched>,
    rest: Option<Receiver<Told>>,
}

impl Control {
    /// What happened in a session after `from`, and then what happens, each with the position that it brings. The stream
    /// does not end by itself; after an error it does. Whoever is slow gets everything all the same.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; it has no event of that number yet.
    pub async fn watch(
        &self,
        asker: Asker,
        session: SessionId,
        from: Position,
    ) -> Result<impl Stream<Item = Result<(Position, Watched), ControlError>> + Send + use<>, ControlError> {
        let live = self.live(asker, session).await?;
        if from.number > live.feed.last() && from.number > self.0.store.session(asker, session).await?.events {
            return Err(ControlError::Invalid(format!(
                "session {session} has no event {} yet: watch from the id of an event that was sent",
                from.number
            )));
        }
        let watcher = Watcher {
            store: self.0.store.clone(),
            asker,
            live,
            position: from,
            missed: VecDeque::new(),
            rest: None,
        };
        Ok(stream::try_unfold(watcher, |mut watcher| async move {
            let seen = watcher.next().await?;
            Ok(Some(((watcher.position, seen), watcher)))
        }))
    }
}

impl Watcher {
    async fn next(&mut self) -> Result<Watched, ControlError> {
        loop {
            while let Some(seen) = self.missed.pop_front() {
                if let Some(seen) = self.advance(seen) {
                    return Ok(seen);
                }
            }
            let Some(rest) = &mut self.rest else {
                self.join().await?;
                continue;
            };
            let told = match rest.recv().await {
                Ok(told) => told.seen().filter(|seen| self.follows(seen)),
                Err(RecvError::Lagged(_) | RecvError::Closed) => None,
            };
            let Some(seen) = told else {
                // Too slow, or let go of, or told out of order: the store knows.
                self.rest = None;
                continue;
            };
            if let Some(seen) = self.advance(seen) {
                return Ok(seen);
            }
        }
    }

    async fn join(&mut self) -> Result<(), ControlError> {
        match self.live.feed.join(self.position) {
            Joined::Ready { missed, rest } => {
                self.missed = missed.into();
                self.rest = rest;
            }
            Joined::Behind => {
                let (session, after) = (self.live.session, self.position.number);
                let tail = self.store.events(self.asker, session, after, PAGE).await?;
                if tail.events.is_empty() {
                    // It was told of an event that the store does not have.
                    let error = std::io::Error::other(format!("session {session} has no event after {after}"));
                    return Err(ControlError::internal("read events", error));
                }
                self.missed = tail
                    .events
                    .into_iter()
                    .map(|event| Watched::Event(Arc::new(event)))
                    .collect();
            }
        }
        Ok(())
    }

    /// Whether nothing is missing between what was seen and this.
    fn follows(&self, seen: &Watched) -> bool {
        match seen {
            Watched::Event(event) => event.number <= self.position.number + 1,
            Watched::Delta(delta) => match delta.as_ref() {
                Delta::Text { offset, .. } => *offset <= self.position.text,
                Delta::Thinking { offset, .. } => *offset <= self.position.thinking,
                Delta::ToolProgress { .. } => true,
            },
        }
    }

    /// Takes note of what is seen next; none where it was seen before.
    fn advance(&mut self, seen: Watched) -> Option<Watched> {
        match &seen {
            Watched::Event(event) => {
                if event.number <= self.position.number {
                    return None;
                }
                self.position.number = event.number;
                if matches!(event.event, Event::MessageOpened { .. } | Event::Message { .. }) {
                    self.position = event.number.into();
                }
                Some(seen)
            }
            Watched::Delta(delta) => {
                let (seen_before, offset, text) = match delta.as_ref() {
                    Delta::Text { offset, text, .. } => (&mut self.position.text, *offset, text),
                    Delta::Thinking { offset, text, .. } => (&mut self.position.thinking, *offset, text),
                    Delta::ToolProgress { .. } => return Some(seen),
                };
                let end = offset + text.len() as u64;
                let before = *seen_before;
                if end <= before {
                    return None;
                }
                *seen_before = end;
                if before == offset {
                    return Some(seen);
                }
                let rest = usize::try_from(before - offset)
                    .ok()
                    .and_then(|from| text.get(from..))?;
                Some(Watched::Delta(Arc::new(rest_of(delta, before, rest.to_owned()))))
            }
        }
    }
}

fn rest_of(delta: &Delta, offset: u64, text: String) -> Delta {
    match delta {
        Delta::Text { message, .. } => Delta::Text {
            message: *message,
            offset,
            text,
        },
        Delta::Thinking { message, .. } => Delta::Thinking {
            message: *message,
            offset,
            text,
        },
        Delta::ToolProgress { call, .. } => Delta::ToolProgress {
            call: call.clone(),
            text,
        },
    }
}
