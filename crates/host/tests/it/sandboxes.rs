//! Sandboxes through the host API are like sandboxes without it.

use std::error::Error;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use domain::{InstallationId, SessionId, SnapshotId};
use lifecycle::Tasks;
use sandbox::conformance::{self, Subject};
use sandbox::{Limits, ProviderError, SandboxProvider, SandboxSpec};

use crate::agent::{Agent, Slow, image, simulator, spec};

#[tokio::test]
async fn a_provider_behind_the_host_api_conforms() {
    conforms(Err("the simulator was told not to")).await;
}

#[tokio::test]
async fn a_provider_behind_the_host_api_conforms_where_it_keeps_processes() {
    conforms(Ok(())).await;
}

async fn conforms(keeps: Result<(), &'static str>) {
    let tasks = Tasks::new();
    let first = Arc::new(simulator());
    first.keep_processes(keeps.is_ok());
    let agent = Arc::new(Agent::start(Arc::clone(&first) as _, 0));
    let client = agent.client(&tasks);
    let shell = first.shell();
    let machines = Arc::new(Mutex::new(first));
    let simulated = "behind this host API is the simulator";
    let suite = conformance::run(Subject {
        shell,
        kill: Err(simulated),
        confined: Err(simulated),
        disk_limited: Err(simulated),
        own_uids: Err(simulated),
        keeps,
        at_once: 100,
        provider: Arc::new(client),
        image: image(),
        limits: Limits::default(),
        // The host agent is ended and started anew; the client stays the same, and finds it again.
        restart: Box::new(move |client| {
            let (agent, machines) = (Arc::clone(&agent), Arc::clone(&machines));
            Box::pin(async move {
                let restarted = Arc::new(machines.lock().unwrap().restarted().unwrap());
                *machines.lock().unwrap() = Arc::clone(&restarted);
                agent.restart(restarted).await;
                client
            })
        }),
    });
    testkit::within("the suite", suite).await;
}

#[tokio::test]
async fn another_installation_is_refused_and_finds_nothing_to_remove() {
    let tasks = Tasks::new();
    let machines = Arc::new(simulator());
    let agent = Agent::start(Arc::clone(&machines) as _, 0);
    let (own, wanted) = (agent.client(&tasks), spec());
    own.create(&wanted).await.unwrap();

    let other = InstallationId::new();
    for restarted in [false, true] {
        if restarted {
            agent.restart(Arc::clone(&machines) as _).await;
        }
        let other = agent.client_of(other, &tasks);
        let errors = [
            other.list().await.unwrap_err(),
            other.destroy(wanted.id).await.unwrap_err(),
            other.remove_disk(wanted.session).await.unwrap_err(),
            other.create(&spec()).await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, ProviderError::Unavailable(_)), "{error:?}");
            assert!(
                error.to_string().contains("sandboxes of another installation"),
                "{error}"
            );
        }
        assert_eq!(own.list().await.unwrap().len(), 1);
    }
    // Control planes that share a store share its sandboxes.
    let same = agent.client(&tasks);
    assert_eq!(same.list().await.unwrap(), own.list().await.unwrap());
}

#[tokio::test]
async fn orders_given_together_are_answered_together() {
    let tasks = Tasks::new();
    let agent = Agent::start(Arc::new(simulator()), 0);
    let client = Arc::new(agent.client(&tasks));
    let specs: Vec<SandboxSpec> = (0..100).map(|_| spec()).collect();
    let creating: Vec<_> = specs
        .iter()
        .map(|spec| {
            let (client, spec) = (Arc::clone(&client), spec.clone());
            tasks.spawn(async move { client.create(&spec).await.unwrap().id })
        })
        .collect();
    for (spec, creating) in specs.iter().zip(creating) {
        assert_eq!(testkit::within("a sandbox", creating).await.unwrap(), spec.id);
    }
    assert_eq!(client.list().await.unwrap().len(), 100);
}

