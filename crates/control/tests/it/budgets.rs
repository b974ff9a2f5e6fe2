//! Money: what is spent and reserved never exceeds a cap, and every call is paid once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::NewPrompt;
use domain::{Delivery, Door, Event, Money, RunState};
use providers::SettingsPrice;
use rusqlite::Connection;
use store::{Asker, Caps, Spend, Target, TriggerCap};
use testkit::model_server::{Answer, Speech};

use crate::world::{Differs, PRICE, World, in_both_placements_with};

fn spoken(input: u64, cached: u64, output: u64) -> Answer {
    Answer::Say(Speech {
        input,
        cached,
        output,
        ..Speech::text("Here you are.")
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_127_a_hundred_at_once_with_a_cent_left_stay_below_the_cap() {
    let world = World::new(Differs {
        config: |config| {
            config.caps.day = Some(Money(200_000_000));
            config.budget_wait = Duration::from_millis(300);
            config.tools.clear();
            config.parallel_runs = 100;
        },
        placement: domain::Placement::ControlPlane,
        ..Differs::default()
    })
    .await;
    // $0.006 each.
    world.models.always(spoken(1_000, 0, 200));
    let watch = Watch::begin(world.store_path());
    let prompts = (0..100).map(|_| world.prompt("go"));
    let accepted = futures::future::join_all(prompts).await;
    let mut done = 0;
    for accepted in &accepted {
        let run = world.ended(accepted.session, accepted.run).await;
        match run.state {
            RunState::Done => done += 1,
            RunState::Failed => {
                let code = run.code.unwrap();
                assert!(["budget_exhausted", "budget_busy"].contains(&code.as_str()), "{code}");
            }
            other => panic!("{other:?}"),
        }
    }
    let looks = watch.end();
    for seen in &looks {
        assert!(seen.spent.plus(seen.reserved) <= Money(200_000_000), "{seen:?}");
    }
    assert!(looks.iter().any(|seen| seen.reserved > Money::ZERO), "{looks:?}");
    for accepted in &accepted {
        let spend = world
            .store
            .session_spend(Asker::System, accepted.session)
            .await
            .unwrap();
        assert_eq!(spend.reserved, Money::ZERO);
    }
    let left = Spend {
        spent: Money(done * 6_000_000),
        reserved: Money::ZERO,
    };
    assert_eq!(look(&Connection::open(world.store_path()).unwrap()), left);
    assert!(done > 0);
}

/// What is spent and reserved of all money, in one statement: what is read one after the other is from different moments, and
/// money moves between them.
fn look(store: &Connection) -> Spend {
    let sums =
        "SELECT (SELECT COALESCE(SUM(cost), 0) FROM ledger), (SELECT COALESCE(SUM(amount), 0) FROM reservations)";
    let sums = store.query_row(sums, [], |row| Ok((row.get(0)?, row.get(1)?)));
    let (spent, reserved) = sums.unwrap();
    Spend {
        spent: Money(spent),
        reserved: Money(reserved),
    }
}

/// Looks at all money as long as it lives.
struct Watch {
    over: Arc<AtomicBool>,
    looks: JoinHandle<Vec<Spend>>,
}

impl Watch {
    fn begin(path: PathBuf) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let looks = std::thread::spawn(move || {
            let store = Connection::open(path).unwrap();
            let mut looks = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                looks.push(look(&store));
                looks.dedup();
            }
            looks
        });
        Self { over, looks }
    }

    /// What was seen until now, each as long as it stayed so.
    fn end(self) -> Vec<Spend> {
        self.over.store(true, Ordering::SeqCst);
        self.looks.join().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_128_a_stream_that_would_cross_the_cap_is_cut() {
    in_both_placements_with(
        || Differs {
            config: |config| config.caps.run = Some(Money(80_000_000)),
            ..Differs::default()
        },
        async |world| {
            // A provider that takes no notice of max_tokens.
            let mut endless = Speech::text(&"word ".repeat(40_000));
            endless.output = 40_000;
            world.models.next(Answer::Stall(endless, 40_000));
            let accepted = world.prompt("go").await;
            let run = world.ended(accepted.session, accepted.run).await;
            assert_eq!(
                (run.state, run.code.as_deref()),
                (RunState::Failed, Some("budget_exhausted"))
            );
            let spend = world
                .store
                .session_spend(Asker::System, accepted.session)
                .await
                .unwrap();
            assert!(
                spend.spent > Money::ZERO && spend.spent <= Money(80_000_000),
                "{spend:?}"
            );
            assert_eq!(spend.reserved, Money::ZERO);
            let said = world.said(accepted.session).await;
            assert!(
                said[1].starts_with("m: word word") && said[1].ends_with("[cut]"),
                "{}",
                said.len()
            );
            let asked = world.models.received()[0].body["max_tokens"].as_u64().unwrap();
            assert!(asked < 8_000, "{asked}");
            world.assert_whole(accepted.session).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_128_arguments_and_thoughts_that_would_cross_the_cap_are_cut() {
    in_both_placements_with(
        || Differs {
            config: |config| config.caps.run = Some(Money(80_000_000)),
            ..Differs::default()
        },
        async |world| {
            for endless in [Speech::endless_call(), Speech::endless_thought()] {
                world.models.next(Answer::Stall(endless, 40_000));
                let accepted = world.prompt("go").await;
                let run = world.ended(accepted.session, accepted.run).await;
                assert_eq!(
                    (run.state, run.code.as_deref()),
                    (RunState::Failed, Some("budget_exhausted"))
                );
                let spend = world
                    .store
                    .session_spend(Asker::System, accepted.session)
                    .await
                    .unwrap();
                // It is charged what it wrote, of which nothing is shown.
                assert!(
                    spend.spent > Money(40_000_000) && spend.spent <= Money(80_000_000),
                    "{spend:?}"
                );
                assert_eq!(spend.reserved, Money::ZERO);
                let said = world.said(accepted.session).await.join("\n");
                assert!(!said.contains("exec"), "half a call is none: {said}");
                world.assert_whole(accepted.session).await;
            }
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_128_a_summary_that_would_cross_the_cap_is_cut() {
    let words = || Speech::text(&"word ".repeat(40_000));
    for endless in [words(), Speech::endless_call(), Speech::endless_thought()] {
        let world = World::new(Differs {
            model: |model| {
                model.window = Some(16_000);
                model.max_output = Some(2_000);
            },
            config: |config| config.caps.session = Some(Money::dollars(2)),
            ..Differs::default()
        })
        .await;
        for id in ["a", "b", "c"] {
            let mut speech = crate::world::calling(&[(id, "long 12000")]);
            speech.input = if id == "c" { 10_500 } else { 3_500 };
            speech.output = 20;
            world.models.next(Answer::Say(speech));
        }
        world.models.next(Answer::Stall(endless, 40_000));
        let accepted = world.prompt("three long things").await;
        let run = world.ended(accepted.session, accepted.run).await;
        assert_eq!(
            (run.state, run.code.as_deref()),
            (RunState::Failed, Some("budget_exhausted")),
            "{:?}",
            run.reason
        );
        let spend = world
            .store
            .session_spend(Asker::System, accepted.session)
            .await
            .unwrap();
        assert!(spend.spent <= Money(500_000_000), "{spend:?}");
        assert_eq!(spend.reserved, Money::ZERO);
        assert_eq!(world.ledger().await.len() as u64, world.models.count());
        world.assert_whole(accepted.session).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_127_a_model_that_stands_in_has_what_the_first_one_left() {
    let world = World::new(Differs {
        config: |config| {
            config.caps.run = Some(Money(110_000_000));
            config.tools.clear();
        },
        model: |model| {
            model.fallback = vec!["spare".to_owned()];
            model.price = Some(SettingsPrice {
                cache_read: Some(3.0),
                cache_write: Some(3.0),
                cache_write_hour: Some(3.0),
                ..PRICE
            });
        },
        ..Differs::default()
    })
    .await;
    let long = || Speech {
        input: 30_000,
        output: 300,
        ..Speech::text("Here you are.")
    };
    // It counts its input, and says nothing of use: $0.09 of $0.11 are gone.
    world.models.next(Answer::Malformed(long(), 1));
    world.models.next(Answer::Say(long()));
    let accepted = world.prompt(&"word ".repeat(6_000)).await;
    let run = world.ended(accepted.session, accepted.run).await;
    let spend = world
        .store
        .session_spend(Asker::System, accepted.session)
        .await
        .unwrap();
    assert!(
        spend.spent > Money::ZERO && spend.spent <= Money(110_000_000),
        "{spend:?}"
    );
    assert_eq!((run.state, world.models.count()), (RunState::Failed, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_129_a_call_that_nobody_answered_is_charged_its_input() {
    let world = World::new(Differs {
        config: |config| config.caps.session = Some(Money::dollars(10)),
        ..Differs::default()
    })
    .await;
    // It has the request, and the one who asked changes their mind before the first word.
    world.models.next(Answer::Silent);
    let first = world.prompt(&"word ".repeat(6_000)).await;
    testkit::eventually_async("the call to be under way", async || {
        (world.models.count() > 0).then_some(())
    })
    .await;
    // And it hangs up on the next one, which is made again.
    world.models.next(Answer::HangUp);
    world.models.next(spoken(9_000, 0, 10));
    let second = world
        .prompt_to(Target::Session(first.session), "no, this", Delivery::Restart)
        .await;
    world.done(&second).await;
    let ledger = world.ledger().await;
    assert_eq!(ledger.len() as u64, world.models.count(), "{ledger:#?}");
    for (entry, estimated) in ledger.iter().zip([true, false, true]) {
        assert_eq!(entry.estimated, estimated, "{ledger:#?}");
        assert!(entry.cost >= Money(9_000 * 3_000), "{ledger:#?}");
    }
    let spend = world.store.session_spend(Asker::System, first.session).await.unwrap();
    assert_eq!(spend.reserved, Money::ZERO);
    world.assert_whole(first.session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_129_who_cuts_a_model_that_may_think_unseen_pays_for_its_silence() {
    let world = World::new(Differs {
        config: |config| config.caps.session = Some(Money::dollars(10)),
        ..Differs::default()
    })
    .await;
    // Before its first word, and between two.
    for (number, answer) in [Answer::Silent, Answer::Stall(Speech::text("On and on"), 3)]
        .into_iter()
        .enumerate()
    {
        world.models.next(answer);
        let accepted = world.prompt("go").await;
        testkit::eventually_async("the model to be asked", async || {
            (world.models.count() > number as u64).then_some(())
        })
        .await;
        let asked = Instant::now();
        testkit::eventually_async("two seconds to pass, in which it may think", async || {
            (asked.elapsed() > Duration::from_secs(2)).then_some(())
        })
        .await;
        let cancelled = world.control.cancel(world.asker, accepted.session, "enough").await;
        assert_eq!(cancelled.unwrap().unwrap().state, RunState::Cancelled);
        let entry = testkit::eventually_async("the call to be charged", async || {
            world.ledger().await.get(number).cloned()
        })
        .await;
        assert!(entry.estimated, "{entry:?}");
        assert!(entry.cost >= Money(1_000 * 15_000), "{entry:?}");
        let spend = world
            .store
            .session_spend(Asker::System, accepted.session)
            .await
            .unwrap();
        assert_eq!((spend.spent, spend.reserved), (entry.cost, Money::ZERO));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_to_be_made_again_costs_nothing_when_its_run_is_cancelled_before() {
    let world = World::new(Differs {
        config: |config| config.caps.session = Some(Money::dollars(10)),
        ..Differs::default()
    })
    .await;
    world.models.next(Answer::Status {
        status: 429,
        retry_after: Some("2".to_owned()),
        message: "slow down".to_owned(),
    });
    let accepted = world.prompt("go").await;
    testkit::eventually_async("the retry to be told", async || {
        let events = world.events(accepted.session).await;
        let retry = |event: &Event| matches!(event, Event::ModelRetry { .. });
        events.iter().any(|event| retry(&event.event)).then_some(())
    })
    .await;
    world
        .control
        .cancel(world.asker, accepted.session, "enough")
        .await
        .unwrap();
    testkit::eventually_async("nothing to be reserved", async || {
        let spend = world
            .store
            .session_spend(Asker::System, accepted.session)
            .await
            .unwrap();
        (spend.reserved == Money::ZERO).then_some(())
    })
    .await;
    // Had the second attempt begun meanwhile, it would be paid.
    assert_eq!(world.ledger().await.len() as u64 + 1, world.models.count());
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_131_cached_reads_count_by_the_full_context() {
    let world = World::new(Differs {
        config: |config| {
            config.caps.session = Some(Money(400_000_000));
            config.tools.clear();
        },
        ..Differs::default()
    })
    .await;
    // The provider says that 100,000 tokens stood in its cache: the next call may cost them in full.
    world.models.next(spoken(10, 100_000, 5));
    let first = world.prompt("go").await;
    world.done(&first).await;
    let second = world
        .prompt_to(Target::Session(first.session), "more", Delivery::Restart)
        .await;
    let run = world.ended(first.session, second.run).await;
    assert_eq!(
        (run.state, run.code.as_deref()),
        (RunState::Failed, Some("budget_exhausted"))
    );
    assert_eq!(world.models.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_134_a_model_without_a_price_is_refused_where_a_cap_exists() {
    let world = World::new(Differs {
        config: |config| config.caps.day = Some(Money::dollars(1_000)),
        model: |model| model.price = None,
        ..Differs::default()
    })
    .await;
    let accepted = world.prompt("go").await;
    let run = world.ended(accepted.session, accepted.run).await;
    assert_eq!(
        (run.state, run.code.as_deref()),
        (RunState::Failed, Some("price_missing"))
    );
    assert_eq!(world.models.count(), 0);
    let free = World::new(Differs {
        model: |model| model.price = None,
        ..Differs::default()
    })
    .await;
    let accepted = free.prompt("go").await;
    free.done(&accepted).await;
    assert_eq!(free.ledger().await[0].cost, Money::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_136_only_configured_models_are_asked_under_their_own_names() {
    let world = World::new(Differs::default()).await;
    for name in ["M", "m ", "fake", "anthropic/m", "m\0", "../m", ""] {
        let mut prompt = NewPrompt::words(world.target(), Door::Api, "go");
        prompt.model = Some(name.to_owned());
        assert!(world.control.prompt(world.asker, prompt).await.is_err(), "{name:?}");
    }
    let mut prompt = NewPrompt::words(world.target(), Door::Api, "go");
    prompt.model = Some("m".to_owned());
    let accepted = world.control.prompt(world.asker, prompt).await.unwrap();
    world.done(&accepted).await;
    assert_eq!(world.models.received()[0].body["model"], "fake");
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_133_and_137_every_call_stands_in_the_ledger_once_with_its_price() {
    let world = World::new(Differs::default()).await;
    world.will_call(&[("a", "one")]);
    world.models.next(spoken(100, 1_000, 50));
    let accepted = world.prompt("go").await;
    world.done(&accepted).await;
    let ledger = world.ledger().await;
    assert_eq!(ledger.len() as u64, world.models.count());
    let last = &ledger[1];
    assert_eq!(last.cost, Money(100 * 3_000 + 1_000 * 300 + 50 * 15_000));
    assert!(!last.price_version.is_empty() && last.price_version == ledger[0].price_version);
    assert_eq!(last.day, domain::Timestamp::now().day());
    let told: Vec<Money> = world
        .events(accepted.session)
        .await
        .iter()
        .filter_map(|event| match &event.event {
            Event::Usage { cost, .. } => Some(*cost),
            _ => None,
        })
        .collect();
    assert_eq!(told, ledger.iter().map(|entry| entry.cost).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_138_no_session_is_sent_what_another_one_said() {
    let world = World::new(Differs::default()).await;
    let one = world.prompt("the word is heliotrope").await;
    world.done(&one).await;
    let two = world.prompt("what is the word?").await;
    world.done(&two).await;
    let sent = world.models.received();
    let second = String::from_utf8_lossy(&sent[1].bytes);
    assert!(!second.contains("heliotrope"), "{second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_140_a_call_under_way_when_the_process_dies_is_charged_its_reservation() {
    let mut world = World::new(Differs {
        config: |config| config.caps.session = Some(Money::dollars(10)),
        ..Differs::default()
    })
    .await;
    world.models.next(Answer::Stall(Speech::text("On and on"), 3));
    world.will_say("Anew, then.");
    let accepted = world.prompt("go").await;
    testkit::eventually_async("the call to be under way", async || {
        (world.models.count() > 0).then_some(())
    })
    .await;
    let before = world
        .store
        .session_spend(Asker::System, accepted.session)
        .await
        .unwrap();
    assert!(before.reserved > Money::ZERO && before.spent == Money::ZERO);
    world = world.restarted().await;
    world.done(&accepted).await;
    let after = world
        .store
        .session_spend(Asker::System, accepted.session)
        .await
        .unwrap();
    assert_eq!(after.reserved, Money::ZERO);
    assert!(after.spent > before.reserved, "{after:?} {before:?}");
    world.assert_whole(accepted.session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_window_is_summed_up_inside_a_long_loop() {
    in_both_placements_with(
        || Differs {
            model: |model| {
                model.window = Some(16_000);
                model.max_output = Some(2_000);
            },
            config: |config| {
                config.caps = Caps {
                    session: Some(Money::dollars(50)),
                    ..Caps::default()
                }
            },
            ..Differs::default()
        },
        async |world| {
            for id in ["a", "b", "c", "d"] {
                let mut speech = crate::world::calling(&[(id, "long 12000")]);
                speech.input = match id {
                    "a" => 3_500,
                    "c" => 10_500,
                    _ => 7_000,
                };
                speech.output = 20;
                world.models.next(Answer::Say(speech));
                if id == "c" {
                    world.will_say("They want four long things, and have three.");
                }
            }
            world.will_say("Done.");
            let accepted = world.prompt("four long things").await;
            world.done(&accepted).await;
            let compacted = world.events(accepted.session).await.into_iter().any(
                |event| matches!(event.event, Event::Compacted { summary, .. } if summary.contains("four long things")),
            );
            assert!(compacted);
            // The originals stay; what is sent begins with the summary, and parts no call from its result.
            assert!(world.said(accepted.session).await.len() > 10);
            let sent = world.models.received();
            let last = String::from_utf8_lossy(&sent.last().unwrap().bytes).into_owned();
            assert!(last.contains("They want four long things"), "{}", last.len());
            assert!(last.len() < 40_000, "{}", last.len());
            assert_eq!(world.ledger().await.len() as u64, world.models.count());
            world.assert_whole(accepted.session).await;
        },
    )
    .await;
}

/// The model that stands in has a window that the conversation never fit.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_a_smaller_window_sums_up_in_pieces_that_fit_it() {
    in_both_placements_with(
        || Differs {
            model: |model| model.fallback = vec!["spare".to_owned()],
            spare: |model| {
                model.window = Some(16_000);
                model.max_output = Some(2_000);
            },
            ..Differs::default()
        },
        async |world| {
            for (id, before) in ["a", "b", "c", "d", "e", "f", "g", "h"].into_iter().zip(0..) {
                let mut speech = crate::world::calling(&[(id, "long 12000")]);
                speech.input = 3_500 + before * 4_000;
                world.models.next(Answer::Say(speech));
            }
            for _ in 0..2 {
                world.models.next(Answer::status(529));
            }
            let answers = ["One.", "Two.", "Done."];
            for answer in answers {
                world.will_say(answer);
            }
            let accepted = world.prompt("eight long things").await;
            world.done(&accepted).await;
            let sent = world.models.received();
            assert_eq!(sent.len(), 8 + 2 + answers.len());
            let (before, after) = sent.split_at(10);
            assert!(before[9].bytes.len() > 96_000, "{}", before[9].bytes.len());
            for (place, sent) in after.iter().enumerate() {
                // Three letters are a token.
                assert!(sent.bytes.len() < 16_000 * 3, "{}", sent.bytes.len());
                let told = String::from_utf8_lossy(&sent.bytes);
                for (summary, answer) in answers.iter().enumerate() {
                    let stands_in = summary + 1 == place;
                    assert_eq!(told.contains(answer), stands_in, "request {place}, {answer}");
                }
            }
            world.assert_whole(accepted.session).await;
        },
    )
    .await;
}

/// What triggers may spend is held across the sessions and users that they are of, and the refusal says which cap it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_is_held_to_its_cap_and_the_refusal_names_it() {
    let world = World::new(Differs {
        config: |config| {
            config.caps.triggers = [TriggerCap {
                pattern: "api:night*".into(),
                most: Money(130_000_000),
            }]
            .into();
        },
        ..Differs::default()
    })
    .await;
    // $0.006 each, of $0.12 that the first may cost at most.
    world.models.always(spoken(1_000, 0, 200));
    let ask = async |caller: &str| {
        let prompt = NewPrompt {
            caller: Some(caller.into()),
            ..NewPrompt::words(world.target(), Door::Api, "go")
        };
        let accepted = world.control.prompt(world.asker, prompt).await.unwrap();
        world.ended(accepted.session, accepted.run).await
    };
    let mut ended = ask("nightly").await;
    assert_eq!(ended.trigger.as_str(), "api:nightly");
    for _ in 0..30 {
        if ended.state != RunState::Done {
            break;
        }
        ended = ask("nightly").await;
    }
    assert_eq!(
        (ended.state, ended.code.as_deref()),
        (RunState::Failed, Some("budget_exhausted"))
    );
    let reason = ended.reason.unwrap();
    assert!(reason.contains("for runs of api:night* today (UTC)"), "{reason}");
    assert_eq!(ask("by hand").await.state, RunState::Done, "another trigger");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_joins_a_run_is_reserved_for_before_it_is_told() {
    in_both_placements_with(
        || Differs {
            config: |config| config.caps.run = Some(Money(1_000_000_000)),
            ..Differs::default()
        },
        async |world| {
            world.will_call(&[("a", "wait")]);
            let accepted = world.prompt("go").await;
            world.inside.made_so_many(1).await;
            // As text it may be as many tokens as it has bytes: $2.40, at the dearest price of input.
            let joined = world
                .prompt_to(
                    Target::Session(accepted.session),
                    &"word ".repeat(80_000),
                    Delivery::Steer,
                )
                .await;
            assert_eq!(joined.run, accepted.run);
            world.inside.release();
            let run = world.ended(accepted.session, accepted.run).await;
            assert_eq!(
                (run.state, run.code.as_deref()),
                (RunState::Failed, Some("budget_exhausted"))
            );
            assert_eq!(world.models.count(), 1, "it was not asked with what it could not pay");
            let spend = world.store.session_spend(Asker::System, accepted.session);
            let spend = spend.await.unwrap();
            assert!(spend.spent <= Money(1_000_000_000), "{spend:?}");
            assert_eq!(spend.reserved, Money::ZERO);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sessions_own_scope_caps_what_it_spends_and_no_other() {
    in_both_placements_with(Differs::default, async |world| {
        // $0.006 each.
        world.models.always(spoken(1_000, 0, 200));
        let mut prompt = NewPrompt::words(world.target(), Door::Api, "go");
        prompt.scope = Some(serde_json::from_value(serde_json::json!({"limits": {"session_dollars": 0.05}})).unwrap());
        let capped = world.control.prompt(world.asker, prompt).await.unwrap();
        world.done(&capped).await;
        let mut refused = None;
        for _ in 0..9 {
            let next = world
                .prompt_to(Target::Session(capped.session), "again", Delivery::Restart)
                .await;
            let run = world.ended(next.session, next.run).await;
            if run.state == RunState::Failed {
                refused = run.code;
                break;
            }
        }
        assert_eq!(refused.as_deref(), Some("budget_exhausted"));
        let spend = world.store.session_spend(Asker::System, capped.session);
        let spend = spend.await.unwrap();
        assert!(
            spend.spent > Money::ZERO && spend.spent <= Money(50_000_000),
            "{spend:?}"
        );
        let free = world.prompt("go").await;
        world.done(&free).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_caps_what_its_user_spends_in_all_sessions() {
    in_both_placements_with(Differs::default, async |world| {
        // $0.006 each.
        world.models.always(spoken(1_000, 0, 200));
        let capped = async || {
            let mut prompt = NewPrompt::words(world.target(), Door::Api, "go");
            prompt.scope = Some(serde_json::from_value(serde_json::json!({"limits": {"user_dollars": 0.05}})).unwrap());
            let accepted = world.control.prompt(world.asker, prompt).await.unwrap();
            world.ended(accepted.session, accepted.run).await
        };
        let mut done = 0;
        let refused = loop {
            let run = capped().await;
            if run.state == RunState::Failed {
                break run.code;
            }
            done += 1;
            assert!(done < 9, "nine cost more than the cap");
        };
        assert_eq!(refused.as_deref(), Some("budget_exhausted"));
        assert!(done > 0, "what is below the cap is not refused");
        // Each of them was a session of its own; one without that scope goes on.
        let free = world.prompt("go").await;
        world.done(&free).await;
    })
    .await;
}
