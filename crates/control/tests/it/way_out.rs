//! The way out: the scope and the broker decide, and what was tried is written down.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use control::{NewFork, NewPrompt, Outside};
use dial::{Dialer, Resolve, ResolveError};
use domain::{Delivery, Door, Event};
use egress::{Broker, Limits, Rule, Rules, Surroundings};
use rustls::RootCertStore;
use sandbox::capture::Synthetic;
use secret::{Reference, Secret};
use serde_json::json;
use store::Target;

use crate::world::{Differs, MakeOutside, World};

/// Nothing here is ever resolved: what is let through is told by the words of what comes after.
struct Nowhere;

#[async_trait]
impl Resolve for Nowhere {
    async fn resolve(&self, _: &str) -> Result<Vec<IpAddr>, ResolveError> {
        Ok(Vec::new())
    }
}

pub(crate) fn outside() -> MakeOutside {
    Arc::new(|folder, _| {
        let folder = folder.join("egress");
        Outside {
            egress: Some(Box::new(move |decide, audit, tasks| {
                let rules: BTreeMap<String, Rule> = [(
                    "docs".to_owned(),
                    serde_json::from_value(json!({"hosts": ["docs.example.com"]})).unwrap(),
                )]
                .into();
                let surroundings = Surroundings {
                    rules: Rules::new(rules).unwrap(),
                    limits: Limits::default(),
                    decide,
                    dialer: Dialer::new(Arc::new(Nowhere), dial::Settings::default()),
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
