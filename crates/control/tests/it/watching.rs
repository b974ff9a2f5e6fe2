//! Nothing is lost and nothing doubled for those who look on.

use std::sync::Arc;

use control::{Position, Watched};
use domain::{Delta, Event, SessionId};
use futures::StreamExt;
use store::Asker;
use testkit::model_server::{Answer, Speech};
use testkit::within;

use crate::world::{Differs, World};

/// What a watcher has seen: events by number, and the text of each message that was written before its eyes.
#[derive(Default)]
struct Seen {
    numbers: Vec<i64>,
    text: String,
    whole: Option<String>,
    over: bool,
}

impl Seen {
    fn take(&mut self, watched: &Watched) {
        match watched {
            Watched::Event(event) => {
                self.numbers.push(event.number);
                match &event.event {
                    Event::MessageOpened { .. } => self.text.clear(),
                    Event::Message { message } => {
                        if let Some(domain::Block::Text { text }) = message.blocks.first() {
                            self.whole = Some(text.clone());
                        }
                    }
                    Event::Run { state, .. } if state.is_final() => self.over = true,
                    _ => {}
                }
            }
            Watched::Delta(delta) => match delta.as_ref() {
                Delta::Text { offset, text, .. } => {
                    assert_eq!(*offset, self.text.len() as u64, "lost or doubled");
                    self.text.push_str(text);
                }
                Delta::Thinking { .. } | Delta::ToolProgress { .. } => {}
            },
        }
    }

    fn assert_whole(&self) {
        let expected: Vec<i64> = (1..=self.numbers.len() as i64).collect();
        assert_eq!(self.numbers, expected);
    }
}

/// Watches to the end of the run; leaves and comes back after every `patience` things seen.
async fn watcher(world: Arc<World>, session: SessionId, patience: usize) -> Seen {
    let mut seen = Seen::default();
    let mut position = Position::default();
    while !seen.over {
        // As it travels: in the id of a server-sent event.
        position = position.to_string().parse().unwrap();
        let watched = world.control.watch(world.asker, session, position).await.unwrap();
        let mut watched = Box::pin(watched.take(patience));
        while let Some(next) = watched.next().await {
            let (at, watched) = next.unwrap();
            position = at;
            seen.take(&watched);
            if seen.over {
                break;
            }
        }
    }
    seen
}

async fn watched_by(watchers: usize, words: usize) {
    let world = Arc::new(World::new(Differs::default()).await);
    world.will_call(&[("a", "wait")]);
    let text = "word ".repeat(words);
    world.models.next(Answer::Say(Speech::text(&text)));
    let accepted = world.prompt("go").await;
    let tasks = lifecycle::Tasks::new();
    let watching: Vec<_> = (0..watchers)
        .map(|number| tasks.spawn(watcher(Arc::clone(&world), accepted.session, 1 + number % 7)))
        .collect();
    world.inside.made_so_many(1).await;
    world.inside.release();
    let last = world.events(accepted.session);
    for watching in watching {
        let seen = within("a watcher to see the end", watching).await.unwrap();
        seen.assert_whole();
        assert_eq!(seen.whole.as_deref(), Some(text.as_str()));
    }
    drop(last);
    world.assert_whole(accepted.session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_watchers_who_come_and_go_see_everything_once() {
    watched_by(1_000, 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_text_is_seen_whole_by_those_who_come_and_go() {
    watched_by(20, 5_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_prompt_takes_no_words_from_the_answer_under_way() {
    let world = Arc::new(World::new(Differs::default()).await);
    let text = "word ".repeat(20_000);
    world.models.next(Answer::Say(Speech::text(&text)));
    let mut prompt = control::NewPrompt::words(world.target(), domain::Door::Webhook, "go");
    prompt.request_key = Some("delivery".to_owned());
    let accepted = world.control.prompt(world.asker, prompt.clone()).await.unwrap();
    let tasks = lifecycle::Tasks::new();
    let watching = tasks.spawn(watcher(Arc::clone(&world), accepted.session, usize::MAX));
    prompt.target = store::Target::Session(accepted.session);
    while !watching.is_finished() {
        assert!(
            world
                .control
                .prompt(world.asker, prompt.clone())
                .await
                .unwrap()
                .repeated
        );
    }
    let seen = within("the watcher", watching).await.unwrap();
    seen.assert_whole();
    assert_eq!(seen.text, text);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_late_and_to_another_process_sees_the_same() {
    let mut world = World::new(Differs::default()).await;
    world.will_call(&[("a", "one"), ("b", "two")]);
    world.will_say("Done.");
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    world = world.restarted().await;
    let stored = world.events(accepted.session).await;
    let watched = world
        .control
        .watch(world.asker, accepted.session, 0.into())
        .await
        .unwrap();
    let watched = watched.take(stored.len()).map(|next| match next.unwrap().1 {
        Watched::Event(event) => event.as_ref().clone(),
        Watched::Delta(delta) => panic!("{delta:?}"),
    });
    let watched: Vec<_> = within("all events", watched.collect()).await;
    assert_eq!(watched, stored);
    let beyond = Position::from(stored.len() as i64 + 1);
    assert!(
        world
            .control
            .watch(world.asker, accepted.session, beyond)
            .await
            .is_err()
    );
    assert!(world.store.session(Asker::System, accepted.session).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_of_sessions_stays_within_bounds_and_watchers_miss_nothing() {
    const MOST: usize = 1 << 20;
    let differs = Differs {
        config: |config| config.memory_bytes = MOST,
        ..Differs::default()
    };
    let world = Arc::new(World::new(differs).await);
    let text = "x".repeat(MOST / 8);
    let mut sessions = Vec::new();
    for _ in 0..3 {
        world.will_say("One.");
        let accepted = world.prompt(&text).await;
        world.done(&accepted).await;
        sessions.push(accepted.session);
        for _ in 0..4 {
            world.will_say("And one more.");
            let target = store::Target::Session(accepted.session);
            let next = world.prompt_to(target, &text, domain::Delivery::Restart).await;
            world.done(&next).await;
            // The history of the session that was used last may be more than all may keep.
            assert!(world.control.kept_bytes() <= 2 * MOST, "{}", world.control.kept_bytes());
        }
    }
    assert!(world.control.kept_bytes() > 0);
    for session in sessions {
        let newest = world.store.session(Asker::System, session).await.unwrap().events;
        let watched = world.control.watch(world.asker, session, 0.into()).await.unwrap();
        let watched = watched.take(usize::try_from(newest).unwrap());
        let numbers = watched.map(|next| next.unwrap().0.number);
        let numbers: Vec<i64> = within("all events", numbers.collect()).await;
        assert_eq!(numbers, (1..=newest).collect::<Vec<_>>());
        world.assert_whole(session).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_watches_what_is_kept_by_nobody_misses_nothing() {
    let differs = Differs {
        config: |config| config.memory_bytes = 0,
        ..Differs::default()
    };
    let world = Arc::new(World::new(differs).await);
    world.will_call(&[("a", "wait")]);
    let text = "word ".repeat(500);
    world.models.next(Answer::Say(Speech::text(&text)));
    let accepted = world.prompt("go").await;
    let tasks = lifecycle::Tasks::new();
    let watching: Vec<_> = [1, 5, usize::MAX]
        .map(|patience| tasks.spawn(watcher(Arc::clone(&world), accepted.session, patience)))
        .into();
    world.inside.made_so_many(1).await;
    world.inside.release();
    for watching in watching {
        let seen = within("a watcher to see the end", watching).await.unwrap();
        seen.assert_whole();
        assert_eq!(seen.whole.as_deref(), Some(text.as_str()));
    }
}
