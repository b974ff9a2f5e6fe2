//! One command, from the request to its exit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use causes::with_causes;
use lifecycle::Stop;
use russh::server::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, client};

use super::carry::{Way, request};
use super::gate::Gate;
use super::inside::{STDERR, words};
use super::outside::Server;
use super::{Asked, outside};
use crate::{Code, Denied};

/// How a command ends of which the server did not say how.
const UNKNOWN: u32 = 255;

/// A command that runs, or is about to. The audit is told of it when it is dropped, whatever ends it.
pub(super) struct Running {
    way: Arc<Way>,
    asked: Asked,
    began: Instant,
    passed: Passed,
    /// How it ended, unless it was cut off.
    ended: Option<Result<u32, Denied>>,
}

/// What a command took and gave.
#[derive(Default)]
struct Passed {
    /// The server has a channel for it, by the rule's key.
    let_in: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Drop for Running {
    fn drop(&mut self) {
        let (status, denied) = match self.ended.take() {
            Some(Ok(status)) => (status, None),
            Some(Err(denied)) => (UNKNOWN, Some(denied)),
            None => (UNKNOWN, None),
        };
        let Passed { let_in, sent, received } = &self.passed;
        let request = request(self.asked.shown(), status, let_in.load(Ordering::Relaxed));
        let bytes = (sent.load(Ordering::Relaxed), received.load(Ordering::Relaxed));
        self.way.tell(request, denied, bytes, self.began.elapsed());
    }
}

impl Running {
    pub(super) fn new(way: Arc<Way>, asked: Asked) -> Self {
        Self {
            way,
            asked,
            began: Instant::now(),
            passed: Passed::default(),
            ended: None,
        }
    }

    /// Runs it outside for whoever asked inside, until it ends or they close the channel, which is `over`.
    pub(super) async fn carry(mut self, channel: Channel<Msg>, over: Stop) {
        let id = channel.id();
        // Whoever keeps it sees that nothing is left to end.
        let _ended = over.clone().drop_guard();
        let (mut from, to) = channel.split();
        let mut server = None;
        let running = over.run_until_cancelled(self.run(&mut from, &to, &mut server));
        let ended = running.await.unwrap_or(Ok(UNKNOWN));
        // Nobody wants what is left of it.
        drop(from);
        if let Err(denied) = &ended {
            let last = async {
                // Whoever does not listen will see the channel close.
                let _ = to.extended_data_bytes(STDERR, words(denied)).await;
                let _ = to.exit_status(UNKNOWN).await;
            };
            over.run_until_cancelled(last).await;
        }
        self.ended = Some(ended);
        let _ = to.eof().await;
        let _ = to.close().await;
        if let Some(server) = server {
            server.leave().await;
        }
        self.way.gate.close(id);
    }

    async fn run(
        &self,
        from: &mut ChannelReadHalf,
        to: &ChannelWriteHalf<Msg>,
        server: &mut Option<Server>,
    ) -> Result<u32, Denied> {
        let way = &*self.way;
        let Some(ssh) = &way.connection.rule.ssh else {
            return Err(way.broken("the rule says nothing of SSH"));
        };
        // A connection of its own: on a shared one, a command that nobody reads would hold up the room that others are given,
        // and these the room that it waits for.
        let gate = Gate::default();
        let server = server.insert(outside::connect(way, ssh, &gate).await?);
        let channel = server.channel().await;
        let (answers, out) = channel.map_err(|error| way.broken(&with_causes(&error)))?.split();
        self.passed.let_in.store(true, Ordering::Relaxed);
        let both = Both {
            way,
            asked: &self.asked,
            passed: &self.passed,
            to,
            out,
            gate,
        };
        both.carry(from, answers).await
    }
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
