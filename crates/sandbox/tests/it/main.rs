//! The simulator does what every provider must do.

use std::sync::Arc;

use sandbox::conformance::{self, Subject};
use sandbox::{ImageDigest, Limits, ProviderError, SandboxProvider, SandboxSpec, SandboxState, Simulator, dialing};

/// What the simulator cannot be asked.
const PART_OF_THIS: &str = "the simulator is a part of the process that tries it";

async fn conforms(keeps: Result<(), &'static str>) {
    let image = ImageDigest::from_bytes([1; 32]);
    let simulator = Arc::new(Simulator::new([image.clone()], dialing()).expect("a simulator"));
    simulator.keep_processes(keeps.is_ok());
    let provider: Arc<dyn SandboxProvider> = simulator.clone();
    let world = simulator.clone();
    conformance::run(Subject {
        shell: world.shell(),
        kill: Err(PART_OF_THIS),
        confined: Err("a simulated sandbox is a task, and commands run on the machine"),
        disk_limited: Err(PART_OF_THIS),
        own_uids: Err(PART_OF_THIS),
        keeps,
        at_once: 100,
        provider,
        image,
        limits: Limits::default(),
        restart: Box::new(move |old| {
            let next = Arc::new(simulator.restarted().expect("the simulator started anew"));
            drop(old);
            Box::pin(async move { next as Arc<dyn SandboxProvider> })
        }),
    })
    .await;
}

#[tokio::test]
async fn the_simulator_conforms() {
    conforms(Err("this one was told not to")).await;
}

#[tokio::test]
async fn the_simulator_conforms_where_it_keeps_processes() {
    conforms(Ok(())).await;
}

#[tokio::test]
async fn faults_can_be_ordered() {
    let image = ImageDigest::from_bytes([1; 32]);
    let simulator = Simulator::new([image.clone()], dialing()).unwrap();
    let spec = SandboxSpec {
        id: domain::SandboxId::new(),
        session: domain::SessionId::new(),
        image,
        limits: Limits::default(),
        builder: false,
    };
    simulator.fail_next_create(ProviderError::Unavailable("for a test".into()));
    assert!(matches!(
        simulator.create(&spec).await,
        Err(ProviderError::Unavailable(_))
    ));
    simulator.create(&spec).await.unwrap();
    assert!(simulator.kill(spec.id));
    let status = simulator.status(spec.id).await.unwrap();
    assert!(matches!(status.state, SandboxState::Dead { .. }), "{status:?}");
    assert!(matches!(
        simulator.freeze(spec.id).await,
        Err(ProviderError::Dead { .. })
    ));
    simulator.destroy(spec.id).await.unwrap();
}
