//! The way out: the scope and the broker decide, and what was tried is written down.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use control::{NewFork, NewPrompt, Outside};
use dial::{Dialer, Resolve, ResolveError};
use domain::{ApprovalAnswer, Delivery, Door, Event};
use egress::{Broker, Limits, Rule, Rules, Surroundings};
use lifecycle::Tasks;
use link::client::Tunnel;
use policy::Scope;
use rustls::RootCertStore;
use sandbox::capture::Synthetic;
use secret::{Reference, Secret};
use serde_json::{Value, json};
use store::{Accepted, ApprovalFilter, Target};
use testkit::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::world::{Differs, MakeOutside, World};

/// Every name is at these addresses.
struct At(Vec<IpAddr>);

#[async_trait]
impl Resolve for At {
    async fn resolve(&self, _: &str) -> Result<Vec<IpAddr>, ResolveError> {
        Ok(self.0.clone())
    }
}

/// No name is at any address: what is let through is told by the words of what comes after.
pub(crate) fn outside() -> MakeOutside {
    outside_at(json!({"hosts": ["docs.example.com"]}), Vec::new())
}

/// One rule, and every name at these addresses.
fn outside_at(rule: Value, addresses: Vec<IpAddr>) -> MakeOutside {
    Arc::new(move |folder, _| {
        let folder = folder.join("egress");
        let (rule, addresses) = (rule.clone(), addresses.clone());
        Outside {
            egress: Some(Box::new(move |decide, audit, tasks| {
                let rules: BTreeMap<String, Rule> = [("docs".to_owned(), serde_json::from_value(rule).unwrap())].into();
                let surroundings = Surroundings {
                    rules: Rules::new(rules).unwrap(),
                    limits: Limits::default(),
                    decide,
                    dialer: Dialer::new(Arc::new(At(addresses)), dial::Settings::default()),
                    secrets: Arc::new(BTreeMap::<Reference, Secret>::new()),
                    roots: Arc::new(RootCertStore::empty()),
                    audit,
                    tasks,
                    clock: egress::machine_clock(),
                };
                Broker::new(&folder, surroundings)
            })),
            ..Outside::default()
        }
    })
}

fn differs() -> Differs {
    Differs {
        config: |config| {
            let scope = json!({"egress": ["docs.example.com", "other.example.com"]});
            config
                .policies
                .roles
                .insert("everybody".to_owned(), serde_json::from_value(scope).unwrap());
        },
        outside: outside(),
        ..Differs::default()
    }
}

