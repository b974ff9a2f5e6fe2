//! Pictures that no model can read are not taken, and those that a provider refuses end no session.

use control::{ControlError, NewPrompt};
use domain::{Block, Delivery, Door, Image};
use providers::{ModelSettings, ProviderKind};
use store::Target;
use testkit::model_server::Answer;

use crate::world::{Differs, World};

/// A picture of 3 × 2 pixels.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAEElEQVR42mP8zwAFTDAGAwATKQEDGNmoCwAAAABJRU5ErkJggg==";
const LEFT_OUT: &str = "[A picture was left out: the model's provider refused it.]";

const DIALECTS: [fn(&mut ModelSettings); 3] = [
    |model| model.provider = ProviderKind::Anthropic,
    |model| model.provider = ProviderKind::Openai,
    |model| model.provider = ProviderKind::OpenaiChat,
];

fn showing(target: Target, media_type: &str, data: &str) -> NewPrompt {
    let image = Image {
        media_type: media_type.to_owned(),
        data: data.to_owned(),
    };
    let mut prompt = NewPrompt::words(target, Door::Api, "what is this?");
    prompt.blocks.push(Block::Image(image));
    prompt
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_no_provider_could_read_is_no_prompt() {
    let world = World::new(Differs::default()).await;
    for (media_type, data, expected) in [
        ("image/png", "AAAA", "it is none of"),
        ("image/png", &PNG[..40], "it is a broken image/png"),
        ("image/png", "iVBORw0KGgo*", "its base64 is malformed"),
        ("image/jpeg", PNG, "it is image/png, and said to be \"image/jpeg\""),
        ("image/svg+xml", "PHN2Zz48L3N2Zz4=", "it is none of"),
    ] {
        let refused = world
            .control
            .prompt(world.asker, showing(world.target(), media_type, data))
            .await;
        let Err(ControlError::Invalid(words)) = refused else {
            panic!("{media_type} {data}: {refused:?}");
        };
        assert!(words.contains(expected), "{words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_a_provider_refuses_is_left_out_from_then_on() {
    for model in DIALECTS {
        let world = World::new(Differs {
            model,
            ..Differs::default()
        })
        .await;
        let refusing = || Answer::Status {
            status: 400,
            retry_after: None,
            message: "messages.2.content.1.image.source.base64: Could not process image".to_owned(),
        };
        let ask = async |target: Target| {
            let prompt = showing(target, "image/png", PNG);
            let accepted = world.control.prompt(world.asker, prompt).await.unwrap();
            world.done(&accepted).await;
            accepted.session
        };
        // The first is fine, and stays; the second is not.
        let session = ask(world.target()).await;
        world.models.next(refusing());
        world.will_say("I see one of them.");
        ask(Target::Session(session)).await;
        let last = world
            .prompt_to(Target::Session(session), "And now?", Delivery::Restart)
            .await;
        world.done(&last).await;
        let sent: Vec<String> = world
            .models
            .received()
            .iter()
            .map(|sent| String::from_utf8(sent.bytes.to_vec()).unwrap())
            .collect();
        let pictures: Vec<(usize, usize)> = sent
            .iter()
            .map(|body| (body.matches(PNG).count(), body.matches(LEFT_OUT).count()))
            .collect();
        assert_eq!(pictures, [(1, 0), (2, 0), (1, 1), (1, 1)]);
        // One that was fine once may be too much beside others: then none is shown.
        world.models.next(refusing());
        let last = world
            .prompt_to(Target::Session(session), "And now?", Delivery::Restart)
            .await;
        world.done(&last).await;
        // Another process learns it anew.
        let world = world.restarted().await;
        world.models.next(refusing());
        let last = world
            .prompt_to(Target::Session(session), "And then?", Delivery::Restart)
            .await;
        world.done(&last).await;
        let body = String::from_utf8(world.models.received().pop().unwrap().bytes.to_vec()).unwrap();
        assert_eq!((body.matches(PNG).count(), body.matches(LEFT_OUT).count()), (0, 2));
        // The messages themselves are as they were.
        let kept = world.messages(session).await;
        let kept = kept.iter().flat_map(|message| &message.blocks);
        assert_eq!(kept.filter(|block| matches!(block, Block::Image(_))).count(), 2);
    }
}
