//! The far end: a server that must show a key that the rule pins.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use causes::with_causes;
use lifecycle::DropGuard;
use russh::client::{self, Handle, Msg, Session};
use russh::keys::{HashAlg, PrivateKeyWithHashAlg, PublicKeyOrCertificate, decode_secret_key};
use russh::{Channel, ChannelId, Disconnect, Sig, SshId};
use tokio::io::copy_bidirectional;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::SshRule;
use super::carry::{BETWEEN, FAREWELL, WINDOW, Way};
use super::gate::{Gate, Gated, MESSAGES};
use crate::inject::resolve;
use crate::{Code, Denied};

/// From the connection to the end of the login.
const LOGIN: Duration = Duration::from_secs(30);

/// A connection to the server, logged in. Ends when dropped, whatever the server does.
pub(super) struct Server {
    handle: Handle<Outside>,
    carrying: JoinHandle<()>,
    _carried: DropGuard,
}

impl Server {
    pub(super) async fn channel(&self) -> Result<Channel<Msg>, russh::Error> {
        self.handle.channel_open_session().await
    }

    /// Says goodbye, and waits a little for the server to go.
    pub(super) async fn leave(self) {
        let last = async {
            let _ = self.handle.disconnect(Disconnect::ByApplication, "", "").await;
            let _ = self.carrying.await;
        };
        // One that does not go is left.
        let _ = timeout(FAREWELL, last).await;
    }
}

/// What the server does.
pub(super) struct Outside {
    rule: Arc<crate::Rule>,
    gate: Gate,
    /// The key that it showed, where the rule pins another.
    other: Arc<OnceLock<String>>,
}

impl client::Handler for Outside {
    type Error = russh::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        let PublicKeyOrCertificate::PublicKey { key, .. } = shown else {
            return Ok(false);
        };
        let fingerprint = key.fingerprint(HashAlg::Sha256);
        let pinned = self
            .rule
            .ssh
            .iter()
            .flat_map(|ssh| &ssh.host_keys)
            .any(|pinned| pinned.0 == fingerprint);
        if !pinned {
            // It shows its key once.
            let _ = self.other.set(format!("{} {fingerprint}", key.algorithm()));
        }
        Ok(pinned)
    }

    async fn channel_open_confirmation(
        &mut self,
        channel: ChannelId,
        _: u32,
        _: u32,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        self.gate.open(channel);
        Ok(())
    }

    async fn data(&mut self, channel: ChannelId, data: &[u8], _: &mut Session) -> Result<(), Self::Error> {
        self.gate.came(channel, data.len());
        Ok(())
    }

    async fn extended_data(
        &mut self,
        channel: ChannelId,
        _: u32,
        data: &[u8],
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        self.gate.came(channel, data.len());
        Ok(())
    }

    async fn exit_signal(
        &mut self,
        channel: ChannelId,
        _: Sig,
        _: bool,
        message: &str,
        language: &str,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        if self.gate.beside(channel, message.len() + language.len()) {
            Ok(())
        } else {
            Err(russh::Error::Disconnect)
        }
    }
}

/// Connects, checks who answers, and logs in.
pub(super) async fn connect(way: &Way, ssh: &SshRule, gate: &Gate) -> Result<Server, Denied> {
    let (name, place) = (way.connection.rule.name.as_str(), way.place());
    let secret = resolve(&*way.connection.secrets, &ssh.secret, name)?;
    let key = decode_secret_key(secret.expose(), None).map_err(|error| {
        Denied::new(
            Code::NoSecret,
            format!("{place} is not reached: the rule's key is no private key of SSH ({error})"),
            format!(
                "set {} to an Ed25519 or ECDSA key without a passphrase, as ssh-keygen writes it",
                ssh.secret
            ),
        )
        .by(name)
    })?;
    let mut stream = (way.connection.dial)().await?;
    let (mut near, far) = tokio::io::duplex(BETWEEN);
    let tasks = way.connection.tasks.child();
    let carried = tasks.stop().drop_guard();
    let carrying = tasks.spawn_until_stopped(async move {
        // One end is gone. That is how connections end.
        let _ = copy_bidirectional(&mut stream, &mut near).await;
    });
    let other = Arc::new(OnceLock::new());
    let handler = Outside {
        rule: Arc::clone(&way.connection.rule),
        gate: gate.clone(),
        other: Arc::clone(&other),
    };
    let login = async {
        let mut handle = client::connect_stream(configuration(), Gated::new(far, gate.clone()), handler).await?;
        let key = PrivateKeyWithHashAlg::new(Arc::new(key), Some(HashAlg::Sha512));
        let answer = handle.authenticate_publickey(&ssh.user, key).await?;
        Ok::<_, russh::Error>((handle, answer.success()))
    };
    let answer = timeout(LOGIN, login).await;
    if let Some(shown) = other.get() {
        return Err(untrusted(&place, shown).by(name));
    }
    match answer {
        Ok(Ok((handle, true))) => Ok(Server {
            handle,
            carrying,
            _carried: carried,
        }),
        Ok(Ok((_, false))) => Err(Denied::new(
            Code::NoSecret,
            format!("{place} does not let `{}` in with the rule's key", ssh.user),
            format!(
                "ask whoever runs this installation to give that host the public key of {}",
                ssh.secret
            ),
        )
        .by(name)),
        Ok(Err(error)) => Err(Denied::new(
            Code::Unreachable,
            format!("{place} is not reached: SSH with it failed: {}", with_causes(&error)),
            "try again later; it must speak SSH 2 and have an Ed25519 or ECDSA host key",
        )
        .by(name)),
        Err(_) => Err(Denied::new(
            Code::TooSlow,
            format!("{place} did not let anybody in within {} s", LOGIN.as_secs()),
            "try again later",
        )
        .by(name)),
    }
}

fn untrusted(place: &str, shown: &str) -> Denied {
    Denied::new(
        Code::Untrusted,
        format!("{place} is not who it should be: it shows the host key {shown}, which the rule does not pin"),
        "if the host was set up anew, ask whoever runs this installation to check its key and to write it into the rule's `host_keys`",
    )
}

fn configuration() -> Arc<client::Config> {
    Arc::new(client::Config {
        client_id: SshId::Standard("SSH-2.0-Belljar".into()),
        channel_buffer_size: MESSAGES,
        window_size: WINDOW,
        ..client::Config::default()
    })
}
