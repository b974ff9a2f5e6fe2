//! SSH through the broker with clients and servers that no honest program is: what they cost is bounded, and what they do is told.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use domain::SessionId;
use egress::{Outcome, Record};
use russh::client::{self, Handle};
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{HashAlg, PrivateKey, PublicKeyOrCertificate};
use russh::server::{self, Auth, ChannelOpenHandle, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelMsg, ChannelOpenFailure, Disconnect, Sig};
use secret::Secret;
use tokio::io::{copy, sink};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::rig::{Setting, World};

const HOST: &str = "forge.test";
/// What is sent at once: much, and still one packet.
const LONG: usize = 200_000;
/// How often something is sent that must not be sent often.
const OFTEN: usize = 100;

/// What a server does when it is asked to run a command.
#[derive(Clone, Copy)]
enum Manner {
    /// It says that it runs, and no more.
    Runs,
    /// It closes the channel without a status.
    Closes,
    /// It tells at length, and often, of a signal.
    Signals,
}

struct Server(Manner);

impl server::Handler for Server {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _: &str, _: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        _: Channel<server::Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(&mut self, id: ChannelId, _: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        session.channel_success(id)?;
        match self.0 {
            Manner::Runs => session.data(id, "runs"),
            Manner::Closes => session.close(id),
            Manner::Signals => {
                let text = "x".repeat(LONG);
                (0..OFTEN).try_for_each(|_| session.exit_signal_request(id, Sig::TERM, false, &text, ""))
            }
        }
    }
}

struct Client;

impl client::Handler for Client {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        Ok(true)
    }
}

/// A broker that leads to a server.
struct Forge {
    world: World,
    port: u16,
}

impl Forge {
    /// None: a server that says nothing at all.
    async fn new(manner: Option<Manner>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let key = PrivateKey::from(Ed25519Keypair::from_seed(&[7; 32]));
        let private = key.to_openssh(LineEnding::LF).unwrap().to_string();
        let pin = key.public_key().fingerprint(HashAlg::Sha256);
        let world = World::with(
            &format!(
                "[forge]\nhosts = [\"{HOST}:{port}\"]\nschemes = [\"ssh\"]\nnetworks = [\"127.0.0.0/8\"]\n\
                 ssh = {{ user = \"git\", secret = \"env:DEPLOY\", host_keys = [\"{pin}\"] }}\n"
            ),
            Setting {
                secrets: BTreeMap::from([("env:DEPLOY".parse().unwrap(), Secret::new(private))]),
                ..Setting::default()
            },
        );
        world.names.lead(HOST, "127.0.0.1");
        let config = Arc::new(server::Config {
            keys: vec![key],
            ..server::Config::default()
        });
        let tasks = world.tasks.clone();
        world.tasks.spawn_until_stopped(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let config = Arc::clone(&config);
                tasks.spawn_until_stopped(async move {
                    // However the broker leaves.
                    if let Some(manner) = manner {
                        if let Ok(running) = server::run_stream(config, stream, Server(manner)).await {
                            let _ = running.await;
                        }
                    } else {
                        let _ = copy(&mut stream, &mut sink()).await;
                    }
                });
            }
        });
        Self { world, port }
    }

    async fn client(&self) -> Handle<Client> {
        let tunnel = self.world.tunnel(SessionId::new(), HOST, self.port).unwrap();
        let config = Arc::new(client::Config::default());
        let connecting = client::connect_stream(config, tunnel, Client);
        let mut client = testkit::within("the connection", connecting).await.unwrap();
        let let_in = testkit::within("the login", client.authenticate_none("anybody")).await;
        assert!(let_in.unwrap().success());
        client
    }

    /// The next command that the audit is told of: its text, its status, whether it got to the server, and how it ended.
    async fn told(&self) -> (String, u16, bool, Result<(), &'static str>) {
        let Record { request, outcome, .. } = self.world.told().await;
        let request = request.unwrap();
        let ended = match outcome {
            Outcome::Allowed => Ok(()),
            Outcome::Denied(denied) => Err(denied.code.as_str()),
        };
        (request.path, request.status, request.injected, ended)
    }
}

async fn open(client: &Handle<Client>) -> Result<Channel<client::Msg>, russh::Error> {
    testkit::within("an answer", client.channel_open_session()).await
}

/// Asks for a command and waits until the server runs it.
async fn run(client: &Handle<Client>, command: &str) -> Channel<client::Msg> {
    let mut channel = open(client).await.unwrap();
    channel.exec(true, command).await.unwrap();
    let runs = async {
        while let Some(message) = channel.wait().await {
            if let ChannelMsg::Data { .. } = message {
                return;
            }
        }
        panic!("{command} does not run");
    };
    testkit::within("the command", runs).await;
    channel
}

