//! The near end: a server for programs of the sandbox, which runs commands and nothing else.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lifecycle::Stop;
use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, Session};
use russh::{Channel, ChannelId, ChannelOpenFailure, Pty, Sig};

use super::Asked;
use super::carry::{Way, request};
use super::exec::Running;
use super::gate::BESIDE;
use crate::{Code, Denied};

/// Channels of one connection that are open at once.
const CHANNELS: usize = 10;
/// How a command ends that did not run.
const REFUSED: u32 = 255;
/// Where a channel's errors go (RFC 4254, section 5.2).
pub(super) const STDERR: u32 = 1;

/// What a client does.
pub(super) struct Inside {
    way: Arc<Way>,
    /// Channels in which nothing runs yet.
    waiting: HashMap<ChannelId, Channel<Msg>>,
    /// What ends a command that runs.
    running: HashMap<ChannelId, Stop>,
}

impl Inside {
    pub(super) fn new(way: Arc<Way>) -> Self {
        Self {
            way,
            waiting: HashMap::new(),
            running: HashMap::new(),
        }
    }

    fn run(&mut self, id: ChannelId, asked: Asked, session: &mut Session) -> Result<(), russh::Error> {
        let Some(channel) = self.waiting.remove(&id) else {
            // Something runs there already.
            return self.decline(id, asked.bytes().len(), session);
        };
        let way = &self.way;
        let allowed = way.connection.rule.ssh.as_ref().is_some_and(|ssh| ssh.allows(&asked));
        if !allowed {
            return self.refuse(id, &asked.shown(), &not_in_rule(way, &asked), session);
        }
        session.channel_success(id)?;
        let over = Stop::new();
        self.running.retain(|_, over| !over.is_cancelled());
        self.running.insert(id, over.clone());
        let running = Running::new(Arc::clone(way), asked);
        way.connection.tasks.spawn_until_stopped(running.carry(channel, over));
        Ok(())
    }

    /// Counts what a client says beside data and commands. Nobody reads it, but the library has put it into a queue.
    fn count(&self, id: ChannelId, bytes: usize) -> Result<(), russh::Error> {
        if self.way.gate.beside(id, bytes) {
            return Ok(());
        }
        let denied = Denied::new(
            Code::TooLarge,
            format!(
                "what a client asked {} for beside commands is more than {} KiB in one channel",
                self.way.place(),
                BESIDE >> 10
            ),
            "leave out what does not pass anyway: environment, terminals, displays, signals",
        )
        .by(&self.way.connection.rule.name);
        self.tell("requests", &denied);
        Err(russh::Error::Disconnect)
    }

    fn decline(&self, id: ChannelId, bytes: usize, session: &mut Session) -> Result<(), russh::Error> {
        self.count(id, bytes)?;
        session.channel_failure(id)
    }

    fn tell(&self, shown: &str, denied: &Denied) {
        let request = request(shown.to_owned(), REFUSED, false);
        self.way.tell(request, Some(denied.clone()), (0, 0), Duration::ZERO);
    }

    /// Says why nothing runs, where the client's own user reads it.
    fn refuse(
        &mut self,
        id: ChannelId,
        shown: &str,
        denied: &Denied,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.waiting.remove(&id);
        self.way.gate.close(id);
        self.tell(shown, denied);
        session.channel_success(id)?;
        session.extended_data(id, STDERR, words(denied))?;
        session.exit_status_request(id, REFUSED)?;
        session.eof(id)?;
        session.close(id)
    }
}

pub(super) fn words(denied: &Denied) -> Vec<u8> {
    format!("belljar: {denied}\r\n").into_bytes()
}

fn not_in_rule(way: &Way, asked: &Asked) -> Denied {
    let (place, shown, rule) = (way.place(), asked.shown(), &way.connection.rule.name);
    let key = match asked {
        Asked::Command(_) => "commands",
        Asked::Subsystem(_) => "subsystems",
    };
    Denied::new(
        Code::NotInRule,
        format!("`{shown}` does not run on {place}: the rule {rule} does not allow it"),
        format!("ask whoever runs this installation to add it to the rule's `{key}`; a command is plain words there, without `;`, `|`, `$` and the like"),
    )
    .by(rule)
}

impl Handler for Inside {
    type Error = russh::Error;

    async fn auth_none(&mut self, _: &str) -> Result<Auth, Self::Error> {
        self.way.speaks.store(true, Ordering::Relaxed);
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        if self.way.gate.channels() >= CHANNELS {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        self.way.gate.open(channel.id());
        self.waiting.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn data(&mut self, channel: ChannelId, data: &[u8], _: &mut Session) -> Result<(), Self::Error> {
        self.way.gate.came(channel, data.len());
        Ok(())
    }

    async fn extended_data(
        &mut self,
        channel: ChannelId,
        _: u32,
        data: &[u8],
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        self.way.gate.came(channel, data.len());
        Ok(())
    }

    fn adjust_window(&mut self, _: ChannelId, _: u32) -> u32 {
        self.way.gate.room()
    }

    async fn channel_close(&mut self, channel: ChannelId, _: &mut Session) -> Result<(), Self::Error> {
        if self.waiting.remove(&channel).is_some() {
            self.way.gate.close(channel);
        }
        // What runs counts until it has ended.
        if let Some(over) = self.running.remove(&channel) {
            over.cancel();
        }
        Ok(())
    }

    async fn channel_eof(&mut self, channel: ChannelId, _: &mut Session) -> Result<(), Self::Error> {
        self.count(channel, 0)
    }

    async fn exec_request(&mut self, id: ChannelId, command: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        self.run(id, Asked::Command(command.to_vec()), session)
    }

    async fn subsystem_request(&mut self, id: ChannelId, name: &str, session: &mut Session) -> Result<(), Self::Error> {
        self.run(id, Asked::Subsystem(name.to_owned()), session)
    }

    async fn shell_request(&mut self, id: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        if !self.waiting.contains_key(&id) {
            return self.decline(id, 0, session);
        }
        let denied = Denied::new(
            Code::NotInRule,
            format!("{} gives no shell: only single commands run there", self.way.place()),
            "write the command behind the host, as in `ssh HOST COMMAND`",
        )
        .by(&self.way.connection.rule.name);
        self.refuse(id, "shell", &denied, session)
    }

    async fn pty_request(
        &mut self,
        id: ChannelId,
        kind: &str,
        _: u32,
        _: u32,
        _: u32,
        _: u32,
        _: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.decline(id, kind.len(), session)
    }

    async fn x11_request(
        &mut self,
        id: ChannelId,
        _: bool,
        protocol: &str,
        cookie: &str,
        _: u32,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.decline(id, protocol.len() + cookie.len(), session)
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.decline(id, name.len() + value.len(), session)
    }

    async fn agent_request(&mut self, id: ChannelId, _: &mut Session) -> Result<bool, Self::Error> {
        self.count(id, 0)?;
        Ok(false)
    }

    async fn window_change_request(
        &mut self,
        id: ChannelId,
        _: u32,
        _: u32,
        _: u32,
        _: u32,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        self.count(id, 0)
    }

    async fn signal(&mut self, id: ChannelId, signal: Sig, _: &mut Session) -> Result<(), Self::Error> {
        let bytes = if let Sig::Custom(name) = signal { name.len() } else { 0 };
        self.count(id, bytes)
    }
}
