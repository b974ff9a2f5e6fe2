//! One command, from the request to its exit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use causes::with_causes;
use russh::server::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Disconnect, client};

use super::carry::Way;
use super::gate::Gate;
use super::inside::{STDERR, words};
use super::{Asked, outside};
use crate::{Code, Denied};

/// How a command ends of which the server did not say how.
const UNKNOWN: u32 = 255;

/// Bytes that a command took and gave.
#[derive(Default)]
struct Passed {
    sent: AtomicU64,
    received: AtomicU64,
}

/// Runs a command outside, for whoever asked inside, and tells the audit.
pub(super) async fn carry(way: Arc<Way>, channel: Channel<Msg>, asked: Asked) {
    let (began, id) = (Instant::now(), channel.id());
    let (mut from, to) = channel.split();
    let passed = Passed::default();
    let outcome = run(&way, &mut from, &to, &asked, &passed).await;
    let status = match &outcome {
        Ok(status) => *status,
        Err(denied) => {
            // Whoever does not listen will see the channel close.
            let _ = to.extended_data_bytes(STDERR, words(denied)).await;
            let _ = to.exit_status(UNKNOWN).await;
            UNKNOWN
        }
    };
    let _ = to.eof().await;
    let _ = to.close().await;
    way.gate.close(id);
    let (sent, received) = (&passed.sent, &passed.received);
    let bytes = (sent.load(Ordering::Relaxed), received.load(Ordering::Relaxed));
    way.tell(&asked.shown(), status, outcome.err(), bytes, began.elapsed());
}

async fn run(
    way: &Way,
    from: &mut ChannelReadHalf,
    to: &ChannelWriteHalf<Msg>,
    asked: &Asked,
    passed: &Passed,
) -> Result<u32, Denied> {
    let Some(ssh) = &way.connection.rule.ssh else {
        return Err(way.broken("the rule says nothing of SSH"));
    };
    // A connection of its own: on a shared one, a command that nobody reads would hold up the room that others are given, and
    // these the room that it waits for.
    let gate = Gate::default();
    let server = outside::connect(way, ssh, &gate).await?;
    let channel = server.channel_open_session().await;
    let (answers, out) = channel.map_err(|error| way.broken(&with_causes(&error)))?.split();
    let both = Both {
        way,
        asked,
        passed,
        to,
        out,
        gate,
    };
    let ended = both.carry(from, answers).await;
    let _ = both.out.close().await;
    let _ = server.disconnect(Disconnect::ByApplication, "", "").await;
    ended
}

/// A command's two ends.
struct Both<'a> {
    way: &'a Way,
    asked: &'a Asked,
    passed: &'a Passed,
    to: &'a ChannelWriteHalf<Msg>,
    out: ChannelWriteHalf<client::Msg>,
    /// What is held of what the server says.
    gate: Gate,
}

impl Both<'_> {
    async fn carry(&self, from: &mut ChannelReadHalf, answers: ChannelReadHalf) -> Result<u32, Denied> {
        let asking = match self.asked {
            Asked::Command(command) => self.out.exec(true, command.clone()).await,
            Asked::Subsystem(name) => self.out.request_subsystem(true, name.clone()).await,
        };
        asking.map_err(|error| self.way.broken(&with_causes(&error)))?;
        tokio::select! {
            ended = self.down(answers) => ended,
            // The client gave up: what runs is told by the end of its channel.
            () = self.up(from) => Ok(UNKNOWN),
        }
    }

    /// What the client says, until it closes the channel.
    async fn up(&self, from: &mut ChannelReadHalf) {
        while let Some(message) = from.wait().await {
            let written = match message {
                ChannelMsg::Data { data } => {
                    let bytes = data.len();
                    let written = self.out.data_bytes(data).await;
                    self.way.gate.went(self.to.id(), bytes);
                    self.passed.sent.fetch_add(bytes as u64, Ordering::Relaxed);
                    written
                }
                ChannelMsg::ExtendedData { data, .. } => {
                    self.way.gate.went(self.to.id(), data.len());
                    Ok(())
                }
                ChannelMsg::Eof => self.out.eof().await,
                ChannelMsg::Close => return,
                _ => Ok(()),
            };
            if written.is_err() {
                // The other direction says how it ended.
                return std::future::pending().await;
            }
        }
    }

    /// What the server says, until it closes the channel; how the command ended.
    async fn down(&self, mut answers: ChannelReadHalf) -> Result<u32, Denied> {
        let mut status = None;
        while let Some(message) = answers.wait().await {
            let written = match message {
                ChannelMsg::Data { data } => self.give(data, None).await,
                ChannelMsg::ExtendedData { data, ext } => self.give(data, Some(ext)).await,
                ChannelMsg::Eof => self.to.eof().await,
                ChannelMsg::ExitStatus { exit_status } => {
                    status = Some(exit_status);
                    self.to.exit_status(exit_status).await
                }
                ChannelMsg::ExitSignal { .. } => {
                    status = Some(UNKNOWN);
                    self.to.exit_status(UNKNOWN).await
                }
                ChannelMsg::Failure => {
                    let (place, shown) = (self.way.place(), self.asked.shown());
                    return Err(Denied::new(
                        Code::BadAnswer,
                        format!("{place} does not run `{shown}`: it refuses"),
                        "ask for something that the host offers",
                    )
                    .by(&self.way.connection.rule.name));
                }
                ChannelMsg::Close => break,
                _ => Ok(()),
            };
            if written.is_err() {
                // The client is gone.
                break;
            }
        }
        status.ok_or_else(|| self.way.broken("it went away before the command ended"))
    }

    async fn give(&self, data: Bytes, stream: Option<u32>) -> Result<(), russh::Error> {
        let bytes = data.len();
        let written = match stream {
            None => self.to.data_bytes(data).await,
            Some(stream) => self.to.extended_data_bytes(stream, data).await,
        };
        self.gate.went(self.out.id(), bytes);
        self.passed.received.fetch_add(bytes as u64, Ordering::Relaxed);
        written
    }
}
