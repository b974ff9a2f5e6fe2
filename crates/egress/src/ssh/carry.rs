//! A connection that speaks SSH, from its first byte to its last.

use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::SessionId;
use lifecycle::Tasks;
use policy::Destination;
use russh::keys::PrivateKey;
use russh::server::{self, run_stream};
use russh::{MethodKind, MethodSet, SshId};
use secret::Source;
use tokio::io::{DuplexStream, copy_bidirectional};
use tokio::time::{sleep, timeout};

use super::gate::{Gate, Gated, MESSAGES, ROOM};
use super::inside::Inside;
use super::{HostKeyError, own_key};
use crate::intercept::{Pending, Stream};
use crate::{Code, Denied, Outcome, Record, Request, Rule};

/// Bytes between the connection and the library.
pub(super) const BETWEEN: usize = 64 << 10;
/// How long last words may take.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);

/// Opens a connection to the host of a rule.
pub(crate) type Connect = Arc<dyn Fn() -> Pending<Result<Box<dyn Stream>, Denied>> + Send + Sync>;

/// The broker's part in SSH: who it is towards sandboxes.
pub(crate) struct Ssh {
    /// For `known_hosts`.
    shown: String,
    inside: Arc<server::Config>,
}

/// What a connection's commands share.
pub(super) struct Way {
    /// Its tasks end with it.
    pub(super) connection: Connection,
    /// What is held of what the client says.
    pub(super) gate: Gate,
    /// A client was let in, so it speaks SSH.
    pub(super) speaks: AtomicBool,
}

/// A connection to carry.
pub(crate) struct Connection {
    pub(crate) rule: Arc<Rule>,
    pub(crate) session: SessionId,
    pub(crate) host: Destination,
    pub(crate) port: u16,
    pub(crate) secrets: Arc<dyn Source>,
    pub(crate) dial: Connect,
    pub(crate) audit: Arc<dyn Fn(Record) + Send + Sync>,
    pub(crate) tasks: Tasks,
    /// Whoever connects logs in within this.
    pub(crate) opening: Duration,
}

/// Stops what runs beside a connection when that is dropped.
struct Beside(Tasks);

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.stop().cancel();
    }
}

impl Ssh {
    /// With the host key in a folder, which is there already.
    pub(crate) fn open(folder: &Path) -> Result<Self, HostKeyError> {
        let key = own_key::open(folder)?;
        let shown = own_key::shown(&key, folder)?;
        Ok(Self {
            shown: format!("* {shown}\n"),
            inside: configuration(key),
        })
    }

    /// A line for `known_hosts`: every host of a sandbox shows this key.
    pub(crate) fn known_hosts(&self) -> String {
        self.shown.clone()
    }

    /// Carries a connection until either end closes it.
    ///
    /// # Errors
    /// When what was said is no SSH, nobody logs in in time, or the session's bytes are used up. What was
    /// refused of commands was audited already.
    pub(crate) async fn carry(&self, mut connection: Connection, mut client: impl Stream) -> Result<(), Denied> {
        let beside = Beside(connection.tasks.child());
        connection.tasks = beside.0.clone();
        let way = Arc::new(Way {
            connection,
            gate: Gate::default(),
            speaks: AtomicBool::new(false),
        });
        let (mut near, far) = tokio::io::duplex(BETWEEN);
        let serve = serve(Arc::clone(&self.inside), far, Arc::clone(&way));
        let copy = copy_bidirectional(&mut client, &mut near);
        tokio::pin!(serve, copy);
        let late = async {
            sleep(way.connection.opening).await;
            if way.speaks.load(Ordering::Relaxed) {
                pending::<()>().await;
            }
        };
        tokio::select! {
            () = late => Err(not_in(&way)),
            copied = &mut copy => match copied {
                Err(error) => match error.into_inner().and_then(|error| error.downcast::<Denied>().ok()) {
                    Some(denied) => Err(*denied),
                    None => Ok(()),
                },
                Ok(_) => Ok(()),
            },
            served = &mut serve => {
                let _ = timeout(FAREWELL, copy).await;
                match served {
                    Err(error) if !way.speaks.load(Ordering::Relaxed) => Err(no_ssh(&way, &error)),
                    // However a client leaves.
                    _ => Ok(()),
                }
            }
        }
    }
}

async fn serve(inside: Arc<server::Config>, far: DuplexStream, way: Arc<Way>) -> Result<(), russh::Error> {
    let stream = Gated::client(far, way.gate.clone());
    run_stream(inside, stream, Inside::new(way)).await?.await
}

fn no_ssh(way: &Way, error: &russh::Error) -> Denied {
    Denied::new(
        Code::Protocol,
        format!("what was sent to {} is no SSH that can be spoken: {error}", way.place()),
        "use an SSH client of this decade; the broker's host key is Ed25519",
    )
    .by(&way.connection.rule.name)
}

fn not_in(way: &Way) -> Denied {
    Denied::new(
        Code::NothingSaid,
        format!("nobody logged in over SSH on {} in time", way.place()),
        "use an SSH client; it is let in without a key or a password",
    )
    .by(&way.connection.rule.name)
}

fn configuration(key: PrivateKey) -> Arc<server::Config> {
    Arc::new(server::Config {
        server_id: SshId::Standard("SSH-2.0-Belljar".into()),
        // Who it is says the link.
        methods: MethodSet::from(&[MethodKind::None][..]),
        keys: vec![key],
        channel_buffer_size: MESSAGES,
        window_size: ROOM,
        // The broker's own clock ends what is idle.
        inactivity_timeout: None,
        ..server::Config::default()
    })
}

impl Way {
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.connection.host, self.connection.port)
    }

    pub(super) fn broken(&self, why: &str) -> Denied {
        Denied::new(
            Code::Unreachable,
            format!("the connection to {} broke: {why}", self.place()),
            "try again",
        )
        .by(&self.connection.rule.name)
    }

    /// Tells the audit of one command: what, how it ended, bytes that left and came, and how long it took.
    pub(super) fn tell(&self, request: Request, denied: Option<Denied>, bytes: (u64, u64), took: Duration) {
        (self.connection.audit)(Record {
            session: self.connection.session,
            host: self.connection.host.to_string(),
            port: self.connection.port,
            protocol: "ssh",
            rule: Some(self.connection.rule.name.clone()),
            request: Some(request),
            outcome: denied.map_or(Outcome::Allowed, Outcome::Denied),
            sent: bytes.0,
            received: bytes.1,
            took,
        });
    }
}

/// A command, as the audit is told of it.
pub(super) fn request(shown: String, status: u32, injected: bool) -> Request {
    Request {
        method: "exec".to_owned(),
        path: shown,
        status: u16::try_from(status).unwrap_or(u16::MAX),
        injected,
    }
}
