//! What is outside: the real broker, and behind it servers of the test that want a key.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use dial::{Dialer, Resolve, ResolveError};
use domain::SessionId;
use egress::{Admitted, Broker, Denied, Limits, Rule, Rules, Surroundings};
use lifecycle::Tasks;
use link::server::{Carrier, Connection};
use policy::{Decision, Outcome};
use protocol::{Denial, Refusal, RefusalCode};
use rustls::RootCertStore;
use secret::Secret;
use testkit::clients::{self, HOSTS, KEY, answer};
use testkit::upstream::{Authority, Upstream};

const RULES: &str = r#"
[keyed]
hosts = ["api.client.test", "npm.client.test", "pypi.client.test"]
networks = ["127.0.0.0/8"]
inject = [{ kind = "bearer", secret = "env:KEY" }]
[git]
hosts = ["git.client.test"]
networks = ["127.0.0.0/8"]
git = { repositories = ["acme/app"], write = true, secret = "env:KEY" }
[passed]
hosts = ["pass.client.test"]
networks = ["127.0.0.0/8"]
"#;

/// The broker, and the folder in which the git server's repository is.
pub(crate) struct Outside {
    broker: Broker,
    session: SessionId,
    folder: PathBuf,
    authority: Authority,
    _upstream: Upstream,
}

impl Outside {
    pub(super) async fn new(session: SessionId, folder: &Path, tasks: &Tasks) -> Self {
        let authority = tokio::task::spawn_blocking(clients::authority).await.unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let (audit, mut told) = egress::audit_queue();
        tasks.spawn_until_stopped(async move { while told.next().await.is_some() {} });
        let rules: BTreeMap<String, Rule> = toml::from_str(RULES).unwrap();
        let key = BTreeMap::from([("env:KEY".parse().unwrap(), Secret::new(KEY))]);
        let furnished = folder.to_owned();
        let upstream = Upstream::start(&authority, &HOSTS, move |arrived| answer(&furnished, arrived)).await;
        let surroundings = Surroundings {
            rules: Rules::new(rules).unwrap_or_else(|mistakes| panic!("{mistakes:?}")),
            limits: Limits::default(),
            decide: Arc::new(|_, _, _| Decision {
                outcome: Outcome::Allow,
                reason: "the test allows all".to_owned(),
                layer: "test".to_owned(),
                rule: "egress.test".to_owned(),
            }),
            dialer: Dialer::new(Arc::new(Names(upstream.address())), dial::Settings::default()),
            secrets: Arc::new(key),
            roots: Arc::new(roots),
            audit,
            tasks: tasks.child(),
            clock: egress::machine_clock(),
        };
        Self {
            broker: Broker::new(&folder.join("egress"), surroundings).unwrap(),
            session,
            folder: folder.to_owned(),
            authority,
            _upstream: upstream,
        }
    }

    /// Whom a sandbox is told to trust.
    pub(super) fn authorities(&self) -> String {
        self.broker.authorities().unwrap()
    }

    /// Who signs for the servers outside.
    pub(super) fn upstream_authority(&self) -> String {
        self.authority.pem()
    }

    /// What git was pushed.
    pub(super) fn pushed(&self) -> PathBuf {
        clients::pushed(&self.folder)
    }

    pub(crate) fn resolve(&self, name: &str) -> Result<(), Refusal> {
        self.broker.resolve(self.session, name).map_err(refusal)
    }

    pub(crate) fn connect(&self, host: &str, port: u16) -> Result<Box<dyn Carrier>, Refusal> {
        let admitted = self.broker.admit(self.session, host, port).map_err(refusal)?;
        Ok(Box::new(Brokered(admitted)))
    }
}

fn refusal(denied: Denied) -> Refusal {
    let denial = Denial {
        reason: denied.code.as_str().to_owned(),
        rule: denied.rule.clone(),
        remedy: Some(denied.remedy.clone()),
    };
    Refusal {
        denial: Some(denial),
        ..Refusal::new(RefusalCode::Denied, denied.reason)
    }
}

struct Brokered(Admitted);

#[async_trait]
impl Carrier for Brokered {
    async fn carry(self: Box<Self>, near: Box<dyn Connection>) {
        self.0.carry(near).await;
    }
}

/// All names lead to the one server.
struct Names(Ipv4Addr);

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if HOSTS.contains(&name) {
            return Ok(vec![self.0.into()]);
        }
        Err(ResolveError::NoAddress { name: name.to_owned() })
    }
}
