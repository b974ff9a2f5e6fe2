//! A runtime that somebody took over.

use control::{Position, Watched};
use domain::{Delivery, Delta};
use futures::StreamExt;
use serde_json::json;
use store::Target;
use testkit::model_server::{Answer, Speech};
use testkit::within;

use crate::world::{Differs, World};

#[tokio::test(flavor = "multi_thread")]
async fn threat_115_an_endless_piece_of_output_is_shown_in_its_beginning_only() {
    let world = World::new(Differs::default()).await;
    world.will_call(&[("a", "shout 4000000")]);
    world.will_say("That was loud.");
    let accepted = world.prompt("go").await;
    let watched = world
        .control
        .watch(world.asker, accepted.session, Position::default())
        .await
        .unwrap();
    let mut watched = Box::pin(watched);
    let shown = within("the piece", async {
        loop {
            if let Watched::Delta(delta) = watched.next().await.unwrap().unwrap().1
                && let Delta::ToolProgress { text, .. } = delta.as_ref()
            {
                return text.clone();
            }
        }
    })
    .await;
    assert!(shown.starts_with("ää") && shown.len() < 100_000, "{}", shown.len());
    world.inside.release();
    world.done(&accepted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_as_deep_as_can_be_is_stored_and_read_again() {
    let world = World::new(Differs::default()).await;
    let deep = (0..126).fold(json!(1), |inner, _| json!([inner]));
    world.models.next(Answer::Say(Speech::text("Down.").call(
        "a",
        "exec",
        &json!({ "code": deep }),
    )));
    world.will_say("And up again.");
    let accepted = world.prompt("dig").await;
    world.done(&accepted).await;
    let world = world.restarted().await;
    world.will_say("Still here.");
    let next = world
        .prompt_to(Target::Session(accepted.session), "more", Delivery::Restart)
        .await;
    world.done(&next).await;
    world.assert_whole(accepted.session).await;
}
