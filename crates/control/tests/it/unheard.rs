//! An order is carried out and its answer is lost, as when the host agent dies in between: nothing is there twice, nothing is
//! nobody's, and the session goes on with its files.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use control::{NewFork, WarmPool};
use domain::{Delivery, SessionId};
use futures::StreamExt;
use sandbox::{SandboxProvider, SandboxState};
use store::{Asker, Target};
use testkit::eventually_async;

use crate::world::{Differs, World, in_both_placements_with};

fn sleepy() -> Differs {
    Differs {
        config: |config| {
            config.freeze_after = Duration::from_millis(50);
            config.hibernate_after = Duration::from_secs(1);
        },
        ..Differs::default()
    }
}

impl World {
    /// A run with a call, and a file of its session's.
    async fn used(&self, target: Target, call: &str) -> SessionId {
        self.will_call(&[(call, call)]);
        self.will_say("Done.");
        let accepted = self.prompt_to(target, "go", Delivery::Queue).await;
        self.done(&accepted).await;
        accepted.session
    }

    async fn put(&self, session: SessionId, words: &'static str) {
        let bytes = futures::stream::iter([Ok(Bytes::from_static(words.as_bytes()))]).boxed();
        let upload = self.control.upload(self.asker, session, "notes", bytes);
        upload.await.unwrap();
    }

    async fn got(&self, session: SessionId) -> String {
        let file = self.control.download(self.asker, session, "notes").await.unwrap();
        let bytes: Vec<Bytes> = file.map(Result::unwrap).collect().await;
        String::from_utf8(bytes.concat()).unwrap()
    }

    /// Waits until the answer that is to be lost is lost.
    async fn unheard(&self, what: &str) {
        eventually_async(what, async || self.host.answers().then_some(())).await;
    }

    /// Each session has one sandbox at most, and each sandbox a session.
    async fn nothing_is_twice_or_nobodys(&self, sessions: &[SessionId]) {
        let all = self.sandboxes.list().await.unwrap();
        let owners: Vec<_> = all.iter().map(|status| status.session).collect();
        let distinct: BTreeSet<_> = owners.iter().copied().collect();
        assert_eq!(distinct.len(), owners.len(), "{all:?}");
        assert!(distinct.iter().all(|owner| sessions.contains(owner)), "{all:?}");
        let mut made = self.inside.made();
        let calls = made.len();
        made.sort_unstable();
        made.dedup();
        assert_eq!(made.len(), calls, "a call was made twice: {made:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_was_made_or_removed_unheard_costs_its_session_nothing() {
    in_both_placements_with(sleepy, async |world| {
        world.host.lose_answer("create");
        let session = world.used(world.target(), "made").await;
        world.unheard("the sandbox to be made").await;
        world.put(session, "kept").await;
        for (step, call) in [
            ("freeze", "frozen"),
            ("thaw", "thawed"),
            ("destroy", "removed"),
            ("create", "woken"),
        ] {
            world.host.lose_answer(step);
            if step == "create" {
                let all = world.sandboxes.list().await.unwrap();
                for status in all {
                    world.control.remove_sandbox(Asker::System, status.id).await.unwrap();
                }
            }
            // Some come by themselves, and some when it is used.
            let _ = world.control.files(world.asker, session, "").await;
            if step == "thaw" {
                eventually_async("it to be thawed", async || {
                    let all = world.sandboxes.list().await.unwrap();
                    // It is left alone until it is frozen, which it is for a while.
                    if all.iter().all(|status| status.state == SandboxState::Frozen) {
                        let _ = world.control.files(world.asker, session, "").await;
                    }
                    world.host.answers().then_some(())
                })
                .await;
            }
            world.unheard(step).await;
            world.used(Target::Session(session), call).await;
            assert_eq!(world.got(session).await, "kept", "after {step}");
            world.nothing_is_twice_or_nobodys(&[session]).await;
        }
        world.assert_whole(session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_given_away_unheard_costs_its_session_nothing() {
    let differs = || Differs {
        config: |config| {
            config.warm = WarmPool {
                least: 1,
                most: 1,
                remember: Duration::from_secs(600),
            };
        },
        ..Differs::default()
    };
    in_both_placements_with(differs, async |world| {
        eventually_async("one to be made ahead", async || {
            (world.control.sandbox_figures().warm == 1).then_some(())
        })
        .await;
        world.host.lose_answer("assign");
        let session = world.used(world.target(), "given").await;
        world.unheard("it to be given away").await;
        world.put(session, "kept").await;
        assert_eq!(world.got(session).await, "kept");
        let all = world.sandboxes.list().await.unwrap();
        let its = all.iter().filter(|status| status.session == session);
        assert_eq!(its.count(), 1, "{all:?}");
        world.assert_whole(session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_was_made_restored_or_removed_unheard_costs_its_session_nothing() {
    in_both_placements_with(Differs::default, async |world| {
        let session = world.used(world.target(), "made").await;
        world.put(session, "first").await;
        let save = async |name: &str| {
            let name = Some(name.to_owned());
            world.control.save_snapshot(world.asker, session, name).await
        };
        world.host.lose_answer("snapshot");
        save("unheard").await.unwrap_err();
        assert!(world.host.answers());
        save("heard").await.unwrap();
        world.put(session, "second").await;

        // Going back is owed to the session: whoever uses it next finds what it went back to.
        world.host.lose_answer("restore");
        let _ = world.control.rewind(world.asker, session, "heard").await;
        world.unheard("the snapshot to be restored").await;
        world.used(Target::Session(session), "back").await;
        assert_eq!(world.got(session).await, "first");

        world.put(session, "third").await;
        world.host.lose_answer("restore");
        let fork = NewFork {
            count: 2,
            snapshot: None,
            scope: None,
        };
        let forks = world.control.fork(world.asker, session, fork).await.unwrap();
        world.unheard("a fork to be made").await;
        let mut sessions = vec![session];
        for fork in &forks {
            world.used(Target::Session(fork.id), &fork.id.to_string()).await;
            assert_eq!(world.got(fork.id).await, "third");
            sessions.push(fork.id);
        }

        world.host.lose_answer("remove_snapshot");
        let _ = world.control.remove_snapshot(world.asker, session, "heard").await;
        let list = world.control.snapshots(world.asker, session).await.unwrap();
        assert!(
            list.snapshots
                .iter()
                .all(|kept| kept.name.as_deref() != Some("unheard"))
        );
        world.used(Target::Session(session), "on").await;
        assert_eq!(world.got(session).await, "third");
        world.nothing_is_twice_or_nobodys(&sessions).await;
        for session in sessions {
            world.assert_whole(session).await;
        }
    })
    .await;
}
