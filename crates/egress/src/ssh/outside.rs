//! The far end: a server that must show a key that the rule pins.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use causes::with_causes;
use lifecycle::DropGuard;
use russh::client::{self, Handle, Msg, Session};
use russh::keys::ssh_key::public::RsaPublicKey;
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PrivateKeyWithHashAlg, PublicKeyOrCertificate, decode_secret_key};
use russh::{Channel, ChannelId, Disconnect, Preferred, Sig, SshId};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, sink, split};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::SshRule;
use super::carry::{BETWEEN, FAREWELL, Way};
use super::gate::{Gate, Gated, MESSAGES};
use crate::inject::resolve;
use crate::{Code, Denied};

/// Bytes of a channel that may be under way.
const WINDOW: u32 = 1 << 20;
/// How a host may show who it is, the preferred first: RSA never by SHA-1.
const HOST_KEYS: &[Algorithm] = &[
    Algorithm::Ed25519,
    Algorithm::Ecdsa {
        curve: EcdsaCurve::NistP256,
    },
    Algorithm::Ecdsa {
        curve: EcdsaCurve::NistP384,
    },
    Algorithm::Ecdsa {
        curve: EcdsaCurve::NistP521,
    },
    Algorithm::Rsa {
        hash: Some(HashAlg::Sha512),
    },
    Algorithm::Rsa {
        hash: Some(HashAlg::Sha256),
    },
];
/// Bits that a host's key of RSA has at least.
const LEAST_BITS: u32 = 2048;
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
    place: String,
    /// Why the key that it showed is not accepted.
    refused: Arc<OnceLock<Denied>>,
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
        let bits = key.key_data().rsa().map(RsaPublicKey::key_size);
        let refused = match bits {
            _ if !pinned => other_key(&self.place, &format!("{} {fingerprint}", key.algorithm())),
            Some(bits) if bits < LEAST_BITS => short_key(&self.place, bits),
            _ => return Ok(true),
        };
        // It shows its key once.
        let _ = self.refused.set(refused);
        Ok(false)
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
    let unusable = |why: String| {
        Denied::new(
            Code::NoSecret,
            format!("{place} is not reached: {why}"),
            format!(
                "set {} to an Ed25519 or ECDSA key without a passphrase, as ssh-keygen writes it",
                ssh.secret
            ),
        )
        .by(name)
    };
    let key = decode_secret_key(secret.expose(), None)
        .map_err(|error| unusable(format!("the rule's key is no private key of SSH ({error})")))?;
    if key.algorithm().is_rsa() {
        // The library's signatures with RSA take a time that tells of the key.
        return Err(unusable(
            "the rule's key is one of RSA, with which nobody logs in".to_owned(),
        ));
    }
    let stream = (way.connection.dial)().await?;
    let (near, far) = tokio::io::duplex(BETWEEN);
    let tasks = way.connection.tasks.child();
    let carried = tasks.stop().drop_guard();
    let carrying = tasks.spawn_until_stopped(hear_out(stream, near));
    let refused = Arc::new(OnceLock::new());
    let handler = Outside {
        rule: Arc::clone(&way.connection.rule),
        gate: gate.clone(),
        place: place.clone(),
        refused: Arc::clone(&refused),
    };
    let login = async {
        let mut handle = client::connect_stream(configuration(), Gated::server(far, gate.clone()), handler).await?;
        // The library takes any signature that is good, also one that was not agreed on.
        let proof = handle.agent_session_binding();
        if proof.is_some_and(|proof| is_by_sha1(proof.signature())) {
            let _ = refused.set(old_signature(&place));
            return Err(russh::Error::WrongServerSig);
        }
        let key = PrivateKeyWithHashAlg::new(Arc::new(key), Some(HashAlg::Sha512));
        let answer = handle.authenticate_publickey(&ssh.user, key).await?;
        Ok::<_, russh::Error>((handle, answer.success()))
    };
    let answer = timeout(LOGIN, login).await;
    if let Some(refused) = refused.get() {
        return Err(refused.clone().by(name));
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
            "try again later; it must speak SSH 2 and have a host key of Ed25519, ECDSA or RSA, the last not by SHA-1",
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

/// Carries bytes between the server and the library until the server has said its last. One that takes no more may not be done
/// yet: what ended a command comes at the end.
async fn hear_out(server: impl AsyncRead + AsyncWrite, library: impl AsyncRead + AsyncWrite) {
    let ((mut from_server, mut to_server), (mut from_library, mut to_library)) = (split(server), split(library));
    let up = async {
        if copy(&mut from_library, &mut to_server).await.is_err() {
            let _ = copy(&mut from_library, &mut sink()).await;
        }
        let _ = to_server.shutdown().await;
    };
    let down = async {
        // However it ends.
        let _ = copy(&mut from_server, &mut to_library).await;
        let _ = to_library.shutdown().await;
    };
    tokio::join!(up, down);
}

fn other_key(place: &str, shown: &str) -> Denied {
    Denied::new(
        Code::Untrusted,
        format!("{place} is not who it should be: it shows the host key {shown}, which the rule does not pin"),
        "if the host was set up anew, ask whoever runs this installation to check its key and to write it into the rule's `host_keys`",
    )
}

fn short_key(place: &str, bits: u32) -> Denied {
    Denied::new(
        Code::Untrusted,
        format!(
            "{place} cannot show who it is: its RSA host key has {bits} bits, and somebody could have found it out"
        ),
        format!("ask whoever runs that host for a key of Ed25519, or one of RSA with {LEAST_BITS} bits or more"),
    )
}

fn old_signature(place: &str) -> Denied {
    Denied::new(
        Code::Untrusted,
        format!("{place} cannot show who it is: it signs with RSA by SHA-1 (ssh-rsa), which can be forged"),
        "ask whoever runs that host to have it sign by SHA-2 (rsa-sha2-256, rsa-sha2-512), or for a host key of Ed25519",
    )
}

/// Whether a signature, as SSH writes it, is one of RSA by SHA-1.
fn is_by_sha1(signature: &[u8]) -> bool {
    let name = signature.split_first_chunk::<4>().and_then(|(length, rest)| {
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        rest.get(..length)
    });
    name == Some(b"ssh-rsa")
}

fn configuration() -> Arc<client::Config> {
    Arc::new(client::Config {
        preferred: Preferred {
            key: Cow::Borrowed(HOST_KEYS),
            ..Preferred::DEFAULT
        },
        client_id: SshId::Standard("SSH-2.0-Belljar".into()),
        channel_buffer_size: MESSAGES,
        window_size: WINDOW,
        ..client::Config::default()
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_signature_by_sha1_is_told_from_others() {
        let signature = |name: &str| {
            let mut bytes = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
            bytes.extend(name.bytes());
            bytes.extend([0, 0, 0, 1, 7]);
            bytes
        };
        assert!(is_by_sha1(&signature("ssh-rsa")));
        for name in [
            "rsa-sha2-256",
            "rsa-sha2-512",
            "ssh-ed25519",
            "ssh-rsa-cert-v01@openssh.com",
        ] {
            assert!(!is_by_sha1(&signature(name)), "{name}");
        }
        assert!(!is_by_sha1(b"") && !is_by_sha1(&[0, 0, 1, 0, 7]));
    }

    #[tokio::test]
    async fn a_server_that_takes_no_more_is_heard_out() {
        // It all waits on this side when the server breaks off.
        const SAID: usize = 60_000;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let (mut library, near) = duplex(BETWEEN);
        let tasks = lifecycle::Tasks::new();
        let carrying = tasks.spawn(hear_out(stream, near));
        let exchange = async {
            library.write_all(b"asked").await.unwrap();
            server.write_all(&[7; SAID]).await.unwrap();
            server.peek(&mut [0; 5]).await.unwrap();
            // With what was asked unread, it breaks off.
            drop(server);
            library.write_all(&[0; 4 << 20]).await.unwrap();
            let mut heard = Vec::new();
            library.read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard.len(), SAID);
            drop(library);
            carrying.await.unwrap();
        };
        testkit::within("all of it", exchange).await;
    }
}