#[tokio::test]
async fn threat_017_what_a_client_asks_for_beside_commands_is_bounded() {
    let forge = Forge::new(Some(Manner::Runs)).await;
    for kind in ["env", "display", "signal", "terminal", "window", "end", "command"] {
        let client = forge.client().await;
        let channel = match kind {
            "command" => run(&client, "first").await,
            _ => open(&client).await.unwrap(),
        };
        let sending = async {
            for _ in 0..OFTEN {
                let long = "x".repeat(LONG);
                let sent = match kind {
                    "env" => channel.set_env(false, "NAME", long).await,
                    "display" => channel.request_x11(false, false, "", long, 0).await,
                    "signal" => channel.signal(Sig::Custom(long)).await,
                    "terminal" => channel.request_pty(false, &long, 80, 24, 0, 0, &[]).await,
                    "window" => channel.window_change(80, 24, 0, 0).await,
                    "end" => channel.eof().await,
                    _ => channel.exec(false, long).await,
                };
                if sent.is_err() {
                    break;
                }
            }
        };
        testkit::within(&format!("all of {kind} is sent"), sending).await;
        // However it ends.
        let _ = testkit::within(&format!("the end after {kind}"), client).await;
        let mut told = vec![forge.told().await];
        if kind == "command" {
            told.push(forge.told().await);
        }
        let refused = ("requests".to_owned(), 255, false, Err("too_large"));
        assert!(told.contains(&refused), "{kind}: {told:?}");
    }
}

#[tokio::test]
async fn threat_017_what_a_client_says_is_held_up() {
    const TRIED: usize = 64 << 20;
    let forge = Forge::new(None).await;
    let client = forge.client().await;
    let channel = open(&client).await.unwrap();
    // It never gets to the server, which says nothing.
    channel.exec(false, "run").await.unwrap();
    let mut taken = 0;
    while taken < TRIED {
        let mut sending = pin!(channel.data_bytes(vec![0; 1 << 15]));
        if taken < 1 << 20 {
            // So much is taken, however long that takes.
            testkit::within("the first of it", &mut sending).await.unwrap();
        } else if let Ok(sent) = timeout(Duration::from_millis(500), &mut sending).await {
            sent.unwrap();
        } else {
            break;
        }
        taken += 1 << 15;
    }
    assert!((1 << 20..3 << 20).contains(&taken), "{taken}");
}

#[tokio::test]
async fn what_honest_clients_ask_for_beside_a_command_does_not_harm() {
    let forge = Forge::new(Some(Manner::Runs)).await;
    let client = forge.client().await;
    for _ in 0..5 {
        let mut channel = open(&client).await.unwrap();
        for number in 0..20 {
            let name = format!("LC_{number}");
            channel.set_env(false, name, "x".repeat(200)).await.unwrap();
        }
        channel.exec(true, "run").await.unwrap();
        let heard = async { while !matches!(channel.wait().await, Some(ChannelMsg::Data { .. })) {} };
        testkit::within("the command", heard).await;
    }
}

#[tokio::test]
async fn threat_017_what_a_server_tells_of_signals_is_bounded() {
    let forge = Forge::new(Some(Manner::Signals)).await;
    let client = forge.client().await;
    let channel = open(&client).await.unwrap();
    channel.exec(false, "run").await.unwrap();
    // The server closes nothing: the broker left it.
    assert_eq!(forge.told().await, ("run".to_owned(), 255, true, Ok(())));
}

#[tokio::test]
async fn threat_017_a_command_ends_with_its_channel_and_counts_until_then() {
    let forge = Forge::new(None).await;
    let client = forge.client().await;
    for _ in 0..12 {
        let channel = open(&client).await.unwrap();
        channel.exec(false, "run").await.unwrap();
        channel.data_bytes(vec![0; LONG]).await.unwrap();
        channel.close().await.unwrap();
        // The server never says a word, so nothing was sent to it.
        assert_eq!(forge.told().await, ("run".to_owned(), 255, false, Ok(())));
    }
    let mut channels = Vec::new();
    for _ in 0..10 {
        let channel = open(&client).await.unwrap();
        channel.exec(false, "run").await.unwrap();
        channel.request_shell(false).await.unwrap();
        channels.push(channel);
    }
    let refused = open(&client).await.map(drop);
    assert!(
        matches!(
            refused,
            Err(russh::Error::ChannelOpenFailure(ChannelOpenFailure::ResourceShortage))
        ),
        "{refused:?}"
    );
}

#[tokio::test]
async fn threat_015_a_command_is_told_of_however_its_client_leaves() {
    let forge = Forge::new(Some(Manner::Runs)).await;
    let client = forge.client().await;
    let _channel = run(&client, "leave").await;
    client.disconnect(Disconnect::ByApplication, "", "").await.unwrap();
    assert_eq!(forge.told().await, ("leave".to_owned(), 255, true, Ok(())));

    let client = forge.client().await;
    run(&client, "close").await.close().await.unwrap();
    assert_eq!(forge.told().await, ("close".to_owned(), 255, true, Ok(())));

    // Cut off in the middle: it waits for a server that says nothing.
    let forge = Forge::new(None).await;
    let client = forge.client().await;
    open(&client).await.unwrap().exec(false, "wait").await.unwrap();
    client.disconnect(Disconnect::ByApplication, "", "").await.unwrap();
    assert_eq!(forge.told().await, ("wait".to_owned(), 255, false, Ok(())));
}

#[tokio::test]
async fn threat_015_a_command_whose_end_nobody_says_is_told_as_one_that_left() {
    let forge = Forge::new(Some(Manner::Closes)).await;
    let client = forge.client().await;
    let channel = open(&client).await.unwrap();
    channel.exec(false, "run").await.unwrap();
    assert_eq!(forge.told().await, ("run".to_owned(), 255, true, Err("unreachable")));
}
