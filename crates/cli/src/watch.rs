//! The event stream of a session, joined again without loss when it breaks.
//!
//! The server numbers what it sends (`number:offset`, the id of a server-sent event); after a break the stream is asked for from the
//! last id that arrived whole. So nothing is lost and nothing comes twice.

use std::time::Duration;

use domain::{Delta, NumberedEvent};
use futures::{StreamExt, TryStreamExt};
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::time::Instant;
use tokio_util::io::StreamReader;

use crate::{Client, ClientError};

/// The server sends a comment this often at least (see crate `http-api`), so a longer silence is a dead connection.
pub(crate) const SILENCE: Duration = Duration::from_secs(45);
/// For how long a broken stream is asked for again before it is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The longest line that is understood; a message may hold a picture.
const LONGEST_LINE: usize = 64 << 20;

/// Something that happened, as it was sent and as it is understood.
pub(crate) struct Seen {
    /// The JSON itself.
    pub(crate) raw: Value,
    /// What it means; none: a newer server sent what this program does not know.
    pub(crate) meaning: Option<Meaning>,
}

/// What a frame means.
pub(crate) enum Meaning {
    Event(Box<NumberedEvent>),
    Delta(Delta),
}

/// A session's events from a position on.
pub(crate) struct Watch<'c> {
    client: &'c Client,
    session: String,
    position: String,
    follow: bool,
    lines: Option<Lines>,
    broken_since: Option<Instant>,
}

impl<'c> Watch<'c> {
    /// Watches what comes behind `position`; without `follow` it ends with what there is.
    pub(crate) fn new(client: &'c Client, session: &str, position: String, follow: bool) -> Self {
        Self {
            client,
            session: session.to_owned(),
            position,
            follow,
            lines: None,
            broken_since: None,
        }
    }

    /// The next thing, which must be waited for or [`Watch::again`] called; nothing where the stream has ended because all was sent.
    pub(crate) async fn next(&mut self) -> Result<Option<Seen>, ClientError> {
        loop {
            let Some(lines) = self.lines.as_mut() else {
                self.join().await?;
                continue;
            };
            match tokio::time::timeout(SILENCE, lines.frame()).await {
                Ok(Ok(Some(frame))) => {
                    self.broken_since = None;
                    if let Some(id) = frame.id {
                        self.position = id;
                    }
                    let Ok(raw) = serde_json::from_str::<Value>(&frame.data) else {
                        continue;
                    };
                    return Ok(Some(Seen {
                        meaning: meaning(&raw),
                        raw,
                    }));
                }
                Ok(Ok(None)) if !self.follow => return Ok(None),
                // Ended, broken or silent: from the last whole frame again.
                _ => self.lines = None,
            }
        }
    }

    /// To be called where a call of [`Watch::next`] was given up half-way: what it had read of a frame is read again.
    pub(crate) fn again(&mut self) {
        self.lines = None;
    }

    /// Asks for the stream until it is there or patience ends.
    async fn join(&mut self) -> Result<(), ClientError> {
        let mut pause = Duration::from_millis(50);
        loop {
            let path = format!("/sessions/{}/events?follow={}", self.session, self.follow);
            let request = self
                .client
                .request(Method::GET, &path)
                .header("last-event-id", &self.position);
            match self.client.send(request).await {
                Ok(response) => {
                    self.lines = Some(Lines::of(response));
                    return Ok(());
                }
                Err(error @ ClientError::Refused { .. }) if !may_pass(&error) => return Err(error),
                Err(error) => {
                    let since = self.broken_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > PATIENCE {
                        return Err(match error {
                            ClientError::Unreachable { .. } => ClientError::StreamLost {
                                session: self.session.clone(),
                            },
                            other => other,
                        });
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(3));
        }
    }
}

/// Whether the same request may go through later.
pub(crate) fn may_pass(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { code, .. } if code == "unavailable" || code == "timeout" || code == "unknown")
}

pub(crate) fn meaning(raw: &Value) -> Option<Meaning> {
    if raw.get("number").is_some() {
        serde_json::from_value(raw.clone())
            .ok()
            .map(|event| Meaning::Event(Box::new(event)))
    } else {
        serde_json::from_value(raw.clone()).ok().map(Meaning::Delta)
    }
}

struct Frame {
    id: Option<String>,
    data: String,
}

/// Server-sent events, frame by frame.
struct Lines {
    reader: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
}

impl Lines {
    fn of(response: Response) -> Self {
        let bytes = response.bytes_stream().map_err(std::io::Error::other).boxed();
        Self {
            reader: BufReader::new(Box::new(StreamReader::new(bytes))),
        }
    }

    /// The next frame that has data; nothing at the end. A frame that was cut is not there at all.
    async fn frame(&mut self) -> std::io::Result<Option<Frame>> {
        let (mut id, mut data) = (None, String::new());
        loop {
            let mut line = Vec::new();
            let mut limited = tokio::io::AsyncReadExt::take(&mut self.reader, LONGEST_LINE as u64);
            limited.read_until(b'\n', &mut line).await?;
            if line.pop() != Some(b'\n') {
                return Ok(None);
            }
            let line = String::from_utf8(line).map_err(std::io::Error::other)?;
            let line = line.strip_suffix('\r').unwrap_or(&line);
            if line.is_empty() {
                if !data.is_empty() {
                    return Ok(Some(Frame { id, data }));
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => id = Some(value.to_owned()),
                "data" => data.push_str(value),
                _ => {}
            }
        }
    }
}
