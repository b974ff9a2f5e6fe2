//! Secrets of the installation: no model is sent one, and none that says one is shown or believed.

use std::sync::Arc;

use control::{Outside, Position, Watched};
use domain::{Block, Delivery, Delta, Event};
use futures::StreamExt;
use protocol::ModelRoute;
use secret::Secret;
use serde_json::{Value, json};
use store::{Asker, Target};
use testkit::model_server::{Answer, Speech};
use testkit::within;

use crate::world::{Differs, MakeOutside, World, in_both_placements_with};

/// A secret of a service, and how it is told in parts that are none.
const SECRET: &str = "sk-planted-4f9/x+Q";
const IN_PARTS: &str = "join sk-planted -4f9/x+Q";
const MASK: &str = "******************";

fn knowing(secret: &'static str) -> MakeOutside {
    Arc::new(move |_, _| Outside {
        secrets: vec![Secret::new(secret).into()],
        ..Outside::default()
    })
}

fn differs() -> Differs {
    Differs {
        outside: knowing(SECRET),
        ..Differs::default()
    }
}

/// The bodies that were sent, up to the end of their messages, without marks for caches.
fn sent(world: &World) -> Vec<String> {
    let prefix = |bytes: &[u8]| {
        let body = String::from_utf8(bytes.to_vec()).unwrap();
        let body = body.replace(",\"cache_control\":{\"type\":\"ephemeral\"}", "");
        let end = body.rfind("],\"max_tokens\"").unwrap();
        body[..end].to_owned()
    };
    world.models.received().iter().map(|sent| prefix(&sent.bytes)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_138_no_model_is_sent_a_secret_whoever_brought_it() {
    in_both_placements_with(differs, async |world| {
        let key = world.models.key().to_owned();
        world.will_call(&[("a", IN_PARTS)]);
        world.will_call(&[("b", &format!("join {}", &key.replace("-test-", "-test- ")))]);
        let first = world.prompt(&format!("mine is {SECRET}, and yours is {key}")).await;
        world.done(&first).await;
        let world = world.restarted().await;
        let second = world
            .prompt_to(Target::Session(first.session), "and now?", Delivery::Restart)
            .await;
        world.done(&second).await;
        let sent = sent(&world);
        assert_eq!(sent.len(), 4);
        for body in &sent {
            assert!(!body.contains(SECRET) && !body.contains(&key), "{body}");
        }
        // The prompt, and what the two tools said.
        assert!(sent[3].matches(MASK).count() >= 4, "{}", sent[3]);
        for pair in sent.windows(2) {
            assert!(pair[1].starts_with(&pair[0]), "{}\n{}", pair[0], pair[1]);
        }
        world.assert_whole(first.session).await;
    })
    .await;
}

/// Who pastes a key into a conversation, and has it configured afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn threat_138_what_was_stored_before_a_secret_was_known_is_sent_without_it() {
    let mut world = World::new(Differs::default()).await;
    let first = world.prompt(&format!("use {SECRET}")).await;
    world.done(&first).await;
    assert!(sent(&world)[0].contains(SECRET), "nobody knows that it is one");
    world.outside = knowing(SECRET);
    let world = world.restarted().await;
    let second = world
        .prompt_to(Target::Session(first.session), "now", Delivery::Restart)
        .await;
    world.done(&second).await;
    let sent = sent(&world);
    assert!(!sent[1].contains(SECRET) && sent[1].contains(MASK), "{}", sent[1]);
}

/// A model that says the secret in the middle of everything that it may say, torn over pieces.
fn telling() -> Speech {
    let torn = |text: &str| -> Vec<String> { text.chars().map(String::from).collect() };
    Speech {
        // A piece of a thought is 200 letters.
        thinking: Some(format!("{}{SECRET} it is", "x".repeat(195))),
        text: torn(&format!("I know it: {SECRET}. And {}", &SECRET[..10])),
        ..Speech::text("")
    }
    .call("b", "exec", &json!({"code": format!("say {SECRET}")}))
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_138_a_reply_with_a_secret_is_neither_shown_nor_stored() {
    in_both_placements_with(differs, async |world| {
        world.will_call(&[("a", "wait")]);
        world.models.next(Answer::Say(telling()));
        world.will_say("Done.");
        let accepted = world.prompt("go").await;
        world.inside.made_so_many(1).await;
        let watched = world
            .control
            .watch(world.asker, accepted.session, Position::default())
            .await
            .unwrap();
        let mut watched = Box::pin(watched);
        let (mut text, mut thinking, mut events) = (String::new(), String::new(), String::new());
        within("the run to end", async {
            loop {
                let seen = watched.next().await.unwrap().unwrap().1;
                // Who watches has begun to.
                world.inside.release();
                match seen {
                    Watched::Event(event) => {
                        events.push_str(&serde_json::to_string(&event.event).unwrap());
                        if matches!(&event.event, Event::Run { state, .. } if state.is_final()) {
                            break;
                        }
                    }
                    Watched::Delta(delta) => match delta.as_ref() {
                        Delta::Text { text: more, .. } => text.push_str(more),
                        Delta::Thinking { text: more, .. } => thinking.push_str(more),
                        Delta::ToolProgress { .. } => {}
                    },
                }
            }
        })
        .await;
        let expected = format!("I know it: {MASK}. And {}", &SECRET[..10]);
        assert!(text.contains(&expected), "nothing else is lost: {text}");
        assert!(thinking.ends_with(&format!("x{MASK} it is")), "{thinking}");
        for shown in [&text, &thinking, &events] {
            assert!(!shown.contains(SECRET), "{shown}");
        }
        let messages = world.messages(accepted.session).await;
        let told = messages.iter().find(|message| message.blocks.len() == 3).unwrap();
        assert!(
            matches!(&told.blocks[1], Block::Text { text } if *text == expected),
            "{told:?}"
        );
        assert!(
            world.inside.made().contains(&format!("say {MASK}")),
            "{:?}",
            world.inside.made()
        );
        let folder = world.store_path();
        let files = std::fs::read_dir(folder.parent().unwrap()).unwrap();
        for file in files.filter_map(|file| std::fs::read(file.unwrap().path()).ok()) {
            let found = file.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
            assert!(!found, "it was stored");
        }
        // What it is told of its own words is the same from then on.
        let sent = sent(&world);
        assert!(
            sent[2].starts_with(&sent[1]) && !sent[2].contains(SECRET),
            "{}",
            sent[2]
        );
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_138_a_program_hears_and_tells_no_secret() {
    let world = World::new(differs()).await;
    world.will_call(&[("a", "wait")]);
    let accepted = world.prompt("go").await;
    world.inside.made_so_many(1).await;
    let (_, client) = world.inside.newest();
    let ask = async |words: String| {
        let body = json!({
            "model": "m", "max_tokens": 1_000, "stream": true,
            "messages": [{"role": "user", "content": [{"type": "text", "text": words}]}],
        });
        let pieces = futures::stream::iter([Ok(body.to_string().into())]).boxed();
        let mut answer = client
            .model(ModelRoute::Messages, [], pieces)
            .await
            .map_err(|error| error.to_string())?;
        let mut said = Vec::new();
        while let Some(piece) = within("more of the answer", answer.body.chunk()).await.unwrap() {
            said.extend_from_slice(&piece);
        }
        Ok::<_, String>(String::from_utf8(said).unwrap())
    };
    let count = world.models.count();
    let refused = ask(format!("it is {SECRET}")).await.unwrap_err();
    assert!(refused.contains("holds a secret of this installation"), "{refused}");
    assert_eq!(world.models.count(), count, "nothing was sent");
    world.models.next(Answer::Say(Speech::text(&format!("it is_{SECRET}"))));
    let said = ask("go".to_owned()).await.unwrap();
    assert!(said.contains(&format!("is_{MASK}")) && !said.contains(SECRET), "{said}");
    for line in said.lines().filter_map(|line| line.strip_prefix("data: ")) {
        serde_json::from_str::<Value>(line).unwrap();
    }
    // In pieces, in all that a model writes.
    world.models.next(Answer::Say(telling()));
    let said = ask("go".to_owned()).await.unwrap();
    let lines = said.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let joined = |pointer: &str| {
        let pieces = events.iter().filter_map(|event| event.pointer(pointer)?.as_str());
        pieces.collect::<String>()
    };
    let text = joined("/delta/text");
    assert_eq!(text, format!("I know it: {MASK}. And {}", &SECRET[..10]));
    let thinking = joined("/delta/thinking");
    assert!(thinking.ends_with(&format!("x{MASK} it is")), "{thinking}");
    let input: Value = serde_json::from_str(&joined("/delta/partial_json")).unwrap();
    assert_eq!(input, json!({ "code": format!("say {MASK}") }));
    world.will_say("Done.");
    world.inside.release();
    world.done(&accepted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_138_a_summary_keeps_no_secret() {
    let world = World::new(Differs {
        model: |model| {
            model.window = Some(16_000);
            model.max_output = Some(2_000);
        },
        ..differs()
    })
    .await;
    for id in ["a", "b", "c"] {
        let mut speech = crate::world::calling(&[(id, "long 12000")]);
        speech.input = if id == "c" { 10_500 } else { 3_500 };
        speech.output = 20;
        world.models.next(Answer::Say(speech));
    }
    world.will_say(&format!("They gave {SECRET}."));
    world.will_say("Done.");
    let accepted = world.prompt("three long things").await;
    world.done(&accepted).await;
    let summary = world
        .events(accepted.session)
        .await
        .into_iter()
        .find_map(|event| match event.event {
            Event::Compacted { summary, .. } => Some(summary),
            _ => None,
        });
    assert!(summary.unwrap().contains(&format!("They gave {MASK}.")));
    let last = sent(&world).pop().unwrap();
    assert!(last.contains(MASK) && !last.contains(SECRET), "{last}");
    let stored = world
        .store
        .messages(Asker::System, accepted.session, 0, 100)
        .await
        .unwrap();
    assert!(!format!("{stored:?}").contains(SECRET));
}