async fn tried(world: &World, target: Target, code: &str) -> (store::Accepted, String) {
    world.will_call(&[("a", code)]);
    world.will_say("So be it.");
    let accepted = world.prompt_to(target, "go", Delivery::Restart).await;
    world.done(&accepted).await;
    let said = world.said(accepted.session).await;
    let result = said.iter().rev().nth(1).cloned().unwrap();
    (accepted, result)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_known_where_scope_and_rules_both_say_so() {
    let world = World::new(differs()).await;
    let (accepted, result) = tried(&world, world.target(), "resolve docs.example.com").await;
    assert!(result.contains("resolved"), "{result}");
    let target = Target::Session(accepted.session);
    for (code, denied) in [
        ("resolve other.example.com", "other.example.com"),
        ("resolve evil.example.com", "evil.example.com"),
        ("connect evil.example.com 443", "evil.example.com"),
        ("connect docs.example.com 22", "docs.example.com"),
    ] {
        let (_, result) = tried(&world, target.clone(), code).await;
        assert!(
            !result.contains("resolved") && !result.contains("connected"),
            "{code}: {result}"
        );
        let is = |event: &Event| matches!(event, Event::EgressDenied { host, .. } if host == denied);
        world.event(accepted.session, "the refusal to be shown", is).await;
    }
    // The way out is taken away with a prompt.
    world.will_call(&[("a", "resolve docs.example.com")]);
    world.will_say("So be it.");
    let prompt = NewPrompt {
        scope: Some(serde_json::from_value(json!({"egress": []})).unwrap()),
        ..NewPrompt::words(target, Door::Api, "go")
    };
    let narrowed = world.control.prompt(world.asker, prompt).await.unwrap();
    world.done(&narrowed).await;
    let said = world.said(narrowed.session).await;
    assert!(!said.iter().rev().nth(1).unwrap().contains("resolved"), "{said:?}");
    testkit::eventually_async("the refusals to be written down", async || {
        (world.audited("egress.denied").await.len() >= 5).then_some(())
    })
    .await;
    let denied = world.audited("egress.denied").await;
    assert_eq!(denied.len(), 5, "{denied:#?}");
    let layer = |host: &str| {
        let facts = denied.iter().map(|record| &record.entry.facts);
        let mut layers = facts.filter(|facts| facts.host.as_deref() == Some(host));
        layers.next_back().and_then(|facts| facts.layer.clone())
    };
    assert_eq!(layer("evil.example.com").as_deref(), Some("installation"));
    assert!(
        layer("docs.example.com").is_some_and(|layer| layer.starts_with("session")),
        "{denied:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_keeps_its_address_in_every_sandbox_of_its_session_and_in_its_forks() {
    let world = World::new(differs()).await;
    let (other, result) = tried(&world, world.target(), "resolve other.example.com").await;
    assert!(!result.contains("resolved"), "what no rule names has none: {result}");
    let (accepted, result) = tried(&world, world.target(), "resolve docs.example.com").await;
    assert!(result.contains("resolved to Some(0)"), "{result}");
    let new = NewFork {
        count: 1,
        snapshot: None,
        scope: None,
    };
    let fork = world.control.fork(world.asker, accepted.session, new).await.unwrap()[0].id;
    let address = Synthetic::of(0);
    let refused = Synthetic::of(1);
    // A fork has a sandbox of its own, in which nobody ever asked for the name.
    for session in [fork, accepted.session] {
        for (address, connects) in [
            (IpAddr::from(address.v4), true),
            (address.v6.into(), true),
            (refused.v4.into(), false),
        ] {
            let code = format!("connect {address} 443");
            let (_, result) = tried(&world, Target::Session(session), &code).await;
            assert_eq!(result.contains("connected"), connects, "{code}: {result}");
        }
        let (_, result) = tried(&world, Target::Session(session), "resolve docs.example.com").await;
        assert!(result.contains("resolved to Some(0)"), "{result}");
    }
    // In a session that has not asked it stands for nothing.
    let code = format!("connect {} 443", address.v4);
    let (_, result) = tried(&world, Target::Session(other.session), &code).await;
    assert!(!result.contains("connected"), "{result}");
}

/// Two hosts that say everything back, at a port of this machine. Webhooks may reach one of them.
fn two_hosts() -> Differs {
    let rule = json!({
        "hosts": ["kept.example.com:*", "cut.example.com:*", "asked.example.com:*"],
        "schemes": ["tcp"],
        "networks": ["127.0.0.1"],
    });
    Differs {
        config: |config| {
            let egress = json!({"allow": ["kept.example.com:*", "cut.example.com:*"], "ask": ["asked.example.com:*"]});
            let role = json!({"egress": egress, "tools": {"exec": true}});
            let role = serde_json::from_value(role).unwrap();
            config.policies.roles.insert("everybody".to_owned(), role);
            config.policies.doors.insert("webhook", kept_alone());
        },
        outside: outside_at(rule, vec!["127.0.0.1".parse().unwrap()]),
        ..Differs::default()
    }
}

fn kept_alone() -> Scope {
    serde_json::from_value(json!({"egress": ["kept.example.com:*"], "tools": {"exec": true}})).unwrap()
}

/// Says everything back, to everybody who connects.
async fn echo(tasks: &Tasks) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let own = tasks.clone();
    tasks.spawn_until_stopped(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            own.spawn_until_stopped(async move {
                let (mut read, mut write) = stream.split();
                // Who hangs up has heard enough.
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    port
}

/// An open connection of a sandbox.
struct Open(Tunnel);

impl Open {
    /// The host has answered on it.
    async fn to(world: &World, host: &str, port: u16) -> Self {
        let (_, client) = world.inside.newest();
        let mut open = Self(client.connect(host, port).await.unwrap());
        open.is_open().await;
        open
    }

    async fn is_open(&mut self) {
        let said = async {
            let mut heard = [0; 4];
            self.0.write_all(b"said").await.unwrap();
            self.0.read_exact(&mut heard).await.unwrap();
            heard
        };
        assert_eq!(&within("the host to answer", said).await, b"said");
    }

    async fn is_closed(&mut self) {
        let mut heard = [0; 1];
        let read = within("the connection to be closed", self.0.read(&mut heard)).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
}

/// A run that goes on, and connections of its sandbox to both hosts.
async fn connected(world: &World, port: u16) -> (Accepted, Open, Open) {
    world.will_call(&[("a", "hang")]);
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(1).await;
    let kept = Open::to(world, "kept.example.com", port).await;
    let cut = Open::to(world, "cut.example.com", port).await;
    (accepted, kept, cut)
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_012_what_a_narrowed_scope_denies_is_closed_and_the_rest_stays_open() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let port = echo(&tasks).await;
    for by_prompt in [false, true] {
        let world = World::new(two_hosts()).await;
        let (accepted, mut kept, mut cut) = connected(&world, port).await;
        let target = Target::Session(accepted.session);
        if by_prompt {
            // It waits for the run, and its scope counts at once.
            let prompt = NewPrompt {
                scope: Some(kept_alone()),
                delivery: Delivery::Queue,
                ..NewPrompt::words(target, Door::Api, "go on")
            };
            world.control.prompt(world.asker, prompt).await.unwrap();
        } else {
            let scope = kept_alone();
            let narrowed = world
                .control
                .open_session(world.asker, target, Door::Api, "", Some(&scope));
            narrowed.await.unwrap();
        }
        cut.is_closed().await;
        kept.is_open().await;
        // Nor is it opened again.
        let (_, client) = world.inside.newest();
        assert!(client.connect("cut.example.com", port).await.is_err());
        Open::to(&world, "kept.example.com", port).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_012_a_run_by_a_narrower_door_closes_what_the_one_before_opened() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let port = echo(&tasks).await;
    let world = World::new(two_hosts()).await;
    world.will_call(&[("a", "work")]);
    world.will_say("Done.");
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    let mut kept = Open::to(&world, "kept.example.com", port).await;
    let mut cut = Open::to(&world, "cut.example.com", port).await;
    world.will_say("Done.");
    let hooked = NewPrompt::words(Target::Session(accepted.session), Door::Webhook, "go on");
    let hooked = world.control.prompt(world.asker, hooked).await.unwrap();
    world.done(&hooked).await;
    cut.is_closed().await;
    kept.is_open().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_012_what_was_approved_once_is_closed_when_its_run_ends() {
    let tasks = Tasks::new();
    let _end = tasks.stop().drop_guard();
    let port = echo(&tasks).await;
    let world = World::new(two_hosts()).await;
    world.will_call(&[("a", "wait")]);
    world.will_say("Done.");
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(1).await;
    let (_, client) = world.inside.newest();
    assert!(client.connect("asked.example.com", port).await.is_err());
    let filter = ApprovalFilter {
        session: Some(accepted.session),
        state: None,
    };
    let asked = world.control.approvals(world.asker, filter, 10).await.unwrap();
    let [approval] = &asked[..] else { panic!("{asked:?}") };
    let seen = format!("{:?}", approval.sha256);
    let decided = world
        .control
        .decide(world.asker, approval.id, ApprovalAnswer::Once, None, &seen);
    decided.await.unwrap();
    let mut once = Open::to(&world, "asked.example.com", port).await;
    let mut kept = Open::to(&world, "kept.example.com", port).await;
    world.inside.release();
    world.done(&accepted).await;
    once.is_closed().await;
    kept.is_open().await;
}
