//! Anything is killed at any moment: the run goes on or ends cleanly, nothing is lost, doubled or done twice.

use std::collections::HashSet;

use domain::{Block, Event, NumberedEvent, Placement, ToolCallId};
use futures::StreamExt;
use store::Accepted;
use testkit::within;

use crate::world::{Differs, World};

#[derive(Clone, Copy, Debug)]
enum Killed {
    Sandbox,
    ControlPlane,
    Both,
}

/// Two rounds of tools, the first with a call that takes longer than the others, and an answer. What is asked again is answered
/// again.
async fn begun(placement: Placement) -> (World, Accepted) {
    let world = World::new(Differs {
        placement,
        ..Differs::default()
    })
    .await;
    world.will_call(&[("a", "one"), ("long", "wait"), ("b", "two")]);
    world.will_call(&[("c", "three")]);
    world.models.always(testkit::model_server::Answer::text("Done."));
    let accepted = world.prompt("go").await;
    (world, accepted)
}

/// Waits for the event of this number, and gives the calls that were told to have ended well by then; none where the run ended
/// before it. The long call ends when the others have.
async fn reached(world: &World, accepted: &Accepted, number: i64) -> Option<HashSet<ToolCallId>> {
    let events = world
        .control
        .watch(world.asker, accepted.session, 0.into())
        .await
        .unwrap();
    let mut events = Box::pin(events);
    let mut ended = HashSet::new();
    within("an event, or the end", async {
        loop {
            let control::Watched::Event(event) = events.next().await.unwrap().unwrap().1 else {
                continue;
            };
            if let Event::ToolEnded {
                call, is_error: false, ..
            } = &event.event
            {
                ended.insert(call.clone());
            }
            if event.number == number {
                return Some(ended);
            }
            if ended.len() == 2 {
                world.inside.release();
            }
            if is_end(&event) {
                return None;
            }
        }
    })
    .await
}

fn is_end(event: &NumberedEvent) -> bool {
    matches!(event.event, Event::Run { state, .. } if state.is_final())
}

async fn killed_at_every_event(placement: Placement, killed: Killed) {
    let mut number = 1;
    loop {
        let (mut world, accepted) = begun(placement).await;
        let Some(ended) = reached(&world, &accepted, number).await else {
            break;
        };
        if matches!(killed, Killed::Sandbox | Killed::Both) && world.inside.sandboxes() > 0 {
            world.sandboxes.kill(world.inside.newest().0);
        }
        if matches!(killed, Killed::ControlPlane | Killed::Both) {
            world = world.restarted().await;
        }
        world.inside.release();
        world.done(&accepted).await;
        let said = world.said(accepted.session).await;
        assert_eq!(said[0], "ada: go", "at {number}: {said:?}");
        assert_eq!(said.last().unwrap(), "m: Done.", "at {number}: {said:?}");
        let messages = world.messages(accepted.session).await;
        for block in messages.iter().flat_map(|message| &message.blocks) {
            if let Block::ToolResult(result) = block {
                let kept = !ended.contains(&result.id) || !result.is_error;
                assert!(kept, "at {number} the result of {} is lost: {said:?}", result.id);
            }
        }
        let mut made = world.inside.made();
        let calls = made.len();
        made.sort_unstable();
        made.dedup();
        assert_eq!(made.len(), calls, "at {number} a call was made twice: {said:?}");
        world.assert_whole(accepted.session).await;
        let spend = world
            .store
            .session_spend(store::Asker::System, accepted.session)
            .await
            .unwrap();
        assert_eq!(spend.reserved, domain::Money::ZERO);
        number += 1;
    }
    assert!(number > 10, "{number}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_killed_at_every_event() {
    killed_at_every_event(Placement::Sandbox, Killed::Sandbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_killed_at_every_event_with_the_loop_here() {
    killed_at_every_event(Placement::ControlPlane, Killed::Sandbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_planes_killed_at_every_event() {
    killed_at_every_event(Placement::Sandbox, Killed::ControlPlane).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_planes_killed_at_every_event_with_the_loop_here() {
    killed_at_every_event(Placement::ControlPlane, Killed::ControlPlane).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_killed_at_every_event() {
    killed_at_every_event(Placement::Sandbox, Killed::Both).await;
    killed_at_every_event(Placement::ControlPlane, Killed::Both).await;
}
