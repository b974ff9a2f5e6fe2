//! Each step in the life of a session's sandbox is counted, with the time that it took.

use std::time::Duration;

use control::TransitionFigures;
use domain::{Delivery, Door, Event, SessionId};
use sandbox::SandboxProvider;
use store::Target;

use crate::files::{archive, both};
use crate::world::World;

fn step(world: &World, name: &str) -> TransitionFigures {
    let steps = world.control.sandbox_figures().transitions.into_iter();
    let mut named = steps.filter(|step| step.transition == name);
    named.next().unwrap_or_else(|| panic!("nobody counts {name}"))
}

async fn told(world: &World, session: SessionId, wanted: &str) {
    let is = |event: &Event| matches!(event, Event::Sandbox { state, .. } if state == wanted);
    world.event(session, wanted, is).await;
}

async fn used(world: &World, target: Target) -> SessionId {
    world.will_say("Done.");
    let accepted = world.prompt_to(target, "go", Delivery::Restart).await;
    world.done(&accepted).await;
    accepted.session
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_is_counted_where_it_went_well_and_where_it_failed() {
    let falls_asleep = both(
        |config| {
            config.freeze_after = Duration::from_millis(50);
            config.hibernate_after = Duration::from_secs(1);
        },
        |_| {},
    );
    let world = falls_asleep.await;
    let session = used(&world, world.target()).await;
    told(&world, session, "frozen").await;
    world.control.files(world.asker, session, "").await.unwrap();
    told(&world, session, "hibernated").await;
    used(&world, Target::Session(session)).await;
    let name = Some("kept".to_owned());
    world.control.save_snapshot(world.asker, session, name).await.unwrap();
    world.control.rewind(world.asker, session, "kept").await.unwrap();

    // A new one has no files to be kept.
    let opened = world
        .control
        .open_session(world.asker, world.target(), Door::Cli, "", None);
    let (new, _) = opened.await.unwrap();
    world
        .control
        .save_snapshot(world.asker, new.id, None)
        .await
        .unwrap_err();

    world.control.files(world.asker, session, "").await.unwrap();
    let all = world.sandboxes.list().await.unwrap();
    let its = all.iter().find(|status| status.session == session).unwrap();
    world.sandboxes.destroy(its.id).await.unwrap();
    used(&world, Target::Session(session)).await;
    archive(&world, session).await.unwrap();

    for (name, least) in [
        ("create", 4),
        ("claim_cold", 1),
        ("freeze", 2),
        ("thaw", 1),
        ("hibernate", 1),
        ("wake", 2),
        ("snapshot", 1),
        ("restore", 1),
        ("replace", 1),
        ("archive", 1),
        ("destroy", 3),
    ] {
        let step = step(&world, name);
        assert!(step.done >= least && !step.total.is_zero(), "{step:?}");
        let (_, within) = step.buckets.last().unwrap();
        assert_eq!(*within, step.done, "{step:?}");
        assert_eq!(step.failed, u64::from(name == "snapshot"), "{step:?}");
    }
}
