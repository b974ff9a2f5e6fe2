//! Who may go where, and the way there.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dial::Dialer;
use domain::SessionId;
use jiff::Timestamp;
use lifecycle::Tasks;
use policy::{Decision, Destination};
use rustls::RootCertStore;
use secret::Source;

use crate::authority::{Authorities, AuthorityError};
use crate::intercept::{Intercept, Parts};
use crate::session::{Place, Session};
use crate::ssh::{HostKeyError, Ssh};
use crate::{AuditSender, Denied, Limits, Outcome, Record, Rules};

mod carry;
mod judge;
mod no_ssh;
mod sessions;
mod upstream;

use sessions::Sessions;

/// What the session's scope says to a destination; without a port, whether it may be reached at any.
pub type Decide = dyn Fn(SessionId, &Destination, Option<u16>) -> Decision + Send + Sync;

/// What time it is.
pub type Clock = dyn Fn() -> Timestamp + Send + Sync;

/// The machine's clock.
#[must_use]
pub fn machine_clock() -> Arc<Clock> {
    Arc::new(Timestamp::now)
}

/// What a broker stands on.
pub struct Surroundings {
    /// What the installation lets out.
    pub rules: Rules,
    /// What one session may use.
    pub limits: Limits,
    /// What the session's scope says.
    pub decide: Arc<Decide>,
    /// The way out.
    pub dialer: Dialer,
    /// What follows references to secrets.
    pub secrets: Arc<dyn Source>,
    /// Who sign for upstreams.
    pub roots: Arc<RootCertStore>,
    /// AuditReceiver of everything that was tried.
    pub audit: AuditSender,
    /// The owner of connections that are kept to upstreams.
    pub tasks: Tasks,
    /// By which certificates count.
    pub clock: Arc<Clock>,
}

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The certificate authority cannot be opened or made.
    #[error("ready the certificate authority")]
    Authority(#[from] AuthorityError),
    /// The host key that sandboxes are shown cannot be opened or made.
    #[error("ready the host key of SSH")]
    HostKey(#[from] HostKeyError),
    /// TLS cannot be set up.
    #[error("set up TLS for upstreams")]
    Tls(#[from] rustls::Error),
}

/// The broker. Clones are the same one.
#[derive(Clone)]
pub struct Broker {
    inner: Arc<Inner>,
    intercept: Intercept,
}

/// What is asked while connections are carried.
struct Inner {
    rules: Rules,
    limits: Limits,
    decide: Arc<Decide>,
    dialer: Dialer,
    secrets: Arc<dyn Source>,
    audit: AuditSender,
    clock: Arc<Clock>,
    authorities: Authorities,
    /// Where a rule speaks it.
    ssh: Option<Ssh>,
    tasks: Tasks,
    sessions: Mutex<Sessions>,
}

/// A connection that may be: host and port are allowed, and it has a place among those of its session.
pub struct Admitted {
    broker: Broker,
    id: SessionId,
    session: Arc<Session>,
    destination: Destination,
    port: u16,
    place: Place,
}

impl Broker {
    /// A broker whose certificate authority is kept in `folder`.
    ///
    /// # Errors
    /// When the authority cannot be opened or made, or TLS cannot be set up.
    pub fn new(folder: &Path, surroundings: Surroundings) -> Result<Self, BrokerError> {
        let authorities = Authorities::open(folder, (surroundings.clock)())?;
        let speaks_ssh = surroundings.rules.iter().any(|rule| rule.ssh.is_some());
        let inner = Arc::new(Inner {
            ssh: speaks_ssh.then(|| Ssh::open(folder)).transpose()?,
            tasks: surroundings.tasks.clone(),
            rules: surroundings.rules,
            limits: surroundings.limits,
            decide: surroundings.decide,
            dialer: surroundings.dialer,
            secrets: surroundings.secrets,
            audit: surroundings.audit,
            clock: surroundings.clock,
            authorities,
            sessions: Mutex::new(Sessions::new(surroundings.limits)),
        });
        let (matching, dial, server, queue) = (inner.clone(), inner.clone(), inner.clone(), inner.clone());
        let intercept = Intercept::new(Parts {
            matching: Arc::new(move |decided| matching.matching(decided)),
            dial: Arc::new(move |decided, rule| dial.clone().dial_for(decided, rule)),
            server: Arc::new(move |decided| server.server(decided)),
            secrets: inner.secrets.clone(),
            audit: Arc::new(move |record| queue.audit.tell(record)),
            roots: surroundings.roots,
            tasks: surroundings.tasks,
        })?;
        Ok(Self { inner, intercept })
    }

    /// The certificates that a sandbox is told to trust when it is claimed, as PEM.
    ///
    /// # Errors
    /// When a successor of the authority is due and cannot be made or kept.
    pub fn authorities(&self) -> Result<String, AuthorityError> {
        self.inner.authorities.trusted((self.inner.clock)())
    }

    /// The host key that a sandbox is told to trust when it is claimed, as a line for `known_hosts`; empty where no rule speaks
    /// SSH.
    #[must_use]
    pub fn known_hosts(&self) -> String {
        self.inner.ssh.as_ref().map(Ssh::known_hosts).unwrap_or_default()
    }

    /// Whether a session may know that a name exists. Nothing is resolved, and nothing leaves.
    ///
    /// # Errors
    /// With the reason why not, which was told to the audit.
    pub fn resolve(&self, session: SessionId, name: &str) -> Result<(), Denied> {
        let answer = self.inner.judge_name(session, name);
        if let Err(denied) = &answer {
            self.inner.tell_denied(session, name, 53, "dns", denied);
        }
        answer
    }

    /// Whether a rule of the installation names this host at this port, whatever any session's scope says.
    #[must_use]
    pub fn names(&self, destination: &Destination, port: u16) -> bool {
        !self.inner.rules.matching(destination, Some(port)).is_empty()
    }

    /// Whether a session may connect to a host, which is a name or an address as whoever asks wrote it. Nothing leaves before
    /// [`Admitted::carry`].
    ///
    /// # Errors
    /// With the reason why not, which was told to the audit.
    pub fn admit(&self, session: SessionId, host: &str, port: u16) -> Result<Admitted, Denied> {
        let admitted = self.try_admit(session, host, port);
        if let Err(denied) = &admitted {
            self.inner.tell_denied(session, host, port, "tcp", denied);
        }
        admitted
    }

    fn try_admit(&self, id: SessionId, host: &str, port: u16) -> Result<Admitted, Denied> {
        let destination = judge::destination(host)?;
        let session = self.inner.session(id);
        self.inner.judge(id, &session, &destination, Some(port))?;
        let place = session.enter(&destination, port)?;
        Ok(Admitted {
            broker: self.clone(),
            id,
            session,
            destination,
            port,
            place,
        })
    }

    /// Has a changed scope count for what is open: connections that it no longer allows are closed.
    pub fn recheck(&self, id: SessionId) {
        let Some(session) = self.inner.known(id) else {
            return;
        };
        session.change();
        for connection in session.connections() {
            if let Err(denied) = self
                .inner
                .judge(id, &session, &connection.destination, Some(connection.port))
            {
                tracing::debug!(session = %id, %denied, "an open connection is closed");
                connection.close.cancel();
            }
        }
    }

    /// Closes everything of a session whose sandbox is gone, and forgets it. What it used up is kept: with its next sandbox
    /// it goes on from there.
    pub fn forget(&self, id: SessionId) {
        let known = self.inner.lock().forget(id);
        for connection in known.iter().flat_map(|session| session.connections()) {
            connection.close.cancel();
        }
        self.intercept.forget(id);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, id: SessionId) -> Option<Arc<Session>> {
        self.lock().known(id)
    }

    fn session(&self, id: SessionId) -> Arc<Session> {
        self.lock().session(id)
    }

    fn tell_denied(&self, session: SessionId, host: &str, port: u16, protocol: &'static str, denied: &Denied) {
        self.audit.tell(Record {
            session,
            host: judge::shown(host),
            port,
            protocol,
            rule: denied.rule.clone(),
            request: None,
            outcome: Outcome::Denied(denied.clone()),
            sent: 0,
            received: 0,
            took: Duration::ZERO,
        });
    }
}