#[tokio::test]
async fn an_order_is_carried_out_though_its_giver_is_gone() {
    let slow = Slow::new();
    let agent = Agent::start(Arc::clone(&slow) as _, 0);
    let (wanted, giver) = (spec(), Tasks::new());
    let client = agent.client(&giver);
    let order = wanted.clone();
    giver.spawn_until_stopped(async move {
        let _ = client.create(&order).await;
    });
    testkit::within("the order to be begun", slow.begun.acquire())
        .await
        .unwrap()
        .forget();
    assert!(giver.shut_down(std::time::Duration::from_secs(30)).await);
    slow.go_on.add_permits(1);

    let tasks = Tasks::new();
    let other = agent.client(&tasks);
    testkit::eventually_async("the sandbox", async || other.status(wanted.id).await.ok()).await;
}

#[tokio::test]
async fn a_slow_order_holds_up_no_other() {
    let slow = Slow::new();
    let agent = Agent::start(Arc::clone(&slow) as _, 0);
    let tasks = Tasks::new();
    let client = Arc::new(agent.client(&tasks));
    let creating = {
        let client = Arc::clone(&client);
        tasks.spawn(async move { client.create(&spec()).await })
    };
    testkit::within("the order to be begun", slow.begun.acquire())
        .await
        .unwrap()
        .forget();
    assert_eq!(testkit::within("the list", client.list()).await.unwrap(), []);
    slow.go_on.add_permits(1);
    testkit::within("the sandbox", creating).await.unwrap().unwrap();
}

#[tokio::test]
async fn however_many_disks_are_to_be_copied_other_orders_are_carried_out() {
    let slow = Slow::new();
    let agent = Agent::start(Arc::clone(&slow) as _, 0);
    let tasks = Tasks::new();
    let client = Arc::new(agent.client(&tasks));
    let keeping: Vec<_> = (0..100)
        .map(|_| {
            let client = Arc::clone(&client);
            tasks.spawn(async move { client.snapshot(SessionId::new(), SnapshotId::new()).await })
        })
        .collect();
    testkit::within("a copy to be begun", slow.begun.acquire())
        .await
        .unwrap()
        .forget();
    assert_eq!(testkit::within("the list", client.list()).await.unwrap(), []);
    slow.go_on.add_permits(100);
    for keeping in keeping {
        let kept = testkit::within("an answer", keeping).await.unwrap();
        assert!(matches!(kept, Err(ProviderError::NoDisk(_))), "{kept:?}");
    }
}

#[tokio::test]
async fn an_agent_that_ends_finishes_what_it_began_and_says_so() {
    let slow = Slow::new();
    let agent = Agent::start(Arc::clone(&slow) as _, 0);
    let tasks = Tasks::new();
    let client = Arc::new(agent.client(&tasks));
    let wanted = spec();
    let creating = {
        let (client, wanted) = (Arc::clone(&client), wanted.clone());
        tasks.spawn(async move { client.create(&wanted).await })
    };
    testkit::within("the order to be begun", slow.begun.acquire())
        .await
        .unwrap()
        .forget();
    // The agent closes its door, and ends when what it began is done.
    let letting = async {
        testkit::eventually_async("the door to be closed", async || {
            UnixStream::connect(agent.socket()).err()
        })
        .await;
        slow.go_on.add_permits(1);
    };
    testkit::within("the agent's end", async { tokio::join!(agent.end(), letting) }).await;
    agent.restart(Arc::new(slow.simulator.restarted().unwrap())).await;
    let made = testkit::within("the answer", creating).await.unwrap().unwrap();
    assert_eq!(made.id, wanted.id);
}

#[tokio::test]
async fn an_error_arrives_with_its_kind_and_its_sources() {
    let simulator = Arc::new(simulator());
    let agent = Agent::start(Arc::clone(&simulator) as _, 0);
    let tasks = Tasks::new();
    let client = agent.client(&tasks);
    simulator.fail_next_create(ProviderError::failed(
        "mount the disk",
        std::io::Error::other("it is wet"),
    ));
    let error = client.create(&spec()).await.unwrap_err();
    assert_eq!(error.to_string(), "could not mount the disk");
    assert_eq!(error.source().unwrap().to_string(), "it is wet");
    simulator.fail_next_create(ProviderError::Machine { lacks: "nft".into() });
    let error = client.create(&spec()).await.unwrap_err();
    assert!(matches!(error, ProviderError::Machine { lacks } if lacks == "nft"));
}
